#include "model/adapter_io.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

#include "base/error.h"

namespace strata::model {
namespace {

struct Place {
  int layer = -1;
  int kind = 0;
};

// "model.layers.3.self_attn.q_proj" -> layer 3, kQ; nothing for a module that the model lacks.
std::optional<Place> place_of(const ModelConfig& config, std::string_view path) {
  if (path == "model.embed_tokens") return Place{-1, kEmbedding};
  if (path == "lm_head") return Place{-1, kHead};
  constexpr std::string_view kPrefix = "model.layers.";
  if (!path.starts_with(kPrefix)) return std::nullopt;
  path.remove_prefix(kPrefix.size());
  int layer = -1;
  const auto [rest, error] = std::from_chars(path.data(), path.data() + path.size(), layer);
  if (error != std::errc() || layer < 0 || layer >= config.num_layers) return std::nullopt;
  const std::string_view tail(rest, static_cast<size_t>(path.data() + path.size() - rest));
  for (int kind = 0; kind < kNumProjections; ++kind) {
    if (tail.substr(0, 1) != "." || tail.substr(1) != module_kind_path(kind)) continue;
    if (module_widths(config, kind, layer)[0] > 0) return Place{layer, kind};
  }
  return std::nullopt;
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
  if (copy.base_name == "model.embed_tokens.weight") index = weights.embedding_index();
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

struct Matched {
  LoraModuleSpec spec;
  const PeftModule* source;
};

std::vector<Matched> match_modules(const ModelConfig& config, const PeftAdapter& peft,
                                   std::vector<std::string>& faults) {
  std::vector<Matched> matched;
  for (const PeftModule& module : peft.modules()) {
    const auto place = place_of(config, module.module_path);
    if (!place || (place->kind == kEmbedding) != module.embedding) {
      faults.push_back(fmt::format("module '{}' ('{}'): the model ({}, {} layers) has no such {}",
                                   module.module_path, module.a.name, config.architecture,
                                   config.num_layers,
                                   module.embedding ? "embedding" : "linear module"));
      continue;
    }
    const auto [in, out] = module_widths(config, place->kind, place->layer);
    if (!(module.a.shape == Shape{module.rank, in})) {
      faults.push_back(fmt::format("tensor '{}': shape {}, want {}", module.a.name,
                                   module.a.shape_text(), Shape{module.rank, in}.to_string()));
    }
    if (!(module.b.shape == Shape{out, module.rank})) {
      faults.push_back(fmt::format("tensor '{}': shape {}, want {}", module.b.name,
                                   module.b.shape_text(), Shape{out, module.rank}.to_string()));
    }
    matched.push_back({{.kind = place->kind,
                        .layer = place->layer,
                        .rank = module.rank,
                        .alpha = module.alpha,
                        .scale = module.scaling},
                       &module});
  }
  return matched;
}

}  // namespace

std::unique_ptr<LoraAdapter> load_adapter(Backend& backend, const LoadedModel& model,
                                          const std::string& dir) {
  const PeftAdapter peft(dir);
  std::vector<std::string> faults;
  const std::vector<Matched> matched = match_modules(model.config, peft, faults);
  for (const PeftBaseCopy& copy : peft.base_copies())
    check_base_copy(backend, model, peft, copy, faults);
  if (!faults.empty()) {
    throw Error(ErrorCode::kInvalidArgument, fmt::format("adapter: {}: {} fault(s):\n  {}", dir,
                                                         faults.size(), fmt::join(faults, "\n  ")));
  }
  std::vector<LoraModuleSpec> specs;
  for (const Matched& item : matched) specs.push_back(item.spec);
  auto adapter = std::make_unique<LoraAdapter>(*model.weights, specs, backend.panel_width());
  for (size_t i = 0; i < matched.size(); ++i) {
    LoraModule& module = adapter->modules()[i];
    const PeftModule& source = *matched[i].source;
    module.a_name = source.a.name;
    module.b_name = source.b.name;
    peft.file().read_f32(source.a, 0, module.a.shape.num_elements(), module.a.f32());
    peft.file().read_f32(source.b, 0, module.b.shape.num_elements(), module.b.f32());
  }
  adapter->refresh(backend);
  return adapter;
}

void save_adapter(const LoraAdapter& adapter, const std::string& dir,
                  const std::string& base_model_name) {
  std::vector<PeftWriteModule> modules;
  bool rslora = false;  // one setting for all modules; at rank 1 both forms agree
  for (const LoraModule& module : adapter.modules()) {
    modules.push_back({.module_path = module.path,
                       .embedding = module.spec.kind == kEmbedding,
                       .alpha = module.spec.alpha,
                       .a = module.a,
                       .b = module.b});
    const double plain = module.spec.alpha / static_cast<double>(module.spec.rank);
    rslora = rslora || module.spec.scale != plain;
  }
  write_peft(
      dir, {.use_rslora = rslora, .base_model_name_or_path = base_model_name, .target_modules = {}},
      modules);
}

std::vector<LoraModuleSpec> adapter_specs(const ModelConfig& config,
                                          const std::vector<std::string>& targets, int64_t rank,
                                          double alpha) {
  const auto fail = [](const std::string& what) {
    throw Error(ErrorCode::kInvalidArgument, "lora: " + what);
  };
  if (rank < 1 || rank > 65536) fail(fmt::format("rank: got {}, want 1 to 65536", rank));
  if (!std::isfinite(alpha)) fail("alpha must be finite");
  std::vector<bool> chosen(kHead + 1, false);
  for (const std::string& target : targets) {
    bool known = target == "all-linear";
    for (int kind = 0; kind <= kHead; ++kind) {
      const bool hit =
          target == "all-linear" ? kind < kNumProjections : target == module_kind_name(kind);
      chosen[static_cast<size_t>(kind)] = chosen[static_cast<size_t>(kind)] || hit;
      known = known || hit;
    }
    if (!known) {
      fail(
          fmt::format("target '{}' is unknown; known are all-linear, q_proj, k_proj, v_proj, "
                      "o_proj, gate_proj, "
                      "up_proj, down_proj, embed_tokens and lm_head",
                      target));
    }
  }
  std::vector<LoraModuleSpec> specs;
  const auto add = [&](int layer, int kind) {
    if (!chosen[static_cast<size_t>(kind)] || module_widths(config, kind, layer)[0] == 0) return;
    specs.push_back({.kind = kind,
                     .layer = layer,
                     .rank = rank,
                     .alpha = alpha,
                     .scale = alpha / static_cast<double>(rank)});
  };
  add(-1, kEmbedding);
  for (int layer = 0; layer < config.num_layers; ++layer) {
    for (int kind = 0; kind < kNumProjections; ++kind) add(layer, kind);
  }
  add(-1, kHead);
  if (specs.empty()) fail("no module is adapted; name at least one target");
  return specs;
}

}  // namespace strata::model
