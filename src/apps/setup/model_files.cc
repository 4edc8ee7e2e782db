// SPDX-License-Identifier: Apache-2.0
#include "apps/setup/model_files.h"

#include <fmt/format.h>

#include <cstdint>
#include <filesystem>
#include <map>

#include "base/files.h"
#include "checkpoint/gguf/gguf_model.h"
#include "checkpoint/source.h"
#include "report/format.h"
#include "text/json_reader.h"

namespace strata::apps {
namespace {

constexpr int64_t kMaxBytes = int64_t{256} << 20;
constexpr std::string_view kNames[] = {
    "config.json",         "generation_config.json",  "tokenizer.json", "tokenizer_config.json",
    "chat_template.jinja", "special_tokens_map.json", "vocab.json",     "merges.txt",
    "added_tokens.json"};

}  // namespace

std::string without_quantization(const std::string& config_text, const std::string& where) {
  text::JsonReader json(config_text, where);
  std::string out = "{";
  bool found = false;
  json.begin_object();
  for (std::string key; json.next_key(key);) {
    const std::string value = json.raw();
    if (key == "quantization_config") {
      found = true;
    } else {
      out +=
          fmt::format("{}\n  {}: {}", out.back() == '{' ? "" : ",", text::json_quote(key), value);
    }
  }
  return found ? out + "\n}\n" : config_text;
}

std::unique_ptr<CheckpointSource> find_weights(const std::string& path) {
  const bool there = !path.empty() && (has_gguf(path) || file_exists(path + "/model.safetensors") ||
                                       file_exists(path + "/model.safetensors.index.json"));
  return there ? open_checkpoint(path) : nullptr;
}

std::string dequantised_text(const CheckpointSource* source) {
  const NarrowBytes bytes = source == nullptr ? NarrowBytes() : narrow_bytes(*source);
  if (bytes.stored == 0) return {};
  return fmt::format("{} of weights in the file, {} in bf16 (twice that in f32)",
                     report::format_bytes(bytes.stored), report::format_bytes(bytes.dequantised));
}

std::string narrow_text(const model::ModelWeights& weights, const CheckpointSource* source) {
  std::map<std::string_view, int64_t> kept;  // experts of a layer are one
  int64_t bytes = 0, dequantised = 0;
  for (const model::Parameter& parameter : weights.table()) {
    if (!parameter.held || !parameter.is_matrix()) continue;
    if (parameter.panel.is_narrow()) {
      bytes += parameter.panel.num_bytes();
      if (parameter.expert <= 0) ++kept[narrow_layout(parameter.panel.form).name];
      continue;
    }
    const CheckpointTensor* tensor = source == nullptr ? nullptr : source->find(parameter.name);
    const bool was = tensor != nullptr && tensor->info.dtype_name != dtype_name(tensor->info.dtype);
    if (was && parameter.expert <= 0) ++dequantised;
  }
  if (kept.empty()) return {};
  std::string text;
  for (const auto& [name, count] : kept) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", count, name);
  }
  text += fmt::format(": {} of {}", report::format_bytes(bytes),
                      report::format_bytes(weights.num_bytes()));
  return dequantised == 0 ? text : fmt::format("{}; {} dequantised to bf16", text, dequantised);
}

void add_weights_row(const model::ModelWeights& weights, const CheckpointSource* source,
                     report::Table& table) {
  const std::string kept = narrow_text(weights, source);
  if (!kept.empty()) return table.add_row({"in 4 and 8 bits", kept});
  const std::string dequantised = dequantised_text(source);
  if (!dequantised.empty()) table.add_row({"dequantised", dequantised});
}

std::span<const std::string_view> model_file_names() { return kNames; }

int64_t model_file_bytes(const ModelTexts& texts) {
  int64_t bytes = 0;
  for (const std::string_view name : kNames)
    bytes += std::ssize(texts.find(name, kMaxBytes).value_or(""));
  return bytes;
}

void copy_model_files(const ModelTexts& from, const std::string& to_dir) {
  std::error_code fault;
  if (std::filesystem::equivalent(from.where(), to_dir, fault)) return;
  for (const std::string_view name : kNames) {
    std::optional<std::string> text = from.find(name, kMaxBytes);
    if (!text) continue;
    if (name == kNames[0]) text = without_quantization(*text, from.where(name));
    write_file_atomic(fmt::format("{}/{}", to_dir, name), *text);
  }
}

}  // namespace strata::apps
