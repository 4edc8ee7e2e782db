// SPDX-License-Identifier: Apache-2.0
#include "server/json.h"

#include <fmt/format.h>

#include <boost/json.hpp>
#include <cmath>
#include <utility>

#include "text/unicode/unicode.h"

namespace strata::server {

std::string json_quoted(std::string_view text) {
  if (!text::is_valid_utf8(text)) return json_quoted(text::sanitize_utf8(text));
  return boost::json::serialize(boost::json::string_view(text.data(), text.size()));
}

Json::Json(double value) : text_(std::isfinite(value) ? fmt::format("{}", value) : "null") {}

Json Json::written(std::string text) {
  Json out;
  out.text_ = std::move(text);
  return out;
}

JsonObject& JsonObject::add(std::string_view name, const Json& value) {
  if (!fields_.empty()) fields_ += ',';
  fields_ += json_quoted(name);
  fields_ += ':';
  fields_ += value.text();
  return *this;
}

JsonArray& JsonArray::add(const Json& value) {
  if (!values_.empty()) values_ += ',';
  values_ += value.text();
  return *this;
}

}  // namespace strata::server
