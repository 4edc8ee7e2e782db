// SPDX-License-Identifier: Apache-2.0
#include "setup/config_source.h"

#include <fmt/format.h>

#include <filesystem>
#include <optional>
#include <string_view>
#include <utility>

#include "base/ascii.h"
#include "base/error.h"
#include "base/files.h"
#include "checkpoint/gguf/gguf_model.h"
#include "checkpoint/source.h"
#include "setup/named_configs.h"

namespace strata::apps {
namespace {

[[noreturn]] void refuse_config(const std::string& option, const std::string& config) {
  throw Error(
      ErrorCode::kNotFound,
      fmt::format(
          "--{}: got '{}', want a model directory, a GGUF file, a config.json, or one of {}",
          option, config, config_names_text()));
}

std::optional<ConfigSource> find_named_config(const std::string& name) {
  for (const NamedConfig& named : named_configs()) {
    if (named.name == name)
      return ConfigSource{std::string(named.json), std::string(named.name), ""};
  }
  return std::nullopt;
}

}  // namespace

ConfigSource read_config_source(const std::string& option, const std::string& config) {
  constexpr int64_t kMaxConfigBytes = 16 << 20;
  if (auto named = find_named_config(config)) return std::move(*named);
  if (std::filesystem::is_directory(config) || is_gguf(config)) {
    const ModelTexts texts = open_texts(config);
    return {texts.read("config.json", kMaxConfigBytes), texts.where("config.json"), config, texts};
  }
  if (!file_exists(config)) {
    // The hub writes GLM-4.5-Air, and people type it so.
    if (auto named = find_named_config(lower(config))) return std::move(*named);
    refuse_config(option, config);
  }
  return {read_file(config, kMaxConfigBytes), config, ""};
}

std::string config_examples_text() {
  return "the shape of a published model by name, such as qwen3-0.6b, llama-3.1-8b or mixtral-8x7b "
         "(an unknown name shows all)";
}

std::string config_names_text() {
  std::string names;
  for (const NamedConfig& named : named_configs())
    names += (names.empty() ? "" : ", ") + std::string(named.name);
  return names;
}

}  // namespace strata::apps
