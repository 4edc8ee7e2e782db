// SPDX-License-Identifier: Apache-2.0
// JSON as responses have it: values that are written as they are made. Texts are escaped, keys
// stand in the order given, nothing is indented.
//   json_response(200, JsonObject{{"type", "get_info"}, {"lora_rank", rank}}.text())
#pragma once
#include <concepts>
#include <cstddef>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace strata::server {

// `text` as a JSON string with its quotes; bytes that are no UTF-8 (a path of a request, a name cut
// to length) become U+FFFD.
std::string json_quoted(std::string_view text);

// Any value, as its text.
class Json {
 public:
  Json(std::string_view text) : text_(json_quoted(text)) {}
  Json(const std::string& text) : Json(std::string_view(text)) {}
  Json(const char* text) : Json(std::string_view(text)) {}
  Json(bool value) : text_(value ? "true" : "false") {}
  Json(std::integral auto value) : text_(std::to_string(value)) {}
  Json(std::nullptr_t) : text_("null") {}
  Json(double value);  // the shortest text that reads back as it; null when it is not finite

  // What is JSON already.
  static Json written(std::string text);

  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  Json() = default;
  std::string text_;
};

class JsonObject {
 public:
  JsonObject() = default;
  JsonObject(std::initializer_list<std::pair<std::string_view, Json>> fields) {
    for (const auto& [name, value] : fields) add(name, value);
  }
  JsonObject& add(std::string_view name, const Json& value);
  [[nodiscard]] std::string text() const { return "{" + fields_ + "}"; }
  operator Json() const { return Json::written(text()); }

 private:
  std::string fields_;
};

class JsonArray {
 public:
  JsonArray() = default;
  template <typename T>
  explicit JsonArray(const std::vector<T>& values) {
    for (const T& value : values) add(Json(value));
  }
  JsonArray& add(const Json& value);
  [[nodiscard]] std::string text() const { return "[" + values_ + "]"; }
  operator Json() const { return Json::written(text()); }

 private:
  std::string values_;
};

}  // namespace strata::server
