// SPDX-License-Identifier: Apache-2.0
#include "server/openai/json_text.h"

#include <boost/json/parse.hpp>

namespace strata::server {
namespace {

constexpr size_t kMaxDepth = 64;
constexpr std::string_view kSpace = " \t\r\n";

size_t skip_space(std::string_view text, size_t at) {
  return std::min(text.find_first_not_of(kSpace, at), text.size());
}

size_t string_end(std::string_view text, size_t at) {
  for (size_t i = at + 1; i < text.size(); ++i) {
    if (text[i] == '\\')
      ++i;
    else if (text[i] == '"')
      return i + 1;
  }
  return text.size();
}

// Behind what separates two items: where the next one begins, or the end of the text.
size_t next_item(std::string_view text, size_t at) {
  at = skip_space(text, at);
  return at < text.size() && text[at] == ',' ? skip_space(text, at + 1) : text.size();
}

bool is_end(char c) { return c == ']' || c == '}'; }

}  // namespace

std::optional<boost::json::value> parse_json_text(std::string_view text) {
  boost::json::parse_options options;
  options.max_depth = kMaxDepth;
  boost::system::error_code fault;
  boost::json::value value = boost::json::parse({text.data(), text.size()}, fault, {}, options);
  if (fault) return std::nullopt;
  return value;
}

size_t json_value_end(std::string_view text, size_t at) {
  int depth = 0;
  for (size_t i = at; i < text.size();) {
    const char c = text[i];
    if (c == '"') {
      i = string_end(text, i);
      if (depth == 0) return i;
      continue;
    }
    if (depth == 0 && (is_end(c) || c == ',')) return i;
    if (c == '{' || c == '[') ++depth;
    if (is_end(c) && --depth == 0) return i + 1;
    ++i;
  }
  return text.size();
}

std::string_view json_member(std::string_view object, std::string_view key) {
  std::string_view found;
  size_t at = skip_space(object, object.find('{') + 1);
  while (at < object.size() && object[at] == '"') {
    const size_t name_end = string_end(object, at);
    const std::string_view name = object.substr(at + 1, name_end - at - 2);
    at = skip_space(object, object.find(':', name_end) + 1);
    const size_t end = json_value_end(object, at);
    if (name == key) {
      const std::string_view value = object.substr(at, end - at);
      found = value.substr(0, value.find_last_not_of(kSpace) + 1);
    }
    at = next_item(object, end);
  }
  return found;
}

std::vector<std::string_view> json_items(std::string_view array) {
  std::vector<std::string_view> items;
  size_t at = skip_space(array, array.find('[') + 1);
  while (at < array.size() && array[at] != ']') {
    const size_t end = json_value_end(array, at);
    items.push_back(array.substr(at, end - at));
    at = next_item(array, end);
  }
  return items;
}

}  // namespace strata::server
