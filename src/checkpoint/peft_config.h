// SPDX-License-Identifier: Apache-2.0
// PeftConfig: what adapter_config.json says of a LoRA adapter. Every key of the file is read, known
// to change nothing (inert), or refused by name unless it has the value at which it changes
// nothing; a key that is unknown is refused too, since it may change what the adapter means.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace strata {

struct PeftConfig {
  int64_t r = 8;  // PEFT's defaults
  double lora_alpha = 8;
  bool use_rslora = false;
  std::vector<std::pair<std::string, int64_t>>
      rank_pattern;  // in the order of the file: first match wins
  std::vector<std::pair<std::string, double>> alpha_pattern;
  std::vector<std::string> target_modules;     // a string in the file is a list of one here
  std::vector<std::string> target_parameters;  // experts adapted as whole tensors, or empty
  std::string base_model_name_or_path;
};

// `where` names the file in messages. All faults of the file come in one Error.
PeftConfig parse_peft_config(std::string_view text, const std::string& where);
// The whole adapter_config.json, as PEFT writes it: every key, sorted.
std::string peft_config_text(const PeftConfig& config);

// lora_alpha / r, or lora_alpha / sqrt(r) with use_rslora.
double peft_scaling(double alpha, int64_t rank, bool use_rslora);

}  // namespace strata
