// SPDX-License-Identifier: Apache-2.0
#include "model/adapter/io.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <span>

#include "base/error.h"
#include "base/log.h"
#include "model/adapter/base_numbers.h"
#include "model/adapter/base_size.h"
#include "model/adapter/match.h"
#include "model/adapter/tensors.h"
#include "model/weights/tensor_names.h"
#include "tensor/rounded.h"

namespace strata::model {
namespace {

// The parameter that a copy in an adapter is of; ModelWeights::npos where there is none.
size_t find_copied_parameter(const ModelWeights& weights, const std::string& base_name) {
  const LayerTable& layers = weights.layers();
  if (base_name == kHeadName) return weights.head_index();
  const std::string embedding = fmt::format("{}embed_tokens.weight", layers.module_prefix());
  return canonical_path(layers, base_name) == embedding ? weights.embedding_index()
                                                        : ModelWeights::npos;
}

// The type that the model's checkpoint has a parameter in.
DType stored_dtype(const LoadedModel& model, const Parameter& parameter) {
  return model.checkpoint == nullptr ? model.weights->compute_dtype()
                                     : model.checkpoint->find(parameter.name)->info.dtype;
}

// A run of a copy's values and the model's, and the types that both have been through.
struct ComparedValues {
  std::span<const float> base, copy;
  DType stored, compute, copied;

