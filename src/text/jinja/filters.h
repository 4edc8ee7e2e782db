// SPDX-License-Identifier: Apache-2.0
// The filters of two files in one form.
#pragma once
#include <span>
#include <string>
#include <string_view>

#include "text/jinja/interpreter.h"

namespace strata::text {

struct FilterEntry {
  std::string_view name;
  Value (*filter)(Interpreter&, const Value&, Arguments&);
};

// text_filters.cc: those of text and numbers.
std::span<const FilterEntry> text_filters();

inline std::string text_of(Interpreter& interpreter, const Value& value) {
  interpreter.charge_value(value);
  return to_text(value);
}

inline void no_arguments(const char* name, Arguments& arguments) {
  ArgumentReader(name, arguments).done();
}

}  // namespace strata::text
