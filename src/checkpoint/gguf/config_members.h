// SPDX-License-Identifier: Apache-2.0
// ConfigMembers: the members of a config.json that are made of a GGUF file's keys, and which keys
// were read for them, so that the others can be passed on. Faults name the file and the key.
#pragma once
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "checkpoint/gguf/architecture.h"

namespace strata {

class ConfigMembers {
 public:
  // Keeps a reference to the model.
  explicit ConfigMembers(const GgufModel& model);

  [[nodiscard]] const GgufModel& model() const { return model_; }
  [[nodiscard]] const GgufArchitecture& row() const { return row_; }
  [[nodiscard]] int64_t num_layers() const { return num_layers_; }

  // Keys are named without their architecture; those that are asked for or read count as used.
  [[nodiscard]] std::string use_key(std::string_view name);
  [[nodiscard]] bool has_key(std::string_view name) { return model_.keys().has(use_key(name)); }
  [[nodiscard]] int64_t read_integer(std::string_view name, std::optional<int64_t> fallback = {});
  // One value for each layer, of a list or of one for all.
  [[nodiscard]] std::vector<int64_t> read_layer_integers(std::string_view name);
  [[nodiscard]] double read_number(std::string_view name, std::optional<double> fallback = {}) {
    return model_.keys().number(use_key(name), fallback);
  }
  [[noreturn]] void refuse(std::string_view name, const std::string& what);

  [[nodiscard]] bool has_tensor(std::string_view name) const {
    return model_.find(name) != nullptr;
  }
  [[nodiscard]] bool layer_has(int64_t layer, std::string_view name) const;

  [[nodiscard]] int64_t heads();
  [[nodiscard]] int64_t head_dim();
  // Which layers have a window: a key says it of each layer, or of how many the last one attends to
  // all; else the architecture's default does.
  [[nodiscard]] std::vector<bool> sliding_layers(int64_t default_pattern);
  // The JSON of config.json's layer_types.
  [[nodiscard]] std::string layer_types(int64_t default_pattern);
  // Refuses a rotary width that is not `dim`.
  void check_whole_head_rotates(std::string_view name, int64_t dim);
  // The values of rope_freqs.weight, which must be one for each pair of so many columns.
  [[nodiscard]] std::vector<float> read_rope_divisors(int64_t dim);

  // Adds a member; `json` is its value's text.
  void set(std::string_view name, std::string json) {
    members_.emplace_back(name, std::move(json));
  }
  void set_integer(std::string_view name, int64_t value);
  void set_number(std::string_view name, double value) { set(name, number_text(value)); }
  void set_boolean(std::string_view name, bool value) { set(name, value ? "true" : "false"); }
  [[nodiscard]] std::string number_text(double value) const;
  // Adds each key of the architecture that was not used, by its whole name.
  void add_unused_keys();
  [[nodiscard]] std::string json() const;

 private:
  const GgufModel& model_;
  const GgufArchitecture& row_;
  int64_t num_layers_;
  std::set<std::string, std::less<>> used_;
  std::vector<std::pair<std::string, std::string>> members_;
};

}  // namespace strata
