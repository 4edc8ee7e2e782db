// SPDX-License-Identifier: Apache-2.0
#include "text/json_reader.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "base/file_kind.h"
#include "text/unicode/unicode.h"

namespace strata::text {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

bool is_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

}  // namespace

std::string json_quote(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      out += c;
    }
  }
  return out + "\"";
}

std::string json_number(double value) {
  CHECK(std::isfinite(value));
  return fmt::format("{}", value);
}

std::string json_optional_number(std::optional<double> value) {
  return value && std::isfinite(*value) ? json_number(*value) : "null";
}

void append_json_member(std::string& object, std::string_view indent, std::string_view name,
                        std::string_view json) {
  const bool is_first = object.back() == '{';
  object += fmt::format("{}\n{}{}: {}", is_first ? "" : ",", indent, json_quote(name), json);
}

JsonReader::JsonReader(std::string_view text, std::string where)
    : text_(text), where_(std::move(where)) {
  if (!is_valid_utf8(text)) {
    throw Error(ErrorCode::kInvalidArgument, where_ + ": the JSON is not valid UTF-8");
  }
}

void JsonReader::fail(std::string_view what) const {
  if (is_git_lfs_pointer(text_)) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{}: {}", where_, describe_file_kind(kGitLfsPointer)));
  }
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("{}: JSON at byte {}: {}", where_, position_, what));
}

void JsonReader::skip_space() {
  while (position_ < text_.size() && is_space(text_[position_])) ++position_;
}

char JsonReader::peek() {
  skip_space();
  if (position_ == text_.size()) fail("the text ends early; is the file truncated?");
  return text_[position_];
}

void JsonReader::expect(char wanted) {
  if (peek() != wanted) fail(fmt::format("wanted '{}'", wanted));
  ++position_;
}

void JsonReader::expect_word(std::string_view word) {
  peek();
  if (text_.substr(position_, word.size()) != word) fail(fmt::format("wanted {}", word));
  position_ += word.size();
}

JsonReader::Kind JsonReader::peek_kind() {
  switch (peek()) {
    case '{':
      return Kind::kObject;
    case '[':
      return Kind::kArray;
    case '"':
      return Kind::kString;
    case 't':
    case 'f':
      return Kind::kBool;
    case 'n':
      return Kind::kNull;
    default:
      break;
  }
  if (text_[position_] == '-' || is_digit(text_[position_])) return Kind::kNumber;
  fail("no value starts with this byte");
}

void JsonReader::open_level(char bracket) {
  expect(bracket);
  if (levels_.size() >= kMaxDepth) fail(fmt::format("nested deeper than {} levels", kMaxDepth));
  levels_.emplace_back();
}

bool JsonReader::advance_to_item(char closing) {
  CHECK(!levels_.empty());
  if (peek() == closing) {
    ++position_;
    levels_.pop_back();
    return false;
  }
  if (!std::exchange(levels_.back().first, false)) {
    expect(',');
    if (peek() == closing) fail("a comma before the closing bracket");
  }
  return true;
}

void JsonReader::begin_object() { open_level('{'); }

bool JsonReader::next_key(std::string& key) {
  if (!next_unchecked_key(key)) return false;
  if (!levels_.back().keys.insert(key).second)
    fail(fmt::format("the key {} appears twice in one object", json_quote(key)));
  return true;
}

bool JsonReader::next_unchecked_key(std::string& key) {
  if (!advance_to_item('}')) return false;
  read_string(key);
  expect(':');
  return true;
}

void JsonReader::begin_array() { open_level('['); }

bool JsonReader::next_item() { return advance_to_item(']'); }

std::string JsonReader::read_string() {
  std::string out;
  read_string(out);
  return out;
}

void JsonReader::read_string(std::string& out) {
  expect('"');
  out.clear();
  while (true) {
    size_t stop = position_;
    while (stop < text_.size() && text_[stop] != '"' && text_[stop] != '\\') {
      if (static_cast<unsigned char>(text_[stop]) < 0x20)
        fail("a control character inside a string");
      ++stop;
    }
    if (stop == text_.size()) fail("a string without its closing quote");
    out += text_.substr(position_, stop - position_);
    position_ = stop + 1;
    if (text_[stop] == '"') return;
    read_escape(out);
  }
}

