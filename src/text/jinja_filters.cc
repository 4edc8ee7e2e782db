// Filters: what stands behind |. Meanings from jinja2/filters.py, tojson from transformers.
#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>

#include "base/error.h"
#include "text/interpreter.h"
#include "text/py_string.h"
#include "text/unicode.h"

namespace strata::text {
namespace {

using Filter = Value (*)(Interpreter&, const Value&, Arguments&);
struct Entry {
  std::string_view name;
  Filter filter;
};

Value generator(std::vector<Value> items, Interpreter& interpreter) {
  interpreter.charge(static_cast<int64_t>(items.size()) * 4);
  return Value::list(std::move(items), List::Kind::kGenerator, "<generator object>");
}

std::string text_of(Interpreter& interpreter, const Value& value) {
  interpreter.charge_value(value);
  return to_text(value);
}

void no_arguments(const char* name, Arguments& arguments) {
  ArgumentReader(name, arguments).done();
}

// "a.b.0" read step by step; `fallback` stands in for what is not there.
Value read_path(Interpreter& interpreter, Value value, const Value& path, const Value& fallback) {
  std::vector<Value> steps;
  if (path.is_string()) {
    for (std::string& step : py_split(path.text(), ".", -1, false)) {
      if (py_is(step, CharTest::kDigit) && step.size() < 10) {
        steps.emplace_back(int64_t{std::stoi(step)});
      } else {
        steps.emplace_back(std::move(step));
      }
    }
  } else {
    steps.push_back(path);
  }
  for (const Value& step : steps) {
    interpreter.charge(2);
    value = interpreter.item(value, step);
    if (value.is_undefined() && !fallback.is_undefined()) value = fallback;
  }
  return value;
}

const Value kNoFallback = Value::undefined("no default");

Value fold_case(const Value& value) {
  return value.is_string() ? Value(py_lower(value.text())) : value;
}

// The items with the key each is ordered by.
struct Keyed {
  Value key;
  Value item;
};

std::vector<Keyed> keyed(Interpreter& interpreter, const Value& value, const Value* attribute,
                         bool case_sensitive) {
  std::vector<Keyed> out;
  for (Value& item : interpreter.iterate(value)) {
    Value key = attribute == nullptr || attribute->is_none()
                    ? item
                    : read_path(interpreter, item, *attribute, kNoFallback);
    interpreter.charge_value(key);
    if (!case_sensitive) key = fold_case(key);
    out.push_back({std::move(key), std::move(item)});
  }
  return out;
}

void sort_keyed(Interpreter& interpreter, std::vector<Keyed>& items, bool reverse) {
  int64_t weight = 0;
  for (const Keyed& item : items) weight += item.key.weight();
  interpreter.charge_made(weight * static_cast<int64_t>(std::bit_width(items.size()) + 1));
  // Equal keys keep their order, also when reversed.
  std::stable_sort(items.begin(), items.end(), [&](const Keyed& a, const Keyed& b) {
    return reverse ? compare(b.key, a.key) < 0 : compare(a.key, b.key) < 0;
  });
}

Value sort(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  ArgumentReader reader("sort", arguments);
  const bool reverse = reader.bool_or("reverse", false);
  const bool case_sensitive = reader.bool_or("case_sensitive", false);
  const Value* attribute = reader.next("attribute");
  reader.done();
  auto items = keyed(interpreter, value, attribute, case_sensitive);
  sort_keyed(interpreter, items, reverse);
  std::vector<Value> out;
  for (Keyed& item : items) out.push_back(std::move(item.item));
  return Value::list(std::move(out));
}

Value dictsort(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  ArgumentReader reader("dictsort", arguments);
  const bool case_sensitive = reader.bool_or("case_sensitive", false);
  const std::string by = reader.text_or("by", "key");
  const bool reverse = reader.bool_or("reverse", false);
  reader.done();
  if (by != "key" && by != "value")
    template_fault("You can only sort by either \"key\" or \"value\"");
  if (!value.is_dict()) template_fault("dictsort needs a mapping, not " + value.type_name());
  std::vector<Keyed> items;
  for (const auto& [key, item] : value.as_dict().items) {
    const Value& sorted = by == "key" ? key : item;
    items.push_back({case_sensitive ? sorted : fold_case(sorted),
                     Value::list({key, item}, List::Kind::kTuple)});
  }
  sort_keyed(interpreter, items, reverse);
  std::vector<Value> out;
  for (Keyed& item : items) out.push_back(std::move(item.item));
  return Value::list(std::move(out));
}

template <bool Max>
Value extreme(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  ArgumentReader reader(Max ? "max" : "min", arguments);
  const bool case_sensitive = reader.bool_or("case_sensitive", false);
  const Value* attribute = reader.next("attribute");
  reader.done();
  auto items = keyed(interpreter, value, attribute, case_sensitive);
  if (items.empty()) return Value::undefined("No aggregated item, sequence was empty.");
  size_t best = 0;
  for (size_t i = 1; i < items.size(); ++i) {
    const int order = compare(items[i].key, items[best].key);
    if (Max ? order > 0 : order < 0) best = i;
  }
  return items[best].item;
}

Value unique(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  ArgumentReader reader("unique", arguments);
  const bool case_sensitive = reader.bool_or("case_sensitive", false);
  const Value* attribute = reader.next("attribute");
  reader.done();
  Dict seen;
  std::vector<Value> out;
  for (Keyed& item : keyed(interpreter, value, attribute, case_sensitive)) {
    interpreter.charge(item.key.is_string() ? 1 : static_cast<int64_t>(seen.items.size()) + 1);
    if (seen.find(item.key) != nullptr) continue;
    seen.set(item.key, {});
    out.push_back(std::move(item.item));
  }
  return generator(std::move(out), interpreter);
}

// select, reject, selectattr, rejectattr.
template <bool Keep, bool ByAttribute>
Value select(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  size_t used = 0;
  const auto take = [&]() -> const Value& {
    if (used >= arguments.positional.size()) template_fault("Missing parameter for attribute name");
    return arguments.positional[used++];
  };
  Value attribute;
  if (ByAttribute) attribute = take();
  const bool has_test_name = used < arguments.positional.size();
  std::string name;
  if (has_test_name) {
    const Value& given = take();
    if (!given.is_string()) template_fault("a test is named by a string");
    name = given.text();
  }
  Arguments rest;
  rest.positional.assign(arguments.positional.begin() + static_cast<std::ptrdiff_t>(used),
                         arguments.positional.end());
  rest.named = arguments.named;
  std::vector<Value> out;
  for (Value& item : interpreter.iterate(value)) {
    const Value subject = ByAttribute ? read_path(interpreter, item, attribute, kNoFallback) : item;
    Arguments copy = rest;
    const bool holds = has_test_name ? interpreter.test(name, subject, copy) : subject.truthy();
    if (holds == Keep) out.push_back(std::move(item));
  }
  return generator(std::move(out), interpreter);
}

Value map(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  const bool by_attribute = arguments.positional.empty();
  std::vector<Value> out;
  if (by_attribute) {
    ArgumentReader reader("map", arguments);
    const Value attribute = reader.required("attribute");
    const Value fallback = reader.next_or("default", kNoFallback);
    reader.done();
    for (Value& item : interpreter.iterate(value))
      out.push_back(read_path(interpreter, std::move(item), attribute, fallback));
    return generator(std::move(out), interpreter);
  }
  if (!arguments.positional[0].is_string()) template_fault("a filter is named by a string");
  const std::string name = arguments.positional[0].text();
  Arguments rest;
  rest.positional.assign(arguments.positional.begin() + 1, arguments.positional.end());
  rest.named = arguments.named;
  for (Value& item : interpreter.iterate(value)) {
    Arguments copy = rest;
    out.push_back(interpreter.filter(name, item, copy));
  }
  return generator(std::move(out), interpreter);
}

Value join(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  ArgumentReader reader("join", arguments);
  const std::string separator = to_text(reader.next_or("d", ""));
  const Value* attribute = reader.next("attribute");
  reader.done();
  std::string out;
  bool first = true;
  for (const Value& item : interpreter.iterate(value)) {
    const Value part = attribute == nullptr || attribute->is_none()
                           ? item
                           : read_path(interpreter, item, *attribute, kNoFallback);
    interpreter.charge_made(part.weight() + static_cast<int64_t>(separator.size()));
    if (!std::exchange(first, false)) out += separator;
    out += to_text(part);
  }
  return out;
}

Value length(Interpreter&, const Value& value, Arguments& arguments) {
  no_arguments("length", arguments);
  if (value.is_undefined()) return int64_t{0};
  if (value.is_string()) return count_code_points(value.text());
  if (value.is_dict()) return static_cast<int64_t>(value.as_dict().items.size());
  if (value.is_list() && value.as_list().kind != List::Kind::kGenerator)
    return static_cast<int64_t>(value.as_list().items.size());
  if (value.is_loop()) return static_cast<int64_t>(value.as_loop().items.size());
  template_fault("object of type '" + value.type_name() + "' has no len()");
}

Value first(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  no_arguments("first", arguments);
  const auto items = interpreter.iterate(value);
  return items.empty() ? Value::undefined("No first item, sequence was empty.") : items.front();
}

Value last(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  no_arguments("last", arguments);
  if (value.is_list() && value.as_list().kind == List::Kind::kGenerator)
    template_fault("'generator' object is not reversible");
  const auto items = interpreter.iterate(value);
  return items.empty() ? Value::undefined("No last item, sequence was empty.") : items.back();
}

Value list(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  no_arguments("list", arguments);
  return Value::list(interpreter.iterate(value));
}

Value items(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  no_arguments("items", arguments);
  if (value.is_undefined()) return generator({}, interpreter);
  if (!value.is_dict()) template_fault("Can only get item pairs from a mapping.");
  std::vector<Value> out;
  for (const auto& [key, item] : value.as_dict().items)
    out.push_back(Value::list({key, item}, List::Kind::kTuple));
  return generator(std::move(out), interpreter);
}

Value reverse(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  no_arguments("reverse", arguments);
  std::vector<Value> parts = interpreter.iterate(value);
  std::reverse(parts.begin(), parts.end());
  if (!value.is_string()) return generator(std::move(parts), interpreter);
  std::string out;
  for (const Value& part : parts) out += part.text();
  return out;
}

Value batch(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  ArgumentReader reader("batch", arguments);
  const int64_t size = reader.int_or("linecount", 0);
  const Value fill = reader.next_or("fill_with", {});
  reader.done();
  if (size < 1) template_fault("batch: the size must be at least 1");
  std::vector<Value> out;
  std::vector<Value> row;
  for (Value& item : interpreter.iterate(value)) {
    if (static_cast<int64_t>(row.size()) == size)
      out.push_back(Value::list(std::exchange(row, {})));
    row.push_back(std::move(item));
  }
  if (!row.empty()) {
    if (!fill.is_none()) {
      interpreter.charge((size - static_cast<int64_t>(row.size())) * 4);
      row.resize(static_cast<size_t>(size), fill);
    }
    out.push_back(Value::list(std::move(row)));
  }
  return generator(std::move(out), interpreter);
}

Value sum(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  ArgumentReader reader("sum", arguments);
  const Value* attribute = reader.next("attribute");
  Value total = reader.next_or("start", int64_t{0});
  reader.done();
  for (const Value& item : interpreter.iterate(value))
    total = interpreter.binary("+", total,
                               attribute == nullptr || attribute->is_none()
                                   ? item
                                   : read_path(interpreter, item, *attribute, kNoFallback));
  return total;
}

Value fallback(Interpreter&, const Value& value, Arguments& arguments) {
  ArgumentReader reader("default", arguments);
  Value other = reader.next_or("default_value", "");
  const bool boolean = reader.bool_or("boolean", false);
  reader.done();
  return value.is_undefined() || (boolean && !value.truthy()) ? other : value;
}

Value attr(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  ArgumentReader reader("attr", arguments);
  const std::string name = reader.text_or("name", "");
  reader.done();
  if (value.is_dict() && !has_method(value, name))
    return Value::undefined("'dict object' has no attribute '" + name + "'");
  return interpreter.attribute(value, name);
}

Value replace(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  ArgumentReader reader("replace", arguments);
  const std::string old = to_text(reader.required("old"));
  const std::string with = to_text(reader.required("new"));
  const int64_t max_count = reader.int_or("count", -1);
  reader.done();
  const std::string text = text_of(interpreter, value);
  const auto size = static_cast<int64_t>(text.size());
  const int64_t most = old.empty() ? size + 1 : size / static_cast<int64_t>(old.size());
  // Counting first keeps the charge honest when little matches.
  int64_t matches = old.empty() ? most : 0;
  for (size_t at = old.empty() ? std::string::npos : text.find(old); at != std::string::npos;
       at = text.find(old, at + old.size()))
    ++matches;
  if (max_count >= 0) matches = std::min(matches, max_count);
  interpreter.charge_made(size + matches * (static_cast<int64_t>(with.size()) + 1));
  return py_replace(text, old, with, max_count);
}

Value trim(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  ArgumentReader reader("trim", arguments);
  const Value* chars = reader.next("chars");
  reader.done();
  const std::string text = text_of(interpreter, value);
  if (chars == nullptr || chars->is_none()) return std::string(py_strip(text, {}, true, true));
  if (!chars->is_string()) template_fault("strip arg must be None or str");
  if (chars->text().empty()) return text;
  return std::string(py_strip(text, chars->text(), true, true));
}

template <std::string (*Change)(std::string_view)>
Value change(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  no_arguments("this filter", arguments);
  return Change(text_of(interpreter, value));
}

Value string(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  no_arguments("string", arguments);
  return value.is_string() ? value : Value(text_of(interpreter, value));
}

Value safe(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  no_arguments("safe", arguments);
  return Value(text_of(interpreter, value), true);
}

Value indent(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  ArgumentReader reader("indent", arguments);
  const Value width = reader.next_or("width", int64_t{4});
  const bool indent_first = reader.bool_or("first", false);
  const bool indent_blank = reader.bool_or("blank", false);
  reader.done();
  std::string pad;
  if (width.is_string()) {
    pad = width.text();
  } else if (width.is_int()) {
    interpreter.charge(std::max<int64_t>(width.as_int(), 0));
    pad.assign(static_cast<size_t>(std::max<int64_t>(width.as_int(), 0)), ' ');
  } else {
    template_fault("indent: the width must be int or str, not " + width.type_name());
  }
  // jinja2 adds a newline so that a last empty line counts.
  const auto lines = py_splitlines(text_of(interpreter, value) + "\n", false);
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
  const int64_t width = reader.int_or("width", 80);
  reader.done();
  Arguments forwarded;
  forwarded.positional.emplace_back(width);
  return call_method(interpreter, Value(text_of(interpreter, value)), "center", forwarded);
}

Value truncate(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  ArgumentReader reader("truncate", arguments);
  const int64_t size = reader.int_or("length", 255);
  const bool kill_words = reader.bool_or("killwords", false);
  const std::string end = reader.text_or("end", "...");
  const int64_t leeway = reader.int_or("leeway", 5);
  reader.done();
  const std::string text = text_of(interpreter, value);
  const int64_t end_size = count_code_points(end);
  if (size < end_size) template_fault("truncate: the length is less than that of the end");
  if (count_code_points(text) <= size + leeway) return text;
  std::string kept = text.substr(0, byte_of(text, size - end_size));
  if (!kill_words) kept = kept.substr(0, std::min(kept.rfind(' '), kept.size()));
  return kept + end;
}

Value absolute(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  no_arguments("abs", arguments);
  if (value.is_float()) return std::fabs(value.as_float());
  return compare(value, int64_t{0}) < 0 ? interpreter.binary("-", int64_t{0}, value) : value;
}

// An int of what Python's int() takes: digits with single underscores between, a sign, blanks
// around.
bool parse_int(std::string_view text, int64_t base, int64_t& out) {
  text = py_strip(text, {}, true, true);
  std::string digits;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool between = i > 0 && i + 1 < text.size() && text[i - 1] != '_' &&
                         std::isalnum(static_cast<unsigned char>(text[i - 1])) != 0;
    if (text[i] == '_' && !between) return false;
    if (text[i] != '_') digits += text[i];
  }
  const bool negative = digits.starts_with('-');
  if (negative || digits.starts_with('+')) digits.erase(0, 1);
  if (digits.size() > 2 && digits[0] == '0' && base == 16 && (digits[1] | 32) == 'x')
    digits.erase(0, 2);
  if (digits.empty()) return false;
  int64_t value = 0;
  for (const char c : digits) {
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'a' && c <= 'z' ? c - 'a' + 10
                      : c >= 'A' && c <= 'Z' ? c - 'A' + 10
                                             : 99;
    if (digit >= base) return false;
    if (__builtin_mul_overflow(value, base, &value) || __builtin_add_overflow(value, digit, &value))
      throw Error(ErrorCode::kUnsupported, "an integer that does not fit 64 bits is not supported");
  }
  out = negative ? -value : value;
  return true;
}

bool parse_float(std::string_view text, double& out) {
  const std::string stripped(py_strip(text, {}, true, true));
  const bool allowed =
      !stripped.empty() && stripped.find_first_not_of("0123456789+-.eE") == std::string::npos;
  if (!allowed) return false;
  char* end = nullptr;
  out = std::strtod(stripped.c_str(), &end);
  return end == stripped.c_str() + stripped.size();
}

Value to_int(double value, const Value& other) {
  if (!std::isfinite(value)) return other;
  if (std::fabs(value) >= 9.2e18)
    throw Error(ErrorCode::kUnsupported, "an integer that does not fit 64 bits is not supported");
  return static_cast<int64_t>(value);
}

Value integer(Interpreter&, const Value& value, Arguments& arguments) {
  ArgumentReader reader("int", arguments);
  const Value other = reader.next_or("default", int64_t{0});
  const int64_t base = reader.int_or("base", 10);
  reader.done();
  if (base != 10 && base != 16 && base != 8 && base != 2)
    throw Error(ErrorCode::kUnsupported,
                "int: the base " + std::to_string(base) + " is not supported");
  if (value.is_float()) return to_int(value.as_float(), other);
  if (value.is_number()) return value.as_int();
  if (!value.is_string()) return other;
  int64_t number = 0;
  if (parse_int(value.text(), base, number)) return number;
  double real = 0;
  return parse_float(value.text(), real) ? to_int(real, other) : other;
}

Value real(Interpreter&, const Value& value, Arguments& arguments) {
  ArgumentReader reader("float", arguments);
  const Value other = reader.next_or("default", 0.0);
  reader.done();
  if (value.is_number()) return value.as_float();
  double number = 0;
  return value.is_string() && parse_float(value.text(), number) ? Value(number) : other;
}

Value round_number(Interpreter&, const Value& value, Arguments& arguments) {
  ArgumentReader reader("round", arguments);
  const int64_t precision = reader.int_or("precision", 0);
  const std::string method = reader.text_or("method", "common");
  reader.done();
  if (method != "common" && method != "ceil" && method != "floor")
    template_fault("method must be common, ceil or floor");
  if (!value.is_number()) template_fault("round needs a number, not " + value.type_name());
  if (precision < 0 || precision > 300)
    throw Error(ErrorCode::kUnsupported,
                "round: the precision " + std::to_string(precision) + " is not supported");
  if (method == "common") {
    if (!value.is_float()) return value.as_int();
    // Correctly rounded decimal digits, ties to even of the exact value: what Python's round does.
    char buffer[700];
    std::snprintf(buffer, sizeof(buffer), "%.*f", static_cast<int>(precision), value.as_float());
    return std::strtod(buffer, nullptr);
  }
  const double scale = std::pow(10.0, static_cast<double>(precision));
  const double scaled = value.as_float() * scale;
  return (method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale;
}

Value wordcount(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  no_arguments("wordcount", arguments);
  static const CodePointSet words(word_ranges());
  const std::string text = text_of(interpreter, value);
  int64_t count = 0;
  bool in_word = false;
  for (size_t pos = 0; pos < text.size();) {
    const bool word = words.contains(next_code_point(text, pos));
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
  const Value values = named.empty() ? Value::list(arguments.positional, List::Kind::kTuple)
                                     : Value::dict(std::move(named));
  return format_percent(interpreter, text_of(interpreter, value), values);
}

Value tojson(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  ArgumentReader reader("tojson", arguments);
  JsonStyle style;
  style.ascii = reader.bool_or("ensure_ascii", false);
  const Value indent = reader.next_or("indent", {});
  const Value separators = reader.next_or("separators", {});
  style.sort_keys = reader.bool_or("sort_keys", false);
  reader.done();
  if (!indent.is_none()) {
    style.has_indent = true;
    style.item_separator = ",";
    if (indent.is_string()) {
      style.indent = indent.text();
    } else if (indent.is_int() || indent.is_bool()) {
      style.indent.assign(static_cast<size_t>(std::clamp<int64_t>(indent.as_int(), 0, 101)), ' ');
    } else {
      template_fault("tojson: indent must be int or str, not " + indent.type_name());
    }
    if (style.indent.size() > 100)
      throw Error(ErrorCode::kUnsupported, "tojson: an indent of more than 100 is not supported");
  }
  if (!separators.is_none()) {
    const auto parts = interpreter.iterate(separators);
    if (parts.size() != 2 || !parts[0].is_string() || !parts[1].is_string())
      template_fault("tojson: separators must be two strings");
    if (parts[0].text().size() > 100 || parts[1].text().size() > 100)
      throw Error(ErrorCode::kUnsupported, "tojson: separators longer than 100 are not supported");
    style.item_separator = parts[0].text();
    style.key_separator = parts[1].text();
  }
  const auto per_item = static_cast<int64_t>(style.indent.size()) * value.depth();
  interpreter.charge_made(value.weight() * (1 + per_item));
  return to_json(value, style);
}

constexpr Entry kFilters[] = {
    {"abs", absolute},
    {"attr", attr},
    {"batch", batch},
    {"capitalize", change<py_capitalize>},
    {"center", center},
    {"count", length},
    {"d", fallback},
    {"default", fallback},
    {"dictsort", dictsort},
    {"first", first},
    {"float", real},
    {"format", format},
    {"indent", indent},
    {"int", integer},
    {"items", items},
    {"join", join},
    {"last", last},
    {"length", length},
    {"list", list},
    {"lower", change<py_lower>},
    {"map", map},
    {"max", extreme<true>},
    {"min", extreme<false>},
    {"reject", select<false, false>},
    {"rejectattr", select<false, true>},
    {"replace", replace},
    {"reverse", reverse},
    {"round", round_number},
    {"safe", safe},
    {"select", select<true, false>},
    {"selectattr", select<true, true>},
    {"sort", sort},
    {"string", string},
    {"sum", sum},
    {"title", change<jinja_title>},
    {"tojson", tojson},
    {"trim", trim},
    {"truncate", truncate},
    {"unique", unique},
    {"upper", change<py_upper>},
    {"wordcount", wordcount},
};

const Entry* find_filter(const std::string& name) {
  const auto* found = std::find_if(std::begin(kFilters), std::end(kFilters),
                                   [&](const Entry& entry) { return entry.name == name; });
  return found == std::end(kFilters) ? nullptr : found;
}

}  // namespace

bool has_filter(const std::string& name) { return find_filter(name) != nullptr; }

Value Interpreter::filter(const std::string& name, const Value& value, Arguments& arguments) {
  const Entry* entry = find_filter(name);
  if (entry == nullptr)
    throw Error(ErrorCode::kUnsupported, "the filter '" + name + "' is not supported");
  // Filters of lists charge for what they do with them.
  charge(value.is_string() ? value.weight() / kBytesRead + 1 : 1);
  for (const Value& argument : arguments.positional)
    if (argument.is_string()) charge_value(argument);
  return entry->filter(*this, value, arguments);
}

}  // namespace strata::text
