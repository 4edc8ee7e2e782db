// SPDX-License-Identifier: Apache-2.0
// generation_config.json as real families and careless people write it.
#include "data/sampling_defaults.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "base/error.h"

namespace strata::data {
namespace {

class SamplingDefaultsTest : public testing::Test {
 protected:
  SamplingDefaultsTest() { std::filesystem::create_directories(dir_); }
  ~SamplingDefaultsTest() override { std::filesystem::remove_all(dir_); }

  SamplingDefaults load(const std::string& content, const NamedSampling& named = {}) {
    std::ofstream(dir_ / "generation_config.json") << content;
    return load_sampling_defaults(dir_.string(), named);
  }
  std::string fault(const std::string& content, const NamedSampling& named = {}) {
    try {
      static_cast<void>(load(content, named));
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }

  const std::filesystem::path dir_ =
      std::filesystem::temp_directory_path() / "strata_sampling_defaults_test";
};

TEST_F(SamplingDefaultsTest, TakesWhatTheFileNames) {
  const SamplingDefaults qwen =
      load(R"({"do_sample":true,"temperature":0.6,"top_k":20,"top_p":0.95})");
  EXPECT_FALSE(qwen.greedy);
  EXPECT_EQ(qwen.temperature, 0.6);
  EXPECT_EQ(qwen.top_k, 20);
  EXPECT_EQ(qwen.top_p, 0.95);
  const SamplingDefaults whole = load(R"({"temperature":1,"top_k":64.0,"top_p":1})");
  EXPECT_EQ(whole.temperature, 1.0);
  EXPECT_EQ(whole.top_k, 64);
  EXPECT_EQ(whole.top_p, 1.0);
  EXPECT_EQ(load(R"({"top_k":-1})").top_k, 0);
}

TEST_F(SamplingDefaultsTest, TakesPenaltyAndMinP) {
  const char* file = R"({"repetition_penalty":1.05,"min_p":0.1})";
  EXPECT_EQ(load(file).repetition_penalty, 1.05);
  EXPECT_EQ(load(file).min_p, 0.1);
  EXPECT_FALSE(load(file, {.repetition_penalty = true}).repetition_penalty);
  EXPECT_EQ(load(file, {.repetition_penalty = true}).min_p, 0.1);
  EXPECT_NE(fault(R"({"min_p":1.5})")
                .find(": min_p: got 1.5E0, want a number of 0 to 1; or give --min-p"),
            std::string::npos);
  EXPECT_NE(fault(R"({"repetition_penalty":0})").find("or give --repetition-penalty"),
            std::string::npos);
  EXPECT_EQ(fault(R"({"repetition_penalty":0})", {.repetition_penalty = true}), "no error");
}

TEST_F(SamplingDefaultsTest, WhatIsAbsentOrNullSaysNothing) {
  for (const char* content :
       {"{}", R"({"do_sample":null,"temperature":null,"top_k":null,"top_p":null,)"
              R"("min_p":null,"repetition_penalty":null})"}) {
    const SamplingDefaults nothing = load(content);
    EXPECT_FALSE(nothing.greedy);
    EXPECT_FALSE(nothing.temperature || nothing.top_k || nothing.top_p || nothing.min_p ||
                 nothing.repetition_penalty);
  }
  std::filesystem::remove(dir_ / "generation_config.json");
  EXPECT_FALSE(load_sampling_defaults(dir_.string()).temperature);
}

TEST_F(SamplingDefaultsTest, DoSampleFalseAndTemperatureZeroAreGreedy) {
  EXPECT_TRUE(load(R"({"do_sample":false,"temperature":0.6})").greedy);
  EXPECT_TRUE(load(R"({"do_sample":true,"temperature":0})").greedy);
  EXPECT_TRUE(load(R"({"temperature":0.0})").greedy);
  EXPECT_FALSE(load(R"({"do_sample":false})", {.temperature = true}).greedy);
}

TEST_F(SamplingDefaultsTest, RefusesWhatIsNoSuchValueAndNamesTheOptionInstead) {
  const std::string path = (dir_ / "generation_config.json").string();
  EXPECT_EQ(fault("[1]"), path + ": got array, want a JSON object");
  EXPECT_EQ(fault("{"), path + ": JSON at byte 1: the text ends early; is the file truncated?");
  EXPECT_EQ(fault(R"({"top_k": 1, "top_k": 2})"),
            path + ": JSON at byte 21: the key \"top_k\" appears twice in one object");
  EXPECT_EQ(fault(R"({"temperature":"hot"})"),
            path +
                ": temperature: got \"hot\", want a number of 0 (greedy) or more; or give "
                "--temperature");
  EXPECT_NE(fault(R"({"temperature":-0.5})").find("got -5E-1"), std::string::npos);
  EXPECT_EQ(fault(R"({"do_sample":1})"),
            path + ": do_sample: got 1, want true or false; or give --temperature");
  EXPECT_EQ(fault(R"({"top_p":1.5})"),
            path + ": top_p: got 1.5E0, want a number above 0 and at most 1; or give --top-p");
  EXPECT_NE(fault(R"({"top_p":0})").find("top_p: got 0"), std::string::npos);
  EXPECT_NE(fault(R"({"top_k":2.5})").find("top_k: got 2.5E0"), std::string::npos);
  EXPECT_NE(fault(R"({"top_k":-2})").find("top_k: got -2"), std::string::npos);
  EXPECT_NE(fault(R"({"top_k":1e300})").find("top_k: got 1E300"), std::string::npos);
  EXPECT_EQ(fault(R"({"do_sample":1,"temperature":"hot","top_k":-2,"top_p":7})",
                  {.temperature = true, .top_k = true, .top_p = true}),
            "no error");
}

}  // namespace
}  // namespace strata::data
