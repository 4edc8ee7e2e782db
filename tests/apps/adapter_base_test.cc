// SPDX-License-Identifier: Apache-2.0
// How an adapter finds its base, and what is said where the model or the tokenizer is another's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/apps/resolve_paths_fixture.h"

namespace strata::apps {
namespace {

using ::testing::HasSubstr;

TEST_F(ResolvePaths, AnAdapterFindsItsBaseFromAnyFolder) {
  expect_works({"train", "model", "--data", "data.jsonl", "--out", "tuned", "--steps", "1"});
  EXPECT_THAT(content(root_ + "/tuned/adapter_config.json"),
              HasSubstr("\"base_model_name_or_path\": \"" + root_ + "/model\""));
  fs::create_directories(root_ + "/elsewhere/deep");
  around_.folder = root_ + "/elsewhere/deep";
  expect_works(with({"chat", "../../tuned"}, kAsk));
  // Both move, and the path that the adapter has is gone.
  fs::create_directories(root_ + "/moved/adapters/of/mine");
  fs::rename(root_ + "/model", root_ + "/moved/model");
  fs::rename(root_ + "/tuned", root_ + "/moved/adapters/of/mine/tuned");
  expect_works(with({"chat", "../../moved/adapters/of/mine/tuned"}, kAsk));
  around_.folder = root_ + "/moved/adapters/of/mine";
  expect_works(with({"chat", "tuned/"}, kAsk));
}

TEST_F(ResolvePaths, ABaseIsSoughtAtItsPathThenAboveTheAdapterThenHereThenInTheCache) {
  const std::string adapter = make_adapter("Org/Tiny-1.5");
  const auto name_base = [&](const std::string& base) {
    std::ofstream(adapter + "/adapter_config.json")
        << R"({"peft_type": "LORA", "r": 4, "lora_alpha": 4, "base_model_name_or_path": ")" << base
        << R"("})";
  };
  const auto base_found = [&] {
    const std::string json = run({"inspect", adapter, "--json"}).out;
    const std::string key = R"("base_directory":")";
    const size_t at = json.find(key) + key.size();
    return json.substr(at, json.find('"', at) - at);
  };
  const auto make_model_at = [&](const std::string& folder) {
    fs::create_directories(fs::path(folder).parent_path());
    fs::copy(model(), folder);
  };
  const std::string snapshot = make_snapshot(root_ + "/home/.cache/huggingface/hub", "abc");
  around_.folder = root_ + "/home";
  EXPECT_EQ(base_found(), snapshot);
  make_model_at(root_ + "/home/Org/Tiny-1.5");
  EXPECT_EQ(base_found(), "Org/Tiny-1.5");
  make_model_at(root_ + "/Org/Tiny-1.5");
  EXPECT_EQ(base_found(), root_ + "/Org/Tiny-1.5");
  make_model_at(adapter + "/Org/Tiny-1.5");
  EXPECT_EQ(base_found(), adapter + "/Org/Tiny-1.5");
  name_base(root_ + "/model");
  make_model_at(adapter + "/model");
  EXPECT_EQ(base_found(), root_ + "/model");
  // Of another machine's cache the name is known.
  name_base("/else/hub/models--Org--Tiny-1.5/snapshots/abc123");
  EXPECT_EQ(base_found(), snapshot);
}

TEST_F(ResolvePaths, OnlyNamesOfTheHubAreSaidToBeDownloaded) {
  struct Case {
    const char* base;
    bool is_of_hub;
  };
  fs::create_directories(root_ + "/shelf");
  for (const Case& c :
       {Case{"Org/Tiny-1.5", true}, Case{"models/tiny", false}, Case{"shelf/tiny", false},
        Case{"/gone/tiny", false}, Case{"../tiny", false}, Case{"tiny", false}}) {
    fs::remove_all(root_ + "/adapter");
    make_adapter(c.base);
    const Ran ran = run(with({"chat", "adapter"}, kAsk));
    EXPECT_EQ(ran.code, 2);
    EXPECT_EQ(ran.err.find("hf download") != std::string::npos, c.is_of_hub) << ran.err;
    EXPECT_THAT(ran.err, HasSubstr("--model BASE --adapter adapter"));
  }
}

TEST_F(ResolvePaths, AnAdapterOfAnotherModelIsSaidToBeSoBeforeThreeFaults) {
  make_adapter("shelf/narrow");
  std::string config = content(root_ + "/config/config.json");
  config.replace(config.find("\"hidden_size\": 32"), 17, "\"hidden_size\": 64");
  std::ofstream(root_ + "/config/config.json") << config;
  ASSERT_EQ(
      run_init({.config = root_ + "/config", .out = root_ + "/wide", .seed = 1, .threads = 2}), 0);
  const Words commands[] = {with({"chat", "wide", "--adapter", "adapter"}, kAsk),
                            {"eval", "wide", "--adapter", "adapter", "--data", "data.jsonl"},
                            {"merge", "wide", "--adapter", "adapter", "--out", "merged"}};
  for (const Words& command : commands) {
    const Ran ran = run(command);
    EXPECT_EQ(ran.code, 2);
    EXPECT_THAT(ran.err, HasSubstr("this adapter is of 'shelf/narrow' (32 wide, 1 layer); the "
                                   "model is 'wide' (64 wide, 1 layer); 7 fault(s):\n"));
    EXPECT_THAT(ran.err, HasSubstr("and 4 more"));
    EXPECT_EQ(std::count(ran.err.begin(), ran.err.end(), '\n'), 5) << ran.err;
  }
}

TEST_F(ResolvePaths, ATokenizerOfAnotherModelIsRefused) {
  std::string config = content(root_ + "/config/config.json");
  config.replace(config.find("\"vocab_size\": 4096"), 18, "\"vocab_size\": 2048");
  std::ofstream(root_ + "/config/config.json") << config;
  ASSERT_EQ(
      run_init({.config = root_ + "/config", .out = root_ + "/small", .seed = 1, .threads = 2}), 0);
  const std::string sentence =
      "small/tokenizer.json: this tokenizer is of another model (4096 tokens); the model is '";
  for (const Words& command : {with({"chat", "small"}, kAsk), with({"generate", "small"}, kAsk),
                               Words{"data", "data.jsonl", "--model", "small"},
                               Words{"train", "small", "--data", "data.jsonl", "--out", "more"},
                               Words{"serve", "--model", "small=small", "--data", "state",
                                     "--no-keys", "--listen", "127.0.0.1:0"}}) {
    expect_refused(command, sentence);
    expect_refused(command, "small' (2048 tokens, by vocab_size of its config.json)");
  }
  const Ran inspected = run({"inspect", "small"});
  EXPECT_EQ(inspected.code, 2);
  EXPECT_THAT(inspected.out, HasSubstr("FAULT " + sentence));
}

}  // namespace
}  // namespace strata::apps
