// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/peft.h"

#include <fmt/format.h>

#include <functional>
#include <map>
#include <set>
#include <utility>

#include "base/error.h"
#include "checkpoint/faults.h"
#include "checkpoint/peft_pattern.h"

namespace strata {
namespace {

constexpr std::string_view kPrefix = "base_model.model.";
constexpr int64_t kMaxConfigBytes = 16 << 20;

enum class Part { kA, kB, kEmbeddingA, kEmbeddingB, kBaseCopy };
struct Suffix {
  std::string_view text;
  Part part;
};
constexpr Suffix kSuffixes[] = {
    {".lora_A.weight", Part::kA},
    {".lora_B.weight", Part::kB},
    {".lora_A", Part::kA},  // of stacked experts only
    {".lora_B", Part::kB},
    {".lora_embedding_A", Part::kEmbeddingA},
    {".lora_embedding_B", Part::kEmbeddingB},
    {".base_layer.weight", Part::kBaseCopy},
};

struct Key {
  std::string module_path;
  Part part;
};

std::optional<Key> parse_key(std::string_view name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  for (const Suffix& suffix : kSuffixes) {
    if (!name.ends_with(suffix.text) || name.size() == suffix.text.size()) continue;
    return Key{std::string(name.substr(0, name.size() - suffix.text.size())), suffix.part};
  }
  return std::nullopt;
}

// Why a tensor belongs to nothing that is supported.
std::string unsupported_reason(std::string_view name) {
  if (!name.starts_with(kPrefix)) return fmt::format("its name does not start with '{}'", kPrefix);
  if (name.find("lora_magnitude_vector") != std::string_view::npos) return "DoRA is not supported";
  if (name.ends_with(".bias")) return "biases of an adapter are not supported";
  if (name.find(".lora_") != std::string_view::npos) return "not a form of LoRA that is supported";
  return "not a LoRA tensor: modules_to_save and resized embeddings are not supported";
}

struct Pair {
  const TensorInfo* a = nullptr;
  const TensorInfo* b = nullptr;
  const TensorInfo* embedding_a = nullptr;
  const TensorInfo* embedding_b = nullptr;
  bool fused = false;

  [[nodiscard]] bool is_embedding() const {
    return embedding_a != nullptr || embedding_b != nullptr;
  }
};

// Where the pair keeps a part that is no copy of a base weight.
const TensorInfo*& tensor_of(Pair& pair, Part part) {
  if (part == Part::kA) return pair.a;
  if (part == Part::kB) return pair.b;
  return part == Part::kEmbeddingA ? pair.embedding_a : pair.embedding_b;
}

// The parameters that target_parameters names, as PEFT matches: by path or by the end of one.
class ParameterTargets {
 public:
  explicit ParameterTargets(const PeftConfig& config)
      : names_(config.target_parameters.begin(), config.target_parameters.end()) {}

  [[nodiscard]] bool matches(std::string_view parameter) const {
    // No path of a model has more parts; bounds the work that a hostile name makes.
    constexpr int kMaxParts = 32;
    for (int part = 0; !names_.empty() && part < kMaxParts; ++part) {
      if (names_.contains(parameter)) return true;
      const size_t dot = parameter.find('.');
      if (dot == std::string_view::npos) return false;
      parameter.remove_prefix(dot + 1);
    }
    return false;
  }

 private:
  std::set<std::string, std::less<>> names_;
};

class Resolver {
 public:
  Resolver(const PeftConfig& config, const std::string& where)
      : config_(config),
        parameters_(config),
        rank_keys_(keys(config.rank_pattern), where + ": rank_pattern"),
        alpha_keys_(keys(config.alpha_pattern), where + ": alpha_pattern") {}

  int64_t rank(std::string_view module) {
    const auto match = rank_keys_.find_matching_key(pattern_name(module));
    return match ? config_.rank_pattern[*match].second : config_.r;
  }
  double alpha(std::string_view module) {
    const auto match = alpha_keys_.find_matching_key(pattern_name(module));
    return match ? config_.alpha_pattern[*match].second : config_.lora_alpha;
  }

 private:
  // Patterns name a linear layer that target_parameters adapts by its parameter.
  [[nodiscard]] std::string pattern_name(std::string_view module) const {
    std::string parameter = std::string(module) + ".weight";
    return parameters_.matches(parameter) ? parameter : std::string(module);
  }

  template <typename Value>
  static std::vector<std::string> keys(const std::vector<std::pair<std::string, Value>>& pattern) {
    std::vector<std::string> out;
    for (const auto& [key, value] : pattern) out.push_back(key);
    return out;
  }

