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

namespace {

void check_rank_and_alpha(int64_t rank, double alpha) {
  if (rank < 1 || rank > 65536) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("lora: rank: got {}, want 1 to 65536", rank));
  }
  if (!std::isfinite(alpha)) throw Error(ErrorCode::kInvalidArgument, "lora: alpha must be finite");
}

// `index`: the target's, in its layer.
LoraModuleSpec make_spec(const LoraTarget& target, int layer, int index, int64_t rank, double alpha,
                         ExpertRank expert_rank) {
  const int64_t own =
      target.num_experts > 0 ? routed_expert_rank(target.num_experts, rank, expert_rank) : rank;
  return {.layer = layer,
          .target = index,
          .rank = own,
          .alpha = alpha,
          .scale = alpha / static_cast<double>(own)};
}

}  // namespace

std::vector<LoraModuleSpec> make_adapter_specs(
    const LayerTable& layers, FunctionRef<bool(const LoraTarget&, int layer)> wanted, int64_t rank,
    double alpha, ExpertRank expert_rank) {
  check_rank_and_alpha(rank, alpha);
  std::vector<LoraModuleSpec> specs;
  const auto add_wanted = [&](int layer, int t) {
    const LoraTarget& target = layers.targets(layer)[static_cast<size_t>(t)];
    if (wanted(target, layer))
      specs.push_back(make_spec(target, layer, t, rank, alpha, expert_rank));
  };
  add_wanted(-1, kEmbedding);
  if (!layers.per_layer_rows().empty()) add_wanted(-1, kPerLayerModelProjection);
  for (int layer = 0; layer < layers.num_layers(); ++layer) {
    const auto count = static_cast<int>(layers.targets(layer).size());
    for (int t = 0; t < count; ++t) add_wanted(layer, t);
  }
  add_wanted(-1, kHead);
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

bool contains(const std::vector<std::string_view>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// The names of a model's targets, each once: those of a fresh adapter, or the others.
std::vector<std::string_view> target_names(const LayerTable& layers, bool fresh,
                                           WithIndexers with_indexers) {
  std::vector<std::string_view> names;
  for (int64_t layer = layers.num_layers(); layer-- > -1;) {
    for (const LoraTarget& target : layers.targets(layer)) {
      if (is_fresh(target, with_indexers) != fresh || target.is_part) continue;
      if (!contains(names, target.name())) names.push_back(target.name());
    }
  }
  return names;
}

[[noreturn]] void refuse_target(const std::string& what) {
  throw Error(ErrorCode::kInvalidArgument, "lora: " + what);
}

// Error for a name that no target of a fresh adapter has.
void check_target_names(const LayerTable& layers, const std::vector<std::string>& targets,
                        WithIndexers with_indexers) {
  const auto known = target_names(layers, /*fresh=*/true, with_indexers);
  const auto from_files = target_names(layers, /*fresh=*/false, with_indexers);
  for (const std::string& target : targets) {
    if (target == "all-linear" || contains(known, target)) continue;
    if (contains(from_files, target)) {
      refuse_target(
          fmt::format("target '{}': a fresh adapter has its parts apart, or no loss that trains "
                      "it; known are all-linear, {}",
                      target, fmt::join(known, ", ")));
    }
    refuse_target(fmt::format("target '{}' is unknown; known are all-linear, {}", target,
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
    const bool is_vocabulary = layer < 0 && target.group != BlockGroup::kMlp;
    return is_fresh(target, with_indexers) && ((all && !is_vocabulary) || is_named(target.name()));
  };
  return make_adapter_specs(layers, wanted, rank, alpha, expert_rank);
}

}  // namespace strata::model
