// SPDX-License-Identifier: Apache-2.0
#include "model/adapter/base_size.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <optional>
#include <string_view>

#include "model/adapter/match.h"

namespace strata::model {
namespace {

// Projections that read the hidden state, in whatever block they are.
constexpr std::string_view kReadHidden[] = {
    "q_proj",    "k_proj",  "v_proj",  "q_a_proj",     "kv_a_proj_with_mqa",
    "gate_proj", "up_proj", "lm_head", "gate_up_proj", "in_proj_qkv",
    "in_proj_z", "w1",      "w3"};

std::string_view last_part(std::string_view text, char separator) {
  return text.substr(text.rfind(separator) + 1);
}

int64_t width_of(const PeftModule& module) {
  if (module.embedding) return module.b.shape[0];
  const std::string_view name = last_part(module.module_path, '.');
  const bool reads_hidden =
      std::find(std::begin(kReadHidden), std::end(kReadHidden), name) != std::end(kReadHidden);
  return reads_hidden ? module.a.shape[module.a.shape.rank() - 1] : 0;
}

// The layer in a module's path, 3 in "model.layers.3.mlp.up_proj"; nothing outside the layers.
std::optional<int64_t> layer_of(std::string_view path) {
  constexpr std::string_view kLayers = "layers.";
  const size_t at = path.find(kLayers);
  if (at == std::string_view::npos) return std::nullopt;
  const char* const begin = path.data() + at + kLayers.size();
  uint32_t layer = 0;
  if (std::from_chars(begin, path.data() + path.size(), layer).ec != std::errc())
    return std::nullopt;
  return layer;
}

std::string size_text(const BaseSize& size) {
  const std::string layers =
      fmt::format("{} layer{}", size.num_layers, size.num_layers == 1 ? "" : "s");
  return size.width == 0 ? layers : fmt::format("{} wide, {}", size.width, layers);
}

// The folder's name; of a snapshot in the hub's cache that of its repository.
std::string folder_name(const std::string& dir) {
  std::filesystem::path path = std::filesystem::path(dir).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  if (path.parent_path().filename() == "snapshots") path = path.parent_path().parent_path();
  return path.filename().string();
}

}  // namespace

BaseSize base_size_of_adapter(const PeftAdapter& peft) {
  BaseSize size;
  for (const PeftModule& module : peft.modules()) {
    size.width = std::max(size.width, width_of(module));
    if (const auto layer = layer_of(module.module_path))
      size.num_layers = std::max(size.num_layers, *layer + 1);
  }
  return size;
}

std::string other_base_sentence(const PeftAdapter& peft, const LoadedModel& model) {
  constexpr size_t kMostShown = 200;  // an adapter may be a stranger's
  const std::string& base = peft.config().base_model_name_or_path;
  const BaseSize own = base_size_of_adapter(peft);
  const BaseSize now = {.width = model.config.hidden_size, .num_layers = model.config.num_layers()};
  const bool is_other_size =
      (own.width != 0 && own.width != now.width) || own.num_layers > now.num_layers;
  const bool is_other_name = !base.empty() && folder_name(base) != folder_name(model.dir);
  if (!is_other_size && !is_other_name) return {};
  const std::string name =
      base.empty() || base.size() > kMostShown ? "another model" : "'" + base + "'";
  return fmt::format("this adapter is of {} ({}); the model is '{}' ({})", name, size_text(own),
                     folder_name(model.dir), size_text(now));
}

std::vector<std::string> find_adapter_faults(const LoadedModel& model, const PeftAdapter& peft) {
  std::vector<std::string> faults;
  const std::vector<MatchedModule> matched = match_modules(model, peft, faults);
  check_gate_up_pairs(model.weights->layers(), matched, faults);
  const std::string sentence = faults.empty() ? "" : other_base_sentence(peft, model);
  if (!sentence.empty()) faults.insert(faults.begin(), sentence);
  return faults;
}

}  // namespace strata::model
