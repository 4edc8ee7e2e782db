// SPDX-License-Identifier: Apache-2.0
// Filters of text and numbers. Meanings from jinja2/filters.py, tojson from transformers.
#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "base/ascii.h"
#include "base/error.h"
#include "text/jinja/filters.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/py_string.h"
#include "text/unicode/unicode.h"

namespace strata::text {
namespace {

int64_t read_optional_int(ArgumentReader& reader, const char* name, int64_t fallback) {
  const Value value = reader.next_or(name, {});
  if (value.is_none()) return fallback;
  if (!value.is_int() && !value.is_bool())
    template_fault(std::string(name) + " must be int, not " + value.type_name());
  return value.as_int();
}

// What Python's functions for text do with anything else.
void expect_text(const char* what, const Value& value) {
  if (value.is_undefined()) template_fault(value.undefined_message());
  if (!value.is_string())
    template_fault(std::string(what) + " needs str, not " + value.type_name());
}

Value replace(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  ArgumentReader reader("replace", arguments);
  const std::string old = to_text(reader.next_required("old"));
  const std::string with = to_text(reader.next_required("new"));
  const int64_t max_count = read_optional_int(reader, "count", -1);
  reader.expect_no_more();
  const std::string text = text_of(interpreter, value);
  const auto size = static_cast<int64_t>(text.size());
  // Counting first keeps the charge honest when little matches.
  int64_t matches = old.empty() ? size + 1 : count_text(text, old);
  if (max_count >= 0) matches = std::min(matches, max_count);
  interpreter.charge_made(size + matches * (static_cast<int64_t>(with.size()) + 1));
  return py_replace(text, old, with, max_count);
}

Value trim(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  ArgumentReader reader("trim", arguments);
  const Value* chars = reader.next_optional("chars");
  reader.expect_no_more();
  return strip_text(text_of(interpreter, value), chars, true, true);
}

template <std::string (*Change)(std::string_view)>
Value apply_to_text(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  expect_no_arguments("this filter", arguments);
  return Change(text_of(interpreter, value));
}

Value string(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  expect_no_arguments("string", arguments);
  return value.is_string() ? value : Value(text_of(interpreter, value));
}

Value safe(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  expect_no_arguments("safe", arguments);
  return Value(text_of(interpreter, value), true);
}

std::string make_indent(Interpreter& interpreter, const Value& width) {
  if (width.is_string()) return width.text();
  if (!width.is_int())
    template_fault("indent: the width must be int or str, not " + width.type_name());
  const int64_t blanks = std::max<int64_t>(width.as_int(), 0);
  interpreter.charge(blanks);
  return std::string(static_cast<size_t>(blanks), ' ');
}

Value indent(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  ArgumentReader reader("indent", arguments);
  const Value width = reader.next_or("width", int64_t{4});
  const bool indent_first = reader.next_bool_or("first", false);
  const bool indent_blank = reader.next_bool_or("blank", false);
  reader.expect_no_more();
  const std::string pad = make_indent(interpreter, width);
  expect_text("indent", value);
  // jinja2 adds a newline so that a last empty line counts.
  const auto lines = interpreter.split_lines(text_of(interpreter, value) + "\n", false);
  std::string out = indent_first ? pad : "";
  for (size_t i = 0; i < lines.size(); ++i) {
    interpreter.charge_made(static_cast<int64_t>(pad.size() + lines[i].size()));
    if (i > 0) out += '\n';
    if (i > 0 && (indent_blank || !lines[i].empty())) out += pad;
    out += lines[i];
  }
  return out;
}

Value center(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  ArgumentReader reader("center", arguments);
  const int64_t width = reader.next_int_or("width", 80);
  reader.expect_no_more();
  Arguments forwarded;
  forwarded.positional.emplace_back(width);
  return call_method(interpreter, Value(text_of(interpreter, value)), "center", forwarded);
}

Value truncate(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  ArgumentReader reader("truncate", arguments);
  const int64_t size = reader.next_int_or("length", 255);
  const bool kill_words = reader.next_bool_or("killwords", false);
  const std::string end = reader.next_text_or("end", "...");
  const int64_t leeway = read_optional_int(reader, "leeway", 5);
  reader.expect_no_more();
  const int64_t end_size = count_code_points(end);
  if (size < end_size) template_fault("truncate: the length is less than that of the end");
  // Anything that has a length passes where it is short enough.
  Arguments none;
  if (!value.is_string() &&
      interpreter.apply_filter("length", value, none).as_int() - size <= leeway)
    return value;
  expect_text("truncate", value);
  const std::string text = text_of(interpreter, value);
  if (count_code_points(text) - size <= leeway) return text;
  std::string kept = text.substr(0, byte_of(text, size - end_size));
  if (!kill_words) kept = kept.substr(0, std::min(kept.rfind(' '), kept.size()));
  return kept + end;
}

Value absolute(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  expect_no_arguments("abs", arguments);
  if (value.is_float()) return std::fabs(value.as_float());
  if (value.is_bool()) return value.as_int();
  return compare(value, int64_t{0}) < 0 ? interpreter.apply_binary("-", int64_t{0}, value) : value;
}

void refuse_non_ascii_digits(std::string_view text) {
  for (size_t pos = 0; pos < text.size();) {
    const size_t begin = pos;
    if (next_code_point(text, pos) < 0x80) continue;
    if (py_is_all(text.substr(begin, pos - begin), CharTest::kDecimal))
      unsupported("a number with other digits than 0-9");
  }
}

// False where one is not between two digits or letters.
bool drop_underscores(std::string_view text, std::string& out) {
  for (size_t i = 0; i < text.size(); ++i) {
    const bool between = i > 0 && i + 1 < text.size() && text[i - 1] != '_' &&
                         std::isalnum(static_cast<unsigned char>(text[i - 1])) != 0;
    if (text[i] == '_' && !between) return false;
    if (text[i] != '_') out += text[i];
  }
  return true;
}

// As Python's int(): digits with single underscores between, a sign, blanks around.
bool parse_int(std::string_view text, int64_t base, int64_t& out) {
  text = py_strip(text, {}, true, true);
  refuse_non_ascii_digits(text);
  std::string digits;
  if (!drop_underscores(text, digits)) return false;
  const bool negative = digits.starts_with('-');
  if (negative || digits.starts_with('+')) digits.erase(0, 1);
  const char letter = base == 16 ? 'x' : base == 8 ? 'o' : base == 2 ? 'b' : '\0';
  if (digits.size() > 2 && digits[0] == '0' && letter != 0 && (digits[1] | 32) == letter)
    digits.erase(0, 2);
  if (digits.empty()) return false;
  int64_t value = 0;
  for (const char c : digits) {
    const int digit = digit_value(c);
    if (digit >= base) return false;
    if (__builtin_mul_overflow(value, base, &value) || __builtin_add_overflow(value, digit, &value))
      unsupported("an integer that does not fit 64 bits");
  }
  out = negative ? -value : value;
  return true;
}

// False where one is not between two digits.
bool drop_underscores_between_digits(std::string_view text, std::string& out) {
  const auto digit_at = [&](size_t i) {
    return i < text.size() && text[i] >= '0' && text[i] <= '9';
  };
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '_' && (i == 0 || !digit_at(i - 1) || !digit_at(i + 1))) return false;
    if (text[i] != '_') out += text[i];
  }
  return true;
}

