// SPDX-License-Identifier: Apache-2.0
#include "setup/model_files.h"

#include <fmt/format.h>

#include <cstdint>
#include <filesystem>

#include "base/files.h"
#include "text/json_reader.h"

namespace strata::apps {
namespace {

constexpr int64_t kMaxBytes = int64_t{256} << 20;
constexpr std::string_view kNames[] = {
    "config.json",         "generation_config.json",  "tokenizer.json", "tokenizer_config.json",
    "chat_template.jinja", "special_tokens_map.json", "vocab.json",     "merges.txt",
    "added_tokens.json",   "tiktoken.model"};

}  // namespace

std::string without_quantization(const std::string& config_text, const std::string& where) {
  text::JsonReader json(config_text, where);
  std::string out = "{";
  bool found = false;
  json.begin_object();
  for (std::string key; json.next_key(key);) {
    const std::string value = json.read_compact_json();
    if (key == "quantization_config") {
      found = true;
    } else {
      text::append_json_member(out, "  ", key, value);
    }
  }
  return found ? out + "\n}\n" : config_text;
}

std::span<const std::string_view> model_file_names() { return kNames; }

int64_t count_model_file_bytes(const ModelTexts& texts) {
  int64_t bytes = 0;
  for (const std::string_view name : kNames)
    bytes += std::ssize(texts.find(name, kMaxBytes).value_or(""));
  return bytes;
}

void copy_model_files_as_unquantized(const ModelTexts& from, const std::string& to_dir) {
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