  const PeftConfig& config_;
  ParameterTargets parameters_;
  PeftPatterns rank_keys_;
  PeftPatterns alpha_keys_;
};

// "...mlp.experts.w1": Tinker's names of stacked experts.
bool is_stacked_path(std::string_view path) {
  for (const std::string_view name : {".experts.w1", ".experts.w2", ".experts.w3"}) {
    if (path.ends_with(name)) return true;
  }
  return false;
}

bool check_type_and_rank(const TensorInfo& info, int rank, FaultList& faults) {
  if (!info.readable) {
    faults.add(fmt::format("tensor '{}': {} {}, wanted F32, F16 or BF16", info.name,
                           info.dtype_name, info.shape_text()));
  } else if (info.shape.rank() != rank) {
    faults.add(fmt::format("tensor '{}': shape {}, wanted {} axes", info.name, info.shape_text(),
                           rank == 2 ? "two" : "three"));
  } else {
    return true;
  }
  return false;
}

// What is wrong with a pair, whatever its tensors' shapes are; empty where nothing is.
std::string find_pair_fault(const std::string& path, const Pair& pair) {
  const bool embedding = pair.is_embedding();
  if (embedding && (pair.a != nullptr || pair.b != nullptr)) {
    return fmt::format("module '{}': has both lora_A/B and lora_embedding_A/B", path);
  }
  const TensorInfo* a = embedding ? pair.embedding_a : pair.a;
  const TensorInfo* b = embedding ? pair.embedding_b : pair.b;
  if (a == nullptr || b == nullptr) {
    return fmt::format("tensor '{}': its {} is not in the file", (a != nullptr ? a : b)->name,
                       a != nullptr ? "B" : "A");
  }
  if (path.ends_with(".base_layer")) {
    return fmt::format("tensor '{}': a nested wrapper that is not one of experts", a->name);
  }
  if (!embedding && !is_stacked_path(path) && !a->name.ends_with(".weight")) {
    return fmt::format("tensor '{}': not a form of LoRA that is supported", a->name);
  }
  return {};
}

// The module of one pair of tensors; nothing when something is wrong with it.
std::optional<PeftModule> make_module(const std::string& path, const Pair& pair,
                                      FaultList& faults) {
  std::string fault = find_pair_fault(path, pair);
  if (!fault.empty()) {
    faults.add(std::move(fault));
    return std::nullopt;
  }
  const bool embedding = pair.is_embedding();
  const TensorInfo& a = embedding ? *pair.embedding_a : *pair.a;
  const TensorInfo& b = embedding ? *pair.embedding_b : *pair.b;
  const bool stacked = is_stacked_path(path);
  const bool a_fine = check_type_and_rank(a, stacked ? 3 : 2, faults);
  if (!check_type_and_rank(b, stacked ? 3 : 2, faults) || !a_fine) return std::nullopt;
  return PeftModule{.module_path = path,
                    .a = a,
                    .b = b,
                    .embedding = embedding,
                    .form = pair.fused ? PeftForm::kFused
                            : stacked  ? PeftForm::kStacked
                                       : PeftForm::kPlain};
}

// PEFT wraps a layer's experts once for each adapted tensor: the inner wrapper (base_layer) is
// gate_up_proj and the outer down_proj; a single wrapper is the one that target_parameters names.
// Gives such pairs, which it marks as fused, the paths of their tensors.
struct FusedPaths {
  static constexpr std::string_view kExperts = ".experts";
  static constexpr std::string_view kInner = ".experts.base_layer";

  static std::map<std::string, Pair> resolve_wrappers(const std::map<std::string, Pair>& pairs,
                                                      const PeftConfig& config, FaultList& faults) {
    const ParameterTargets parameters(config);
    std::map<std::string, Pair> out;
    for (const auto& [path, pair] : pairs) {
      const std::string name = resolve_tensor_path(path, pairs, parameters, faults);
      const auto [renamed, is_new] = out.emplace(name, pair);
      if (name != path) renamed->second.fused = true;
      if (!is_new)
        faults.add(fmt::format("module '{}': is there twice, by its name and as a wrapper", name));
    }
    return out;
  }

  // The path of the tensor that a wrapper adapts; any other pair's own path.
  static std::string resolve_tensor_path(const std::string& path,
                                         const std::map<std::string, Pair>& pairs,
                                         const ParameterTargets& parameters, FaultList& faults) {
    if (path.ends_with(kInner)) {
      const std::string outer = path.substr(0, path.rfind('.'));
      if (!pairs.contains(outer)) {
        faults.add(fmt::format("module '{}': of two nested wrappers the outer, '{}', is missing",
                               path, outer));
      }
      return path.substr(0, path.size() - kInner.size()) + ".experts.gate_up_proj";
    }
    if (!path.ends_with(kExperts)) return path;
    const bool nested = pairs.contains(path + ".base_layer");
    return path +
           (nested ? ".down_proj" : "." + resolve_only_wrapper_target(path, parameters, faults));
  }

