// SPDX-License-Identifier: Apache-2.0
// Pipelines whose stages have several ranks each, which may divide their weights, give the bits of
// one process: every pair of settings of every family in `make test`, every division of every
// family with STRATA_STAGES=all (`make ranks`).
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/stages/pairwise.h"
#include "tests/stages/staged_run.h"

namespace strata::engine {
namespace {

using schedule::Kind;

// A schedule, and how many parts of the model a rank has.
struct Order {
  Kind kind;
  int chunks;
};
constexpr Order kOrders[] = {{Kind::kGpipe, 1},       {Kind::k1f1b, 1},       {Kind::kCircular, 1},
                             {Kind::kCircular, 2},    {Kind::kZb1p, 1},       {Kind::kZb1p, 2},
                             {Kind::kInterleaved, 2}, {Kind::kInterleaved, 1}};

std::vector<StagedCase> divisions() {
  std::vector<StagedCase> cases;
  const auto add = [&](const std::string& model, int pipeline, int data, bool shards,
                       const Order& order, bool parameters) {
    const size_t number = cases.size();  // of which all else is taken in turn
    StagedCase c = {.model = model,
                    .num_layers = pipeline * order.chunks + 1,
                    .parameters = parameters,
                    .dtype = number % 3 == 0 ? DType::kBF16 : DType::kF32,
                    .num_ranks = pipeline,
                    .data = data,
                    .shards = shards,
                    .num_chunks = order.chunks,
                    .kind = order.kind,
                    .num_microbatches = pipeline,
                    .again = static_cast<Again>(number % 5)};
    if (pipeline == 1) c.pass_tokens = 8;
    c.mtp = model == "deepseek_v4_mtp";
    c.tied = number % 7 < 3 && (model == "qwen3" || c.mtp);
    cases.push_back(c);
  };
  for (const char* model :
       {"llama2", "qwen2_window", "qwen3", "gemma3", "ministral", "qwen3_moe", "deepseek_moe",
        "deepseek_v4", "deepseek_v4_mtp", "qwen3_5", "qwen3_5_moe"}) {
    for (const int pipeline : {1, 2, 3, 4}) {
      for (const int data : {2, 3}) {
        for (const bool shards : {false, true}) {
          for (const Order& order : kOrders) {
            for (const bool parameters : {false, true}) {
              // Weight gradients apart go along no chain: commands refuse it.
              if (parameters && order.kind == Kind::kZb1p) continue;
              add(model, pipeline, data, shards, order, parameters);
            }
          }
        }
      }
    }
  }
  return cases;
}

class Divisions : public testing::TestWithParam<StagedCase> {};

TEST_P(Divisions, EqualOneProcess) {
  expect_same_bits(run_staged(GetParam()), run_whole(GetParam()));
}

INSTANTIATE_TEST_SUITE_P(Cases, Divisions, testing::ValuesIn(chosen_of(divisions())));

}  // namespace
}  // namespace strata::engine