uint32_t JsonReader::read_hex4() {
  uint32_t value = 0;
  const char* begin = text_.data() + position_;
  if (text_.size() - position_ < 4) fail("\\u wants four hexadecimal digits");
  const auto parsed = std::from_chars(begin, begin + 4, value, 16);
  if (parsed.ec != std::errc() || parsed.ptr != begin + 4)
    fail("\\u wants four hexadecimal digits");
  position_ += 4;
  return value;
}

// Reads the part of an escape after the backslash.
void JsonReader::read_escape(std::string& out) {
  if (position_ == text_.size()) fail("a string without its closing quote");
  constexpr std::string_view kLetters = "\"\\/bfnrt";
  constexpr std::string_view kMeanings = "\"\\/\b\f\n\r\t";
  const char letter = text_[position_++];
  if (const size_t at = kLetters.find(letter); at != std::string_view::npos) {
    out += kMeanings[at];
    return;
  }
  if (letter != 'u') fail("an unknown escape in a string");
  uint32_t code = read_hex4();
  if (code >= 0xd800 && code < 0xdc00) {
    if (text_.substr(position_, 2) != "\\u") fail("a lone surrogate in a string");
    position_ += 2;
    const uint32_t low = read_hex4();
    if (low < 0xdc00 || low > 0xdfff) fail("a lone surrogate in a string");
    code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
  } else if (code >= 0xdc00 && code <= 0xdfff) {
    fail("a lone surrogate in a string");
  }
  append_utf8(out, code);
}

// JSON's number grammar, stricter than from_chars: no leading zeros, a digit on both sides of the
// point.
std::string_view JsonReader::read_number_text() {
  peek();
  const size_t begin = position_;
  const auto at = [&](char c) { return position_ < text_.size() && text_[position_] == c; };
  const auto digits = [&] {
    const size_t first = position_;
    while (position_ < text_.size() && is_digit(text_[position_])) ++position_;
    if (position_ == first) fail("wanted a number");
  };
  if (at('-')) ++position_;
  const bool zero = at('0');
  const size_t first = position_;
  digits();
  if (zero && position_ - first > 1) fail("a number with a leading zero");
  if (at('.')) {
    ++position_;
    digits();
  }
  if (at('e') || at('E')) {
    ++position_;
    if (at('+') || at('-')) ++position_;
    digits();
  }
  return text_.substr(begin, position_ - begin);
}

int64_t JsonReader::read_integer() {
  const std::string_view text = read_number_text();
  int64_t value = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value);
  if (parsed.ec != std::errc() || parsed.ptr != text.data() + text.size()) {
    fail(fmt::format("got {}, wanted an integer of 64 bits", text.substr(0, 40)));
  }
  return value;
}

double JsonReader::read_number() {
  const std::string_view text = read_number_text();
  double value = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value);
  if (parsed.ec != std::errc()) {
    fail(fmt::format("the number {} does not fit a double", text.substr(0, 40)));
  }
  return value;
}

bool JsonReader::read_boolean() {
  const bool value = peek() == 't';
  expect_word(value ? "true" : "false");
  return value;
}

void JsonReader::read_null() { expect_word("null"); }

// Recursion is bounded by kMaxDepth.
std::string JsonReader::read_compact_json() {
  switch (peek_kind()) {
    case Kind::kNull:
      read_null();
      return "null";
    case Kind::kBool:
      return read_boolean() ? "true" : "false";
    case Kind::kNumber:
      return std::string(read_number_text());
    case Kind::kString:
      return json_quote(read_string());
    case Kind::kArray: {
      std::string out = "[";
      begin_array();
      while (next_item()) out += (out.size() > 1 ? "," : "") + read_compact_json();
      return out + "]";
    }
    case Kind::kObject:
      break;
  }
  std::string out = "{";
  begin_object();
  for (std::string key; next_key(key);) {
    out += (out.size() > 1 ? "," : "") + json_quote(key) + ":" + read_compact_json();
  }
  return out + "}";
}

void JsonReader::end() {
  skip_space();
  if (position_ != text_.size()) fail("more text after the end of the value");
}

}  // namespace strata::text
