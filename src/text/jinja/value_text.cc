// SPDX-License-Identifier: Apache-2.0
// How values print: str, repr and json.dumps.
#include <algorithm>
#include <charconv>
#include <cmath>

#include "text/jinja/value.h"
#include "text/unicode/unicode.h"

namespace strata::text {
namespace {

constexpr char kHex[] = "0123456789abcdef";

std::string hex(uint32_t value, int digits) {
  std::string out;
  for (int shift = (digits - 1) * 4; shift >= 0; shift -= 4) out += kHex[value >> shift & 15];
  return out;
}

bool is_printable(uint32_t c) {
  static const CodePointSet hidden(unite(property_ranges("C"), property_ranges("Z")));
  return c == ' ' || !hidden.contains(c);
}

std::string string_repr(std::string_view text) {
  const char quote =
      text.find('\'') != std::string_view::npos && text.find('"') == std::string_view::npos ? '"'
                                                                                            : '\'';
  std::string out(1, quote);
  for (size_t pos = 0; pos < text.size();) {
    const size_t begin = pos;
    const uint32_t c = next_code_point(text, pos);
    if (c == static_cast<uint32_t>(quote) || c == '\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c == '\n' || c == '\r' || c == '\t') {
      out += c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t";
    } else if (is_printable(c)) {
      out += text.substr(begin, pos - begin);
    } else if (c < 0x100) {
      out += "\\x" + hex(c, 2);
    } else {
      out += c < 0x10000 ? "\\u" + hex(c, 4) : "\\U" + hex(c, 8);
    }
  }
  return out + quote;
}

std::string list_repr(const List& list) {
  if (list.kind == List::Kind::kGenerator || list.kind == List::Kind::kRange) return list.printed;
  const bool tuple = list.kind == List::Kind::kTuple;
  std::string out = tuple ? "(" : "[";
  for (size_t i = 0; i < list.items.size(); ++i)
    out += (i == 0 ? "" : ", ") + to_repr(list.items[i]);
  if (tuple && list.items.size() == 1) out += ",";
  out += tuple ? ")" : "]";
  return list.kind == List::Kind::kView ? list.printed + "(" + out + ")" : out;
}

std::string dict_repr(const Dict& dict) {
  std::string out = "{";
  for (size_t i = 0; i < dict.items.size(); ++i) {
    const auto& [key, value] = dict.items[i];
    out += (i == 0 ? "" : ", ") + to_repr(key) + ": " + to_repr(value);
  }
  return out + "}";
}

void append_json_string(std::string_view text, bool ascii, std::string& out) {
  out += '"';
  for (size_t pos = 0; pos < text.size();) {
    const size_t begin = pos;
    const uint32_t c = next_code_point(text, pos);
    constexpr std::string_view kNamed = "\"\\\n\r\t\f\b";
    constexpr std::string_view kLetters = "\"\\nrtfb";
    const size_t named = c < 128 ? kNamed.find(static_cast<char>(c)) : std::string_view::npos;
    if (named != std::string_view::npos) {
      out += '\\';
      out += kLetters[named];
    } else if (c < 0x20 || (ascii && c >= 0x7F && c < 0x10000 && c != 0x7F)) {
      out += "\\u" + hex(c, 4);
    } else if (ascii && c >= 0x10000) {
      out += "\\u" + hex(0xD800 + ((c - 0x10000) >> 10), 4);
      out += "\\u" + hex(0xDC00 + ((c - 0x10000) & 0x3FF), 4);
    } else {
      out += text.substr(begin, pos - begin);
    }
  }
  out += '"';
}

class JsonWriter {
 public:
  explicit JsonWriter(const JsonStyle& style) : style_(style) {}