bool parse_float(std::string_view text, double& out) {
  const std::string_view stripped = py_strip(text, {}, true, true);
  refuse_non_ascii_digits(stripped);
  std::string number;
  if (!drop_underscores_between_digits(stripped, number)) return false;
  const std::string word = py_lower(number.substr(number.find_first_not_of("+-") == 1 ? 1 : 0));
  const bool is_word = word == "inf" || word == "infinity" || word == "nan";
  const bool allowed = !number.empty() && (is_word || number.find_first_not_of("0123456789+-.eE") ==
                                                          std::string::npos);
  if (!allowed) return false;
  char* end = nullptr;
  out = std::strtod(number.c_str(), &end);
  return end == number.c_str() + number.size();
}

Value to_int(double value, const Value& other) {
  if (!std::isfinite(value)) return other;
  if (std::fabs(value) >= 9.2e18) unsupported("an integer that does not fit 64 bits");
  return static_cast<int64_t>(value);
}

Value int_filter(Interpreter&, const Value& value, Arguments& arguments) {
  ArgumentReader reader("int", arguments);
  const Value other = reader.next_or("default", int64_t{0});
  const int64_t base = reader.next_int_or("base", 10);
  reader.expect_no_more();
  if (base != 10 && base != 16 && base != 8 && base != 2)
    unsupported("int: the base " + std::to_string(base));
  if (value.is_undefined()) template_fault(value.undefined_message());
  if (value.is_float() && std::isinf(value.as_float()))
    template_fault("cannot convert float infinity to integer");
  if (value.is_float()) return to_int(value.as_float(), other);
  if (value.is_number()) return value.as_int();
  if (!value.is_string()) return other;
  int64_t number = 0;
  if (parse_int(value.text(), base, number)) return number;
  double real = 0;
  return parse_float(value.text(), real) ? to_int(real, other) : other;
}

Value float_filter(Interpreter&, const Value& value, Arguments& arguments) {
  ArgumentReader reader("float", arguments);
  const Value other = reader.next_or("default", 0.0);
  reader.expect_no_more();
  if (value.is_undefined()) template_fault(value.undefined_message());
  if (value.is_number()) return value.as_float();
  double number = 0;
  return value.is_string() && parse_float(value.text(), number) ? Value(number) : other;
}

// Correctly rounded decimal digits, ties to even of the exact value: what Python's round does.
double round_to_even(double value, int64_t precision) {
  char buffer[700];
  std::snprintf(buffer, sizeof(buffer), "%.*f", static_cast<int>(precision), value);
  return std::strtod(buffer, nullptr);
}

