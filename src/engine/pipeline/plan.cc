// SPDX-License-Identifier: Apache-2.0
#include "engine/pipeline/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "base/error.h"
#include "schedule/generate.h"
#include "schedule/lower.h"

namespace strata::engine {
namespace {

using schedule::Action;

using LastOfStages = std::vector<int>;  // micro-batches

void check_ascending(LastOfStages& last, const Action& action) {
  int& before = last[static_cast<size_t>(action.stage)];
  if (action.microbatch < before) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("schedule: {} comes after that of micro-batch {}: backwards must "
                            "ascend, since gradients are sums in the order of micro-batches",
                            to_string(action), before));
  }
  before = action.microbatch;
}

// Gradients are sums in the order of micro-batches: those that a backward makes at once (B and I)
// as well as those that may wait (B and W).
void check_backwards_ascend(const schedule::Table& table) {
  const LastOfStages none(static_cast<size_t>(table.num_stages), -1);
  LastOfStages backwards = none, weights = none;
  for (const std::vector<schedule::Slot>& row : table.rows) {
    for (const schedule::Slot& slot : row) {
      for (const Action& action : slot.actions()) {
        if (schedule::is_backward(action.op)) check_ascending(backwards, action);
        if (schedule::has_weight_grad(action.op)) check_ascending(weights, action);
      }
    }
  }
}

// The runs that end with the last layer: begins[s][l] is where the last of s runs of the first l
// layers begins.
std::vector<model::LayerRange> trace_back(const std::vector<std::vector<size_t>>& begins) {
  std::vector<model::LayerRange> ranges(begins.size() - 1);
  size_t last = begins.back().size() - 1;
  for (size_t s = ranges.size(); s > 0; --s) {
    const size_t first = begins[s][last];
    ranges[s - 1] = {static_cast<int64_t>(first), static_cast<int64_t>(last)};
    last = first;
  }
  return ranges;
}

}  // namespace

std::vector<int> PipelinePlan::stages_of(int rank) const {
  std::vector<int> stages;
  for (int stage = 0; stage < num_stages(); ++stage) {
    if (ranks[static_cast<size_t>(stage)] == rank) stages.push_back(stage);
  }
  return stages;
}

int PipelinePlan::stage_of_layer(int64_t layer) const {
  const auto found =
      std::find_if(layers.begin(), layers.end(),
                   [&](const model::LayerRange& range) { return range.contains(layer); });
  // Behind the last layer is that of multi-token prediction.
  if (found == layers.end()) {
    CHECK(layer >= layers.back().last, layer);
    return num_stages() - 1;
  }
  return static_cast<int>(found - layers.begin());
}

bool PipelinePlan::defers_weight_gradients(int stage) const {
  const auto& row = table.rows[static_cast<size_t>(ranks[static_cast<size_t>(stage)])];
  return std::any_of(row.begin(), row.end(), [&](const schedule::Slot& slot) {
    const auto actions = slot.actions();
    return std::any_of(actions.begin(), actions.end(), [&](const Action& action) {
      return action.stage == stage && action.op == schedule::Op::kInputGrad;
    });
  });
}

PipelinePlan make_pipeline_plan(const schedule::Table& table, int forwarding_delay,
                                std::vector<model::LayerRange> layers) {
  CHECK(std::ssize(layers) == table.num_stages, layers.size(), table.num_stages);
  check_backwards_ascend(table);
  return {.table = has_transfers(table) ? table : schedule::lower(table, forwarding_delay),
          .layers = std::move(layers),
          .ranks = schedule::ranks_of_stages(table)};
}

PipelinePlan make_whole_plan(int64_t num_layers) {
  const schedule::Table table = schedule::generate(
      {.kind = schedule::Kind::kGpipe, .num_ranks = 1, .num_microbatches = 1, .num_chunks = 1});
  return make_pipeline_plan(table, /*forwarding_delay=*/1, {{0, num_layers}});
}

std::vector<model::LayerRange> balance_layers(std::span<const double> costs, double before,
                                              double after, int num_stages) {
  const auto num_layers = std::ssize(costs);
  CHECK(num_stages >= 1 && num_stages <= std::max<std::ptrdiff_t>(1, num_layers), num_stages);
  std::vector<double> sums = {0.0};  // of the first layers
  for (const double cost : costs) sums.push_back(sums.back() + cost);
  const auto size = static_cast<size_t>(num_layers) + 1;
  // least[s][l]: of the first l layers in s runs; and where the last of these begins.
  std::vector<std::vector<double>> least(
      static_cast<size_t>(num_stages) + 1,
      std::vector<double>(size, std::numeric_limits<double>::infinity()));
  std::vector<std::vector<size_t>> begins(least.size(), std::vector<size_t>(size, 0));
  least[0][0] = 0.0;
  for (size_t s = 1; s < least.size(); ++s) {
    const double around = (s == 1 ? before : 0.0) + (s + 1 == least.size() ? after : 0.0);
    for (size_t l = 0; l < size; ++l) {
      for (size_t begin = 0; begin <= l; ++begin) {
        if (begin == l && num_layers > 0) continue;
        const double most = std::max(least[s - 1][begin], sums[l] - sums[begin] + around);
        if (most >= least[s][l]) continue;
        least[s][l] = most;
        begins[s][l] = begin;
      }
    }
  }
  return trace_back(begins);
}

}  // namespace strata::engine
