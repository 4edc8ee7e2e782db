#include "model/adapter/io.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <deque>
#include <map>
#include <optional>
#include <set>

#include "base/error.h"
#include "model/adapter/tensors.h"

namespace strata::model {
namespace {

struct TargetPlace {
  int layer = -1;
  int target = 0;
  int64_t expert = -1;  // one of many in kPerExpert
  ExpertForm form = ExpertForm::kPerExpert;
};

// What a path below the layer says of a target of routed experts: "mlp.experts.7.up_proj", or
// "mlp.experts.w3" and "mlp.experts.up_proj" of all experts. Nothing when it is not this target's.
std::optional<TargetPlace> expert_place(const LoraTarget& target, std::string_view tail,
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
  const auto [rest, error] = std::from_chars(tail.data(), tail.data() + tail.size(), place.expert);
  if (error != std::errc() || place.expert < 0 || place.expert >= target.num_experts) {
    return std::nullopt;
  }
  tail.remove_prefix(static_cast<size_t>(rest - tail.data()));
  // Targets of files alone exist in PEFT's whole tensors only.
  if (!tail.starts_with(".") || tail.substr(1) != name || !target.is_fresh) return std::nullopt;
  return place;
}

// The modules of a text part are "model.language_model." here; older files say
// "language_model.model.", and those made on the text model alone "model.".
std::string canonical_path(const LayerTable& layers, const std::string& path) {
  const std::string_view prefix = layers.module_prefix();
  if (prefix == "model." || path.starts_with(prefix)) return path;
  for (const std::string_view other : {"language_model.model.", "model."}) {
    if (path.starts_with(other)) return std::string(prefix) + path.substr(other.size());
  }
  return path;
}

constexpr const char* kMtpPath = "mtp.0.";

bool is_of_mtp(const ModelConfig& config, const PeftModule& module) {
  return config.mtp_layer &&
         module.module_path.starts_with(fmt::format("{}{}", config.module_prefix, kMtpPath));
}

// "model.layers.3.self_attn.q_proj" -> layer 3 and its target; nothing for a module that the model
// lacks.
std::optional<TargetPlace> place_of(const LayerTable& layers, const PeftModule& module) {
  std::string canonical = canonical_path(layers, module.module_path);
  std::string_view path = canonical;
  int layer = -1;
  const std::string prefix = std::string(layers.module_prefix()) + "layers.";
  const std::string mtp = std::string(layers.module_prefix()) + kMtpPath;
  if (layers.mtp_layer() && path.starts_with(mtp)) {
    path.remove_prefix(mtp.size());
    layer = static_cast<int>(*layers.mtp_layer());
  } else if (path.starts_with(prefix)) {
    path.remove_prefix(prefix.size());
    const auto [rest, error] = std::from_chars(path.data(), path.data() + path.size(), layer);
    const int64_t num_layers = layers.mtp_layer().value_or(layers.num_layers());
    if (error != std::errc() || layer < 0 || layer >= num_layers) return std::nullopt;
    path = std::string_view(rest, static_cast<size_t>(path.data() + path.size() - rest));
    if (!path.starts_with(".")) return std::nullopt;
    path.remove_prefix(1);
  }
  const std::span<const LoraTarget> targets = layers.targets(layer);
  for (size_t t = 0; t < targets.size(); ++t) {
    std::optional<TargetPlace> place;
    if (targets[t].num_experts > 0) {
      place = expert_place(targets[t], path, module.form);
    } else if (path == targets[t].path) {
      place = TargetPlace();
    }
    if (!place) continue;
    place->layer = layer;
    place->target = static_cast<int>(t);
    return place;
  }
  return std::nullopt;
}

const LoraTarget& target_of(const LayerTable& layers, int layer, int target) {
  return layers.targets(layer)[static_cast<size_t>(target)];
}

float rounded_to(float value, DType dtype) {
  if (dtype == DType::kBF16) return round_to_bf16(value);
  if (dtype == DType::kF16) return f16_to_float(float_to_f16(value));
  return value;
}

// Compares a copy of a base weight with the model's, both rounded to the narrower of their types.
void check_base_copy(Backend& backend, const LoadedModel& model, const PeftAdapter& peft,
                     const PeftBaseCopy& copy, std::vector<std::string>& faults) {
  const ModelWeights& weights = *model.weights;
  size_t index = ModelWeights::npos;
  const std::string_view prefix = weights.layers().module_prefix();
  if (canonical_path(weights.layers(), copy.base_name) ==
      fmt::format("{}embed_tokens.weight", prefix)) {
    index = weights.embedding_index();
  }
  if (copy.base_name == "lm_head.weight") index = weights.head_index();
  const std::string& name = copy.tensor.name;
  if (index == ModelWeights::npos) {
    faults.push_back(fmt::format("tensor '{}' copies '{}', which the model does not have", name,
                                 copy.base_name));
    return;
  }
  const Parameter& parameter = weights.table()[index];
  if (!copy.tensor.readable || !(copy.tensor.shape == parameter.shape)) {
    faults.push_back(fmt::format("tensor '{}': {} {}, the base has {}", name,
                                 copy.tensor.dtype_name, copy.tensor.shape_text(),
                                 parameter.shape.to_string()));
    return;
  }
  if (!parameter.held) return;  // its own stage compares it
  const DType stored = model.checkpoint == nullptr
                           ? weights.compute_dtype()
                           : model.checkpoint->find(parameter.name)->info.dtype;
  const int64_t cols = parameter.shape[1];
  const int64_t step = std::max<int64_t>(1, (4 << 20) / cols);
  for (int64_t begin = 0; begin < parameter.shape[0]; begin += step) {
    const int64_t end = std::min(parameter.shape[0], begin + step);
    const Scratch::Mark mark(backend.scratch());
    const TensorView base = backend.scratch().take(DType::kF32, {end - begin, cols});
    const TensorView other = backend.scratch().take(DType::kF32, {end - begin, cols});
    const HostAccess access(backend.allocator());
    weights.read(backend, index, begin, base);
    peft.file().read_f32(copy.tensor, begin * cols, (end - begin) * cols, other.f32());
    for (int64_t i = 0; i < (end - begin) * cols; ++i) {
      const float a = rounded_to(base.f32()[i], copy.tensor.dtype);
      const float b =
          rounded_to(rounded_to(rounded_to(other.f32()[i], stored), weights.compute_dtype()),
                     copy.tensor.dtype);
      if (a == b) continue;
      faults.push_back(
          fmt::format("tensor '{}' differs from the model's '{}' at row {}: {} and {}; the adapter "
                      "belongs to another base model",
                      name, parameter.name, begin + i / cols, other.f32()[i], base.f32()[i]));
      return;
    }
  }
}

// One module of the adapter and the modules of the file that make it up: one, or one an expert.
struct MatchedModule {
  LoraModuleSpec spec;
  ExpertForm form = ExpertForm::kPerExpert;
  std::vector<const PeftModule*> sources;
};

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
      check_shape(module.a, {experts * rank, in}, faults);
      check_shape(module.b, {out, experts * rank}, faults);
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

std::vector<MatchedModule> match_modules(const LoadedModel& model, const PeftAdapter& peft,
                                         std::vector<std::string>& faults) {
  const LayerTable& layers = model.weights->layers();
  std::vector<MatchedModule> matched;
  std::map<std::pair<int, int>, size_t> places;  // {layer, target} -> matched
  bool lacks_mtp = false;
  for (const PeftModule& module : peft.modules()) {
    if (!layers.mtp_layer() && is_of_mtp(model.config, module)) {
      if (!lacks_mtp) {
        faults.push_back(fmt::format(
            "module '{}' ('{}'): the model is loaded without its layer of multi-token prediction, "
            "which this and perhaps other modules adapt; does --speculate mtp load it?",
            module.module_path, module.a.name));
      }
      lacks_mtp = true;
      continue;
    }
    const auto place = place_of(layers, module);
    if (!place || (place->layer < 0 && place->target == kEmbedding) != module.embedding) {
      faults.push_back(fmt::format("module '{}' ('{}'): the model ({}, {} layers) has no such {}",
                                   module.module_path, module.a.name, model.config.architecture,
                                   model.config.num_layers(),
                                   module.embedding ? "embedding" : "linear module"));
      continue;
    }
    const LoraTarget& target = target_of(layers, place->layer, place->target);
    check_shapes(target, module, faults);
    const auto [found, added] = places.try_emplace({place->layer, place->target}, matched.size());
    if (added) {
      matched.push_back({.spec = {.layer = place->layer,
                                  .target = place->target,
                                  .rank = module.rank,
                                  .alpha = module.alpha,
                                  .scale = module.scaling},
                         .form = place->form,
                         .sources = {}});
    }
    MatchedModule& item = matched[found->second];
    const bool one_of_many = place->expert >= 0;
    if ((!added && (!one_of_many || item.form != place->form))) {
      faults.push_back(
          fmt::format("module '{}' is adapted twice, in different forms", module.module_path));
      continue;
    }
    if (!one_of_many) {
      item.sources = {&module};
      continue;
    }
    item.sources.resize(static_cast<size_t>(target.num_experts));
    item.sources[static_cast<size_t>(place->expert)] = &module;
  }
  for (const MatchedModule& item : matched) {
    const bool of_experts = target_of(layers, item.spec.layer, item.spec.target).num_experts > 0;
    if (of_experts && item.form == ExpertForm::kPerExpert) check_experts(layers, item, faults);
  }
  return matched;
}

// gate and up of experts have either an A each or one together.
void check_pairs(const LayerTable& layers, const std::vector<MatchedModule>& matched,
                 std::vector<std::string>& faults) {
  for (const MatchedModule& whole : matched) {
    const LoraTarget& together = target_of(layers, whole.spec.layer, whole.spec.target);
    if (together.num_halves == 1) continue;
    for (const MatchedModule& item : matched) {
      const LoraTarget& single = target_of(layers, item.spec.layer, item.spec.target);
      const bool is_half = single.num_halves == 1 && !single.stacked.empty() &&
                           together.stacked.find(single.stacked) != std::string_view::npos;
      if (item.spec.layer != whole.spec.layer || !is_half) continue;
      faults.push_back(fmt::format("layer {}: {} and {} of the experts are both adapted",
                                   item.spec.layer, single.name(), together.name()));
    }
  }
}

void read_tensor(const PeftAdapter& peft, const TensorInfo& source, const LoraModule& module,
                 AdapterTensor tensor, TensorView values) {
  std::vector<float> stored(static_cast<size_t>(source.shape.num_elements()));
  peft.file().read_f32(source, 0, source.shape.num_elements(), stored.data());
  if (module.form == ExpertForm::kStacked && source.shape.rank() == 3 && source.shape[0] == 1) {
    // A leading 1 stands for every expert.
    const size_t one = stored.size();
    for (int64_t e = 1; e < module.num_experts; ++e) {
      stored.insert(stored.end(), stored.begin(), stored.begin() + static_cast<int64_t>(one));
    }
  }
  from_stored(module, tensor, stored.data(), values);
}

// "...experts.0.up_proj.lora_A.weight" -> "...experts.{}.up_proj.lora_A.weight"
std::string name_pattern(const std::string& name) {
  constexpr std::string_view kZero = ".experts.0.";
  const size_t at = name.rfind(kZero);
  CHECK(at != std::string::npos, name);
  return name.substr(0, at) + ".experts.{}." + name.substr(at + kZero.size());
}

void read_modules(const PeftAdapter& peft, const std::vector<MatchedModule>& matched,
                  LoraAdapter& adapter) {
  const HostAccess access(adapter.backend().allocator());
  for (size_t i = 0; i < matched.size(); ++i) {
    LoraModule& module = adapter.modules()[i];
    module.form = matched[i].form;
    const PeftModule& first = *matched[i].sources[0];
    const bool each = module.num_experts > 0 && module.form == ExpertForm::kPerExpert;
    module.a_name = each ? name_pattern(first.a.name) : first.a.name;
    module.b_name = each ? name_pattern(first.b.name) : first.b.name;
  }
  for (const AdapterTensor& tensor : adapter_tensors(adapter)) {
    const LoraModule& module = adapter.modules()[tensor.module];
    if (!module.held()) continue;
    const PeftModule& source =
        *matched[tensor.module].sources[static_cast<size_t>(std::max<int64_t>(0, tensor.expert))];
    read_tensor(peft, tensor.is_b ? source.b : source.a, module, tensor,
                tensor.is_b ? module.b : module.a);
  }
}

// The module path that the config's patterns name, and the key of the tensors where it differs.
void name_module(const LoraModule& module, int64_t expert, PeftWriteModule& out) {
  out.module_path = expert >= 0 ? expert_path(module, expert) : module.path;
  if (module.num_experts == 0 || module.form == ExpertForm::kPerExpert) return;
  constexpr std::string_view kPrefix = "base_model.model.";
  std::string key = module.a_name.substr(kPrefix.size());
  key.resize(key.rfind(".lora_A"));
  if (module.form == ExpertForm::kStacked) {
    out.module_path = key;
  } else {
    out.key = key;
  }
}

}  // namespace

bool adapts_mtp(const ModelConfig& config, const std::string& dir) {
  if (!config.mtp_layer) return false;
  const PeftAdapter peft(dir);
  return std::any_of(peft.modules().begin(), peft.modules().end(),
                     [&](const PeftModule& module) { return is_of_mtp(config, module); });
}

std::unique_ptr<LoraAdapter> load_adapter(Backend& backend, const LoadedModel& model,
                                          const std::string& dir) {
  const PeftAdapter peft(dir);
  std::vector<std::string> faults;
  const std::vector<MatchedModule> matched = match_modules(model, peft, faults);
  check_pairs(model.weights->layers(), matched, faults);
  for (const PeftBaseCopy& copy : peft.base_copies())
    check_base_copy(backend, model, peft, copy, faults);
  if (!faults.empty()) {
    throw Error(ErrorCode::kInvalidArgument, fmt::format("adapter: {}: {} fault(s):\n  {}", dir,
                                                         faults.size(), fmt::join(faults, "\n  ")));
  }
  std::vector<LoraModuleSpec> specs;
  for (const MatchedModule& item : matched) specs.push_back(item.spec);
  auto adapter = std::make_unique<LoraAdapter>(backend, *model.weights, specs);
  read_modules(peft, matched, *adapter);
  adapter->refresh(backend);
  return adapter;
}

void load_adapter_weights(const LoadedModel& model, const std::string& dir, LoraAdapter& adapter) {
  const PeftAdapter peft(dir);
  std::vector<std::string> faults;
  std::map<std::string, MatchedModule> saved;  // by path
  for (MatchedModule& item : match_modules(model, peft, faults)) {
    saved[module_path(model.weights->layers(), item.spec)] = std::move(item);
  }
  std::vector<MatchedModule> ordered;
  for (const LoraModule& module : adapter.modules()) {
    const auto found = saved.find(module.path);
    if (found == saved.end()) {
      faults.push_back(fmt::format("module '{}' is missing", module.path));
      continue;
    }
    if (found->second.spec.rank != module.spec.rank) {
      faults.push_back(fmt::format("module '{}': saved with rank {}, the model has {}", module.path,
                                   found->second.spec.rank, module.spec.rank));
    }
    ordered.push_back(std::move(found->second));
    saved.erase(found);
  }
  for (const auto& [path, item] : saved) {
    faults.push_back(fmt::format("module '{}' is not trained by this model", path));
  }
  if (!faults.empty()) {
    const auto shown = std::min<int64_t>(std::ssize(faults), 3);
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("load: {}: {} module(s) do not fit the model: {}; other rank, train flags or "
                    "base model?",
                    dir, faults.size(), fmt::join(faults.begin(), faults.begin() + shown, "; ")));
  }
  read_modules(peft, ordered, adapter);
}

