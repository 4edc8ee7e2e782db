// SPDX-License-Identifier: Apache-2.0
// generation_config.json's sampling in GGUF files: out as gguf-py writes it, and back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <limits>
#include <optional>
#include <string>

#include "checkpoint/gguf/sampling.h"
#include "checkpoint/gguf/tokenizer.h"
#include "tests/base/temp_dir.h"
#include "tests/checkpoint/gguf_bytes.h"

namespace strata {
namespace {

using testing::gguf_key;
using testing::key_f32;
using testing::raw;

// A file of these keys and a vocabulary of two tokens.
std::string file_with(const std::string& keys, uint64_t num_keys) {
  const std::string tokens = testing::gguf_text("a") + testing::gguf_text("b");
  return "GGUF" + raw<uint32_t>(3) + raw<uint64_t>(0) + raw<uint64_t>(num_keys + 2) + keys +
         testing::key_text("tokenizer.ggml.model", "gpt2") +
         testing::key_list("tokenizer.ggml.tokens", 8, 2, tokens);
}

class GgufSamplingTest : public ::testing::Test {
 protected:
  std::string header_of(const std::string& config) {
    std::ofstream(dir_.file("generation_config.json")) << config;
    GgufHeader header;
    add_sampling(ModelTexts(dir_.path()), header);
    return header.serialise();
  }
  std::optional<std::string> config_of(const std::string& file) {
    const std::string path = dir_.file("a.gguf");
    std::ofstream(path, std::ios::binary) << file;
    return make_gguf_text_file(GgufFile(path).keys(), "generation_config.json");
  }

  const testing::TempDir dir_;
};

// i32 and f32, as gguf-py's add_sampling_top_k() and add_sampling_temp() have them.
std::string aligned_header(const std::string& keys, uint64_t num_keys) {
  std::string out = "GGUF" + raw<uint32_t>(3) + raw<uint64_t>(0) + raw(num_keys) + keys;
  out.resize((out.size() + 31) / 32 * 32);
  return out;
}

TEST_F(GgufSamplingTest, KeysAreThoseOfGgufPy) {
  const std::string keys =
      gguf_key("general.sampling.top_k", 5, raw<int32_t>(20)) +
      key_f32("general.sampling.temp", 0.6f) + key_f32("general.sampling.top_p", 0.95f) +
      key_f32("general.sampling.min_p", 0.05f) + key_f32("general.sampling.penalty_repeat", 1.1f) +
      gguf_key("general.sampling.penalty_last_n", 5, raw<int32_t>(-1));
  EXPECT_EQ(header_of(R"({"do_sample": true, "temperature": 0.6, "top_k": 20, "top_p": 0.95,
                          "min_p": 0.05, "repetition_penalty": 1.1, "eos_token_id": 1})"),
            aligned_header(keys, 6));
  EXPECT_EQ(config_of(file_with(keys, 6)),
            "{\"top_k\": 20, \"temperature\": 0.6, \"top_p\": 0.95, \"min_p\": 0.05, "
            "\"repetition_penalty\": 1.1}\n");
}

TEST_F(GgufSamplingTest, GreedyIsATemperatureOfZero) {
  const std::string greedy = key_f32("general.sampling.temp", 0.0f);
  EXPECT_EQ(header_of(R"({"do_sample": false})"), aligned_header(greedy, 1));
  EXPECT_EQ(header_of(R"({"do_sample": false, "temperature": 0.6})"), aligned_header(greedy, 1));
  EXPECT_EQ(config_of(file_with(greedy, 1)), "{\"do_sample\": false}\n");
}

TEST_F(GgufSamplingTest, SilenceStaysSilence) {
  EXPECT_EQ(header_of(R"({"temperature": null, "eos_token_id": 2})"), aligned_header("", 0));
  EXPECT_EQ(config_of(file_with("", 0)), std::nullopt);
  // A penalty of no token is none; -1 of top_k is off, as in generation_config.json.
  const std::string off = key_f32("general.sampling.penalty_repeat", 1.1f) +
                          gguf_key("general.sampling.penalty_last_n", 5, raw<int32_t>(0)) +
                          gguf_key("general.sampling.top_k", 5, raw<int32_t>(-1));
  EXPECT_EQ(config_of(file_with(off, 3)), "{\"top_k\": -1}\n");
}

TEST_F(GgufSamplingTest, WhatIsNoNumberIsRefused) {
  const std::string path = dir_.file("generation_config.json");
  const auto fault = [&](const std::string& config) {
    return testing::error_of([&] { header_of(config); });
  };
  EXPECT_EQ(fault(R"({"temperature": "hot"})"), path + ": temperature: got \"hot\", want a number");
  EXPECT_EQ(fault(R"({"top_p": 1e300})"), path + ": top_p: got 1E300, want a number");
  EXPECT_EQ(fault(R"({"top_k": 2.5})"), path + ": top_k: got 2.5E0, want a whole number");
  EXPECT_EQ(fault(R"({"do_sample": 1})"), path + ": do_sample: got 1, want true or false");
  const auto read_fault = [&](const std::string& keys) {
    return testing::error_of([&] { config_of(file_with(keys, 1)); });
  };
  EXPECT_THAT(read_fault(key_f32("general.sampling.temp", std::numeric_limits<float>::quiet_NaN())),
              ::testing::HasSubstr("key 'general.sampling.temp': got nan, want a finite number"));
  EXPECT_THAT(read_fault(testing::key_text("general.sampling.top_p", "high")),
              ::testing::HasSubstr("general.sampling.top_p"));
}

}  // namespace
}  // namespace strata
