// SPDX-License-Identifier: Apache-2.0
// What `strata probe --stats` says of a training pass: activations by tag against their sizes, what
// a policy moves from one list to another, stages, and no output without it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <filesystem>

#include "apps/probe/probe.h"
#include "apps/probe/stats.h"
#include "base/files.h"
#include "tests/base/temp_dir.h"

namespace strata::apps {
namespace {

namespace fs = std::filesystem;
namespace json = boost::json;
using ::testing::HasSubstr;

class ProbeStatsTest : public ::testing::Test {
 protected:
  void SetUp() override { fs::create_directories(root_); }
  void TearDown() override { fs::remove_all(root_); }

  [[nodiscard]] ProbeOptions options() const {
    ProbeOptions o;
    o.model = kModel + "/model";
    o.adapters = {kModel + "/a", kModel + "/b"};
    o.request = kModel + "/main.json";
    o.out = root_ + "/out.safetensors";
    o.stats = root_ + "/stats.json";
    o.threads = 1;
    return o;
  }
  static json::object run(const ProbeOptions& o) {
    EXPECT_EQ(run_probe(o), 0);
    return json::parse(read_file(o.stats, 1 << 20)).as_object();
  }
  [[nodiscard]] json::object run_with(const std::string& recompute) const {
    ProbeOptions o = options();
    o.recompute = recompute;
    return run(o);
  }

  const std::string kModel = std::string(STRATA_SOURCE_DIR) + "/tests/golden/llama31";
  const std::string root_ = ::testing::TempDir() + "/strata_probe_stats";
};

TEST_F(ProbeStatsTest, WithoutRecomputeEveryActivationIsKept) {
  const json::object stats = run(options());
  EXPECT_TRUE(stats.at("recomputed").as_object().empty());
  EXPECT_TRUE(stats.at("offloaded_bytes").as_object().empty());
  // 146 tokens in two layers, f32, each tensor on a border of 64 bytes.
  const auto in_layers = [](int64_t width) { return 2 * ((146 * width * 4 + 63) / 64 * 64); };
  const json::object& saved = stats.at("saved_bytes").as_object();
  EXPECT_EQ(saved.at("decoder_layer_input"), in_layers(60));
  EXPECT_EQ(saved.at("query_proj"), in_layers(6 * 16));
  EXPECT_EQ(saved.at("key_proj"), in_layers(2 * 16));
  ASSERT_EQ(stats.at("stages").as_array().size(), 1u);
  const json::object& stage = stats.at("stages").at(0).as_object();
  EXPECT_EQ(stage.at("layers"), 2);
  EXPECT_EQ(stage.at("peak_live_microbatches"), 1);
  EXPECT_LE(stage.at("peak_bytes").as_int64(), stats.at("planned_bytes").as_int64());
  EXPECT_GT(stats.at("peak_bytes").as_int64(), stage.at("weight_bytes").as_int64());
}

TEST_F(ProbeStatsTest, APolicyMovesTagsFromOneListToAnother) {
  const json::object none = run_with("none"), full = run_with("full");
  const json::object& all = none.at("saved_bytes").as_object();
  EXPECT_EQ(full.at("saved_bytes").as_object().size(), 1u);
  EXPECT_EQ(full.at("saved_bytes").at("decoder_layer_input"), all.at("decoder_layer_input"));
  EXPECT_EQ(full.at("recomputed").as_object().size(), all.size() - 1);
  for (const auto& [tag, count] : full.at("recomputed").as_object()) EXPECT_EQ(count, 2) << tag;
  EXPECT_LT(full.at("planned_bytes").as_int64(), none.at("planned_bytes").as_int64());

  const json::object some = run_with("custom:query_proj=keep,context=offload,lora_h=recompute");
  EXPECT_EQ(some.at("saved_bytes").at("query_proj"), all.at("query_proj"));
  EXPECT_EQ(some.at("offloaded_bytes").as_object().size(), 1u);
  EXPECT_EQ(some.at("offloaded_bytes").at("context"), all.at("context"));
  EXPECT_EQ(some.at("recomputed").at("lora_h"), 2);
  EXPECT_EQ(some.at("recomputed").as_object().count("query_proj"), 0u);
}

TEST_F(ProbeStatsTest, StagesHaveTheirLayersAndMicroBatches) {
  ProbeOptions o = options();
  o.stages.stages = 2;
  o.stages.microbatches = 2;
  o.stages.schedule = "1f1b";
  o.recompute = "minimal";
  const json::object stats = run(o);
  const json::array& stages = stats.at("stages").as_array();
  ASSERT_EQ(stages.size(), 2u);
  for (int64_t i = 0; i < 2; ++i) {
    const json::object& stage = stages[static_cast<size_t>(i)].as_object();
    EXPECT_EQ(stage.at("rank"), i);
    EXPECT_EQ(stage.at("layers"), 1);
    EXPECT_EQ(stage.at("peak_live_microbatches"), 2 - i);
  }
  EXPECT_EQ(stats.at("recomputed").at("context"), 2);
}

TEST_F(ProbeStatsTest, TheOutputIsTheSameAndBothFilesAreThereOrNeither) {
  ProbeOptions o = options();
  run(o);
  const std::string with = read_file(o.out, 1 << 30);
  o.out = root_ + "/plain.safetensors";
  o.stats.clear();
  ASSERT_EQ(run_probe(o), 0);
  EXPECT_EQ(read_file(o.out, 1 << 30), with);
  o.out = root_ + "/third.safetensors";
  o.stats = root_ + "/missing/stats.json";
  EXPECT_NE(strata::testing::error_of([&] { run_probe(o); }), "");
  EXPECT_FALSE(fs::exists(o.out));
}

TEST_F(ProbeStatsTest, CustomPoliciesAreReadWhole) {
  const auto message_of = [&](const std::string& recompute) {
    return strata::testing::error_of([&] { (void)run_with(recompute); });
  };
  EXPECT_THAT(message_of("custom:context=maybe"), HasSubstr("want keep, offload or recompute"));
  EXPECT_THAT(message_of("custom:context,context=offload"), HasSubstr("'context' is named twice"));
  EXPECT_THAT(message_of("custom:no_such_tag=recompute"), HasSubstr("no activation 'no_such_tag'"));
}

}  // namespace
}  // namespace strata::apps
