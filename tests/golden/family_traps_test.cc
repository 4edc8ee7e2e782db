// SPDX-License-Identifier: Apache-2.0
// Mistakes that are easily made in Gemma 2, Gemma 4, Llama 4 and LFM2 (docs/dev/traps.md), each
// planted by changing the files so that our program computes what the mistake would: the golden
// must miss its limit by more than a hundred times.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/golden/altered_golden.h"
#include "tests/golden/compare.h"

namespace strata::golden {
namespace {

constexpr double kVisible = 100;

struct Trap {
  const char* name;
  const char* golden;
  void (*plant)(AlteredGolden&);
};
void PrintTo(const Trap& trap, std::ostream* out) { *out << trap.name << " in " << trap.golden; }

void exchange_windowed_and_full_layers(AlteredGolden& g) {
  for (auto& type : g.config.at("layer_types").as_array()) {
    type = type.as_string() == "full_attention" ? "sliding_attention" : "full_attention";
  }
}

void take_every_layer_for_full(AlteredGolden& g) {
  for (auto& type : g.config.at("layer_types").as_array()) type = "full_attention";
}

// Rows of B and C of a convolution's projection.
void exchange_b_and_c(AlteredGolden& g) {
  const int64_t width = g.number("hidden_size");
  std::vector<int64_t> order;
  for (const int64_t part : {1, 0, 2}) {
    for (int64_t i = 0; i < width; ++i) order.push_back(part * width + i);
  }
  g.permute_rows("conv.in_proj", order);
}

// Of [channels, 1, taps] the last tap first.
void turn_taps_round(AlteredGolden& g) {
  g.each("conv.conv.weight", [](Tensor& t) {
    const int64_t taps = t.dims.back();
    for (auto at = t.values.begin(); at != t.values.end(); at += taps) {
      std::reverse(at, at + taps);
    }
  });
}

// What a convolution over the last inputs but the oldest would give.
void drop_oldest_tap(AlteredGolden& g) {
  g.each("conv.conv.weight", [](Tensor& t) {
    for (size_t i = 0; i < t.values.size(); i += static_cast<size_t>(t.dims.back())) {
      t.values[i] = 0.0f;
    }
  });
}

// Each layer reads the input of the layer behind it.
void take_inputs_of_the_next_layer(AlteredGolden& g, const std::string& suffix, bool of_rows) {
  const int64_t width = g.number("hidden_size_per_layer_input");
  const int64_t layers = g.number("num_hidden_layers");
  g.each(suffix, [&](Tensor& t) {
    const int64_t row = of_rows ? t.dims.back() * width * layers : width * layers;
    const int64_t step = of_rows ? t.dims.back() * width : width;
    for (auto at = t.values.begin(); at != t.values.end(); at += row)
      std::rotate(at, at + step, at + row);
  });
}

void take_ones(AlteredGolden& g, const std::string& suffix) {
  g.each(suffix, [](Tensor& t) { std::fill(t.values.begin(), t.values.end(), 1.0f); });
}

// Columns of gate and up of all experts.
void exchange_halves_of_experts(AlteredGolden& g) {
  g.each("experts.gate_up_proj", [](Tensor& t) {
    const int64_t width = t.dims.back();
    for (auto at = t.values.begin(); at != t.values.end(); at += width)
      std::rotate(at, at + width / 2, at + width);
  });
}

// What full layers have besides their frequencies.
boost::json::object& full_rope(AlteredGolden& g) {
  return g.config.at("rope_parameters").at("full_attention").as_object();
}

constexpr const char* kGemma4 = "gemma4/main";
constexpr const char* kGemma4Moe = "gemma4_moe/main";
constexpr const char* kGemma4Shared = "gemma4_shared/main";
constexpr const char* kLlama4 = "llama4/main";
constexpr const char* kLfm2 = "lfm2/main";
constexpr const char* kGemma2 = "gemma2/main";

const Trap kTraps[] = {
    {"NoCapOfScores", kGemma2, [](auto& g) { g.config["attn_logit_softcapping"] = nullptr; }},
    {"NoCapOfLogits", kGemma2, [](auto& g) { g.config["final_logit_softcapping"] = nullptr; }},
    {"CapsExchanged", kGemma2,
     [](auto& g) {
       std::swap(g.config["attn_logit_softcapping"], g.config["final_logit_softcapping"]);
     }},
    {"ScaleOfTheHead", kGemma2,
     [](auto& g) { g.config["query_pre_attn_scalar"] = g.config.at("head_dim"); }},
    {"WindowInOddLayers", kGemma2, exchange_windowed_and_full_layers},
    {"NoWindow", kGemma2, take_every_layer_for_full},
    {"WindowOneShort", kGemma2,
     [](auto& g) { g.config["sliding_window"] = g.number("sliding_window") - 1; }},
    {"NoNumberOfTheLayer", kGemma4,
     [](auto& g) { g.each("layer_scalar", [](Tensor& t) { t.values[0] = 1.0f; }); }},
    {"AllPairsOfFullLayersTurned", kGemma4,
     [](auto& g) { full_rope(g)["partial_rotary_factor"] = 1.0; }},
    {"OnePairLessTurned", kGemma4, [](auto& g) { full_rope(g)["partial_rotary_factor"] = 0.34; }},
    {"ThetaOfSlidingLayers", kGemma4, [](auto& g) { full_rope(g)["rope_theta"] = 1e4; }},
    {"NormsOfHeadsExchanged", kGemma4, [](auto& g) { g.exchange("q_norm", "k_norm"); }},
    {"NormsOfBranchesExchanged", kGemma4,
     [](auto& g) { g.exchange("post_attention_layernorm", "post_feedforward_layernorm"); }},
    {"NoCapInTheTextConfig", kGemma4,
     [](auto& g) { g.config["final_logit_softcapping"] = nullptr; }},
    {"WindowOneLong", kGemma4,
     [](auto& g) { g.config["sliding_window"] = g.number("sliding_window") + 1; }},
    {"NoNumberOfTheExperts", kGemma4Moe,
     [](auto& g) {
       g.each("per_expert_scale",
              [](Tensor& t) { std::fill(t.values.begin(), t.values.end(), 1.0f); });
     }},
    {"RouterReadsAPlainNorm", kGemma4Moe,
     [](auto& g) {
       g.each("router.scale", [](Tensor& t) { std::fill(t.values.begin(), t.values.end(), 1.0f); });
     }},
    {"NormsOfThePathsExchanged", kGemma4Moe,
     [](auto& g) { g.exchange("post_feedforward_layernorm_1", "post_feedforward_layernorm_2"); }},
    {"PathsReadOneAnothersNorm", kGemma4Moe,
     [](auto& g) { g.exchange("pre_feedforward_layernorm", "pre_feedforward_layernorm_2"); }},
    {"EmbeddingOfTheNextLayer", kGemma4Shared,
     [](auto& g) {
       take_inputs_of_the_next_layer(g, "embed_tokens_per_layer.weight", /*of_rows=*/false);
     }},
    {"ProjectionOfTheNextLayer", kGemma4Shared,
     [](auto& g) {
       take_inputs_of_the_next_layer(g, "per_layer_model_projection.weight", /*of_rows=*/true);
     }},
    {"NoNormOfTheProjection", kGemma4Shared,
     [](auto& g) { take_ones(g, "per_layer_projection_norm.weight"); }},
    {"NoNormBehindTheInput", kGemma4Shared,
     [](auto& g) { take_ones(g, "post_per_layer_input_norm.weight"); }},
    {"NoNumberOfTheLayerWithInputs", kGemma4Shared, [](auto& g) { take_ones(g, "layer_scalar"); }},
    {"KeysAndValuesOfADonorExchanged", kGemma4Shared,
     [](auto& g) { g.exchange("layers.2.self_attn.k_proj", "layers.2.self_attn.v_proj"); }},
    {"ChunksOneLong", kLlama4,
     [](auto& g) { g.config["attention_chunk_size"] = g.number("attention_chunk_size") + 1; }},
    {"NoChunks", kLlama4,
     [](auto& g) {
       for (auto& type : g.config.at("layer_types").as_array()) type = "full_attention";
     }},
    {"ChunksInTheLayerThatTurnsNothing", kLlama4,
     [](auto& g) { g.config.at("layer_types").as_array()[3] = "chunked_attention"; }},
    {"TheLayerBeforeTurnsNothing", kLlama4,
     [](auto& g) { g.config["no_rope_layers"] = {1, 1, 0, 1}; }},
    {"EveryLayerTurns", kLlama4, [](auto& g) { g.config["no_rope_layers"] = {1, 1, 1, 1}; }},
    {"NoScaleByPosition", kLlama4, [](auto& g) { g.config["attn_temperature_tuning"] = false; }},
    {"ScaleByPositionOneLate", kLlama4,
     [](auto& g) { g.config["floor_scale"] = g.number("floor_scale") + 1; }},
    {"NoNormOfHeads", kLlama4, [](auto& g) { g.config["use_qk_norm"] = false; }},
    {"NoScalingOfLongWaves", kLlama4,
     [](auto& g) { g.config.at("rope_parameters").as_object()["rope_type"] = "default"; }},
    {"GateAndUpExchanged", kLlama4,
     [](auto& g) { g.exchange("feed_forward.gate_proj", "feed_forward.up_proj"); }},
    {"HalvesOfExpertsExchanged", kLlama4, exchange_halves_of_experts},
    {"BAndCExchanged", kLfm2, exchange_b_and_c},
    {"TapsTurnedRound", kLfm2, turn_taps_round},
    {"WindowOfTheConvolutionOneShort", kLfm2, drop_oldest_tap},
    {"NormsOfQAndKExchanged", kLfm2, [](auto& g) { g.exchange("q_layernorm", "k_layernorm"); }},
    {"UpBeforeGate", kLfm2, [](auto& g) { g.exchange("feed_forward.w1", "feed_forward.w3"); }},
    {"NormsOfTheLayerExchanged", kLfm2, [](auto& g) { g.exchange("operator_norm", "ffn_norm"); }},
    {"ThetaOfOthers", kLfm2,
     [](auto& g) { g.config.at("rope_parameters").as_object()["rope_theta"] = 1e4; }},
};

class FamilyTraps : public testing::TestWithParam<Trap> {};

TEST_P(FamilyTraps, ShowsWhenPlanted) {
  if (!forced_path_exists()) GTEST_SKIP() << "this CPU lacks the forced path";
  const Trap& trap = GetParam();
  AlteredGolden g(trap.golden);
  const Tensor want = read_tensors(g.row.expected).at("logits");
  const auto limits_apart = [&] {
    const double ratio =
        relative_l2(g.run()["logits"], want) / limit_of("logits", read_json(g.row.noise), false);
    RecordProperty("limits", std::to_string(ratio));
    return ratio;
  };
  EXPECT_LE(limits_apart(), 1) << "not the golden even before it is altered";
  trap.plant(g);
  EXPECT_FALSE(limits_apart() <= kVisible);
}

INSTANTIATE_TEST_SUITE_P(All, FamilyTraps, testing::ValuesIn(kTraps),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace strata::golden