  // The place of the first that differ, both rounded to the narrower of their types.
  [[nodiscard]] std::optional<size_t> first_difference() const {
    for (size_t i = 0; i < base.size(); ++i) {
      const float a = rounded_to(base[i], copied);
      const float b = rounded_to(rounded_to(rounded_to(copy[i], stored), compute), copied);
      if (a != b) return i;
    }
    return std::nullopt;
  }
};

std::string difference_text(const TensorInfo& copy, const Parameter& parameter, int64_t row,
                            float copied, float own) {
  return fmt::format(
      "tensor '{}' differs from the model's '{}' at row {}: {} and {}; the adapter "
      "belongs to another base model",
      copy.name, parameter.name, row, copied, own);
}

// The first value of rows [begin, end) of a copy that differs from the model's, as a sentence;
// empty where there is none.
std::string find_difference_in_rows(Backend& backend, const LoadedModel& model,
                                    const PeftAdapter& peft, const TensorInfo& copy, size_t index,
                                    int64_t begin, int64_t end) {
  const ModelWeights& weights = *model.weights;
  const Parameter& parameter = weights.table()[index];
  const int64_t cols = parameter.shape[1];
  const Scratch::Mark mark(backend.scratch());
  const TensorView base = backend.scratch().take(DType::kF32, {end - begin, cols});
  const TensorView other = backend.scratch().take(DType::kF32, {end - begin, cols});
  weights.read_rows(backend, index, begin, base);
  const HostAccess access(backend.allocator());
  const int64_t first = parameter.first_output + begin;
  peft.file().read_f32(copy, first * cols, (end - begin) * cols, other.f32());
  const auto count = static_cast<size_t>((end - begin) * cols);
  const auto at = ComparedValues{.base = {base.f32(), count},
                                 .copy = {other.f32(), count},
                                 .stored = stored_dtype(model, parameter),
                                 .compute = weights.compute_dtype(),
                                 .copied = copy.dtype}
                      .first_difference();
  if (!at) return {};
  return difference_text(copy, parameter, first + static_cast<int64_t>(*at) / cols,
                         other.f32()[*at], base.f32()[*at]);
}

// The same of all rows, some at a time.
std::string find_difference_from_base(Backend& backend, const LoadedModel& model,
                                      const PeftAdapter& peft, const TensorInfo& copy,
                                      size_t index) {
  const Shape& shape = model.weights->table()[index].shape;
  const int64_t step = std::max<int64_t>(1, (4 << 20) / shape[1]);
  for (int64_t begin = 0; begin < shape[0]; begin += step) {
    const int64_t end = std::min(shape[0], begin + step);
    std::string difference = find_difference_in_rows(backend, model, peft, copy, index, begin, end);
    if (!difference.empty()) return difference;
  }
  return {};
}

// What is wrong with a copy of a base weight; empty where nothing is.
std::string find_base_copy_fault(Backend& backend, const LoadedModel& model,
                                 const PeftAdapter& peft, const PeftBaseCopy& copy) {
  const TensorInfo& tensor = copy.tensor;
  const size_t index = find_copied_parameter(*model.weights, copy.base_name);
  if (index == ModelWeights::npos) {
    return fmt::format("tensor '{}' copies '{}', which the model does not have", tensor.name,
                       copy.base_name);
  }
  const Parameter& parameter = model.weights->table()[index];
  if (!tensor.readable || !(tensor.shape == parameter.whole_shape())) {
    return fmt::format("tensor '{}': {} {}, the base has {}", tensor.name, tensor.dtype_name,
                       tensor.shape_text(), parameter.whole_shape().to_string());
  }
  if (!parameter.held) return {};  // its own stage compares it
  return find_difference_from_base(backend, model, peft, tensor, index);
}

void read_tensor(const PeftAdapter& peft, const TensorInfo& source, const LoraModule& module,
                 const AdapterTensor& tensor, TensorView values) {
  // A leading 1 of stacked experts stands for every one.
  const bool is_shared =
      module.form == ExpertForm::kStacked && source.shape.rank() == 3 && source.shape[0] == 1;
  const int64_t one = source.shape.num_elements();
  std::vector<float> stored(static_cast<size_t>(one * (is_shared ? module.num_experts : 1)));
  peft.file().read_f32(source, 0, one, stored.data());
  for (auto next = stored.begin() + one; next != stored.end();)
    next = std::copy_n(stored.begin(), one, next);
  copy_from_stored(module, tensor, stored.data(), values);
}

// "...experts.0.up_proj.lora_A.weight" -> "...experts.{}.up_proj.lora_A.weight"
std::string expert_name_pattern(const std::string& name) {
  constexpr std::string_view kZero = ".experts.0.";
  const size_t at = name.rfind(kZero);
  CHECK(at != std::string::npos, name);
  return name.substr(0, at) + ".experts.{}." + name.substr(at + kZero.size());
}

bool is_fused(const LoraModule& module) {
  return module.num_experts > 0 && module.form == ExpertForm::kFused;
}

// Whether the file's A is B here, and its B is A.
bool is_swapped(const LoraModule& module) { return is_fused(module) && module.target->swapped; }

void copy_tensor_names(const PeftModule& first, LoraModule& module) {
  const bool each = module.num_experts > 0 && module.form == ExpertForm::kPerExpert;
  module.a_name = each ? expert_name_pattern(first.a.name) : first.a.name;
  module.b_name = each ? expert_name_pattern(first.b.name) : first.b.name;
  if (is_swapped(module)) std::swap(module.a_name, module.b_name);
}

// Reads modules that are whole tensors of the file, or one of each expert.
void read_whole_tensors(const PeftAdapter& peft, const std::vector<MatchedModule>& matched,
                        LoraAdapter& adapter) {
  for (const AdapterTensor& tensor : adapter_tensors(adapter)) {
    const LoraModule& module = adapter.modules()[tensor.module];
    if (!module.held() || matched[tensor.module].part) continue;
    const PeftModule& source =
        *matched[tensor.module].sources[static_cast<size_t>(std::max<int64_t>(0, tensor.expert))];
    read_tensor(peft, tensor.is_b != is_swapped(module) ? source.b : source.a, module, tensor,
                tensor.is_b ? module.b : module.a);
  }
}

// The file's forms, names and values.
void read_modules(const PeftAdapter& peft, const std::vector<MatchedModule>& matched,
                  LoraAdapter& adapter) {
  const HostAccess access(adapter.backend().allocator());
  for (size_t i = 0; i < matched.size(); ++i) {
    LoraModule& module = adapter.modules()[i];
    const PeftModule& first = *matched[i].sources[0];
    module.form = matched[i].form;
    if (!matched[i].part) {
      copy_tensor_names(first, module);
    } else if (module.held()) {  // it keeps the names of a fresh one
      read_fused_part(peft, first, *matched[i].part, module);
    }
  }
  read_whole_tensors(peft, matched, adapter);
}

// The module path that the config's patterns name, and the key of the tensors where it differs.
void set_peft_names(const LoraModule& module, int64_t expert, PeftWriteModule& out) {
  out.module_path = expert >= 0 ? expert_path(module, expert) : module.path;
  if (module.num_experts == 0 || module.form == ExpertForm::kPerExpert) return;
  constexpr std::string_view kPrefix = "base_model.model.";
  std::string key = module.a_name.substr(kPrefix.size());
  key.resize(key.rfind(".lora_"));
  if (module.form == ExpertForm::kStacked) {
    out.module_path = key;
  } else {
    out.key = key;
  }
}

// A tensor's values in the file's order.
std::vector<float> stored_values(const LoraModule& module, const AdapterTensor& tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.shape.num_elements()));
  copy_to_stored(module, tensor, tensor.is_b ? module.b : module.a, values.data());
  return values;
}

