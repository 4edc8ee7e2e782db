// SPDX-License-Identifier: Apache-2.0
#include "data/json_fields.h"

#include <fmt/format.h>

#include "base/error.h"

namespace strata::data {

namespace json = boost::json;

void fail_record(const std::string& what) { throw Error(ErrorCode::kInvalidArgument, what); }

std::string kind_of(const json::value& value) {
  switch (value.kind()) {
    case json::kind::null:
      return "null";
    case json::kind::bool_:
      return "a boolean";
    case json::kind::int64:
    case json::kind::uint64:
    case json::kind::double_:
      return "a number";
    case json::kind::string:
      return "a string";
    case json::kind::array:
      return "a list";
    case json::kind::object:
      return "an object";
  }
  return "nothing";
}

const json::value* field_of(const json::object& object, std::string_view name) {
  const json::value* value = object.if_contains(name);
  return value == nullptr || value->is_null() ? nullptr : value;
}

std::string require_string_field(const json::object& object, std::string_view name) {
  const json::value* value = object.if_contains(name);
  if (value == nullptr) fail_record(fmt::format("{}: missing, want a string", name));
  if (!value->is_string())
    fail_record(fmt::format("{}: got {}, want a string", name, kind_of(*value)));
  return std::string(value->get_string());
}

}  // namespace strata::data
