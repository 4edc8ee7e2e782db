// SPDX-License-Identifier: Apache-2.0
// Filters: what stands behind |. Here those of lists and dicts. Meanings from jinja2/filters.py.
#include "text/jinja/filters.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <optional>

#include "text/jinja/interpreter.h"
#include "text/jinja/py_string.h"
#include "text/unicode/unicode.h"

namespace strata::text {
namespace {

Value make_generator(std::vector<Value> items, Interpreter& interpreter) {
  interpreter.charge_items(static_cast<int64_t>(items.size()));
  return Value::list(std::move(items), List::Kind::kGenerator, "<generator object>");
}

// A step of a path: a number where Python's isdigit says so of it.
Value path_step(std::string step) {
  if (!py_is_all(step, CharTest::kDigit) || step.size() >= 10) return step;
  if (step.find_first_not_of("0123456789") != std::string::npos)
    unsupported("a path with other digits than 0-9");
  return int64_t{std::stoi(step)};
}

// "a.b.0" read step by step; `fallback` stands in for what is not there.
Value get_by_path(Interpreter& interpreter, Value value, const Value& path, const Value& fallback) {
  std::vector<Value> steps;
  if (path.is_string()) {
    for (std::string& step : interpreter.split(path.text(), "."))
      steps.push_back(path_step(std::move(step)));
  } else {
    steps.push_back(path);
  }
  for (const Value& step : steps) {
    interpreter.charge(2);
    value = interpreter.get_item(value, step);
    if (value.is_undefined() && !fallback.is_undefined()) value = fallback;
  }
  return value;
}

const Value kNoFallback = Value::undefined("no default");

bool is_given(const Value* argument) { return argument != nullptr && !argument->is_none(); }

// What a filter that may be given an attribute works on.
Value filter_subject(Interpreter& interpreter, const Value& item, const Value* attribute) {
  return is_given(attribute) ? get_by_path(interpreter, item, *attribute, kNoFallback) : item;
}

Value fold_case(const Value& value) {
  return value.is_string() ? Value(py_lower(value.text())) : value;
}

// The items with the key each is ordered by.
struct Keyed {
  Value key;
  Value item;
  size_t position = 0;
};

std::vector<Keyed> keyed_items(Interpreter& interpreter, const Value& value, const Value* attribute,
                               bool case_sensitive) {
  std::vector<Keyed> out;
  for (Value& item : interpreter.collect_items(value)) {
    Value key = filter_subject(interpreter, item, attribute);
    interpreter.charge_value(key);
    if (!case_sensitive) key = fold_case(key);
    out.push_back({std::move(key), std::move(item), 0});
  }
  return out;
}

// The list of the items in order.
Value sorted_list(Interpreter& interpreter, std::vector<Keyed> items, bool reverse) {
  int64_t weight = 0;
  for (const Keyed& item : items) weight += item.key.weight();
  interpreter.charge_made(weight * static_cast<int64_t>(std::bit_width(items.size()) + 1));
  for (size_t i = 0; i < items.size(); ++i) items[i].position = i;
  // Equal keys keep their order, also when reversed.
  std::sort(items.begin(), items.end(), [&](const Keyed& a, const Keyed& b) {
    const int order = reverse ? compare(b.key, a.key) : compare(a.key, b.key);
    return order != 0 ? order < 0 : a.position < b.position;
  });
  std::vector<Value> out;
  for (Keyed& item : items) out.push_back(std::move(item.item));
  return Value::list(std::move(out));
}

// sort takes several attributes, "a,b.c", and orders by the list of their values.
std::vector<Keyed> keyed_by_attributes(Interpreter& interpreter, const Value& value,
                                       const Value& attributes, bool case_sensitive) {
  std::vector<Value> paths = {attributes};
  if (attributes.is_string()) {
    paths.clear();
    for (std::string& path : interpreter.split(attributes.text(), ","))
      paths.emplace_back(std::move(path));
  }
  std::vector<Keyed> out;
  for (Value& item : interpreter.collect_items(value)) {
    std::vector<Value> key;
    for (const Value& path : paths) {
      const Value part = get_by_path(interpreter, item, path, kNoFallback);
      interpreter.charge_value(part);
      key.push_back(case_sensitive ? part : fold_case(part));
    }
    out.push_back({Value::list(std::move(key)), std::move(item), 0});
  }
  return out;
}

Value sort(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  ArgumentReader reader("sort", arguments);
  const bool reverse = reader.next_bool_or("reverse", false);
  const bool case_sensitive = reader.next_bool_or("case_sensitive", false);
  const Value* attribute = reader.next_optional("attribute");
  reader.expect_no_more();
  auto items = is_given(attribute)
                   ? keyed_by_attributes(interpreter, value, *attribute, case_sensitive)
                   : keyed_items(interpreter, value, nullptr, case_sensitive);
  return sorted_list(interpreter, std::move(items), reverse);
}

Value dictsort(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  ArgumentReader reader("dictsort", arguments);
  const bool case_sensitive = reader.next_bool_or("case_sensitive", false);
  const std::string by = reader.next_text_or("by", "key");
  const bool reverse = reader.next_bool_or("reverse", false);
  reader.expect_no_more();
  if (by != "key" && by != "value")
    template_fault("You can only sort by either \"key\" or \"value\"");
  if (!value.is_dict()) template_fault("dictsort needs a mapping, not " + value.type_name());
  std::vector<Keyed> items;
  for (Value& pair : pairs_of(interpreter, value)) {
    const Value order = pair.as_list().items[by == "key" ? 0 : 1];
    items.push_back({case_sensitive ? order : fold_case(order), std::move(pair), 0});
  }
  return sorted_list(interpreter, std::move(items), reverse);
}

template <bool Max>
Value min_or_max(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  ArgumentReader reader(Max ? "max" : "min", arguments);
  const bool case_sensitive = reader.next_bool_or("case_sensitive", false);
  const Value* attribute = reader.next_optional("attribute");
  reader.expect_no_more();
  auto items = keyed_items(interpreter, value, attribute, case_sensitive);
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
  const bool case_sensitive = reader.next_bool_or("case_sensitive", false);
  const Value* attribute = reader.next_optional("attribute");
  reader.expect_no_more();
  Dict seen;
  std::vector<Value> out;
  for (Keyed& item : keyed_items(interpreter, value, attribute, case_sensitive)) {
    if (seen.find(item.key) != nullptr) continue;
    seen.set(item.key, {});
    out.push_back(std::move(item.item));
  }
  return make_generator(std::move(out), interpreter);
}

// Those by position from the `first` on, and those by name.
Arguments arguments_from(const Arguments& arguments, size_t first) {
  Arguments rest;
  rest.positional.assign(arguments.positional.begin() + static_cast<std::ptrdiff_t>(first),
                         arguments.positional.end());
  rest.named = arguments.named;
  return rest;
}

// What `select` and its like ask of an item: a test of its arguments, or whether it is true.
struct ItemTest {
  std::optional<std::string> name;
  Arguments arguments;
};

// The test's name at the position `first`, where one is given, and what stands behind it.
ItemTest read_item_test(const Arguments& arguments, size_t first) {
  if (first >= arguments.positional.size())
    return {.name = std::nullopt, .arguments = arguments_from(arguments, first)};
  const Value& given = arguments.positional[first];
  if (!given.is_string()) template_fault("a test is named by a string");
  return {.name = given.text(), .arguments = arguments_from(arguments, first + 1)};
}

bool test_holds(Interpreter& interpreter, const ItemTest& test, const Value& value) {
  if (!test.name) return value.truthy();
  Arguments copy = test.arguments;
  return interpreter.apply_test(*test.name, value, copy);
}

// select, reject, selectattr, rejectattr.
template <bool Keep, bool ByAttribute>
Value select_or_reject(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  if (ByAttribute && arguments.positional.empty())
    template_fault("Missing parameter for attribute name");
  const Value attribute = ByAttribute ? arguments.positional[0] : Value();
  const ItemTest test = read_item_test(arguments, ByAttribute ? 1 : 0);
  std::vector<Value> out;
  for (Value& item : interpreter.collect_items(value)) {
    const Value subject =
        ByAttribute ? get_by_path(interpreter, item, attribute, kNoFallback) : item;
    if (test_holds(interpreter, test, subject) == Keep) out.push_back(std::move(item));
  }
  return make_generator(std::move(out), interpreter);
}

Value map(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  const bool by_attribute = arguments.positional.empty();
  std::vector<Value> out;
  if (by_attribute) {
    ArgumentReader reader("map", arguments);
    const Value attribute = reader.next_required("attribute");
    const Value fallback = reader.next_or("default", kNoFallback);
    reader.expect_no_more();
    for (Value& item : interpreter.collect_items(value))
      out.push_back(get_by_path(interpreter, std::move(item), attribute, fallback));
    return make_generator(std::move(out), interpreter);
  }
  if (!arguments.positional[0].is_string()) template_fault("a filter is named by a string");
  const std::string name = arguments.positional[0].text();
  const Arguments rest = arguments_from(arguments, 1);
  for (Value& item : interpreter.collect_items(value)) {
    Arguments copy = rest;
    out.push_back(interpreter.apply_filter(name, item, copy));
  }
  return make_generator(std::move(out), interpreter);
}

Value join(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  ArgumentReader reader("join", arguments);
  const std::string separator = to_text(reader.next_or("d", ""));
  const Value* attribute = reader.next_optional("attribute");
  reader.expect_no_more();
  std::string out;
  bool first = true;
  for (const Value& item : interpreter.collect_items(value)) {
    const Value part = filter_subject(interpreter, item, attribute);
    interpreter.charge_made(part.weight() + static_cast<int64_t>(separator.size()));
    if (!std::exchange(first, false)) out += separator;
    out += to_text(part);
  }
  return out;
}

Value length(Interpreter&, const Value& value, Arguments& arguments) {
  expect_no_arguments("length", arguments);
  if (value.is_undefined()) return int64_t{0};
  if (value.is_string()) return count_code_points(value.text());
  if (value.is_dict()) return static_cast<int64_t>(value.as_dict().items.size());
  if (value.is_list() && value.as_list().kind != List::Kind::kGenerator)
    return static_cast<int64_t>(value.as_list().items.size());
  if (value.is_loop()) return static_cast<int64_t>(value.as_loop().items.size());
  template_fault("object of type '" + value.type_name() + "' has no len()");
}

template <bool Last>
Value first_or_last(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  const std::string name = Last ? "last" : "first";
  expect_no_arguments(name.c_str(), arguments);
  if (Last && value.is_list() && value.as_list().kind == List::Kind::kGenerator)
    template_fault("'generator' object is not reversible");
  const auto items = interpreter.collect_items(value);
  if (items.empty()) return Value::undefined("No " + name + " item, sequence was empty.");
  return Last ? items.back() : items.front();
}

Value list(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  expect_no_arguments("list", arguments);
  return Value::list(interpreter.collect_items(value));
}

Value items(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  expect_no_arguments("items", arguments);
  if (value.is_undefined()) return make_generator({}, interpreter);
  if (!value.is_dict()) template_fault("Can only get item pairs from a mapping.");
  return make_generator(pairs_of(interpreter, value), interpreter);
}

Value reverse(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  expect_no_arguments("reverse", arguments);
  std::vector<Value> parts = interpreter.collect_items(value);
  std::reverse(parts.begin(), parts.end());
  if (!value.is_string()) return make_generator(std::move(parts), interpreter);
  std::string out;
  for (const Value& part : parts) out += part.text();
  return out;
}

Value batch(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  ArgumentReader reader("batch", arguments);
  const int64_t size = reader.next_int_or("linecount", 0);
  const Value fill = reader.next_or("fill_with", {});
  reader.expect_no_more();
  if (size < 1) template_fault("batch: the size must be at least 1");
  std::vector<Value> out;
  std::vector<Value> row;
  for (Value& item : interpreter.collect_items(value)) {
    if (static_cast<int64_t>(row.size()) == size)
      out.push_back(Value::list(std::exchange(row, {})));
    row.push_back(std::move(item));
  }
  if (!row.empty()) {
    if (!fill.is_none()) {
      interpreter.charge_items(size - static_cast<int64_t>(row.size()));
      row.resize(static_cast<size_t>(size), fill);
    }
    out.push_back(Value::list(std::move(row)));
  }
  return make_generator(std::move(out), interpreter);
}

Value sum(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  ArgumentReader reader("sum", arguments);
  const Value* attribute = reader.next_optional("attribute");
  Value total = reader.next_or("start", int64_t{0});
  reader.expect_no_more();
  if (total.is_string()) template_fault("sum() can't sum strings");
  for (const Value& item : interpreter.collect_items(value))
    total = interpreter.apply_binary("+", total, filter_subject(interpreter, item, attribute));
  return total;
}

Value default_value(Interpreter&, const Value& value, Arguments& arguments) {
  ArgumentReader reader("default", arguments);
  Value other = reader.next_or("default_value", "");
  const bool boolean = reader.next_bool_or("boolean", false);
  reader.expect_no_more();
  return value.is_undefined() || (boolean && !value.truthy()) ? other : value;
}

Value attr(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  ArgumentReader reader("attr", arguments);
  const Value& given = reader.next_required("name");
  reader.expect_no_more();
  if (!given.is_string())
    template_fault("attribute name must be string, not '" + given.type_name() + "'");
  const std::string& name = given.text();
  if (value.is_dict() && !has_method(value, name))
    return Value::undefined("'dict object' has no attribute '" + name + "'");
  return interpreter.get_attribute(value, name);
}

constexpr NamedCall kFilters[] = {
    {"attr", attr},
    {"batch", batch},
    {"count", length},
    {"d", default_value},
    {"default", default_value},
    {"dictsort", dictsort},
    {"first", first_or_last<false>},
    {"items", items},
    {"join", join},
    {"last", first_or_last<true>},
    {"length", length},
    {"list", list},
    {"map", map},
    {"max", min_or_max<true>},
    {"min", min_or_max<false>},
    {"reject", select_or_reject<false, false>},
    {"rejectattr", select_or_reject<false, true>},
    {"reverse", reverse},
    {"select", select_or_reject<true, false>},
    {"selectattr", select_or_reject<true, true>},
    {"sort", sort},
    {"sum", sum},
    {"unique", unique},
};

const NamedCall* find_filter(std::string_view name) {
  const NamedCall* found = find_entry<NamedCall>(kFilters, name);
  return found != nullptr ? found : find_entry(text_filters(), name);
}

}  // namespace

bool has_filter(const std::string& name) { return find_filter(name) != nullptr; }

Value Interpreter::apply_filter(const std::string& name, const Value& value, Arguments& arguments) {
  const NamedCall* entry = find_filter(name);
  if (entry == nullptr) unsupported("the filter '" + name + "'");
  charge(1);
  if (value.is_string()) charge_value(value);  // those of lists charge for what they do with them
  charge_arguments(arguments);
  return entry->call(*this, value, arguments);
}

}  // namespace strata::text
