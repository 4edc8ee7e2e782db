// SPDX-License-Identifier: Apache-2.0
#include "text/json_numbers.h"

#include <fmt/format.h>

#include <boost/json.hpp>

#include "text/json_field.h"

namespace strata::text {
namespace {

namespace json = boost::json;

void round_to_f32(json::value& value) {
  if (json::object* object = value.if_object()) {
    for (auto& item : *object) round_to_f32(item.value());
  } else if (json::array* list = value.if_array()) {
    for (json::value& item : *list) round_to_f32(item);
  } else if (value.is_double()) {
    value = std::stod(fmt::format("{}", static_cast<float>(value.get_double())));
  }
}

}  // namespace

std::string round_json_numbers_to_f32(std::string_view text, const std::string& where) {
  json::value whole = parse_json_object(text, where);
  round_to_f32(whole);
  return json::serialize(whole);
}

}  // namespace strata::text
