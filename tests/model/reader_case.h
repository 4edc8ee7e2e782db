// SPDX-License-Identifier: Apache-2.0
// Small configs of families, and what their readers make of them.
#pragma once
#include <string>

#include "base/error.h"
#include "model/blocks/gqa.h"
#include "model/config.h"

namespace strata::model {

inline std::string config_text(const std::string& architecture, const std::string& type,
                               const std::string& extra) {
  return R"({"architectures": [")" + architecture + R"("], "model_type": ")" + type +
         R"(", "vocab_size": 100, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 5,
             "num_attention_heads": 4, "num_key_value_heads": 2)" +
         (extra.empty() ? "" : ", " + extra) + "}";
}

inline ModelConfig parse(const std::string& text) {
  return parse_config(text, "dir/config.json", true).config;
}

inline std::string message_of(const std::string& text) {
  try {
    parse_config(text, "dir/config.json", false);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

inline const GqaConfig& attention(const ModelConfig& config, int64_t layer) {
  return *config.find_block_config<GqaConfig>(layer, kGqa);
}

}  // namespace strata::model