void save_adapter(const LoraAdapter& adapter, const std::string& dir,
                  const std::string& base_model_name) {
  const HostAccess access(adapter.backend().allocator());
  const std::vector<AdapterTensor> tensors = adapter_tensors(adapter);
  std::deque<std::vector<float>> stored;  // of B in forms whose order is not ours
  std::vector<PeftWriteModule> modules;
  std::set<std::string> parameters;
  bool rslora = false;  // one setting for all modules; at rank 1 both forms agree
  for (size_t i = 0; i < tensors.size(); i += 2) {
    const LoraModule& module = adapter.modules()[tensors[i].module];
    const int64_t expert = tensors[i].expert;
    PeftWriteModule& out = modules.emplace_back();
    name_module(module, expert, out);
    out.embedding = module.is_embedding();
    out.alpha = module.spec.alpha;
    out.rank = module.spec.rank;
    out.a = expert >= 0 ? module.a.at(expert) : module.a.reshape(tensors[i].shape);
    out.b = expert >= 0 ? module.b.at(expert) : module.b;
    if (module.num_experts > 0 && module.form == ExpertForm::kFused) {
      parameters.insert(fmt::format("mlp.experts.{}", module.target->name()));
      std::vector<float>& b =
          stored.emplace_back(static_cast<size_t>(tensors[i + 1].shape.num_elements()));
      to_stored(module, tensors[i + 1], module.b, b.data());
      out.b = TensorView(b.data(), DType::kF32, tensors[i + 1].shape);
    }
    const double plain = module.spec.alpha / static_cast<double>(module.spec.rank);
    rslora = rslora || module.spec.scale != plain;
  }
  write_peft(dir,
             {.use_rslora = rslora,
              .base_model_name_or_path = base_model_name,
              .target_modules = {},
              .target_parameters = {parameters.begin(), parameters.end()}},
             modules);
}

}  // namespace strata::model
