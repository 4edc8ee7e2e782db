// SPDX-License-Identifier: Apache-2.0
#include "model/weights/rank_division.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

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

[[noreturn]] void refuse_row(const char* kind, int64_t ranks, const std::string& what,
                             const std::string& hint) {
  refuse(kind, ranks, fmt::format("{} are no multiple of {}; {}", what, ranks, hint));
}

// `common` divides what every row has of this kind.
std::string hint_of_common(int64_t common) {
  if (common == 1) return "no number above 1 divides every row of the model";
  return fmt::format("want a divisor of {}, which every row of the model has", common);
}

void check_expert_ranks(const LayerTable& layers, int64_t ranks) {
  int64_t least = 0;  // 0: no row has experts
  for_each_row(layers, [&](const ParamRow& row, int64_t) {
    if (row.num_experts > 0)
      least = least == 0 ? row.num_experts : std::min(least, row.num_experts);
  });
  if (least == 0) refuse("expert", ranks, "the model has no experts");
  for_each_row(layers, [&](const ParamRow& row, int64_t layer) {
    if (row.num_experts == 0 || row.num_experts >= ranks) return;
    refuse("expert", ranks,
           fmt::format("{}: {} experts are fewer than the ranks; want at most {}",
                       name_of(row, layer), row.num_experts, least));
  });
}

bool divides(const RowShards& shards, int64_t ranks) {
  return shards.uneven || shards.units % ranks == 0 || (shards.copied && ranks % shards.units == 0);
}

// Numbers beyond it are none that a hint names: a config may claim any number of heads.
constexpr int64_t kMostRanks = 32768;

// What the model's rows can be divided by. Rows that may be copied leave divisors of the others
// out.
std::string hint_of_tensor_ranks(const LayerTable& layers) {
  int64_t common = 0;
  for_each_row(layers, [&](const ParamRow& row, int64_t) {
    if (!row.shards.uneven && !row.shards.copied) common = std::gcd(common, row.shards.units);
  });
  std::vector<int64_t> wanted;
  bool all = true;
  for (int64_t ranks = 2; ranks <= std::min(common, kMostRanks); ++ranks) {
    if (common % ranks != 0) continue;
    bool every = true;
    for_each_row(layers, [&](const ParamRow& row, int64_t) {
      if (row.shards.axis != ShardAxis::kNone) every = every && divides(row.shards, ranks);
    });
    if (every) wanted.push_back(ranks);
    all = all && every;
  }
  if (all || wanted.empty()) return hint_of_common(wanted.empty() ? 1 : common);
  return fmt::format("want {}, by which every row of the model divides", fmt::join(wanted, " or "));
}

// An Error for a row, which has an axis, that so many ranks do not divide.
void check_row_units(const ParamRow& row, int64_t layer, int64_t ranks, const LayerTable& layers) {
  const RowShards& shards = row.shards;
  const std::string what =
      fmt::format("{}: {} {} along its {}", name_of(row, layer), shards.units, shards.unit,
                  shards.axis == ShardAxis::kOutputs ? "outputs" : "inputs");
  if (shards.uneven && shards.units < ranks)
    refuse("tensor", ranks, fmt::format("{} are fewer than {} ranks", what, ranks));
  if (shards.axis == ShardAxis::kGathered && row.shape[0] < ranks)
    refuse(
        "tensor", ranks,
        fmt::format("{}: {} outputs are fewer than the ranks", name_of(row, layer), row.shape[0]));
  if (!divides(shards, ranks)) refuse_row("tensor", ranks, what, hint_of_tensor_ranks(layers));
}

void check_tensor_ranks(const LayerTable& layers, int64_t ranks) {
  for_each_row(layers, [&](const ParamRow& row, int64_t layer) {
    if (row.shards.axis != ShardAxis::kNone) check_row_units(row, layer, ranks, layers);
  });
}

}  // namespace

void check_division(const LayerTable& layers, const RankDivision& ranks) {
  if (ranks.expert > 1) check_expert_ranks(layers, ranks.expert);
  if (ranks.tensor > 1) check_tensor_ranks(layers, ranks.tensor);
}

ModelConfig config_of_share(const ModelConfig& config, const TensorShare& share) {
  ModelConfig own = config;
  if (!share.is_divided()) return own;
  const auto divide = [&](LayerConfig& layer) {
    for (Sublayer& sublayer : layer) sublayer.block = sublayer.block.divided(share);
  };
  for (LayerConfig& layer : own.layers) divide(layer);
  if (own.mtp_layer) divide(*own.mtp_layer);
  return own;
}

}  // namespace strata::model
