// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/peft_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "checkpoint/faults.h"
#include "text/json_reader.h"

namespace strata {
namespace {

using Kind = text::JsonReader::Kind;

// Where modules were chosen, how A and B were initialised or what happened while training: the
// tensors in the file are the outcome. lora_dropout acts in training only, and we train without.
constexpr std::array<std::string_view, 22> kInert = {
    "auto_mapping",      "corda_config",     "eva_config",     "exclude_modules",
    "inference_mode",    "layers_pattern",   "loftq_config",   "layers_to_transform",
    "lora_dropout",      "lora_ga_config",   "megatron_core",  "peft_version",
    "qalora_group_size", "revision",         "runtime_config", "task_type",
    "enable_lora",       "merge_weights",    "tokenizer",      "_commit_hash",
    "parent_library",    "base_model_class",
};

// null, false, [] and {} change nothing in any key that is not listed as read or inert.
bool changes_nothing(std::string_view raw) {
  return raw == "null" || raw == "false" || raw == "[]" || raw == "{}";
}

struct Parser {
  text::JsonReader json;
  FaultList faults;
  PeftConfig config;

  Parser(std::string_view text, const std::string& where) : json(text, where), faults(where) {}

  void wrong(const std::string& key, const std::string& wanted) {
    const std::string got = json.read_compact_json();
    faults.add(fmt::format("{}: got {}, wanted {}", key, got.substr(0, 100), wanted));
  }

  bool skip_null() {
    if (json.peek_kind() != Kind::kNull) return false;
    json.read_null();
    return true;
  }

  int64_t read_rank(const std::string& key) {
    const int64_t value = json.read_integer();
    if (value < 1) faults.add(fmt::format("{}: got {}, wanted a rank of at least 1", key, value));
    return std::max<int64_t>(value, 1);
  }

  void read_rank_pattern() {
    if (skip_null()) return;
    json.begin_object();
    for (std::string key; json.next_key(key);) {
      config.rank_pattern.emplace_back(key, read_rank("rank_pattern " + text::json_quote(key)));
    }
  }

  void read_alpha_pattern() {
    if (skip_null()) return;
    json.begin_object();
    for (std::string key; json.next_key(key);)
      config.alpha_pattern.emplace_back(key, json.read_number());
  }

  void append_names(std::vector<std::string>& out) {
    if (json.peek_kind() == Kind::kString) {
      out.push_back(json.read_string());
    } else if (!skip_null()) {
      json.begin_array();
      while (json.next_item()) out.push_back(json.read_string());
    }
  }

  // These change the base weights when the adapter is loaded (they subtract the initial adapter),
  // so the tensors of the file alone do not say what the model computes.
  void check_init_lora_weights() {
    const std::string raw = json.read_compact_json();
    for (const std::string_view fine :
         {"true", "false", "null", "\"gaussian\"", "\"eva\"", "\"orthogonal\""}) {
      if (raw == fine) return;
    }
    faults.add(fmt::format(
        "init_lora_weights: got {}; it changes the base weights, which is not supported. "
        "Convert the adapter with PEFT's path_initial_model_for_weight_conversion",
        raw.substr(0, 100)));
  }

  void check_neutral(const std::string& key) {
    const std::string raw = json.read_compact_json();
    const bool none = key == "bias" && raw == "\"none\"";
    if (none || changes_nothing(raw)) return;
    faults.add(
        fmt::format("{}: got {}; adapters with it are not supported", key, raw.substr(0, 100)));
  }

  void check_peft_type(const std::string& key) {
    if (json.peek_kind() != Kind::kString) return wrong(key, "\"LORA\"");
    const std::string type = json.read_string();
    if (type != "LORA")
      faults.add(fmt::format("peft_type: got {}, wanted \"LORA\"", text::json_quote(type)));
  }

  void read_target_parameters(const std::string& key) {
    if (json.peek_kind() == Kind::kString || json.peek_kind() == Kind::kArray) {
      append_names(config.target_parameters);
    } else {
      check_neutral(key);
    }
  }

