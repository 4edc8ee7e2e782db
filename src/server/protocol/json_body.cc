#include "server/protocol/json_body.h"

#include <fmt/format.h>

#include <boost/json.hpp>
#include <cmath>

#include "base/error.h"
#include "text/unicode.h"

namespace strata::server {
namespace {

namespace json = boost::json;

constexpr size_t kMaxDepth = 64;

json::string_view view(std::string_view text) { return {text.data(), text.size()}; }

std::optional<int64_t> as_integer(const json::value& value) {
  if (value.is_int64()) return value.get_int64();
  if (value.is_uint64() && value.get_uint64() <= static_cast<uint64_t>(INT64_MAX)) {
    return static_cast<int64_t>(value.get_uint64());
  }
  return std::nullopt;
}

std::optional<double> as_number(const json::value& value) {
  if (value.is_int64()) return static_cast<double>(value.get_int64());
  if (value.is_uint64()) return static_cast<double>(value.get_uint64());
  if (value.is_double() && std::isfinite(value.get_double())) return value.get_double();
  return std::nullopt;
}

}  // namespace

void Fields::fail(std::string_view name, std::string_view what) const {
  throw Error(ErrorCode::kInvalidArgument, fmt::format("{}{}: {}", path_, name, what));
}

const json::value* Fields::find(std::string_view name) const {
  const auto found = object_->find(view(name));
  if (found == object_->end() || found->value().is_null()) return nullptr;
  return std::addressof(found->value());
}

const json::value& Fields::need(std::string_view name) const {
  const json::value* value = find(name);
  if (value == nullptr) fail(name, "this field is required");
  return *value;
}

bool Fields::has(std::string_view name) const { return find(name) != nullptr; }

bool Fields::is_null(std::string_view name) const {
  const auto found = object_->find(view(name));
  return found != object_->end() && found->value().is_null();
}

std::string Fields::string(std::string_view name) const {
  const json::value& value = need(name);
  if (!value.is_string()) fail(name, "wanted a string");
  return {value.get_string().data(), value.get_string().size()};
}

std::optional<std::string> Fields::maybe_string(std::string_view name) const {
  if (!has(name)) return std::nullopt;
  return string(name);
}

std::string Fields::string_or(std::string_view name, std::string_view otherwise) const {
  return has(name) ? string(name) : std::string(otherwise);
}

int64_t Fields::integer(std::string_view name, int64_t min, int64_t max) const {
  const std::optional<int64_t> number = as_integer(need(name));
  if (!number) fail(name, "wanted an integer");
  if (*number < min || *number > max) {
    fail(name, fmt::format("got {}, wanted {} to {}", *number, min, max));
  }
  return *number;
}

int64_t Fields::integer_or(std::string_view name, int64_t otherwise, int64_t min,
                           int64_t max) const {
  return has(name) ? integer(name, min, max) : otherwise;
}

std::optional<uint64_t> Fields::maybe_bits(std::string_view name) const {
  const json::value* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_uint64()) return value->get_uint64();
  if (value->is_int64()) return static_cast<uint64_t>(value->get_int64());
  fail(name, "wanted an integer of 64 bits");
}

double Fields::number(std::string_view name) const {
  const std::optional<double> number = as_number(need(name));
  if (!number) fail(name, "wanted a finite number");
  return *number;
}

double Fields::number_or(std::string_view name, double otherwise) const {
  return has(name) ? number(name) : otherwise;
}

bool Fields::boolean_or(std::string_view name, bool otherwise) const {
  const json::value* value = find(name);
  if (value == nullptr) return otherwise;
  if (!value->is_bool()) fail(name, "wanted true or false");
  return value->get_bool();
}

Fields Fields::object(std::string_view name) const {
  const json::value& value = need(name);
  if (!value.is_object()) fail(name, "wanted an object");
  return {value.get_object(), fmt::format("{}{}.", path_, name)};
}

