// SPDX-License-Identifier: Apache-2.0
// JSON text -> Value: strict RFC 8259, numbers rounded correctly, later duplicates of a key win.
#include <charconv>
#include <cstdlib>

#include "text/jinja/value.h"
#include "text/unicode/unicode.h"

namespace strata::text {
namespace {

class Reader {
 public:
  Reader(std::string_view text, const std::string& where) : text_(text), where_(where) {}

  Value read() {
    Value value = read_value(0);
    skip_space();
    if (pos_ < text_.size()) fail("more behind the value");
    return value;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    template_fault(where_ + ": byte " + std::to_string(pos_) + ": not JSON: " + what);
  }
  void skip_space() {
    while (pos_ < text_.size() && (text_[pos_] == ' ' || text_[pos_] == '\t' ||
                                   text_[pos_] == '\n' || text_[pos_] == '\r'))
      ++pos_;
  }
  bool take(char c) {
    if (pos_ >= text_.size() || text_[pos_] != c) return false;
    ++pos_;
    return true;
  }
  bool take(std::string_view word) {
    if (!text_.substr(pos_).starts_with(word)) return false;
    pos_ += word.size();
    return true;
  }

  Value read_value(int depth) {
    // Half of what a value may nest, so that a template can still put it into lists.
    if (depth > Value::kMaxDepth / 2) fail("nested too deep");
    skip_space();
    if (take("null")) return {};
    if (take("true")) return true;
    if (take("false")) return false;
    if (take('"')) return read_string();
    if (take('[')) return read_array(depth);
    if (take('{')) return read_object(depth);
    return read_number();
  }

  Value read_array(int depth) {
    std::vector<Value> items;
    skip_space();
    if (take(']')) return Value::list({});
    do items.push_back(read_value(depth + 1)), skip_space();
    while (take(','));
    if (!take(']')) fail("expected ',' or ']'");
    return Value::list(std::move(items));
  }

  Value read_object(int depth) {
    auto dict = std::make_shared<Dict>();
    skip_space();
    if (take('}')) return dict;
    do {
      skip_space();
      if (!take('"')) fail("expected a key");
      std::string key = read_string();
      skip_space();
      if (!take(':')) fail("expected ':'");
      Value value = read_value(depth + 1);
      dict->set(std::move(key), std::move(value));
      skip_space();
    } while (take(','));
    if (!take('}')) fail("expected ',' or '}'");
    return dict;
  }

  bool skip_digits() {
    const size_t begin = pos_;
    while (pos_ < text_.size() && text_[pos_] >= '0' && text_[pos_] <= '9') ++pos_;
    return pos_ > begin;
  }

  Value read_number() {
    const size_t begin = pos_;
    take('-');
    if (!take('0') && !skip_digits()) fail("expected a value");
    bool whole = true;
    if (take('.')) {
      whole = false;
      if (!skip_digits()) fail("expected a digit");
    }
    if (take('e') || take('E')) {
      whole = false;
      if (!take('+')) take('-');
      if (!skip_digits()) fail("expected a digit");
    }
    const std::string text(text_.substr(begin, pos_ - begin));
    if (!whole) return std::strtod(text.c_str(), nullptr);
    int64_t value = 0;
    if (std::from_chars(text.data(), text.data() + text.size(), value).ec != std::errc())
      template_fault(where_ + ": byte " + std::to_string(begin) + ": the integer " +
                     text.substr(0, 40) + " is not within -2^63 and 2^63 - 1");
    return value;
  }

  uint32_t read_hex4() {
    uint32_t value = 0;
    const std::string_view digits = text_.substr(pos_, 4);
    const auto result = std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
    if (digits.size() != 4 || result.ptr != digits.data() + 4 || digits[0] == '-')
      fail("expected four hexadecimal digits");
    pos_ += 4;
    return value;
  }

  void read_escape(std::string& out) {
    constexpr std::string_view kLetters = "\"\\/bfnrt";
    constexpr std::string_view kValues = "\"\\/\b\f\n\r\t";
    if (pos_ >= text_.size()) fail("a string without its end");
    const char letter = text_[pos_++];
    const size_t simple = kLetters.find(letter);
    if (simple != std::string_view::npos) {
      out += kValues[simple];
      return;
    }
    if (letter != 'u') fail("a wrong escape");
    uint32_t c = read_hex4();
    if (c >= 0xD800 && c < 0xDC00 && take("\\u")) {
      const uint32_t low = read_hex4();
      if (low < 0xDC00 || low > 0xDFFF) fail("a lone surrogate");
      c = 0x10000 + ((c - 0xD800) << 10) + (low - 0xDC00);
    }
    if (c >= 0xD800 && c < 0xE000) fail("a lone surrogate");
    append_utf8(out, c);
  }

  std::string read_string() {
    std::string out;
    for (;;) {
      if (pos_ >= text_.size()) fail("a string without its end");
      const char c = text_[pos_];
      if (static_cast<uint8_t>(c) < 0x20) fail("a control character in a string");
      ++pos_;
      if (c == '"') return out;
      if (c == '\\') {
        read_escape(out);
      } else {
        out += c;
      }
    }
  }

  std::string_view text_;
  const std::string& where_;
  size_t pos_ = 0;
};

}  // namespace

Value Value::from_json(std::string_view json, const std::string& where) {
  if (!is_valid_utf8(json)) template_fault(where + ": not UTF-8");
  return Reader(json, where).read();
}

}  // namespace strata::text
