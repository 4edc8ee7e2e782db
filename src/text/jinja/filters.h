// SPDX-License-Identifier: Apache-2.0
// Filters and methods in one form.
#pragma once
#include <algorithm>
#include <span>
#include <string>
#include <string_view>

#include "text/jinja/argument_reader.h"
#include "text/jinja/interpreter.h"

namespace strata::text {

struct NamedCall {
  std::string_view name;
  Value (*call)(Interpreter&, const Value&, Arguments&);  // of the value on the left
};

// The row of that name of a table, or null.
template <typename Entry>
const Entry* find_entry(std::span<const Entry> entries, std::string_view name) {
  const auto found = std::ranges::find(entries, name, &Entry::name);
  return found == entries.end() ? nullptr : &*found;
}

// text_filters.cc: those of text and numbers.
std::span<const NamedCall> text_filters();

inline std::string text_of(Interpreter& interpreter, const Value& value) {
  interpreter.charge_value(value);
  return to_text(value);
}

// methods.cc: str.strip of the characters of `chars`, which may be null or None: of whitespace.
Value strip_text(const std::string& text, const Value* chars, bool left, bool right);

// methods.cc: the pairs of a dict. Each is a tuple, which takes more than an item of a list.
std::vector<Value> pairs_of(Interpreter& interpreter, const Value& dict);

inline void expect_no_arguments(const char* name, Arguments& arguments) {
  ArgumentReader(name, arguments).expect_no_more();
}

}  // namespace strata::text