Value round_number(Interpreter&, const Value& value, Arguments& arguments) {
  ArgumentReader reader("round", arguments);
  const int64_t precision = reader.next_int_or("precision", 0);
  const std::string method = reader.next_text_or("method", "common");
  reader.expect_no_more();
  if (method != "common" && method != "ceil" && method != "floor")
    template_fault("method must be common, ceil or floor");
  if (!value.is_number()) template_fault("round needs a number, not " + value.type_name());
  if (precision < 0 || precision > 300)
    unsupported("round: the precision " + std::to_string(precision));
  if (method == "common") {
    if (!value.is_float()) return value.as_int();
    return round_to_even(value.as_float(), precision);
  }
  const double scale = std::pow(10.0, static_cast<double>(precision));
  const double scaled = value.as_float() * scale;
  return (method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale;
}

Value wordcount(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  expect_no_arguments("wordcount", arguments);
  const std::string text = text_of(interpreter, value);
  int64_t count = 0;
  bool in_word = false;
  for (size_t pos = 0; pos < text.size();) {
    // Python's \w: unlike that of tokenizers, it leaves out combining marks.
    const size_t begin = pos;
    next_code_point(text, pos);
    const std::string_view character = std::string_view(text).substr(begin, pos - begin);
    const bool word = character == "_" || py_is_all(character, CharTest::kAlnum);
    if (word && !in_word) ++count;
    in_word = word;
  }
  return count;
}

Value format(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  if (!arguments.positional.empty() && !arguments.named.empty())
    template_fault("can't handle positional and keyword arguments at the same time");
  std::vector<std::pair<Value, Value>> named;
  for (auto& [key, argument] : arguments.named) named.emplace_back(key, argument);
  if (value.is_string() && value.str().safe) unsupported("format: a |safe string");
  const Value values = named.empty() ? Value::list(arguments.positional, List::Kind::kTuple)
                                     : Value::dict(std::move(named));
  return format_percent(interpreter, text_of(interpreter, value), values);
}

void set_indent(JsonStyle& style, const Value& indent) {
  style.has_indent = true;
  style.item_separator = ",";
  if (indent.is_string()) {
    style.indent = indent.text();
  } else if (indent.is_int() || indent.is_bool()) {
    style.indent.assign(static_cast<size_t>(std::clamp<int64_t>(indent.as_int(), 0, 101)), ' ');
  } else {
    template_fault("tojson: indent must be int or str, not " + indent.type_name());
  }
  if (style.indent.size() > 100) unsupported("tojson: an indent of more than 100");
}

void set_separators(JsonStyle& style, const std::vector<Value>& parts) {
  if (parts.size() != 2 || !parts[0].is_string() || !parts[1].is_string())
    template_fault("tojson: separators must be two strings");
  if (parts[0].text().size() > 100 || parts[1].text().size() > 100)
    throw Error(ErrorCode::kUnsupported, "tojson: separators longer than 100 are not supported");
  style.item_separator = parts[0].text();
  style.key_separator = parts[1].text();
}

JsonStyle read_json_style(Interpreter& interpreter, Arguments& arguments) {
  ArgumentReader reader("tojson", arguments);
  JsonStyle style;
  style.ascii = reader.next_bool_or("ensure_ascii", false);
  const Value indent = reader.next_or("indent", {});
  const Value separators = reader.next_or("separators", {});
  style.sort_keys = reader.next_bool_or("sort_keys", false);
  reader.expect_no_more();
  if (!indent.is_none()) set_indent(style, indent);
  if (!separators.is_none()) set_separators(style, interpreter.collect_items(separators));
  return style;
}

// Each item and byte that is written may take an indent and separators.
int64_t most_json_bytes(const Value& value, const JsonStyle& style) {
  const auto separators_size = style.item_separator.size() + style.key_separator.size();
  const auto per_item = static_cast<int64_t>(style.indent.size()) * value.depth() +
                        static_cast<int64_t>(separators_size);
  return value.weight() * (1 + per_item);
}

Value tojson(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  const JsonStyle style = read_json_style(interpreter, arguments);
  interpreter.charge_made(most_json_bytes(value, style));
  return to_json(value, style);
}

constexpr NamedCall kFilters[] = {
    {"abs", absolute},
    {"capitalize", apply_to_text<py_capitalize>},
    {"center", center},
    {"float", float_filter},
    {"format", format},
    {"indent", indent},
    {"int", int_filter},
    {"lower", apply_to_text<py_lower>},
    {"replace", replace},
    {"round", round_number},
    {"safe", safe},
    {"string", string},
    {"title", apply_to_text<jinja_title>},
    {"tojson", tojson},
    {"trim", trim},
    {"truncate", truncate},
    {"upper", apply_to_text<py_upper>},
    {"wordcount", wordcount},
};

}  // namespace

std::span<const NamedCall> text_filters() { return kFilters; }

}  // namespace strata::text
