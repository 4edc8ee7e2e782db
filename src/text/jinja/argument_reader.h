// SPDX-License-Identifier: Apache-2.0
// How filters, tests, methods and functions read what they are called with.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

#include "text/jinja/value.h"

namespace strata::text {

// Reads a call's arguments by position or name, and refuses what is left. None stands for the
// fallback of none of them; who allows it asks for the value itself.
class ArgumentReader {
 public:
  ArgumentReader(const char* what, Arguments& arguments) : what_(what), arguments_(arguments) {}
  // Null when it was not given.
  const Value* next_optional(const char* name);
  const Value& next_required(const char* name);
  Value next_or(const char* name, Value fallback);
  std::string next_text_or(const char* name, std::string fallback);
  int64_t next_int_or(const char* name, int64_t fallback);
  bool next_bool_or(const char* name, bool fallback);
  void expect_no_more();

 private:
  std::string what_;
  Arguments& arguments_;
  size_t next_ = 0;
  size_t num_named_ = 0;
};

}  // namespace strata::text
