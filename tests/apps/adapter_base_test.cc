// SPDX-License-Identifier: Apache-2.0
// How an adapter finds its base.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

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

}  // namespace
}  // namespace strata::apps