  void write(const Value& value) {
    if (value.is_none()) {
      out += "null";
    } else if (value.is_bool()) {
      out += value.as_bool() ? "true" : "false";
    } else if (value.is_int()) {
      out += std::to_string(value.as_int());
    } else if (value.is_float()) {
      out += number_text(value.as_float());
    } else if (value.is_string()) {
      append_json_string(value.text(), style_.ascii, out);
    } else if (value.is_list() && (value.as_list().kind == List::Kind::kList ||
                                   value.as_list().kind == List::Kind::kTuple)) {
      write_array(value.as_list());
    } else if (value.is_dict()) {
      write_object(value.as_dict());
    } else {
      template_fault("Object of type " + value.type_name() + " is not JSON serializable");
    }
  }

  std::string out;

 private:
  static std::string number_text(double value) {
    if (std::isnan(value)) return "NaN";
    if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
    return float_text(value);
  }

  void start_line() {
    if (!style_.has_indent) return;
    out += '\n';
    for (int i = 0; i < level_; ++i) out += style_.indent;
  }

  void write_array(const List& list) {
    if (list.items.empty()) {
      out += "[]";
      return;
    }
    out += '[';
    ++level_;
    for (size_t i = 0; i < list.items.size(); ++i) {
      if (i > 0) out += style_.item_separator;
      start_line();
      write(list.items[i]);
    }
    --level_;
    start_line();
    out += ']';
  }

  static std::string key_text(const Value& key) {
    if (key.is_string()) return key.text();
    if (key.is_none()) return "null";
    if (key.is_bool()) return key.as_bool() ? "true" : "false";
    if (key.is_int()) return std::to_string(key.as_int());
    if (key.is_float()) return number_text(key.as_float());
    template_fault("keys must be str, int, float, bool or None, not " + key.type_name());
  }

  void write_object(const Dict& dict) {
    if (dict.items.empty()) {
      out += "{}";
      return;
    }
    auto items = dict.items;
    if (style_.sort_keys)
      std::sort(items.begin(), items.end(),
                [](const auto& a, const auto& b) { return compare(a.first, b.first) < 0; });
    out += '{';
    ++level_;
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out += style_.item_separator;
      start_line();
      append_json_string(key_text(items[i].first), style_.ascii, out);
      out += style_.key_separator;
      write(items[i].second);
    }
    --level_;
    start_line();
    out += '}';
  }

  const JsonStyle& style_;
  int level_ = 0;
};

}  // namespace

// Python's repr: the shortest digits that read back; an exponent below 1e-4 and from 1e16 on.
std::string float_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  const double magnitude = std::fabs(value);
  const bool fixed = magnitude == 0 || (magnitude >= 1e-4 && magnitude < 1e16);
  char buffer[64];
  const auto result =
      std::to_chars(buffer, buffer + sizeof(buffer), value,
                    fixed ? std::chars_format::fixed : std::chars_format::scientific);
  std::string text(buffer, result.ptr);
  if (fixed && text.find('.') == std::string::npos) text += ".0";
  return text;
}

std::string to_repr(const Value& value) {
  if (value.is_string()) {
    const std::string text = string_repr(value.text());
    return value.str().safe ? "Markup(" + text + ")" : text;
  }
  if (value.is_list()) return list_repr(value.as_list());
  if (value.is_dict()) return dict_repr(value.as_dict());
  if (value.is_undefined()) return "Undefined";
  return to_text(value);
}

std::string to_text(const Value& value) {
  if (value.is_undefined()) return "";
  if (value.is_none()) return "None";
  if (value.is_bool()) return value.as_bool() ? "True" : "False";
  if (value.is_int()) return std::to_string(value.as_int());
  if (value.is_float()) return float_text(value.as_float());
  if (value.is_string()) return value.text();
  if (value.is_list()) return list_repr(value.as_list());
  if (value.is_dict()) return dict_repr(value.as_dict());
  if (value.is_namespace()) template_fault("printing a namespace is not supported");
  if (value.is_loop()) template_fault("printing a loop is not supported");
  template_fault("printing the function '" + value.as_function().name + "' is not supported");
}

std::string to_json(const Value& value, const JsonStyle& style) {
  JsonWriter writer(style);
  writer.write(value);
  return std::move(writer.out);
}

}  // namespace strata::text
