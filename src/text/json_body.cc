// SPDX-License-Identifier: Apache-2.0
#include "text/json_body.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <new>
#include <string>

#include "base/error.h"
#include "text/parsed_budget.h"
#include "text/without_nul.h"

namespace strata::text {
namespace {

namespace json = boost::json;

constexpr size_t kMaxDepth = 64;
constexpr size_t kMaxParsed = 256 << 20;
constexpr size_t kMaxName = 100;  // of a field, in messages

json::string_view view(std::string_view text) { return {text.data(), text.size()}; }

std::optional<int64_t> as_integer(const json::value& value) {
  if (value.is_int64()) return value.get_int64();
  if (value.is_uint64() && value.get_uint64() <= static_cast<uint64_t>(INT64_MAX))
    return static_cast<int64_t>(value.get_uint64());
  return std::nullopt;
}

std::optional<double> as_number(const json::value& value) {
  if (value.is_int64()) return static_cast<double>(value.get_int64());
  if (value.is_uint64()) return static_cast<double>(value.get_uint64());
  if (value.is_double() && std::isfinite(value.get_double())) return value.get_double();
  return std::nullopt;
}

[[noreturn]] void refuse_unparsed(const std::string& where,
                                  const boost::system::error_code& fault) {
  if (fault == json::error::too_deep) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{}: the body is nested too deep; the limit is {}", where, kMaxDepth));
  }
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("{}: the body is not JSON: {}", where, fault.message()));
}

// A map of strings, which the protocol's readers want: other values become their JSON text.
json::object with_values_as_texts(json::object map) {
  for (json::key_value_pair& pair : map)
    if (!pair.value().is_string()) pair.value() = json::string(json::serialize(pair.value()));
  return map;
}

// What a complaint says it got: the kind, and of a number its value.
std::string describe_value(const json::value& value) {
  switch (value.kind()) {
    case json::kind::null:
      return "null";
    case json::kind::bool_:
      return value.get_bool() ? "true" : "false";
    case json::kind::int64:
      return fmt::format("{}", value.get_int64());
    case json::kind::uint64:
      return fmt::format("{}", value.get_uint64());
    case json::kind::double_: {
      const std::string text = fmt::format("{}", value.get_double());
      return text.find_first_not_of("-0123456789") == std::string::npos ? text + ".0" : text;
    }
    case json::kind::string:
      return "a string";
    case json::kind::array:
      return "an array";
    case json::kind::object:
      return "an object";
  }
  return "nothing";
}

}  // namespace

void Fields::fail(std::string_view name, std::string_view what) const {
  const std::string field = path_ + std::string(name.substr(0, kMaxName));
  const size_t where_end = field.find(": ");
  throw FieldFault(escape_nuls(fmt::format("{}: {}", field, what)),
                   where_end == std::string::npos ? field : field.substr(where_end + 2));
}

void Fields::fail_kind(std::string_view name, const json::value& value,
                       std::string_view wanted) const {
  fail(name, fmt::format("wanted {}, got {}", wanted, describe_value(value)));
}

void Fields::fail_item(std::string_view name, size_t index, const json::value& value,
                       std::string_view wanted) const {
  fail(name, fmt::format("item {}: wanted {}, got {}", index, wanted, describe_value(value)));
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

void Fields::refuse_unknown_fields(const std::vector<std::string_view>& names) const {
  for (const json::key_value_pair& pair : *object_) {
    const std::string_view name(pair.key().data(), pair.key().size());
    if (std::find(names.begin(), names.end(), name) == names.end()) fail(name, "unknown field");
  }
}

bool Fields::is_null(std::string_view name) const {
  const auto found = object_->find(view(name));
  return found != object_->end() && found->value().is_null();
}

std::string Fields::string(std::string_view name) const {
  const json::value& value = need(name);
  if (!value.is_string()) fail_kind(name, value, "a string");
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
  const json::value& value = need(name);
  const std::optional<int64_t> number = as_integer(value);
  if (!number) fail_kind(name, value, "an integer");
  if (*number < min || *number > max)
    fail(name, fmt::format("got {}, wanted {} to {}", *number, min, max));
  return *number;
}

int64_t Fields::integer_or(std::string_view name, int64_t otherwise, int64_t min,
                           int64_t max) const {
  return has(name) ? integer(name, min, max) : otherwise;
}

std::optional<uint64_t> Fields::maybe_int64_bits(std::string_view name) const {
  const json::value* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_uint64()) return value->get_uint64();
  if (value->is_int64()) return static_cast<uint64_t>(value->get_int64());
  fail_kind(name, *value, "an integer of 64 bits");
}

double Fields::number(std::string_view name) const {
  const json::value& value = need(name);
  const std::optional<double> number = as_number(value);
  if (!number) fail_kind(name, value, "a finite number");
  return *number;
}

double Fields::number_or(std::string_view name, double otherwise) const {
  return has(name) ? number(name) : otherwise;
}

bool Fields::boolean_or(std::string_view name, bool otherwise) const {
  const json::value* value = find(name);
  if (value == nullptr) return otherwise;
  if (!value->is_bool()) fail_kind(name, *value, "true or false");
  return value->get_bool();
}

