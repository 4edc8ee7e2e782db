// SPDX-License-Identifier: Apache-2.0
#include "model/adapter/specs.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace strata::model {

ExpertRank parse_expert_rank(std::string_view text) {
  if (text == "divided") return ExpertRank::kDivided;
  if (text == "full") return ExpertRank::kFull;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("--expert-rank: got '{}', want divided or full", text));
}

int64_t routed_expert_rank(int64_t num_experts, int64_t rank, ExpertRank expert_rank) {
  const int64_t experts = std::max<int64_t>(1, num_experts);
  return expert_rank == ExpertRank::kFull ? rank : std::max<int64_t>(1, rank / experts);
}

std::vector<LoraModuleSpec> make_adapter_specs(
    const LayerTable& layers, FunctionRef<bool(const LoraTarget&, int layer)> wanted, int64_t rank,
    double alpha, ExpertRank expert_rank) {
  if (rank < 1 || rank > 65536) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("lora: rank: got {}, want 1 to 65536", rank));
  }
  if (!std::isfinite(alpha)) throw Error(ErrorCode::kInvalidArgument, "lora: alpha must be finite");
  std::vector<LoraModuleSpec> specs;
  const auto add = [&](int layer, int t) {
    const LoraTarget& target = layers.targets(layer)[static_cast<size_t>(t)];
    if (!wanted(target, layer)) return;
    const int64_t own =
        target.num_experts > 0 ? routed_expert_rank(target.num_experts, rank, expert_rank) : rank;
    specs.push_back({.layer = layer,
                     .target = t,
                     .rank = own,
                     .alpha = alpha,
                     .scale = alpha / static_cast<double>(own)});
  };
  add(-1, kEmbedding);
  for (int layer = 0; layer < layers.num_layers(); ++layer) {
    const auto count = static_cast<int>(layers.targets(layer).size());
    for (int t = 0; t < count; ++t) add(layer, t);
  }
  add(-1, kHead);
  if (specs.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                "lora: no module is adapted; name at least one target");
  }
  return specs;
}

namespace {

bool is_fresh(const LoraTarget& target, WithIndexers with_indexers) {
  return target.is_fresh || (target.of_indexer && with_indexers == WithIndexers::kYes);
}

// The names of a model's targets, each once: those of a fresh adapter, or the others.
std::vector<std::string_view> target_names(const LayerTable& layers, bool fresh,
                                           WithIndexers with_indexers) {
  std::vector<std::string_view> names;
  for (int64_t layer = layers.num_layers(); layer-- > -1;) {
    for (const LoraTarget& target : layers.targets(layer)) {
      if (is_fresh(target, with_indexers) != fresh) continue;
      if (std::find(names.begin(), names.end(), target.name()) == names.end()) {
        names.push_back(target.name());
      }
    }
  }
  return names;
}

// Error for a name that no target of a fresh adapter has.
void check_target_names(const LayerTable& layers, const std::vector<std::string>& targets,
                        WithIndexers with_indexers) {
  const auto known = target_names(layers, /*fresh=*/true, with_indexers);
  const auto from_files = target_names(layers, /*fresh=*/false, with_indexers);
  const auto fail = [](const std::string& what) {
    throw Error(ErrorCode::kInvalidArgument, "lora: " + what);
  };
  const auto has = [](const std::vector<std::string_view>& names, std::string_view name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  for (const std::string& target : targets) {
    if (target == "all-linear" || has(known, target)) continue;
    if (has(from_files, target)) {
      fail(
          fmt::format("target '{}': a fresh adapter has its parts apart, or no loss that trains "
                      "it; known are all-linear, {}",
                      target, fmt::join(known, ", ")));
    }
    fail(fmt::format("target '{}' is unknown; known are all-linear, {}", target,
                     fmt::join(known, ", ")));
  }
}

}  // namespace

std::vector<LoraModuleSpec> make_adapter_specs(const ModelConfig& config,
                                               const std::vector<std::string>& targets,
                                               int64_t rank, double alpha, ExpertRank expert_rank,
                                               WithIndexers with_indexers) {
  const LayerTable layers(config);
  check_target_names(layers, targets, with_indexers);
  const auto is_named = [&](std::string_view name) {
    return std::find(targets.begin(), targets.end(), name) != targets.end();
  };
  const bool all = is_named("all-linear");
  const auto wanted = [&](const LoraTarget& target, int layer) {
    return is_fresh(target, with_indexers) && ((all && layer >= 0) || is_named(target.name()));
  };
  return make_adapter_specs(layers, wanted, rank, alpha, expert_rank);
}

}  // namespace strata::model
