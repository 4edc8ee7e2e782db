// SPDX-License-Identifier: Apache-2.0
#include "text/jinja/sequence.h"

#include <algorithm>
#include <string>
#include <utility>

#include "text/unicode/unicode.h"

namespace strata::text {

Value repeat_value(const Value& value, int64_t count) {
  count = std::max<int64_t>(count, 0);
  if (value.is_string()) {
    std::string out;
    for (int64_t i = 0; i < count; ++i) out += value.text();
    return out;
  }
  std::vector<Value> items;
  for (int64_t i = 0; i < count; ++i)
    items.insert(items.end(), value.as_list().items.begin(), value.as_list().items.end());
  return Value::list(std::move(items), value.as_list().kind);
}

bool is_list_or_tuple(const Value& value) {
  return value.is_list() &&
         (value.as_list().kind == List::Kind::kList || value.as_list().kind == List::Kind::kTuple);
}

Value concat_lists(const List& a, const List& b) {
  std::vector<Value> items = a.items;
  items.insert(items.end(), b.items.begin(), b.items.end());
  return Value::list(std::move(items), a.kind);
}

Value slice_list(const List& list, SliceBounds slice) {
  std::vector<Value> out;
  for (int64_t i = 0; i < slice.count; ++i)
    out.push_back(list.items[static_cast<size_t>(slice.begin + i * slice.step)]);
  const bool tuple = list.kind == List::Kind::kTuple;
  return Value::list(std::move(out), tuple ? List::Kind::kTuple : List::Kind::kList);
}

std::optional<Value> element_at(const Value& object, int64_t index) {
  const bool is_text = object.is_string();
  const int64_t size =
      is_text ? count_code_points(object.text()) : std::ssize(object.as_list().items);
  const int64_t at = index < 0 ? index + size : index;
  if (at < 0 || at >= size) return std::nullopt;
  if (is_text) return py_slice_text(object.text(), {at, 1, 1});
  return object.as_list().items[static_cast<size_t>(at)];
}

std::vector<Value> characters_of(std::string_view text) {
  std::vector<Value> out;
  for (size_t pos = 0; pos < text.size();) {
    const size_t begin = pos;
    next_code_point(text, pos);
    out.emplace_back(text.substr(begin, pos - begin));
  }
  return out;
}

}  // namespace strata::text
