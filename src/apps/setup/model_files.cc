// SPDX-License-Identifier: Apache-2.0
#include "apps/setup/model_files.h"

#include <fmt/format.h>

#include <cstdint>
#include <filesystem>

#include "base/files.h"
#include "checkpoint/json.h"
#include "checkpoint/source.h"
#include "report/format.h"

namespace strata::apps {
namespace {

constexpr int64_t kMaxBytes = int64_t{256} << 20;
constexpr std::string_view kNames[] = {
    "config.json",         "generation_config.json",  "tokenizer.json", "tokenizer_config.json",
    "chat_template.jinja", "special_tokens_map.json", "vocab.json",     "merges.txt",
    "added_tokens.json"};

}  // namespace

std::string without_quantization(const std::string& config_text, const std::string& where) {
  JsonReader json(config_text, where);
  std::string out = "{";
  bool found = false;
  json.begin_object();
  for (std::string key; json.next_key(key);) {
    const std::string value = json.raw();
    if (key == "quantization_config") {
      found = true;
    } else {
      out += fmt::format("{}\n  {}: {}", out.back() == '{' ? "" : ",", json_quote(key), value);
    }
  }
  return found ? out + "\n}\n" : config_text;
}

std::string dequantised_text(const CheckpointSource* source) {
  const NarrowBytes bytes = source == nullptr ? NarrowBytes() : narrow_bytes(*source);
  if (bytes.stored == 0) return {};
  return fmt::format("{} of weights in the file, {} in bf16 (twice that in f32)",
                     report::format_bytes(bytes.stored), report::format_bytes(bytes.dequantised));
}

std::span<const std::string_view> model_file_names() { return kNames; }

void copy_model_files(const std::string& from, const std::string& to_dir) {
  std::error_code fault;
  if (std::filesystem::equivalent(from, to_dir, fault)) return;
  const ModelTexts texts = open_texts(from);
  for (const std::string_view name : kNames) {
    std::optional<std::string> text = texts.find(name, kMaxBytes);
    if (!text) continue;
    if (name == kNames[0]) text = without_quantization(*text, texts.where(name));
    write_file_atomic(fmt::format("{}/{}", to_dir, name), *text);
  }
}

}  // namespace strata::apps
