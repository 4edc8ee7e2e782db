// SPDX-License-Identifier: Apache-2.0
#include "text/jinja/argument_reader.h"

#include <algorithm>
#include <utility>

namespace strata::text {

const Value* ArgumentReader::next_optional(const char* name) {
  if (next_ < arguments_.positional.size()) return &arguments_.positional[next_++];
  const auto found = std::find_if(arguments_.named.begin(), arguments_.named.end(),
                                  [&](const auto& item) { return item.first == name; });
  if (found == arguments_.named.end()) return nullptr;
  ++num_named_;
  return &found->second;
}

const Value& ArgumentReader::next_required(const char* name) {
  const Value* value = next_optional(name);
  if (value == nullptr)
    template_fault(what_ + (*name == '\0'
                                ? ": an argument is missing"
                                : ": the argument '" + std::string(name) + "' is missing"));
  return *value;
}

Value ArgumentReader::next_or(const char* name, Value fallback) {
  const Value* value = next_optional(name);
  return value == nullptr ? std::move(fallback) : *value;
}

std::string ArgumentReader::next_text_or(const char* name, std::string fallback) {
  const Value* value = next_optional(name);
  if (value == nullptr) return fallback;
  if (!value->is_string())
    template_fault(what_ + ": the argument '" + name + "' must be str, not " + value->type_name());
  return value->text();
}

int64_t ArgumentReader::next_int_or(const char* name, int64_t fallback) {
  const Value* value = next_optional(name);
  if (value == nullptr) return fallback;
  if (!value->is_int() && !value->is_bool())
    template_fault(what_ + ": the argument '" + name + "' must be int, not " + value->type_name());
  return value->as_int();
}

bool ArgumentReader::next_bool_or(const char* name, bool fallback) {
  const Value* value = next_optional(name);
  return value == nullptr ? fallback : value->truthy();
}

void ArgumentReader::expect_no_more() {
  if (next_ < arguments_.positional.size() || num_named_ < arguments_.named.size())
    template_fault(what_ + ": an argument too many, or one with a name that it does not have");
}

}  // namespace strata::text
