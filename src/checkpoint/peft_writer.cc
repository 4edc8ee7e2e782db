// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "checkpoint/peft.h"
#include "checkpoint/peft_pattern.h"
#include "checkpoint/safetensors_writer.h"

namespace strata {
namespace {

// The value most modules have, the smallest among equals.
template <typename Value>
Value most_common(const std::vector<Value>& values) {
  std::map<Value, int64_t> counts;
  for (const Value& value : values) ++counts[value];
  Value best{};
  int64_t best_count = 0;
  for (const auto& [value, count] : counts) {
    if (count > best_count) best = value;
    best_count = std::max(best_count, count);
  }
  return best;
}

bool names_module(std::string_view target, std::string_view module) {
  return module == target || module.ends_with("." + std::string(target));
}

bool any_names_module(const std::vector<std::string>& targets, std::string_view module) {
  return std::any_of(targets.begin(), targets.end(),
                     [&](const std::string& target) { return names_module(target, module); });
}

// One key for the ranks of all routed experts where they agree: experts are many.
const std::string kAllExperts = ".*\\.mlp\\.experts\\..*";

bool of_experts(const PeftWriteModule& module) {
  return module.module_path.find(".mlp.experts.") != std::string::npos;
}

int64_t rank_of(const PeftWriteModule& module) {
  return module.rank > 0 ? module.rank : module.a.shape[0];
}

// What patterns, and PEFT, call it.
const std::string& pattern_name(const PeftWriteModule& module) {
  return module.parameter.empty() ? module.module_path : module.parameter;
}

// A key for a module and its fellows in other layers; empty: it has none. Alphas of single experts
// have none.
std::string shared_key(const PeftWriteModule& module, bool of_ranks) {
  if (!of_experts(module)) return {};
  if (module.parameter.empty()) return of_ranks ? kAllExperts : "";
  return ".*\\.mlp\\.experts\\." + module.parameter.substr(module.parameter.rfind('.') + 1);
}

template <typename Value>
std::map<std::string, std::set<Value>> values_by_shared_key(
    std::span<const PeftWriteModule> modules, const std::vector<Value>& values, bool of_ranks) {
  std::map<std::string, std::set<Value>> shared;
  for (size_t i = 0; i < modules.size(); ++i) {
    shared[shared_key(modules[i], of_ranks)].insert(values[i]);
  }
  return shared;
}

// A pattern of the modules whose value is not `common`, and the key of every module: the shared one
// where fellows agree, or its own name.
template <typename Value>
struct Pattern {
  std::vector<std::pair<std::string, Value>> entries;
  std::vector<std::string> keys;

  Pattern(std::span<const PeftWriteModule> modules, const std::vector<Value>& values, Value common,
          bool of_ranks) {
    const std::map<std::string, std::set<Value>> shared =
        values_by_shared_key(modules, values, of_ranks);
    std::set<std::string> has_entry;
    std::vector<std::pair<std::string, Value>> own;  // behind those of shared keys
    for (size_t i = 0; i < modules.size(); ++i) {
      const std::string key = shared_key(modules[i], of_ranks);
      const bool agree = !key.empty() && shared.at(key).size() == 1;
      keys.push_back(agree ? key : pattern_name(modules[i]));
      if (values[i] == common || !has_entry.insert(keys[i]).second) continue;
      (agree ? entries : own).emplace_back(keys[i], values[i]);
    }
    entries.insert(entries.end(), own.begin(), own.end());
  }
};

// PEFT reads a key as an expression and takes the first that matches a suffix of the path, so a
// path of one module could decide for another one; such names are refused rather than written
// wrongly.
template <typename Value>
void check_modules_find_their_keys(const Pattern<Value>& pattern, const std::string& where,
                                   std::span<const PeftWriteModule> modules) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : pattern.entries) keys.push_back(key);
  PeftPatterns patterns(keys, where);
  const std::set<std::string> exceptions(keys.begin(), keys.end());
  for (size_t i = 0; i < modules.size(); ++i) {
    const std::optional<size_t> match = patterns.find_matching_key(pattern_name(modules[i]));
    const std::string& key = pattern.keys[i];
    const bool wanted = exceptions.contains(key);
    if (match.has_value() == wanted && (!wanted || keys[*match] == key)) continue;
    throw Error(ErrorCode::kUnsupported,
                fmt::format("{}: module '{}' cannot be told apart from another module's path",
                            where, pattern_name(modules[i])));
  }
}

// The rank that most modules have; that of experts where there are no others.
int64_t common_rank(std::span<const PeftWriteModule> modules) {
  std::vector<int64_t> others;
  std::set<int64_t> experts;
  for (const PeftWriteModule& module : modules) {
    if (of_experts(module)) {
      experts.insert(rank_of(module));
    } else {
      others.push_back(rank_of(module));
    }
  }
  return others.empty() ? *experts.begin() : most_common(others);
}

