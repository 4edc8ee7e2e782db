// SPDX-License-Identifier: Apache-2.0
// ConfigObject: one JSON object of a config file, read by name with types checked. A key whose
// value is null counts as absent, as it does for Hugging Face's configuration classes. Faults are
// Errors that name the file, the key, what was found and what was wanted.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace strata::model {

class ConfigObject {
 public:
  // where: the file's path, for messages.
  static ConfigObject parse(std::string_view text, const std::string& where);

  [[nodiscard]] bool has(std::string_view key) const;
  [[nodiscard]] bool contains(std::string_view key) const;  // null values too
  // There, and null: what some keys say is not what they say where they are absent.
  [[nodiscard]] bool is_null(std::string_view key) const { return contains(key) && !has(key); }
  // The value, or the default; without a default an absent key is an Error.
  [[nodiscard]] int64_t integer(std::string_view key, std::optional<int64_t> fallback = {}) const;
  [[nodiscard]] double number(std::string_view key, std::optional<double> fallback = {}) const;
  [[nodiscard]] bool boolean(std::string_view key, std::optional<bool> fallback = {}) const;
  [[nodiscard]] std::string text(std::string_view key,
                                 std::optional<std::string> fallback = {}) const;
  [[nodiscard]] std::vector<std::string> texts(std::string_view key) const;
  // A number or a list of numbers, as eos_token_id may be.
  [[nodiscard]] std::vector<int64_t> integers(std::string_view key) const;
  // A list of numbers, which must be there.
  [[nodiscard]] std::vector<double> numbers(std::string_view key) const;
  [[nodiscard]] std::optional<ConfigObject> object(std::string_view key) const;
  [[nodiscard]] std::vector<std::string> keys() const;  // those whose value is not null
  // The value as compact JSON, of which long ones are cut: for messages, and to compare with short
  // ones.
  [[nodiscard]] std::string json(std::string_view key) const;
  // All of it, a key a line, with other values of some keys (compact JSON).
  using Replaced = std::vector<std::pair<std::string_view, std::string>>;
  [[nodiscard]] std::string to_json_replacing(const Replaced& replaced) const;
  // This object with those keys of another that it lacks.
  [[nodiscard]] ConfigObject completed_by(const ConfigObject& other,
                                          std::span<const std::string_view> keys) const;
  [[nodiscard]] const std::string& where() const { return where_; }
  // Throws Error(kInvalidArgument) "<where>: <what>".
  [[noreturn]] void fail(const std::string& what) const;

 private:
  struct Data;
  std::shared_ptr<const Data> data_;
  std::string where_;
};

}  // namespace strata::model
