// SPDX-License-Identifier: Apache-2.0
#include "text/json_field.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <charconv>
#include <utility>

#include "base/error.h"
#include "text/json_reader.h"

namespace strata::text {
namespace {

std::string kind_name(const boost::json::value& value) {
  return std::string(boost::json::to_string(value.kind()));
}

// Reads values into Boost.JSON's stack, which makes each of its full size at once.
class ValueReader {
 public:
  explicit ValueReader(JsonReader& reader) : reader_(reader) { stack_.reset(); }

  // The next value of the reader, which bounds how deep it nests.
  boost::json::value read() {
    push_value();
    return stack_.release();
  }
  // How many members its objects were written with.
  [[nodiscard]] size_t num_members() const { return num_members_; }

 private:
  void push_value() {
    switch (reader_.peek_kind()) {
      case JsonReader::Kind::kNull:
        reader_.read_null();
        return stack_.push_null();
      case JsonReader::Kind::kBool:
        return stack_.push_bool(reader_.read_boolean());
      case JsonReader::Kind::kNumber:
        return push_number();
      case JsonReader::Kind::kString:
        reader_.read_string(text_);
        return stack_.push_string(text_);
      case JsonReader::Kind::kArray:
        return push_array();
      case JsonReader::Kind::kObject:
        return push_object();
    }
  }

  // As Python reads it: an integer where it is written as one, and rounded correctly.
  void push_number() {
    const std::string text = reader_.read_compact_json();
    const char* end = text.data() + text.size();
    const auto is_read = [&](auto& number) {
      const auto [stop, fault] = std::from_chars(text.data(), end, number);
      return fault == std::errc() && stop == end;
    };
    if (int64_t number = 0; is_read(number)) return stack_.push_int64(number);
    if (uint64_t number = 0; is_read(number)) return stack_.push_uint64(number);
    double number = 0;
    if (!is_read(number))
      reader_.fail(fmt::format("the number {} does not fit a double", text.substr(0, 40)));
    stack_.push_double(number);
  }

  void push_array() {
    size_t count = 0;
    reader_.begin_array();
    for (; reader_.next_item(); ++count) push_value();
    stack_.push_array(count);
  }

  void push_object() {
    size_t count = 0;
    reader_.begin_object();
    for (; reader_.next_unchecked_key(text_); ++count) {
      stack_.push_key(text_);
      push_value();
    }
    stack_.push_object(count);
    num_members_ += count;
  }

  JsonReader& reader_;
  boost::json::value_stack stack_;
  std::string text_;
  size_t num_members_ = 0;
};

// Members of all its objects; of those written with one name, one is left.
size_t count_members_recursively(const boost::json::value& value) {
  size_t count = 0;
  if (const boost::json::array* items = value.if_array()) {
    for (const boost::json::value& item : *items) count += count_members_recursively(item);
  } else if (const boost::json::object* members = value.if_object()) {
    count = members->size();
    for (const auto& member : *members) count += count_members_recursively(member.value());
  }
  return count;
}

}  // namespace

boost::json::value parse_json(std::string_view text, const std::string& where) {
  JsonReader reader(text, where);
  ValueReader values(reader);
  boost::json::value value = values.read();
  reader.end();
  if (count_members_recursively(value) != values.num_members())
    JsonReader(text, where).skip();  // says which
  return value;
}

boost::json::object parse_json_object(std::string_view text, const std::string& where) {
  boost::json::value value = parse_json(text, where);
  if (!value.is_object()) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{}: got {}, want a JSON object", where, kind_name(value)));
  }
  return std::move(value.get_object());
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
