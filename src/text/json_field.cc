// SPDX-License-Identifier: Apache-2.0
#include "text/json_field.h"

#include <algorithm>
#include <boost/json.hpp>

#include "base/error.h"

namespace strata::text {
namespace {

std::string kind_name(const boost::json::value& value) {
  return std::string(boost::json::to_string(value.kind()));
}

}  // namespace

boost::json::value parse_json(std::string_view text, const std::string& where,
                              std::size_t max_depth) {
  boost::json::parse_options options;
  options.max_depth = max_depth;
  boost::json::stream_parser parser({}, options);
  boost::json::error_code error;
  const std::size_t used = parser.write_some(text, error);
  if (!error) parser.finish(error);
  if (!error && text.find_first_not_of(" \t\r\n", used) != std::string_view::npos)
    error = boost::json::error::extra_data;
  if (error)
    throw Error(ErrorCode::kInvalidArgument,
                where + ": byte " + std::to_string(used) + ": not JSON: " + error.message());
  return parser.release();
}

void JsonField::fail(const std::string& what) const {
  throw Error(ErrorCode::kInvalidArgument, path_ + ": " + what);
}

void JsonField::unsupported(const std::string& what) const {
  throw Error(ErrorCode::kUnsupported, path_ + ": " + what + " is not supported");
}

bool JsonField::is_null() const { return value_->is_null(); }

const boost::json::object& JsonField::object() const {
  if (!value_->is_object()) fail("got " + kind_name(*value_) + ", wanted object");
  return value_->get_object();
}

const boost::json::array& JsonField::array() const {
  if (!value_->is_array()) fail("got " + kind_name(*value_) + ", wanted array");
  return value_->get_array();
}

std::string JsonField::string() const {
  if (!value_->is_string()) fail("got " + kind_name(*value_) + ", wanted string");
  return {value_->get_string().begin(), value_->get_string().end()};
}

bool JsonField::boolean() const {
  if (!value_->is_bool()) fail("got " + kind_name(*value_) + ", wanted bool");
  return value_->get_bool();
}

int64_t JsonField::integer(int64_t min, int64_t max) const {
  if (!value_->is_int64()) fail("got " + kind_name(*value_) + ", wanted an integer");
  const int64_t number = value_->get_int64();
  if (number < min || number > max)
    fail("got " + std::to_string(number) + ", wanted " + std::to_string(min) + " to " +
         std::to_string(max));
  return number;
}

JsonField JsonField::at(std::string_view key) const {
  const boost::json::value* found = object().if_contains(key);
  if (found == nullptr) fail("'" + std::string(key) + "' is missing");
  return {*found, path_ + "." + std::string(key)};
}

JsonField JsonField::item(size_t index) const {
  return {array().at(index), path_ + "[" + std::to_string(index) + "]"};
}

bool JsonField::has(std::string_view key) const {
  const boost::json::value* found = object().if_contains(key);
  return found != nullptr && !found->is_null();
}

std::string JsonField::string_or(std::string_view key, std::string fallback) const {
  return has(key) ? at(key).string() : std::move(fallback);
}

bool JsonField::boolean_or(std::string_view key, bool fallback) const {
  return has(key) ? at(key).boolean() : fallback;
}

void JsonField::expect_keys(std::initializer_list<std::string_view> keys) const {
  for (const auto& [key, value] : object()) {
    const std::string_view name(key.data(), key.size());
    if (std::find(keys.begin(), keys.end(), name) == keys.end())
      unsupported("the key '" + std::string(name) + "'");
  }
}

}  // namespace strata::text
