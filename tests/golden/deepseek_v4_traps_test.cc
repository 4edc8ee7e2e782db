// SPDX-License-Identifier: Apache-2.0
// Mistakes that others made in DeepSeek-V4 (docs/dev/traps.md), each planted by changing the files
// so that our program computes what the mistake would: the golden must miss its limit by more than
// a hundred times. Those that no file can express are planted in the definition
// (tools/golden/golden_deepseek_v4_definition.py) or in the ops' tests.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/golden/altered_golden.h"
#include "tests/golden/compare.h"

namespace strata::golden {
namespace {

constexpr double kVisible = 100;

void scale(Tensor& t, float factor) {
  for (float& value : t.values) value *= factor;
}
void clear(Tensor& t) { std::fill(t.values.begin(), t.values.end(), 0.0f); }

boost::json::object& rope(AlteredGolden& g, const char* of) {
  return g.config.at("rope_parameters").at(of).as_object();
}

// YaRN's factor on the scores of layers with entries: on their keys, and off what is read of them,
// since keys are values.
void plant_magnitude(AlteredGolden& g) {
  const auto factor =
      static_cast<float>(0.1 * std::log(rope(g, "compress").at("factor").to_number<double>()) + 1);
  const auto up = [&](Tensor& t) { scale(t, factor); };
  const auto down = [&](Tensor& t) { scale(t, 1 / factor); };
  const auto& types = g.config.at("layer_types").as_array();
  for (size_t i = 0; i < types.size(); ++i) {
    if (types[i].as_string() == "sliding_attention") continue;
    const std::string layer = "layers." + std::to_string(i);
    g.each(layer + ".attn.norm.weight", up);
    g.each(layer + ".attn.compressor.norm.weight", up);
    g.each(layer + ".attn.wo_a.weight", down);
    g.each_adapters(layer + ".self_attn.o_a_proj.lora_B.weight", down);
  }
}

// Queries, keys and entries so that pairs lie as halves do, and back behind attention.
void plant_halves(AlteredGolden& g) {
  const int64_t rotated = g.number("qk_rope_head_dim");
  // Of heads of `width`, of which there are so many.
  const auto order = [&](int64_t width, int64_t heads) {
    std::vector<int64_t> out;
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t tail = (h + 1) * width - rotated;
      for (int64_t d = 0; d < width - rotated; ++d) out.push_back(h * width + d);
      for (int64_t d = 0; d < rotated; ++d) out.push_back(tail + d % 2 * (rotated / 2) + d / 2);
    }
    return out;
  };
  const auto columns = [](Tensor& t, const std::vector<int64_t>& from) {
    const Tensor old = t;
    const auto width = static_cast<int64_t>(from.size());
    for (int64_t i = 0; i < std::ssize(t.values); ++i) {
      t.values[static_cast<size_t>(i)] =
          old.values[static_cast<size_t>(i - i % width + from[static_cast<size_t>(i % width)])];
    }
  };
  const int64_t head = g.number("head_dim"), index = g.number("index_head_dim");
  const auto rows = [&](const std::string& saved, const std::string& module, int64_t width) {
    const auto permute = [&](Tensor& t) { permute_rows(t, order(width, t.dims[0] / width)); };
    g.each(saved, permute);
    if (!module.empty()) g.each_adapters(module + ".lora_B.weight", permute);
  };
  rows(".attn.wq_b.weight", "self_attn.q_b_proj", head);
  rows(".attn.wkv.weight", "self_attn.kv_proj", head);
  rows(".attn.norm.weight", "", head);
  rows(".attn.indexer.wq_b.weight", "indexer.q_b_proj", index);
  for (const auto& [saved, module, width] :
       {std::tuple{".attn.compressor.", "self_attn.compressor.", head},
        std::tuple{".attn.indexer.compressor.", "compressor.indexer.", index}}) {
    const std::string at = saved, path = module;
    rows(at + "wkv.weight", path + "kv_proj", width);
    rows(at + "wgate.weight", path + "gate_proj", width);
    rows(at + "norm.weight", "", width);
    const int64_t of = width;
    g.each(at + "ape", [&](Tensor& t) { columns(t, order(of, t.dims[1] / of)); });
  }
  const auto of_groups = [&](Tensor& t) { columns(t, order(head, t.dims[1] / head)); };
  g.each(".attn.wo_a.weight", of_groups);
  g.each_adapters("self_attn.o_a_proj.lora_A.weight", of_groups);
}

// The nearest of what four bits hold, by a scale for each row.
void plant_router_in_four_bits(AlteredGolden& g) {
  g.each("ffn.gate.weight", [](Tensor& t) {
    const int64_t width = t.dims[1];
    for (int64_t begin = 0; begin < std::ssize(t.values); begin += width) {
      float largest = 0;
      for (int64_t i = begin; i < begin + width; ++i)
        largest = std::max(largest, std::abs(t.values[static_cast<size_t>(i)]));
      const float unit = std::exp2(std::ceil(std::log2(largest / 6)));
      for (int64_t i = begin; i < begin + width; ++i) {
        float& value = t.values[static_cast<size_t>(i)];
        float best = 0;
        for (const float level : {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f}) {
          if (std::abs(level * unit - std::abs(value)) < std::abs(best - std::abs(value)))
            best = level * unit;
        }
        value = std::copysign(best, value);
      }
    }
  });
}

void plant_no_hash_layers(AlteredGolden& g) {
  auto& types = g.config.at("mlp_layer_types").as_array();
  for (size_t i = 0; i < types.size(); ++i) {
    if (types[i].as_string() != "hash_moe") continue;
    types[i] = "moe";
    const int64_t experts = g.number("n_routed_experts");
    g.model["model.layers." + std::to_string(i) + ".ffn.gate.bias"] = {
        .dims = {experts}, .values = std::vector<float>(static_cast<size_t>(experts))};
  }
  g.has_tables = false;
}

// Outputs of B taken for those of one product, whose groups lie side by side and not behind one
// another.
void plant_groups_as_one(AlteredGolden& g) {
  const int64_t groups = g.number("o_groups"), outputs = g.number("o_lora_rank");
  std::vector<int64_t> order;
  for (int64_t group = 0; group < groups; ++group) {
    for (int64_t o = 0; o < outputs; ++o) order.push_back(o * groups + group);
  }
  g.each_adapters("o_a_proj.lora_B.weight", [&](Tensor& t) { permute_rows(t, order); });
}

struct Trap {
  const char* name;
  const char* golden;
  void (*plant)(AlteredGolden&);
};
void PrintTo(const Trap& trap, std::ostream* out) { *out << trap.name << " in " << trap.golden; }

constexpr const char* kMain = "deepseek_v4/main";
constexpr const char* kLong = "deepseek_v4_long/behind";  // what is wrong behind 5,000 tokens

const Trap kTraps[] = {
    {"MagnitudeInTheScores", kMain, plant_magnitude},
    {"HalvesInPlaceOfPairs", kMain, plant_halves},
    {"CompressedRotationEverywhere", kLong, [](auto& g) { rope(g, "main") = rope(g, "compress"); }},
    {"PlainRotationEverywhere", kLong, [](auto& g) { rope(g, "compress") = rope(g, "main"); }},
    {"NoYarn", kLong, [](auto& g) { rope(g, "compress")["factor"] = 1.0; }},
    {"ThetaOfTheReferencesDefault", kLong,
     [](auto& g) { rope(g, "compress")["rope_theta"] = 40000.0; }},
    {"NoHashLayers", kMain, plant_no_hash_layers},
    {"NoBiasOfTheRouter", kMain, [](auto& g) { g.each("ffn.gate.bias", clear); }},
    {"RouterInFourBits", kMain, plant_router_in_four_bits},
    {"GroupsOfAnAdapterAsOne", kMain, plant_groups_as_one},
    {"NoAdapterOfTheGroups", kMain,
     [](auto& g) { g.each_adapters("o_a_proj.lora_B.weight", clear); }},
    {"NoAdapterOfWoB", kMain, [](auto& g) { g.each_adapters("o_b_proj.lora_B.weight", clear); }},
    {"NoAdapterOfTheCompressorsValues", kMain,
     [](auto& g) { g.each_adapters("self_attn.compressor.kv_proj.lora_B.weight", clear); }},
    {"NoAdapterOfTheCompressorsGates", kMain,
     [](auto& g) { g.each_adapters("self_attn.compressor.gate_proj.lora_B.weight", clear); }},
    {"NoAdapterOfExperts", kMain,
     [](auto& g) {
       for (const char* e : {"0", "1", "2", "3", "4"})
         g.each_adapters("mlp.experts." + std::string(e) + ".down_proj.lora_B.weight", clear);
     }},
};

class DeepseekV4Traps : public testing::TestWithParam<Trap> {};

TEST_P(DeepseekV4Traps, ShowsWhenPlanted) {
  if (!forced_path_exists()) GTEST_SKIP() << "this CPU lacks the forced path";
  const Trap& trap = GetParam();
  AlteredGolden g(trap.golden);
  const std::string key = trap.golden == std::string(kLong) ? "logprobs" : "logits";
  g.request["want"] = boost::json::array{key};
  const Tensor want = read_tensors(g.row.expected).at(key);
  const double limit = limit_of(key, read_json(g.row.noise), false);
  const auto apart = [&] { return relative_l2(g.run().at(key), want) / limit; };
  EXPECT_LE(apart(), 1) << "not the golden even before it is altered";
  trap.plant(g);
  const double ratio = apart();
  RecordProperty("limits", std::to_string(ratio));
  EXPECT_FALSE(ratio <= kVisible) << ratio;
}

INSTANTIATE_TEST_SUITE_P(All, DeepseekV4Traps, testing::ValuesIn(kTraps),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace strata::golden
