// SPDX-License-Identifier: Apache-2.0
// What activations take, for every family and every policy, against sums that are written out here
// from the shapes in config.json: bytes of a token in bf16 mode, all layers together. The policies
// are those of MaxText's configs/types.py by their names.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "engine/plan/recompute_plan.h"
#include "tests/engine/tiny_engine.h"

namespace strata::engine {
namespace {

using Tags = std::map<std::string, int64_t>;

struct Family {
  const char* model;
  Tags bytes;  // of a token
};

constexpr int64_t kB = 2;  // bf16; f32 where results are kept in it: out_proj, lse, gates, mixes
constexpr int64_t kF = 4;

const Family kFamilies[] = {
    // 2 layers of width 40, 6 heads and 3 for keys of 10, MLP of 44.
    {"qwen3",
     {{"decoder_layer_input", 2 * 40 * kB},
      {"query_proj", 2 * 60 * kB},
      {"key_proj", 2 * 30 * kB},
      {"value_proj", 2 * 30 * kB},
      {"context", 2 * (60 * kB + 6 * kF)},
      {"out_proj", 2 * 40 * kF},
      {"mlpwi_0", 2 * 44 * kB},
      {"mlpwi_1", 2 * 44 * kB}}},
    // 7 layers of width 24, 4 heads and 2 for keys of 8, MLP of 20; a norm behind each branch.
    {"gemma3",
     {{"decoder_layer_input", 7 * 24 * kB},
      {"query_proj", 7 * 32 * kB},
      {"key_proj", 7 * 16 * kB},
      {"value_proj", 7 * 16 * kB},
      {"context", 7 * (32 * kB + 4 * kF)},
      {"out_proj", 7 * 24 * kF},
      {"branch", 7 * 2 * 24 * kB},
      {"mlpwi_0", 7 * 20 * kB},
      {"mlpwi_1", 7 * 20 * kB}}},
    // 3 layers of width 24, 4 heads and 2 for keys of 8; one dense MLP of 36, 2 of 6 experts of 20.
    {"qwen3_moe",
     {{"decoder_layer_input", 3 * 24 * kB},
      {"query_proj", 3 * 32 * kB},
      {"key_proj", 3 * 16 * kB},
      {"value_proj", 3 * 16 * kB},
      {"context", 3 * (32 * kB + 4 * kF)},
      {"out_proj", 3 * 24 * kF},
      {"mlpwi_0", 36 * kB},
      {"mlpwi_1", 36 * kB},
      {"moe_mlpwi_0", 2 * 2 * 20 * kB},
      {"moe_mlpwi_1", 2 * 2 * 20 * kB}}},
    // 2 layers of width 40, 4 heads: queries of 20 through 18, latent of 22 and 8 rotated, values
    // of
    // 10; MLP of 36.
    {"deepseek_mla",
     {{"decoder_layer_input", 2 * 40 * kB},
      {"query_wa_proj", 2 * 18 * kB},
      {"query_proj", 2 * 80 * kB},
      {"kv_wa_proj", 2 * 30 * kB},
      {"context", 2 * (4 * 22 * kB + 4 * kF)},
      {"attention_out", 2 * 40 * kB},
      {"out_proj", 2 * 40 * kF},
      {"mlpwi_0", 2 * 36 * kB},
      {"mlpwi_1", 2 * 36 * kB}}},
    // 2 layers of width 32; one dense MLP of 36; 3 of 8 experts of 12, and two shared as one of 24.
    {"deepseek_moe",
     {{"decoder_layer_input", 2 * 32 * kB},
      {"query_wa_proj", 2 * 10 * kB},
      {"query_proj", 2 * 48 * kB},
      {"kv_wa_proj", 2 * 18 * kB},
      {"context", 2 * (4 * 14 * kB + 4 * kF)},
      {"attention_out", 2 * 24 * kB},
      {"out_proj", 2 * 32 * kF},
      {"mlpwi_0", (36 + 24) * kB},
      {"mlpwi_1", (36 + 24) * kB},
      {"moe_mlpwi_0", 3 * 12 * kB},
      {"moe_mlpwi_1", 3 * 12 * kB}}},
    // A delta net of 2 heads of 8 for keys and 4 of 16 for values, and attention of 4 heads and 2
    // for keys of 16 with an output gate beside its queries; 2 of 6 experts of 12, one shared
    // of 16.
    {"qwen3_5_moe",
     {{"decoder_layer_input", 2 * 20 * kB},
      {"delta_qkv_proj", (2 * 16 + 64) * kB},
      {"delta_z_proj", 64 * kB},
      {"delta_gates", 2 * 4 * kB},
      {"delta_context", 64 * kB},
      {"query_proj", 2 * 64 * kB},
      {"key_proj", 32 * kB},
      {"value_proj", 32 * kB},
      {"context", 64 * kB + 4 * kF},
      {"out_proj", 2 * 20 * kF},
      {"mlpwi_0", 2 * 16 * kB},
      {"mlpwi_1", 2 * 16 * kB},
      {"shared_gate", 2 * kF},
      {"moe_mlpwi_0", 2 * 2 * 12 * kB},
      {"moe_mlpwi_1", 2 * 2 * 12 * kB}}},
    // 4 layers of width 24, one of attention: 4 heads and 2 for keys of 6; three of convolutions of
    // three times the width; MLP of 48.
    {"lfm2",
     {{"decoder_layer_input", 4 * 24 * kB},
      {"conv_proj", 3 * 72 * kB},
      {"query_proj", 24 * kB},
      {"key_proj", 12 * kB},
      {"value_proj", 12 * kB},
      {"context", 24 * kB + 4 * kF},
      {"out_proj", 4 * 24 * kF},
      {"mlpwi_0", 4 * 48 * kB},
      {"mlpwi_1", 4 * 48 * kB}}},
    // 4 layers with 4 streams of width 12, 4 heads of 16 through 10, one row of keys; two layers
    // compress windows that overlap (twice the width) and list 3 entries, one windows that do not;
    // 2 of 5 experts of 10 and one shared. 24 numbers mix streams: 4 x 4, 4 and 4.
    {"deepseek_v4",
     {{"decoder_layer_input", 4 * 48 * kB},
      {"query_wa_proj", 4 * 10 * kB},
      {"query_proj", 4 * 64 * kB},
      {"kv_proj", 4 * 16 * kB},
      {"compressor_proj", 2 * (32 + 16 + 32) * kF},
      {"indexer", 2 * 3 * kF},
      {"context", 4 * (64 * kB + 4 * kF)},
      {"attention_out", 4 * 2 * 6 * kB},
      {"out_proj", 4 * 48 * kF},
      {"hyper_connection", 4 * 2 * (24 + 1 + 24) * kF},
      {"branch", 4 * 2 * 12 * kB},
      {"mlpwi_0", 4 * 10 * kB},
      {"mlpwi_1", 4 * 10 * kB},
      {"moe_mlpwi_0", 4 * 2 * 10 * kB},
      {"moe_mlpwi_1", 4 * 2 * 10 * kB}}},
};

// What the field's names mean by our tags.
const std::set<std::string> kProjections = {
    "query_proj",      "key_proj", "value_proj",     "kv_proj",      "query_wa_proj", "kv_wa_proj",
    "compressor_proj", "indexer",  "delta_qkv_proj", "delta_z_proj", "delta_gates",   "conv_proj"};
const std::set<std::string> kOutputs = {"out_proj", "branch", "hyper_connection"};
const std::set<std::string> kContexts = {"context", "attention_out", "delta_context"};
const std::set<std::string> kMlps = {"mlpwi_0", "mlpwi_1", "moe_mlpwi_0", "moe_mlpwi_1",
                                     "shared_gate"};

struct Policy {
  std::vector<const std::set<std::string>*> kept;
  bool in_files = false;
};

const std::map<std::string_view, Policy> kPolicies = {
    {"minimal", {{&kProjections, &kOutputs, &kMlps}}},
    {"minimal_with_context", {{&kProjections, &kOutputs, &kMlps, &kContexts}}},
    {"save_dot_with_context_except_mlp", {{&kProjections, &kOutputs, &kContexts}}},
    {"save_dot_except_mlp", {{&kProjections, &kOutputs}}},
    {"save_dot_except_mlpwi", {{&kProjections, &kOutputs}}},
    {"save_qkv_proj", {{&kProjections}}},
    {"save_out_proj", {{&kOutputs}}},
    {"qkv_proj_offloaded", {{&kProjections}, true}},
    {"minimal_offloaded", {{&kProjections, &kOutputs, &kMlps}, true}},
};

constexpr int64_t kTokens = 64;

Tags saved_by_tag(const RecomputePlan& plan, int64_t RecomputePlan::Row::* layers) {
  Tags bytes;
  for (const RecomputePlan::Row& row : plan.rows) {
    if (row.*layers > 0) bytes[std::string(row.tag)] += row.*layers * row.layer_bytes;
  }
  return bytes;
}

TEST(SavedBytes, OfEveryFamilyAndPolicy) {
  ASSERT_EQ(kPolicies.size(), model::recompute_presets().size());
  for (const Family& family : kFamilies) {
    auto engine = tiny_engine({.model = family.model});
    const PlanShape shape = {.pass_tokens = kTokens, .backward = true, .alone = true};
    const auto plan = [&](const model::Recompute& recompute) {
      return plan_given_recompute(*engine, shape, recompute);
    };
    Tags all;
    for (const auto& [tag, bytes] : family.bytes) all[tag] = kTokens * bytes;
    EXPECT_EQ(saved_by_tag(plan(model::Recompute::kNone), &RecomputePlan::Row::num_kept), all)
        << family.model;
    const int64_t full = plan(model::Recompute::kFull).bytes;
    for (const model::RecomputePreset& preset : model::recompute_presets()) {
      const Policy& policy = kPolicies.at(preset.name);
      Tags wanted, in_files;
      wanted["decoder_layer_input"] = all.at("decoder_layer_input");
      for (const std::set<std::string>* tags : policy.kept) {
        for (const std::string& tag : *tags) {
          if (!all.contains(tag)) continue;
          wanted[tag] = all.at(tag);
          if (policy.in_files) in_files[tag] = all.at(tag);
        }
      }
      const RecomputePlan got = plan(preset.value());
      const std::string where = std::string(family.model) + " " + std::string(preset.name);
      EXPECT_EQ(saved_by_tag(got, &RecomputePlan::Row::num_kept), wanted) << where;
      EXPECT_EQ(saved_by_tag(got, &RecomputePlan::Row::num_offloaded), in_files) << where;
      int64_t file_bytes = 0;
      for (const auto& [tag, bytes] : in_files) file_bytes += bytes;
      EXPECT_EQ(got.file_bytes, file_bytes) << where;
      if (policy.in_files) {
        EXPECT_LE(got.bytes, full) << where;
      }
    }
  }
}

}  // namespace
}  // namespace strata::engine