// A module with A and B where they are: those of one expert, or all.
PeftWriteModule to_peft_module(const LoraModule& module, const AdapterTensor& a) {
  const int64_t expert = a.expert;
  PeftWriteModule out;
  set_peft_names(module, expert, out);
  out.embedding = module.is_embedding();
  out.alpha = module.spec.alpha;
  out.rank = module.spec.rank;
  if (module.num_experts == 0) {
    set_stored_values(module, out);
  } else {
    out.a = expert >= 0 ? module.a.at(expert) : module.a.reshape(a.shape);
    out.b = expert >= 0 ? module.b.at(expert) : module.b;
  }
  return out;
}

// PEFT's names of the modules that it adapts as parameters, each once.
std::vector<std::string> target_parameters(const LoraAdapter& adapter) {
  std::set<std::string> names;
  for (const LoraModule& module : adapter.modules()) {
    if (is_fused(module)) names.insert(module.target->path);
  }
  return {names.begin(), names.end()};
}

}  // namespace

bool uses_rslora(const LoraAdapter& adapter) {
  return std::any_of(adapter.modules().begin(), adapter.modules().end(),
                     [](const LoraModule& module) {
                       const LoraModuleSpec& spec = module.spec;
                       return spec.scale != peft_scaling(spec.alpha, spec.rank, false);
                     });
}

bool adapter_dir_has_mtp(const ModelConfig& config, const std::string& dir) {
  if (!config.mtp_layer) return false;
  const PeftAdapter peft(dir);
  return std::any_of(peft.modules().begin(), peft.modules().end(),
                     [&](const PeftModule& module) { return is_of_mtp(config, module); });
}

namespace {

// The first faults, behind the sentence that says why there may be one for each module.
[[noreturn]] void fail(const LoadedModel& model, const PeftAdapter& peft, const std::string& dir,
                       const std::vector<std::string>& faults) {
  constexpr std::ptrdiff_t kShown = 3;
  const std::string sentence = other_base_sentence(peft, model);
  const auto shown = std::min(std::ssize(faults), kShown);
  std::string text = fmt::format("adapter: {}: {}{}{} fault(s):\n  {}", dir, sentence,
                                 sentence.empty() ? "" : "; ", faults.size(),
                                 fmt::join(faults.begin(), faults.begin() + shown, "\n  "));
  if (std::ssize(faults) > shown)
    text += fmt::format("\n  and {} more", std::ssize(faults) - shown);
  throw Error(ErrorCode::kInvalidArgument, text);
}

void warn_base_mismatch(const LoadedModel& model, const PeftAdapter& peft, const std::string& dir) {
  if (model.checkpoint == nullptr) return;
  const std::string warning = base_mismatch_warning(peft, dir, *model.checkpoint);
  if (!warning.empty()) log(LogLevel::kWarning, warning);
}

void warn_rope_mismatch(const LoadedModel& model, const PeftAdapter& peft, const std::string& dir) {
  const std::string warning = rope_mismatch_warning(peft, dir, model.config);
  if (!warning.empty()) log(LogLevel::kWarning, warning);
}

std::vector<LoraModuleSpec> specs_of(const std::vector<MatchedModule>& matched) {
  std::vector<LoraModuleSpec> specs;
  for (const MatchedModule& item : matched) specs.push_back(item.spec);
  return specs;
}

}  // namespace

std::vector<LoraModuleSpec> read_adapter_specs(const LoadedModel& model, const std::string& dir) {
  const PeftAdapter peft(dir);
  std::vector<std::string> faults;
  const std::vector<MatchedModule> matched = match_modules(model, peft, faults);
  check_gate_up_pairs(model.weights->layers(), matched, faults);
  if (!faults.empty()) fail(model, peft, dir, faults);
  return specs_of(matched);
}

AdapterModules::AdapterModules(Backend& backend, const LoadedModel& model, const std::string& dir)
    : backend_(backend), model_(model), peft_(std::make_unique<PeftAdapter>(dir)) {
  std::vector<std::string> faults;
  modules_ = match_modules(model, *peft_, faults);
  check_gate_up_pairs(model.weights->layers(), modules_, faults);
  for (const PeftBaseCopy& copy : peft_->base_copies()) {
    std::string fault = find_base_copy_fault(backend, model, *peft_, copy);
    if (!fault.empty()) faults.push_back(std::move(fault));
  }
  if (!faults.empty()) fail(model, *peft_, dir, faults);
  warn_base_mismatch(model, *peft_, dir);
}

std::unique_ptr<LoraAdapter> AdapterModules::read_module(size_t module) const {
  const std::vector<MatchedModule> one = {modules_.at(module)};
  auto adapter =
      std::make_unique<LoraAdapter>(backend_, *model_.weights, specs_of(one), /*whole=*/true);
  read_modules(*peft_, one, *adapter);
  return adapter;
}