  static std::string resolve_only_wrapper_target(const std::string& path,
                                                 const ParameterTargets& parameters,
                                                 FaultList& faults) {
    const bool gate_up = parameters.matches(path + ".gate_up_proj");
    const bool down = parameters.matches(path + ".down_proj");
    if (gate_up == down) {
      faults.add(
          fmt::format("module '{}': target_parameters of the config must name one of "
                      "gate_up_proj and down_proj for its only wrapper",
                      path));
    }
    return gate_up ? "gate_up_proj" : "down_proj";
  }
};

void set_rank_and_scaling(PeftModule& module, Resolver& resolver, bool use_rslora) {
  module.rank = resolver.rank(module.module_path);
  module.alpha = resolver.alpha(module.module_path);
  module.scaling = peft_scaling(module.alpha, module.rank, use_rslora);
}

// Against the rank that the config says.
void check_ranks_of_factors(const PeftModule& module, FaultList& faults) {
  const int64_t a_rank = module.a.shape[module.form == PeftForm::kStacked ? 1 : 0];
  const int64_t b_rank = module.b.shape[module.form == PeftForm::kStacked ? 2 : 1];
  if (a_rank == b_rank &&
      (module.form == PeftForm::kFused ? a_rank % module.rank == 0 : a_rank == module.rank)) {
    return;
  }
  faults.add(fmt::format("module '{}': A {} and B {}, the config (r, rank_pattern) wants rank {}",
                         module.module_path, module.a.shape_text(), module.b.shape_text(),
                         module.rank));
}

std::string checked_tensors_path(const std::string& dir) {
  const std::string path = dir + "/adapter_model.safetensors";
  if (!file_exists(path) && file_exists(dir + "/adapter_model.bin")) {
    throw Error(
        ErrorCode::kUnsupported,
        fmt::format("{}: holds adapter_model.bin (a pickle), wanted adapter_model.safetensors; "
                    "save the adapter again with PEFT's safe_serialization",
                    dir));
  }
  return path;
}
std::string config_path(const std::string& dir) { return dir + "/adapter_config.json"; }

// The pairs of tensors by their modules' paths, and the copies of base weights.
std::map<std::string, Pair> pair_tensors(std::span<const TensorInfo> tensors,
                                         std::vector<PeftBaseCopy>& base_copies,
                                         FaultList& faults) {
  std::map<std::string, Pair> pairs;
  for (const TensorInfo& info : tensors) {
    const std::optional<Key> key = parse_key(info.name);
    if (!key) {
      faults.add(fmt::format("tensor '{}': {}", info.name, unsupported_reason(info.name)));
      continue;
    }
    if (key->part == Part::kBaseCopy) {
      base_copies.push_back({key->module_path + ".weight", info});
    } else {
      tensor_of(pairs[key->module_path], key->part) = &info;
    }
  }
  return pairs;
}

void check_base_copies_are_readable(std::span<const PeftBaseCopy> copies, FaultList& faults) {
  for (const PeftBaseCopy& copy : copies) {
    if (!copy.tensor.readable) {
      faults.add(fmt::format("tensor '{}': {} {}, wanted F32, F16 or BF16", copy.tensor.name,
                             copy.tensor.dtype_name, copy.tensor.shape_text()));
    }
  }
}

}  // namespace

PeftAdapter::PeftAdapter(const std::string& dir)
    : config_(parse_peft_config(read_file(config_path(dir), kMaxConfigBytes), config_path(dir))),
      file_(checked_tensors_path(dir)) {
  FaultList faults(file_.path());
  const std::map<std::string, Pair> pairs = pair_tensors(file_.tensors(), base_copies_, faults);
  Resolver resolver(config_, config_path(dir));
  for (const auto& [path, pair] : FusedPaths::resolve_wrappers(pairs, config_, faults)) {
    std::optional<PeftModule> module = make_module(path, pair, faults);
    if (!module) continue;
    set_rank_and_scaling(*module, resolver, config_.use_rslora);
    check_ranks_of_factors(*module, faults);
    modules_.push_back(std::move(*module));
  }
  check_base_copies_are_readable(base_copies_, faults);
  if (pairs.empty()) faults.add("no LoRA tensor in the file");
  faults.throw_faults();
}

}  // namespace strata
