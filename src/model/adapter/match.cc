// SPDX-License-Identifier: Apache-2.0
#include "model/adapter/match.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>

namespace strata::model {
namespace {

struct TargetPlace {
  int layer = -1;
  int target = 0;
  int64_t expert = -1;  // one of many in kPerExpert
  ExpertForm form = ExpertForm::kPerExpert;
};

// Takes off the whole number that a path begins with, as torch writes it: 7 is not 07.
std::optional<int64_t> take_index(std::string_view& path) {
  uint32_t index = 0;  // of no sign
  const auto [rest, error] = std::from_chars(path.data(), path.data() + path.size(), index);
  if (error != std::errc()) return std::nullopt;
  const auto length = static_cast<size_t>(rest - path.data());
  if (path.front() == '0' && length > 1) return std::nullopt;
  path.remove_prefix(length);
  return index;
}

// What a path below the layer says of a target of routed experts: "mlp.experts.7.up_proj", or
// "mlp.experts.w3" and "mlp.experts.up_proj" of all experts. Nothing when it is not this target's.
std::optional<TargetPlace> parse_expert_place(const LoraTarget& target, std::string_view tail,
                                              PeftForm form) {
  const std::string_view name = target.name();
  const std::string_view prefix =
      std::string_view(target.path).substr(0, target.path.size() - name.size());
  if (!tail.starts_with(prefix)) return std::nullopt;
  tail.remove_prefix(prefix.size());
  TargetPlace place;
  if (form == PeftForm::kStacked) {
    place.form = ExpertForm::kStacked;
    return tail == target.stacked ? std::optional(place) : std::nullopt;
  }
  if (form == PeftForm::kFused) {
    place.form = ExpertForm::kFused;
    return tail == name ? std::optional(place) : std::nullopt;
  }
  const std::optional<int64_t> expert = take_index(tail);
  if (!expert || *expert >= target.num_experts) return std::nullopt;
  place.expert = *expert;
  // Targets of files alone exist in PEFT's whole tensors only.
  if (!tail.starts_with(".") || tail.substr(1) != name || !target.is_fresh) return std::nullopt;
  return place;
}

constexpr const char* kMtpPath = "mtp.0.";
// What adapters of a text model may have in place of the multimodal model's prefix.
constexpr std::string_view kTextPrefixes[] = {"language_model.model.", "model."};

// Takes off what names the layer of a canonical path: its index, -1 outside the layers; nothing for
// a layer that the model lacks.
std::optional<int> take_layer(const LayerTable& layers, std::string_view& path) {
  const std::string prefix = std::string(layers.module_prefix()) + "layers.";
  const std::string mtp = std::string(layers.module_prefix()) + kMtpPath;
  if (layers.mtp_layer() && path.starts_with(mtp)) {
    path.remove_prefix(mtp.size());
    return static_cast<int>(*layers.mtp_layer());
  }
  if (!path.starts_with(prefix)) return -1;
  path.remove_prefix(prefix.size());
  const std::optional<int64_t> index = take_index(path);
  const int64_t num_layers = layers.mtp_layer().value_or(layers.num_layers());
  if (!index || *index >= num_layers || !path.starts_with(".")) return std::nullopt;
  path.remove_prefix(1);
  return static_cast<int>(*index);
}

// "model.layers.3.self_attn.q_proj" -> layer 3 and its target; nothing for a module that the model
// lacks.
std::optional<TargetPlace> find_place(const LayerTable& layers, const PeftModule& module) {
  std::string canonical = canonical_path(layers, module.module_path);
  std::string_view path = canonical;
  const std::optional<int> layer = take_layer(layers, path);
  if (!layer) return std::nullopt;
  const std::span<const LoraTarget> targets = layers.targets(*layer);
  for (size_t t = 0; t < targets.size(); ++t) {
    std::optional<TargetPlace> place;
    if (targets[t].num_experts > 0) {
      place = parse_expert_place(targets[t], path, module.form);
    } else if (path == targets[t].path && !targets[t].is_part) {
      place = TargetPlace();
    }
    if (!place) continue;
    place->layer = *layer;
    place->target = static_cast<int>(t);
    return place;
  }
  return std::nullopt;
}

const LoraTarget& target_of(const LayerTable& layers, int layer, int target) {
  return layers.targets(layer)[static_cast<size_t>(target)];
}

void check_shape(const TensorInfo& tensor, const Shape& wanted, std::vector<std::string>& faults) {
  if (tensor.shape == wanted) return;
  faults.push_back(fmt::format("tensor '{}': shape {}, want {}", tensor.name, tensor.shape_text(),
                               wanted.to_string()));
}

void check_shapes(const LoraTarget& target, const PeftModule& module,
                  std::vector<std::string>& faults) {
  const int64_t in = target.in;
  const int64_t out = target.out;
  const int64_t rank = module.rank;
  const int64_t experts = target.num_experts;
  switch (module.form) {
    case PeftForm::kPlain:
      check_shape(module.a, {rank, in}, faults);
      check_shape(module.b, {out, rank}, faults);
      break;
    case PeftForm::kFused:
      check_shape(module.a, {experts * rank, target.swapped ? out : in}, faults);
      check_shape(module.b, {target.swapped ? in : out, experts * rank}, faults);
      break;
    case PeftForm::kStacked: {
      const auto leading = [&](const TensorInfo& tensor) {
        return tensor.shape[0] == 1 ? int64_t{1} : experts;
      };
      check_shape(module.a, {leading(module.a), rank, in}, faults);
      check_shape(module.b, {leading(module.b), out, rank}, faults);
    }
  }
}

// Every expert is there, once, and all have one rank and scale.
void check_experts(const LayerTable& layers, const MatchedModule& item,
                   std::vector<std::string>& faults) {
  const std::string name = fmt::format("module '{}'", module_path(layers, item.spec));
  for (int64_t e = 0; e < std::ssize(item.sources); ++e) {
    const PeftModule* source = item.sources[static_cast<size_t>(e)];
    if (source == nullptr) {
      faults.push_back(fmt::format("{}: expert {} is missing", name, e));
    } else if (source->rank != item.spec.rank || source->scaling != item.spec.scale) {
      faults.push_back(fmt::format(
          "module '{}': rank {} and scaling {}, other experts of its layer have {} and {}",
          source->module_path, source->rank, source->scaling, item.spec.rank, item.spec.scale));
    }
  }
}

// Modules of a file by the places in the model that they adapt.
class Matcher {
 public:
  Matcher(const LoadedModel& model, const PeftAdapter& peft, std::vector<std::string>& faults)
      : model_(model), peft_(peft), faults_(faults), halves_(parse_gate_up_names(peft)) {}

