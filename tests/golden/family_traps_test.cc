// SPDX-License-Identifier: Apache-2.0
// Mistakes that are easily made in a family, each planted by changing the files so that our program
// computes what the mistake would: the golden must miss its limit by more than a hundred times.
#include <gtest/gtest.h>

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
};

class FamilyTraps : public testing::TestWithParam<Trap> {};

TEST_P(FamilyTraps, ShowsWhenPlanted) {
  if (!forced_path_exists()) GTEST_SKIP() << "this CPU lacks the forced path";
  const Trap& trap = GetParam();
  AlteredGolden g(trap.golden);
  const Tensor want = read_tensors(g.row.expected).at("logits");
  const auto limits_apart = [&] {
    return relative_l2(g.run()["logits"], want) / limit_of("logits", read_json(g.row.noise), false);
  };
  EXPECT_LE(limits_apart(), 1) << "not the golden even before it is altered";
  trap.plant(g);
  EXPECT_FALSE(limits_apart() <= kVisible);
}

INSTANTIATE_TEST_SUITE_P(All, FamilyTraps, testing::ValuesIn(kTraps),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace strata::golden
