// SPDX-License-Identifier: Apache-2.0
#include "model/adapter/export.h"

#include <algorithm>
#include <deque>
#include <vector>

#include "base/check.h"
#include "checkpoint/peft.h"
#include "model/adapter/io.h"
#include "model/adapter/tensors.h"

namespace strata::model {
namespace {

// What Tinker calls a target of experts; of gate and up together the halves.
std::vector<std::string> stacked_names(const LoraModule& module) {
  const std::string names(module.target->stacked);
  CHECK(!names.empty(), module.path);
  const size_t space = names.find(' ');
  if (space == std::string::npos) return {names};
  return {names.substr(0, space), names.substr(space + 1)};
}

// Rows of one half of every expert's B [E, halves * out, R], times `factor`: [E, out, R].
std::vector<float> scaled_half(const LoraModule& module, int64_t half, float factor) {
  const int64_t out = module.b.shape[1] / module.num_halves;
  const int64_t count = out * module.b.shape[2];
  std::vector<float> values(static_cast<size_t>(module.num_experts * count));
  float* next = values.data();
  for (int64_t e = 0; e < module.num_experts; ++e) {
    const float* from = module.b.f32() + (e * module.num_halves + half) * count;
    next = std::transform(from, from + count, next, [&](float b) { return b * factor; });
  }
  return values;
}

bool is_of_experts(const LoraModule& module) { return module.num_experts > 0; }

// The scale of the modules that are not of experts, or of others where those have none: nothing
// divides by 0.
double common_scale(const std::vector<LoraModule>& modules, const LoraModuleSpec& first) {
  double common = first.scale;
  for (const LoraModule& module : modules) common = common == 0.0 ? module.spec.scale : common;
  return common;
}

PeftWriteModule to_unstacked_module(const LoraModule& module) {
  PeftWriteModule out = {.module_path = module.path,
                         .embedding = module.is_embedding(),
                         .alpha = module.spec.scale * static_cast<double>(module.spec.rank),
                         .a = {},
                         .b = {},
                         .rank = module.spec.rank};
  set_stored_values(module, out);
  return out;
}

// A module of experts as stacked tensors, each of its halves by itself; `scaled` owns their B.
void add_stacked_modules(const LoraModule& module, double common,
                         std::deque<std::vector<float>>& scaled,
                         std::vector<PeftWriteModule>& modules) {
  const LoraModuleSpec& spec = module.spec;
  const std::string experts = module.path.substr(0, module.path.rfind('.') + 1);
  const std::vector<std::string> names = stacked_names(module);
  const int64_t out = module.b.shape[1] / module.num_halves;
  // Also where all are 0.
  const auto factor = spec.scale == common ? 1.0f : static_cast<float>(spec.scale / common);
  for (size_t half = 0; half < names.size(); ++half) {
    std::vector<float>& b =
        scaled.emplace_back(scaled_half(module, static_cast<int64_t>(half), factor));
    modules.push_back({.module_path = experts + names[half],
                       .alpha = common * static_cast<double>(spec.rank),
                       .a = module.a,
                       .b = TensorView(b.data(), DType::kF32, {module.num_experts, out, spec.rank}),
                       .rank = spec.rank});
  }
}

}  // namespace

void save_adapter_for_tinker(const LoraAdapter& adapter, const std::string& dir,
                             const std::string& base_model_name,
                             std::map<std::string, std::string> metadata) {
  const HostAccess access(adapter.backend().allocator());
  const std::vector<LoraModule>& all = adapter.modules();
  if (std::none_of(all.begin(), all.end(), is_of_experts)) {
    save_adapter(adapter, dir, base_model_name, std::move(metadata));
    return;
  }
  const auto plain = std::find_if_not(all.begin(), all.end(), is_of_experts);
  const LoraModuleSpec& first = plain == all.end() ? all.front().spec : plain->spec;
  const double common = common_scale(all, first);
  std::deque<std::vector<float>> scaled;
  std::vector<PeftWriteModule> modules;
  for (const LoraModule& module : all) {
    if (is_of_experts(module)) {
      add_stacked_modules(module, common, scaled, modules);
    } else {
      modules.push_back(to_unstacked_module(module));
    }
  }
  write_peft(dir,
             {.base_model_name_or_path = base_model_name,
              .lora_alpha = common * static_cast<double>(first.rank),
              .metadata = std::move(metadata)},
             modules);
}

}  // namespace strata::model