  void read_entry(const std::string& key) {
    if (key == "peft_type") {
      check_peft_type(key);
    } else if (key == "r") {
      config.r = read_rank(key);
    } else if (key == "lora_alpha") {
      config.lora_alpha = json.read_number();
    } else if (key == "use_rslora") {
      if (!skip_null()) config.use_rslora = json.read_boolean();
    } else if (key == "rank_pattern") {
      read_rank_pattern();
    } else if (key == "alpha_pattern") {
      read_alpha_pattern();
    } else if (key == "target_modules") {
      append_names(config.target_modules);
    } else if (key == "target_parameters") {
      read_target_parameters(key);
    } else if (key == "base_model_name_or_path") {
      if (!skip_null()) config.base_model_name_or_path = json.read_string();
    } else if (key == "init_lora_weights") {
      check_init_lora_weights();
    } else if (std::find(kInert.begin(), kInert.end(), key) != kInert.end()) {
      json.skip();
    } else {
      check_neutral(key);
    }
  }
};

std::string list_text(const std::vector<std::string>& names) {
  std::string out = "[";
  for (const std::string& name : names)
    out += (out.size() > 1 ? ",\n    " : "\n    ") + text::json_quote(name);
  return out + (names.empty() ? "]" : "\n  ]");
}

template <typename Value>
std::string pattern_text(const std::vector<std::pair<std::string, Value>>& pattern) {
  std::string out = "{";
  for (const auto& [key, value] : pattern) {
    text::append_json_member(out, "    ", key, text::json_number(static_cast<double>(value)));
  }
  return out + (pattern.empty() ? "}" : "\n  }");
}

}  // namespace

PeftConfig parse_peft_config(std::string_view text, const std::string& where) {
  Parser parser(text, where);
  bool has_type = false;
  parser.json.begin_object();
  for (std::string key; parser.json.next_key(key);) {
    has_type = has_type || key == "peft_type";
    parser.read_entry(key);
  }
  parser.json.end();
  if (!has_type) parser.faults.add("peft_type is missing, wanted \"LORA\"; not a PEFT adapter?");
  parser.faults.throw_faults();
  return std::move(parser.config);
}

std::string peft_config_text(const PeftConfig& config) {
  std::map<std::string, std::string> values = {
      {"alpha_pattern", pattern_text(config.alpha_pattern)},
      {"auto_mapping", "null"},
      {"base_model_name_or_path", config.base_model_name_or_path.empty()
                                      ? "null"
                                      : text::json_quote(config.base_model_name_or_path)},
      {"bias", "\"none\""},
      {"exclude_modules", "null"},
      {"fan_in_fan_out", "false"},
      {"inference_mode", "true"},
      {"init_lora_weights", "true"},
      {"layers_pattern", "null"},
      {"layers_to_transform", "null"},
      {"lora_alpha", text::json_number(config.lora_alpha)},
      {"lora_bias", "false"},
      {"lora_dropout", "0.0"},
      {"modules_to_save", "null"},
      {"peft_type", "\"LORA\""},
      {"r", std::to_string(config.r)},
      {"rank_pattern", pattern_text(config.rank_pattern)},
      {"revision", "null"},
      {"target_modules", list_text(config.target_modules)},
      {"task_type", "\"CAUSAL_LM\""},
      {"use_dora", "false"},
      {"use_rslora", config.use_rslora ? "true" : "false"},
  };
  if (!config.target_parameters.empty()) {
    values["target_parameters"] = list_text(config.target_parameters);
  }
  std::string out = "{";
  for (const auto& [key, value] : values) text::append_json_member(out, "  ", key, value);
  return out + "\n}\n";
}

double peft_scaling(double alpha, int64_t rank, bool use_rslora) {
  const auto r = static_cast<double>(rank);
  return use_rslora ? alpha / std::sqrt(r) : alpha / r;
}

}  // namespace strata