Fields Fields::object(std::string_view name) const {
  const json::value& value = need(name);
  if (!value.is_object()) fail_kind(name, value, "an object");
  return {value.get_object(), fmt::format("{}{}.", path_, name.substr(0, kMaxName))};
}

Fields Fields::optional_object(std::string_view name) const {
  static const json::object none;
  if (has(name)) return object(name);
  return {none, fmt::format("{}{}.", path_, name.substr(0, kMaxName))};
}

void Fields::each_object(std::string_view name,
                         const std::function<void(const Fields&)>& read) const {
  const json::value& value = need(name);
  if (!value.is_array()) fail_kind(name, value, "an array");
  size_t index = 0;
  for (const json::value& item : value.get_array()) {
    if (!item.is_object()) fail_item(name, index, item, "an object");
    read({item.get_object(), fmt::format("{}{}[{}].", path_, name, index)});
    ++index;
  }
}

std::vector<std::string> Fields::strings(std::string_view name) const {
  const json::value& value = need(name);
  if (!value.is_array()) fail_kind(name, value, "an array of strings");
  std::vector<std::string> out;
  for (const json::value& item : value.get_array()) {
    if (!item.is_string()) fail_item(name, out.size(), item, "a string");
    out.emplace_back(item.get_string().data(), item.get_string().size());
  }
  return out;
}

std::vector<int64_t> Fields::integers(std::string_view name) const {
  const json::value& value = need(name);
  if (!value.is_array()) fail_kind(name, value, "an array of integers");
  std::vector<int64_t> out;
  out.reserve(value.get_array().size());
  for (const json::value& item : value.get_array()) {
    const std::optional<int64_t> number = as_integer(item);
    if (!number) fail_item(name, out.size(), item, "an integer");
    out.push_back(*number);
  }
  return out;
}

std::vector<float> Fields::floats(std::string_view name, bool finite) const {
  const json::value& value = need(name);
  if (!value.is_array()) fail_kind(name, value, "an array of numbers");
  std::vector<float> out;
  out.reserve(value.get_array().size());
  for (const json::value& item : value.get_array()) {
    const auto number = static_cast<float>(as_number(item).value_or(NAN));
    if (std::isnan(number) || (finite && std::isinf(number)))
      fail_item(name, out.size(), item, "a finite number of 32 bits");
    out.push_back(number);
  }
  return out;
}

std::optional<std::string> Fields::maybe_object_text(std::string_view name, size_t max_entries,
                                                     size_t max_bytes) const {
  const json::value* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_object()) fail_kind(name, *value, "an object");
  const size_t entries = value->get_object().size();
  if (entries > max_entries)
    fail(name, fmt::format("has {} entries, the limit is {}", entries, max_entries));
  std::string text = json::serialize(with_values_as_texts(value->get_object()));
  if (text.size() > max_bytes)
    fail(name, fmt::format("has {} bytes, the limit is {}", text.size(), max_bytes));
  return text;
}

void Fields::each_name(const std::function<void(const std::string&)>& read) const {
  for (const json::key_value_pair& pair : *object_) {
    if (!pair.value().is_null()) read(std::string(pair.key().data(), pair.key().size()));
  }
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

// A short text can hold many values, each of them larger than its text.
class JsonBody::Memory : public json::memory_resource {
 public:
  Memory(std::string where, const Charge* request) : where_(std::move(where)) {
    if (request != nullptr && request->held(Use::kBody) > 0) parsed_.emplace(*request, where_);
  }

 private:
  void* do_allocate(size_t size, size_t alignment) override {
    if (size > left_) {
      throw Error(
          ErrorCode::kInvalidArgument,
          fmt::format("{}: the body takes more than {} bytes when parsed; send less at once",
                      where_, kMaxParsed));
    }
    if (parsed_) parsed_->resize_hold(kMaxParsed - left_ + size);
    void* memory = ::operator new(size, std::align_val_t(alignment));
    left_ -= size;
    return memory;
  }
  void do_deallocate(void* memory, size_t size, size_t alignment) override {
    left_ += size;
    if (parsed_) parsed_->resize_hold(kMaxParsed - left_);
    ::operator delete(memory, size, std::align_val_t(alignment));
  }
  bool do_is_equal(const memory_resource& other) const noexcept override { return this == &other; }

  std::string where_;
  std::optional<ParsedBudget> parsed_;
  size_t left_ = kMaxParsed;
};

JsonBody::JsonBody(std::string_view text, const std::string& where, const Charge* request)
    : where_(where), memory_(std::make_unique<Memory>(where, request)) {
  json::parse_options options;
  options.max_depth = kMaxDepth;
  boost::system::error_code fault;
  const json::storage_ptr storage(memory_.get());
  json::parser parser(storage, options);  // its stack counts too
  parser.reset(storage);
  const std::string_view whole = text.empty() ? "{}" : text;
  parser.write(whole.data(), whole.size(), fault);
  if (fault) refuse_unparsed(where, fault);
  value_ = std::make_unique<json::value>(parser.release());
  if (!value_->is_object()) {
    throw Error(ErrorCode::kInvalidArgument, where + ": the body is not a JSON object");
  }
}

JsonBody::~JsonBody() = default;

Fields JsonBody::root() const { return {value_->get_object(), where_ + ": "}; }

}  // namespace strata::text