std::unique_ptr<LoraAdapter> load_adapter(Backend& backend, const LoadedModel& model,
                                          const std::string& dir, bool whole) {
  const AdapterModules file(backend, model, dir);
  auto adapter =
      std::make_unique<LoraAdapter>(backend, *model.weights, specs_of(file.modules()), whole);
  warn_rope_mismatch(model, file.peft(), dir);
  read_modules(file.peft(), file.modules(), *adapter);
  adapter->refresh(backend);
  return adapter;
}

std::unique_ptr<LoraAdapter> read_adapter_without_refresh(Backend& backend,
                                                          const LoadedModel& model,
                                                          const std::string& dir, bool whole) {
  const PeftAdapter peft(dir);
  std::vector<std::string> faults;
  const std::vector<MatchedModule> matched = match_modules(model, peft, faults);
  check_gate_up_pairs(model.weights->layers(), matched, faults);
  for (const PeftBaseCopy& copy : peft.base_copies())
    faults.push_back(fmt::format("tensor '{}' copies a base weight, which sampler weights never do",
                                 copy.tensor.name));
  if (!faults.empty()) fail(model, peft, dir, faults);
  warn_base_mismatch(model, peft, dir);
  warn_rope_mismatch(model, peft, dir);
  auto adapter = std::make_unique<LoraAdapter>(backend, *model.weights, specs_of(matched), whole);
  read_modules(peft, matched, *adapter);
  return adapter;
}

namespace {

// The saved modules in the adapter's order; faults are added for those that are not in both, and
// for other ranks.
std::vector<MatchedModule> reorder_to_adapter(const LoraAdapter& adapter,
                                              std::map<std::string, MatchedModule> saved,
                                              std::vector<std::string>& faults) {
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
  return ordered;
}

[[noreturn]] void throw_mismatch(const LoadedModel& model, const PeftAdapter& peft,
                                 const std::string& dir, const std::vector<std::string>& faults) {
  const auto shown = std::min<int64_t>(std::ssize(faults), 3);
  const std::string sentence = other_base_sentence(peft, model);
  throw Error(
      ErrorCode::kInvalidArgument,
      fmt::format("load: {}: {}{}{} module(s) do not fit the model: {}; other rank, train flags or "
                  "base model?",
                  dir, sentence, sentence.empty() ? "" : "; ", faults.size(),
                  fmt::join(faults.begin(), faults.begin() + shown, "; ")));
}

}  // namespace

void load_adapter_weights(const LoadedModel& model, const std::string& dir, LoraAdapter& adapter) {
  const PeftAdapter peft(dir);
  std::vector<std::string> faults;
  std::map<std::string, MatchedModule> saved;  // by path
  for (MatchedModule& item : match_modules(model, peft, faults)) {
    saved[module_path(model.weights->layers(), item.spec)] = std::move(item);
  }
  const std::vector<MatchedModule> ordered = reorder_to_adapter(adapter, std::move(saved), faults);
  if (!faults.empty()) throw_mismatch(model, peft, dir, faults);
  warn_base_mismatch(model, peft, dir);
  warn_rope_mismatch(model, peft, dir);
  read_modules(peft, ordered, adapter);
}

void save_adapter(const LoraAdapter& adapter, const std::string& dir,
                  const std::string& base_model_name, std::map<std::string, std::string> metadata) {
  const HostAccess access(adapter.backend().allocator());
  const std::vector<AdapterTensor> tensors = adapter_tensors(adapter);
  std::deque<std::vector<float>> stored;  // in forms whose order is not ours
  std::vector<PeftWriteModule> modules;
  for (size_t i = 0; i < tensors.size(); i += 2) {  // A, and then B
    const LoraModule& module = adapter.modules()[tensors[i].module];
    modules.push_back(to_peft_module(module, tensors[i]));
    if (!is_fused(module)) continue;
    const auto store = [&](const AdapterTensor& tensor, TensorView& out) {
      std::vector<float>& values = stored.emplace_back(stored_values(module, tensor));
      out = TensorView(values.data(), DType::kF32, tensor.shape);
    };
    const bool swaps = is_swapped(module);
    if (swaps) store(tensors[i + 1], modules.back().a);
    store(tensors[swaps ? i : i + 1], modules.back().b);
  }
  write_peft(dir,
             {.use_rslora = uses_rslora(adapter),
              .base_model_name_or_path = base_model_name,
              .target_modules = {},
              .target_parameters = target_parameters(adapter),
              .metadata = std::move(metadata)},
             modules);
}

}  // namespace strata::model
