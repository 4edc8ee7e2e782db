// SPDX-License-Identifier: Apache-2.0
// Boost.JSON values read with a path, so that every complaint names file and field. Only .cc files
// include this header.
#pragma once
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>

namespace boost::json {
class array;
class object;
class value;
}  // namespace boost::json

namespace strata::text {

// The whole text of a file as one value, read as strictly as JsonReader does: no key twice, numbers
// rounded correctly. Every fault names `where` and the byte.
boost::json::value parse_json(std::string_view text, const std::string& where);
// Parses a text that is an object likewise.
boost::json::object parse_json_object(std::string_view text, const std::string& where);

// One value and its path, like "tokenizer.json: model.vocab". Borrows the value.
class JsonField {
 public:
  JsonField(const boost::json::value& value, std::string path)
      : value_(std::addressof(value)), path_(std::move(path)) {}

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] const boost::json::value& value() const { return *value_; }
  [[nodiscard]] bool is_null() const;

  [[noreturn]] void fail(const std::string& what) const;         // the file is wrong
  [[noreturn]] void unsupported(const std::string& what) const;  // right, but not done here

  [[nodiscard]] const boost::json::object& object() const;
  [[nodiscard]] const boost::json::array& array() const;
  [[nodiscard]] std::string string() const;
  [[nodiscard]] bool boolean() const;
  [[nodiscard]] int64_t integer(int64_t min, int64_t max) const;

  // A member; an Error when it is not there.
  [[nodiscard]] JsonField at(std::string_view key) const;
  [[nodiscard]] JsonField item(size_t index) const;
  [[nodiscard]] bool has(std::string_view key) const;  // there and not null
  [[nodiscard]] std::string string_or(std::string_view key, std::string fallback) const;
  [[nodiscard]] bool boolean_or(std::string_view key, bool fallback) const;
  // Every key that is not listed is an Error{kUnsupported}.
  void expect_keys(std::initializer_list<std::string_view> keys) const;

 private:
  const boost::json::value* value_;
  std::string path_;
};

}  // namespace strata::text
