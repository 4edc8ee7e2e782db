#include <fmt/format.h>

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

bool targets(std::string_view target, std::string_view module) {
  return module == target || module.ends_with("." + std::string(target));
}

// One key for the ranks of all routed experts where they agree: experts are many.
const std::string kAllExperts = ".*\\.mlp\\.experts\\..*";

bool of_experts(const PeftWriteModule& module) {
  return module.module_path.find(".mlp.experts.") != std::string::npos;
}

int64_t rank_of(const PeftWriteModule& module) {
  return module.rank > 0 ? module.rank : module.a.shape[0];
}

// Fills r and rank_pattern.
void set_ranks(PeftConfig& config, std::span<const PeftWriteModule> modules) {
  std::vector<int64_t> others;
  std::set<int64_t> experts;
  for (const PeftWriteModule& module : modules) {
    if (of_experts(module)) {
      experts.insert(rank_of(module));
    } else {
      others.push_back(rank_of(module));
    }
  }
  config.r = others.empty() ? *experts.begin() : most_common(others);
  const bool shared = experts.size() == 1 && *experts.begin() != config.r;
  if (shared) config.rank_pattern.emplace_back(kAllExperts, *experts.begin());
  for (const PeftWriteModule& module : modules) {
    if (rank_of(module) == config.r || (shared && of_experts(module))) continue;
    config.rank_pattern.emplace_back(module.module_path, rank_of(module));
  }
}

// PEFT reads a key as an expression and takes the first that matches a suffix of the path, so a
// path of one module could decide for another one; such names are refused rather than written
// wrongly.
template <typename Value>
void check_pattern(const std::vector<std::pair<std::string, Value>>& pattern,
                   const std::string& where, std::span<const PeftWriteModule> modules) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : pattern) keys.push_back(key);
  PeftPatterns patterns(keys, where);
  const std::set<std::string> exceptions(keys.begin(), keys.end());
  const bool all_experts = exceptions.contains(kAllExperts);
  for (const PeftWriteModule& module : modules) {
    const std::optional<size_t> match = patterns.match(module.module_path);
    const std::string& key = all_experts && of_experts(module) ? kAllExperts : module.module_path;
    const bool wanted = exceptions.contains(key);
    if (match.has_value() == wanted && (!wanted || keys[*match] == key)) continue;
    throw Error(ErrorCode::kUnsupported,
                fmt::format("{}: module '{}' cannot be told apart from another module's path",
                            where, module.module_path));
  }
}

PeftConfig make_config(const std::string& dir, const PeftWriteOptions& options,
                       std::span<const PeftWriteModule> modules) {
  PeftConfig config;
  config.use_rslora = options.use_rslora;
  config.base_model_name_or_path = options.base_model_name_or_path;
  config.target_modules = options.target_modules;
  config.target_parameters = options.target_parameters;
  std::vector<double> alphas;
  for (const PeftWriteModule& module : modules) alphas.push_back(module.alpha);
  set_ranks(config, modules);
  config.lora_alpha = options.lora_alpha.value_or(most_common(alphas));
  for (size_t i = 0; i < modules.size(); ++i) {
    const std::string& path = modules[i].module_path;
    if (alphas[i] != config.lora_alpha) config.alpha_pattern.emplace_back(path, alphas[i]);
    const bool whole = !modules[i].key.empty();
    if (options.target_modules.empty() && !whole) config.target_modules.push_back(path);
    // A module of experts as whole tensors is named by target_parameters.
    bool targeted = options.target_modules.empty() || whole;
    for (const std::string& target : options.target_modules) targeted |= targets(target, path);
    CHECK(targeted, "no target module matches", path);
  }
  check_pattern(config.rank_pattern, dir + ": rank_pattern", modules);
  check_pattern(config.alpha_pattern, dir + ": alpha_pattern", modules);
  return config;
}

std::string tensor_name(const PeftWriteModule& module, bool is_a) {
  const std::string base =
      "base_model.model." + (module.key.empty() ? module.module_path : module.key);
  if (module.embedding) return base + (is_a ? ".lora_embedding_A" : ".lora_embedding_B");
  return base + (is_a ? ".lora_A.weight" : ".lora_B.weight");
}

void check_module(const PeftWriteModule& module) {
  const int rank = module.a.shape.rank();
  CHECK((rank == 2 || rank == 3) && module.b.shape.rank() == rank, module.module_path);
  CHECK(module.a.shape[rank - 2] == module.b.shape[rank - 1] && module.a.shape[rank - 2] > 0,
        module.module_path, module.a.shape.to_string(), module.b.shape.to_string());
  CHECK(module.a.dtype == DType::kF32 && module.b.dtype == DType::kF32, module.module_path);
}

bool same_content(const std::string& path, const std::string& content) {
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
  std::vector<TensorDecl> tensors;
  for (const PeftWriteModule& module : modules) {
    check_module(module);
    tensors.push_back({tensor_name(module, true), DType::kF32, module.a.shape});
    tensors.push_back({tensor_name(module, false), DType::kF32, module.b.shape});
  }
  const std::string config = peft_config_text(make_config(dir, options, modules));
  make_folders(dir);
  const std::string tensors_path = dir + "/adapter_model.safetensors";
  const std::string config_path = dir + "/adapter_config.json";
  SafetensorsWriter writer(tensors_path, std::move(tensors), {{"format", "pt"}});
  for (const PeftWriteModule& module : modules) {
    writer.append_view(tensor_name(module, true), module.a);
    writer.append_view(tensor_name(module, false), module.b);
  }
  writer.seal();
  if (!same_content(config_path, config)) {
    // Old tensors must never stand beside a config that is not theirs.
    remove_file(tensors_path);
    sync_folder(dir);
    write_file_atomic(config_path, config);
  }
  writer.commit();
}

}  // namespace strata
