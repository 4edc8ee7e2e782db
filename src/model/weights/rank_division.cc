// SPDX-License-Identifier: Apache-2.0
#include "model/weights/rank_division.h"

#include <fmt/format.h>

#include <numeric>
#include <string>

#include "base/error.h"

namespace strata::model {
namespace {

// Calls body(row, layer) for the parameters of each stack, with its first layer, and then for the
// vocabulary's, with layer -1.
template <typename Body>
void for_each_row(const LayerTable& layers, Body body) {
  const auto take = [&](const ParamRows& rows, int64_t layer) {
    for (const ParamRow& row : rows) {
      if (row.is_parameter()) body(row, layer);
    }
  };
  for (const LayerStack& stack : layers.stacks()) {
    for (const SublayerRows& rows : stack.rows) {
      take(rows.outer, stack.layers.front());
      take(rows.inner, stack.layers.front());
    }
  }
  take(layers.vocabulary_rows(), -1);
  take(layers.per_layer_rows(), -1);
}

std::string name_of(const ParamRow& row, int64_t layer) {
  const std::string name = fmt::format(fmt::runtime(row.suffix), "*");  // of all experts
  return layer < 0 ? name : fmt::format("layer {}, {}", layer, name);
}

[[noreturn]] void refuse(const char* kind, int64_t ranks, const std::string& why) {
  throw Error(ErrorCode::kInvalidArgument, fmt::format("--ranks {}={}: {}", kind, ranks, why));
}

// `common` divides what every row has of this kind.
[[noreturn]] void refuse_row(const char* kind, int64_t ranks, const std::string& what,
                             int64_t common) {
  const std::string hint =
      common == 1 ? "no number above 1 divides every row of the model"
                  : fmt::format("want a divisor of {}, which every row of the model has", common);
  refuse(kind, ranks, fmt::format("{} are no multiple of {}; {}", what, ranks, hint));
}

void check_expert_ranks(const LayerTable& layers, int64_t ranks) {
  int64_t common = 0;  // 0: no row has experts
  for_each_row(layers,
               [&](const ParamRow& row, int64_t) { common = std::gcd(common, row.num_experts); });
  if (common == 0) refuse("expert", ranks, "the model has no experts");
  for_each_row(layers, [&](const ParamRow& row, int64_t layer) {
    if (row.num_experts % ranks == 0) return;
    refuse_row("expert", ranks, fmt::format("{}: {} experts", name_of(row, layer), row.num_experts),
               common);
  });
}

// Of a row that has an axis.
void check_row_units(const ParamRow& row, int64_t layer, int64_t ranks, int64_t common) {
  const RowShards& shards = row.shards;
  const std::string what =
      fmt::format("{}: {} {} along its {}", name_of(row, layer), shards.units, shards.unit,
                  shards.axis == ShardAxis::kOutputs ? "outputs" : "inputs");
  if (shards.uneven && shards.units < ranks)
    refuse("tensor", ranks, fmt::format("{} are fewer than {} ranks", what, ranks));
  if (!shards.uneven && shards.units % ranks != 0) refuse_row("tensor", ranks, what, common);
}

void check_tensor_ranks(const LayerTable& layers, int64_t ranks) {
  int64_t common = 0;
  for_each_row(layers, [&](const ParamRow& row, int64_t) {
    if (!row.shards.uneven) common = std::gcd(common, row.shards.units);
  });
  for_each_row(layers, [&](const ParamRow& row, int64_t layer) {
    if (row.shards.axis != ShardAxis::kNone) check_row_units(row, layer, ranks, common);
  });
}

}  // namespace

void check_division(const LayerTable& layers, const RankDivision& ranks) {
  if (ranks.expert > 1) check_expert_ranks(layers, ranks.expert);
  if (ranks.tensor > 1) check_tensor_ranks(layers, ranks.tensor);
}

}  // namespace strata::model