void Fields::each_object(std::string_view name,
                         const std::function<void(const Fields&)>& read) const {
  const json::value& value = need(name);
  if (!value.is_array()) fail(name, "wanted an array");
  size_t index = 0;
  for (const json::value& item : value.get_array()) {
    if (!item.is_object()) fail(name, fmt::format("item {} is not an object", index));
    read({item.get_object(), fmt::format("{}{}[{}].", path_, name, index)});
    ++index;
  }
}

std::vector<std::string> Fields::strings(std::string_view name) const {
  const json::value& value = need(name);
  if (!value.is_array()) fail(name, "wanted an array of strings");
  std::vector<std::string> out;
  for (const json::value& item : value.get_array()) {
    if (!item.is_string()) fail(name, fmt::format("item {} is not a string", out.size()));
    out.emplace_back(item.get_string().data(), item.get_string().size());
  }
  return out;
}

std::vector<int64_t> Fields::integers(std::string_view name) const {
  const json::value& value = need(name);
  if (!value.is_array()) fail(name, "wanted an array of integers");
  std::vector<int64_t> out;
  out.reserve(value.get_array().size());
  for (const json::value& item : value.get_array()) {
    const std::optional<int64_t> number = as_integer(item);
    if (!number) fail(name, fmt::format("item {} is not an integer", out.size()));
    out.push_back(*number);
  }
  return out;
}

std::vector<float> Fields::floats(std::string_view name) const {
  const json::value& value = need(name);
  if (!value.is_array()) fail(name, "wanted an array of numbers");
  std::vector<float> out;
  out.reserve(value.get_array().size());
  for (const json::value& item : value.get_array()) {
    const std::optional<double> number = as_number(item);
    if (!number) fail(name, fmt::format("item {} is not a number", out.size()));
    out.push_back(static_cast<float>(*number));
  }
  return out;
}

std::optional<std::string> Fields::maybe_object_text(std::string_view name, size_t max_entries,
                                                     size_t max_bytes) const {
  const json::value* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_object()) fail(name, "wanted an object");
  const size_t entries = value->get_object().size();
  if (entries > max_entries) {
    fail(name, fmt::format("has {} entries, the limit is {}", entries, max_entries));
  }
  // The protocol's readers want a map of strings.
  json::object texts = value->get_object();
  for (json::key_value_pair& pair : texts) {
    if (!pair.value().is_string()) pair.value() = json::string(json::serialize(pair.value()));
  }
  std::string text = json::serialize(texts);
  if (text.size() > max_bytes) {
    fail(name, fmt::format("has {} bytes, the limit is {}", text.size(), max_bytes));
  }
  return text;
}

bool Fields::is_string(std::string_view name) const {
  const json::value* value = find(name);
  return value != nullptr && value->is_string();
}

bool Fields::is_array_of_strings(std::string_view name) const {
  const json::value* value = find(name);
  return value != nullptr && value->is_array() && !value->get_array().empty() &&
         value->get_array()[0].is_string();
}

JsonBody::JsonBody(std::string_view text, const std::string& where) : where_(where) {
  json::parse_options options;
  options.max_depth = kMaxDepth;
  boost::system::error_code fault;
  value_ = std::make_unique<json::value>(
      text.empty() ? json::value(json::object())
                   : json::parse(view(text), fault, json::storage_ptr(), options));
  if (fault == json::error::too_deep) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{}: the body is nested too deep; the limit is {}", where, kMaxDepth));
  }
  if (fault) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{}: the body is not JSON: {}", where, fault.message()));
  }
  if (!value_->is_object()) {
    throw Error(ErrorCode::kInvalidArgument, where + ": the body is not a JSON object");
  }
}

JsonBody::~JsonBody() = default;

Fields JsonBody::root() const { return {value_->get_object(), where_ + ": "}; }

std::string json_quoted(std::string_view text) {
  if (text::is_valid_utf8(text)) return json::serialize(view(text));
  return json::serialize(view(text::sanitize_utf8(text)));
}

}  // namespace strata::server