  void match(const PeftModule& module) {
    if (!layers_.mtp_layer() && is_of_mtp(model_.config, module)) return add_mtp_fault_once(module);
    const auto place = find_place(layers_, module);
    if (!place || (place->layer < 0 && place->target == kEmbedding) != module.embedding) {
      return add_no_such_module_fault(module);
    }
    const LoraTarget& target = target_of(layers_, place->layer, place->target);
    const size_t faults_before = faults_.size();
    check_shapes(target, module, faults_);
    if (!halves_ || module.form != PeftForm::kFused) {
      add_source(*place, target, module);
    } else if (faults_.size() == faults_before) {
      add_fused_halves(*place, target, module);
    }
  }

  // After the last module.
  std::vector<MatchedModule> take_matched() {
    for (const MatchedModule& item : matched_) {
      const bool of_experts = target_of(layers_, item.spec.layer, item.spec.target).num_experts > 0;
      if (of_experts && item.form == ExpertForm::kPerExpert && !item.part) {
        check_experts(layers_, item, faults_);
      }
    }
    return std::move(matched_);
  }

 private:
  [[nodiscard]] bool use_rslora() const { return peft_.config().use_rslora; }

  // The file's module as the one of a place, or as one expert's part of it.
  void add_source(const TargetPlace& place, const LoraTarget& target, const PeftModule& module) {
    MatchedModule* item = claim_item(place, module, module.rank, module.alpha);
    if (item == nullptr) return;
    if (place.expert < 0) {
      item->sources = {&module};
      return;
    }
    item->sources.resize(static_cast<size_t>(target.num_experts));
    const PeftModule*& source = item->sources[static_cast<size_t>(place.expert)];
    if (source != nullptr) return add_twice_fault(module, *source);
    source = &module;
  }

  void add_no_such_module_fault(const PeftModule& module) {
    faults_.push_back(fmt::format("module '{}' ('{}'): the model ({}, {} layers) has no such {}",
                                  module.module_path, module.a.name, model_.config.architecture,
                                  model_.config.num_layers(),
                                  module.embedding ? "embedding" : "linear module"));
  }

  void add_twice_fault(const PeftModule& module, const PeftModule& other) {
    faults_.push_back(
        fmt::format("modules '{}' and '{}' adapt the same", other.module_path, module.module_path));
  }

  void add_mtp_fault_once(const PeftModule& module) {
    if (!has_mtp_fault_) {
      faults_.push_back(fmt::format(
          "module '{}' ('{}'): the model is loaded without its layer of multi-token prediction, "
          "which this and perhaps other modules adapt; does --speculate mtp load it?",
          module.module_path, module.a.name));
    }
    has_mtp_fault_ = true;
  }

  void add_changed_values_fault(const PeftModule& module) {
    faults_.push_back(fmt::format(
        "module '{}' ('{}'): the file's metadata says that it is made of '{}', and its values "
        "are not; was the file changed by a program that kept the metadata?",
        module.module_path, module.a.name, fmt::join(*halves_, " ")));
  }