// Names each module by its path among target_modules, or as a parameter.
void set_targets(PeftConfig& config, const PeftWriteOptions& options,
                 std::span<const PeftWriteModule> modules) {
  config.target_modules = options.target_modules;
  config.target_parameters = options.target_parameters;
  for (const PeftWriteModule& module : modules) {
    if (!module.parameter.empty()) {
      config.target_parameters.push_back(module.parameter);
      continue;
    }
    // A module of experts as whole tensors is named by target_parameters.
    const bool whole = !module.key.empty();
    if (options.target_modules.empty() && !whole) {
      config.target_modules.push_back(module.module_path);
    }
    CHECK(options.target_modules.empty() || whole ||
              any_names_module(options.target_modules, module.module_path),
          "no target module matches", module.module_path);
  }
}

PeftConfig make_config(const std::string& dir, const PeftWriteOptions& options,
                       std::span<const PeftWriteModule> modules) {
  PeftConfig config;
  config.use_rslora = options.use_rslora;
  config.base_model_name_or_path = options.base_model_name_or_path;
  set_targets(config, options, modules);
  std::vector<double> alphas;
  std::vector<int64_t> ranks;
  for (const PeftWriteModule& module : modules) {
    alphas.push_back(module.alpha);
    ranks.push_back(rank_of(module));
  }
  config.r = common_rank(modules);
  config.lora_alpha = options.lora_alpha.value_or(most_common(alphas));
  const Pattern<int64_t> rank_pattern(modules, ranks, config.r, /*of_ranks=*/true);
  const Pattern<double> alpha_pattern(modules, alphas, config.lora_alpha, /*of_ranks=*/false);
  check_modules_find_their_keys(rank_pattern, dir + ": rank_pattern", modules);
  check_modules_find_their_keys(alpha_pattern, dir + ": alpha_pattern", modules);
  config.rank_pattern = rank_pattern.entries;
  config.alpha_pattern = alpha_pattern.entries;
  return config;
}

enum class Factor : uint8_t { kA, kB };

std::string tensor_name(const PeftWriteModule& module, Factor factor) {
  const bool is_a = factor == Factor::kA;
  const std::string base =
      "base_model.model." + (module.key.empty() ? module.module_path : module.key);
  if (module.embedding) return base + (is_a ? ".lora_embedding_A" : ".lora_embedding_B");
  return base + (is_a ? ".lora_A.weight" : ".lora_B.weight");
}

// The tensors' values, of a module without memory made now.
void append_tensor(SafetensorsWriter& writer, const PeftWriteModule& module, Factor factor) {
  const bool is_b = factor == Factor::kB;
  const TensorView& view = is_b ? module.b : module.a;
  const std::string name = tensor_name(module, factor);
  if (!module.fill) return writer.append_view(name, view);
  std::vector<float> values(static_cast<size_t>(view.shape.num_elements()));
  module.fill(is_b, values.data());
  writer.append_view(name, {values.data(), DType::kF32, view.shape});
}

void check_shapes_and_types(const PeftWriteModule& module) {
  const int rank = module.a.shape.rank();
  CHECK((rank == 2 || rank == 3) && module.b.shape.rank() == rank, module.module_path);
  CHECK(module.a.shape[rank - 2] == module.b.shape[rank - 1] && module.a.shape[rank - 2] > 0,
        module.module_path, module.a.shape.to_string(), module.b.shape.to_string());
  CHECK(module.a.dtype == DType::kF32 && module.b.dtype == DType::kF32, module.module_path);
}

std::vector<TensorDecl> declare_tensors(std::span<const PeftWriteModule> modules) {
  std::vector<TensorDecl> tensors;
  for (const PeftWriteModule& module : modules) {
    check_shapes_and_types(module);
    tensors.push_back({tensor_name(module, Factor::kA), DType::kF32, module.a.shape});
    tensors.push_back({tensor_name(module, Factor::kB), DType::kF32, module.b.shape});
  }
  return tensors;
}

bool file_has_content(const std::string& path, const std::string& content) {
  if (!file_exists(path)) return false;
  try {
    return read_file(path, static_cast<int64_t>(content.size())) == content;
  } catch (const Error&) {
    return false;  // longer, or not a file: the rename will say
  }
}

}  // namespace

void write_peft(const std::string& dir, const PeftWriteOptions& options,
                std::span<const PeftWriteModule> modules) {
  CHECK(!modules.empty());
  std::vector<TensorDecl> tensors = declare_tensors(modules);
  const std::string config = peft_config_text(make_config(dir, options, modules));
  make_folders(dir);
  const std::string tensors_path = dir + "/adapter_model.safetensors";
  const std::string config_path = dir + "/adapter_config.json";
  std::map<std::string, std::string> metadata = options.metadata;
  metadata["format"] = "pt";
  SafetensorsWriter writer(tensors_path, std::move(tensors), metadata);
  for (const PeftWriteModule& module : modules) {
    for (const Factor factor : {Factor::kA, Factor::kB}) append_tensor(writer, module, factor);
  }
  writer.seal();
  // Old tensors must never stand next to a config that is not theirs.
  if (!file_has_content(config_path, config)) {
    remove_file(tensors_path);
    sync_folder(dir);
    write_file_atomic(config_path, config);
  }
  writer.commit();
}

}  // namespace strata
