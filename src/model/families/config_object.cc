// SPDX-License-Identifier: Apache-2.0
#include "model/families/config_object.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>

#include "base/error.h"
#include "text/json_field.h"

namespace strata::model {
namespace json = boost::json;

struct ConfigObject::Data {
  json::object object;
};

namespace {

[[noreturn]] void fail_key(const std::string& where, std::string_view key, const std::string& got,
                           std::string_view wanted) {
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("{}: key '{}': got {}, want {}", where, key, got, wanted));
}

const json::value* find(const json::object& object, std::string_view key) {
  const json::value* value = object.if_contains(json::string_view(key.data(), key.size()));
  return value == nullptr || value->is_null() ? nullptr : value;
}

// Long lists are cut, so that a message stays readable.
std::string shortened_json(const json::value& value) {
  std::string text = json::serialize(value);
  constexpr size_t kLongest = 120;
  if (text.size() > kLongest) text = text.substr(0, kLongest) + "...";
  return text;
}

std::optional<int64_t> as_integer(const json::value& value) {
  if (value.is_int64()) return value.get_int64();
  if (value.is_double() && std::floor(value.get_double()) == value.get_double() &&
      std::fabs(value.get_double()) < 9e15) {
    return static_cast<int64_t>(value.get_double());
  }
  return std::nullopt;
}

}  // namespace

ConfigObject ConfigObject::parse(std::string_view text, const std::string& where) {
  ConfigObject out;
  out.where_ = where;
  out.data_ = std::make_shared<Data>(Data{text::parse_json_object(text, where)});
  return out;
}

void ConfigObject::fail(const std::string& what) const {
  throw Error(ErrorCode::kInvalidArgument, fmt::format("{}: {}", where_, what));
}

bool ConfigObject::has(std::string_view key) const { return find(data_->object, key) != nullptr; }

bool ConfigObject::contains(std::string_view key) const {
  return data_->object.contains(json::string_view(key.data(), key.size()));
}

int64_t ConfigObject::integer(std::string_view key, std::optional<int64_t> fallback) const {
  const json::value* value = find(data_->object, key);
  if (value == nullptr) {
    if (fallback) return *fallback;
    fail_key(where_, key, "nothing", "an integer");
  }
  const auto number = as_integer(*value);
  if (!number) fail_key(where_, key, shortened_json(*value), "an integer");
  return *number;
}

double ConfigObject::number(std::string_view key, std::optional<double> fallback) const {
  const json::value* value = find(data_->object, key);
  if (value == nullptr) {
    if (fallback) return *fallback;
    fail_key(where_, key, "nothing", "a number");
  }
  if (!value->is_number()) fail_key(where_, key, shortened_json(*value), "a number");
  return value->to_number<double>();
}

bool ConfigObject::boolean(std::string_view key, std::optional<bool> fallback) const {
  const json::value* value = find(data_->object, key);
  if (value == nullptr) {
    if (fallback) return *fallback;
    fail_key(where_, key, "nothing", "true or false");
  }
  if (!value->is_bool()) fail_key(where_, key, shortened_json(*value), "true or false");
  return value->get_bool();
}

std::string ConfigObject::text(std::string_view key, std::optional<std::string> fallback) const {
  const json::value* value = find(data_->object, key);
  if (value == nullptr) {
    if (fallback) return *fallback;
    fail_key(where_, key, "nothing", "a string");
  }
  if (!value->is_string()) fail_key(where_, key, shortened_json(*value), "a string");
  return std::string(value->get_string().data(), value->get_string().size());
}

std::vector<std::string> ConfigObject::texts(std::string_view key) const {
  std::vector<std::string> out;
  const json::value* value = find(data_->object, key);
  if (value == nullptr) return out;
  if (!value->is_array()) fail_key(where_, key, shortened_json(*value), "a list of strings");
  for (const json::value& item : value->get_array()) {
    if (!item.is_string()) fail_key(where_, key, shortened_json(*value), "a list of strings");
    out.emplace_back(item.get_string().data(), item.get_string().size());
  }
  return out;
}

std::vector<int64_t> ConfigObject::integers(std::string_view key) const {
  std::vector<int64_t> out;
  const json::value* value = find(data_->object, key);
  if (value == nullptr) return out;
  const auto add = [&](const json::value& item) {
    const auto number = as_integer(item);
    if (!number) fail_key(where_, key, shortened_json(*value), "an integer or a list of integers");
    out.push_back(*number);
  };
  if (value->is_array()) {
    for (const json::value& item : value->get_array()) add(item);
  } else {
    add(*value);
  }
  return out;
}

std::vector<double> ConfigObject::numbers(std::string_view key) const {
  const json::value* value = find(data_->object, key);
  if (value == nullptr) fail_key(where_, key, "nothing", "a list of numbers");
  std::vector<double> out;
  if (const json::array* list = value->if_array()) {
    for (const json::value& item : *list) {
      if (item.is_number()) out.push_back(item.to_number<double>());
    }
    if (out.size() == list->size()) return out;
  }
  fail_key(where_, key, shortened_json(*value), "a list of numbers");
}

std::optional<ConfigObject> ConfigObject::object(std::string_view key) const {
  const json::value* value = find(data_->object, key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_object()) fail_key(where_, key, shortened_json(*value), "an object");
  ConfigObject out;
  out.where_ = fmt::format("{}: {}", where_, key);
  out.data_ = std::make_shared<Data>(Data{value->get_object()});
  return out;
}

std::vector<std::string> ConfigObject::keys() const {
  std::vector<std::string> out;
  for (const auto& item : data_->object) {
    if (!item.value().is_null()) out.emplace_back(item.key().data(), item.key().size());
  }
  return out;
}

std::string ConfigObject::json(std::string_view key) const {
  const json::value* value = find(data_->object, key);
  return value == nullptr ? "null" : shortened_json(*value);
}

std::string ConfigObject::to_json_replacing(const Replaced& replaced) const {
  std::string out = "{";
  const auto add = [&out](std::string_view key, const std::string& value) {
    out += fmt::format("{}\n  {}: {}", out.size() == 1 ? "" : ",",
                       json::serialize(json::string(key.data(), key.size())), value);
  };
  for (const auto& [key, value] : replaced) add(key, value);
  for (const auto& item : data_->object) {
    const std::string_view key(item.key().data(), item.key().size());
    const bool is_replaced = std::any_of(replaced.begin(), replaced.end(),
                                         [&](const auto& other) { return other.first == key; });
    if (!is_replaced) add(key, json::serialize(item.value()));
  }
  return out + "\n}\n";
}

ConfigObject ConfigObject::completed_by(const ConfigObject& other,
                                        std::span<const std::string_view> keys) const {
  auto data = std::make_shared<Data>(*data_);
  for (const std::string_view key : keys) {
    if (!has(key) && other.has(key)) data->object[key] = *find(other.data_->object, key);
  }
  ConfigObject result = *this;
  result.data_ = std::move(data);
  return result;
}

}  // namespace strata::model