  // The item of a place, new or that of another expert; null, and a fault, when it is taken.
  MatchedModule* claim_item(const TargetPlace& place, const PeftModule& module, int64_t rank,
                            double alpha) {
    const auto [found, added] = places_.try_emplace({place.layer, place.target}, matched_.size());
    if (added) {
      matched_.push_back({.spec = {.layer = place.layer,
                                   .target = place.target,
                                   .rank = rank,
                                   .alpha = alpha,
                                   .scale = peft_scaling(alpha, rank, use_rslora())},
                          .form = place.form,
                          .sources = {}});
    }
    MatchedModule& item = matched_[found->second];
    if (!added && (place.expert < 0 || item.form != place.form || item.part)) {
      faults_.push_back(
          fmt::format("module '{}' is adapted twice, in different forms", module.module_path));
      return nullptr;
    }
    return &item;
  }

  // The place of the layer's target of experts that has the name.
  [[nodiscard]] int find_expert_target(int layer, std::string_view name) const {
    const std::span<const LoraTarget> targets = layers_.targets(layer);
    const auto found = std::find_if(targets.begin(), targets.end(), [&](const LoraTarget& target) {
      return target.num_experts > 0 && target.name() == name;
    });
    CHECK(found != targets.end(), name);
    return static_cast<int>(found - targets.begin());
  }

  // gate and up apart, of a file of save_adapter_for_peft().
  void add_fused_halves(TargetPlace place, const LoraTarget& target, const PeftModule& module) {
    const bool is_pair = target.num_halves > 1;
    const auto count = is_pair ? std::ssize(*halves_) : 1;
    if (is_pair && (count == 0 || module.rank % count != 0 ||
                    !is_block_diagonal(peft_, module, target, *halves_))) {
      return add_changed_values_fault(module);
    }
    const int64_t rank = module.rank / count;
    const double alpha = module.alpha / fused_alpha_factor(count, use_rslora());
    for (int64_t i = 0; i < count; ++i) {
      const std::string_view name =
          is_pair ? std::string_view((*halves_)[static_cast<size_t>(i)]) : target.name();
      place.target = find_expert_target(place.layer, name);
      place.form = ExpertForm::kPerExpert;
      MatchedModule* item = claim_item(place, module, rank, alpha);
      if (item == nullptr) continue;
      item->sources = {&module};
      item->part = {.first_rank = i * rank,
                    .half = name == "up_proj" ? 1 : 0,
                    .num_halves = target.num_halves};
    }
  }

  const LoadedModel& model_;
  const PeftAdapter& peft_;
  std::vector<std::string>& faults_;
  const LayerTable& layers_ = model_.weights->layers();
  std::optional<std::vector<std::string>> halves_;
  std::vector<MatchedModule> matched_;
  std::map<std::pair<int, int>, size_t> places_;  // {layer, target} -> matched_
  bool has_mtp_fault_ = false;
};

}  // namespace

std::string canonical_path(const LayerTable& layers, const std::string& name) {
  const std::string path = layers.module_of_older_name(name);
  const std::string_view prefix = layers.module_prefix();
  if (prefix == "model." || path.starts_with(prefix)) return path;
  for (const std::string_view other : kTextPrefixes) {
    if (path.starts_with(other)) return std::string(prefix) + path.substr(other.size());
  }
  return path;
}

bool is_of_mtp(const ModelConfig& config, const PeftModule& module) {
  if (!config.mtp_layer) return false;
  // The prefixes are those that canonical_path() takes.
  for (const std::string_view prefix : {config.module_prefix, kTextPrefixes[0], kTextPrefixes[1]}) {
    if (module.module_path.starts_with(fmt::format("{}{}", prefix, kMtpPath))) return true;
  }
  return false;
}

std::vector<MatchedModule> match_modules(const LoadedModel& model, const PeftAdapter& peft,
                                         std::vector<std::string>& faults) {
  Matcher matcher(model, peft, faults);
  for (const PeftModule& module : peft.modules()) matcher.match(module);
  return matcher.take_matched();
}

namespace {

// Whether a target of experts is gate or up of one that is both together.
bool is_half_of(const LoraTarget& single, const LoraTarget& together) {
  return single.num_halves == 1 && !single.stacked.empty() &&
         together.stacked.find(single.stacked) != std::string_view::npos;
}

}  // namespace

void check_gate_up_pairs(const LayerTable& layers, const std::vector<MatchedModule>& matched,
                         std::vector<std::string>& faults) {
  for (const MatchedModule& whole : matched) {
    const LoraTarget& together = target_of(layers, whole.spec.layer, whole.spec.target);
    if (together.num_halves == 1) continue;
    for (const MatchedModule& item : matched) {
      const LoraTarget& single = target_of(layers, item.spec.layer, item.spec.target);
      if (item.spec.layer != whole.spec.layer || !is_half_of(single, together)) continue;
      faults.push_back(fmt::format("layer {}: {} and {} of the experts are both adapted",
                                   item.spec.layer, single.name(), together.name()));
    }
  }
}

}  // namespace strata::model
