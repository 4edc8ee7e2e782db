// SPDX-License-Identifier: Apache-2.0
// What a work of `strata bench` came to on one stage, as a line of JSON or in words.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "apps/bench/bench.h"
#include "apps/bench/figures.h"
#include "apps/bench/groups.h"
#include "apps/bench/works.h"
#include "engine/plan/run_plan.h"

namespace strata::apps {

// The time of a decoding step behind a long context, against one behind a near one.
struct ContextCost {
  int64_t context = 0;
  int64_t near_context = 0;
  double step_seconds = 0.0;
  double ratio = 1.0;
};

// What latent attention takes, of a model whose cache has latent vectors.
struct LatentAttention {
  double row_bytes = 0.0;    // of a token in a layer, measured; 0 without a cache
  int64_t latent_bytes = 0;  // as the block declares it
  double work_ratio = 0.0;   // in latent space over that of expanded heads
};

struct BenchResult {
  std::vector<Figures> runs;
  engine::MemoryPlan memory;
  std::optional<engine::RunPlan> plan;  // where --memory chose
  std::string arithmetic;
  DType dtype = DType::kBF16;  // of products
  int threads = 0;
  double startup_s = 0.0;
  std::optional<double> share_of_base;
  std::optional<ContextCost> context_cost;
  std::vector<GroupShares> groups;
  std::optional<LatentAttention> latent = {};
};

void print_json(const BenchWork& work, const BenchOptions& options, const BenchResult& result);
void print_text(const BenchWork& work, const BenchResult& result);

}  // namespace strata::apps
