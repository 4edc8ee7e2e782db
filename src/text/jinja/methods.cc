// SPDX-License-Identifier: Apache-2.0
// Methods that templates may call on str, dict, list and loop.
#include <algorithm>
#include <array>

#include "text/jinja/argument_reader.h"
#include "text/jinja/filters.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/py_string.h"
#include "text/unicode/unicode.h"

namespace strata::text {

Value strip_text(const std::string& text, const Value* chars, bool left, bool right) {
  if (chars == nullptr || chars->is_none()) return py_strip(text, {}, left, right);
  if (!chars->is_string()) template_fault("strip arg must be None or str");
  return chars->text().empty() ? text : py_strip(text, chars->text(), left, right);
}

std::vector<Value> pairs_of(Interpreter& interpreter, const Value& dict) {
  interpreter.charge(std::ssize(dict.as_dict().items) * 8);
  std::vector<Value> out;
  for (const auto& [key, value] : dict.as_dict().items)
    out.push_back(Value::list({key, value}, List::Kind::kTuple));
  return out;
}

namespace {

Value list_of_strings(std::vector<std::string> parts, List::Kind kind = List::Kind::kList) {
  std::vector<Value> items;
  for (std::string& part : parts) items.emplace_back(std::move(part));
  return Value::list(std::move(items), kind);
}

template <bool Left, bool Right>
Value strip(Interpreter&, const Value& self, Arguments& arguments) {
  ArgumentReader reader("strip()", arguments);
  const Value* chars = reader.next_optional("chars");
  reader.expect_no_more();
  return strip_text(self.text(), chars, Left, Right);
}

template <bool FromRight>
Value split(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  ArgumentReader reader("split()", arguments);
  const Value* separator = reader.next_optional("sep");
  const int64_t max_splits = reader.next_int_or("maxsplit", -1);
  reader.expect_no_more();
  std::string text;
  if (separator != nullptr && !separator->is_none()) {
    if (!separator->is_string())
      template_fault("must be str or None, not " + separator->type_name());
    text = separator->text();
    if (text.empty()) template_fault("empty separator");
  }
  return list_of_strings(interpreter.split(self.text(), text, max_splits, FromRight));
}

// startswith, endswith, find, rfind, index, rindex, count: within text[start:end].
struct SearchedText {
  std::string_view text;
  int64_t begin;    // code points before it
  bool is_crossed;  // it ends before it begins: not even an empty text is in it
};

SearchedText read_searched_text(const Value& self, ArgumentReader& reader) {
  const Value* start = reader.next_optional("start");
  const Value* end = reader.next_optional("end");
  reader.expect_no_more();
  const int64_t size = count_code_points(self.text());
  const auto bound = [&](const Value* value, int64_t fallback) {
    if (value == nullptr || value->is_none()) return fallback;
    if (!value->is_int() && !value->is_bool()) template_fault("slice indices must be integers");
    const int64_t index = value->as_int();
    return std::max<int64_t>(0, index < 0 ? index + size : index);
  };
  const int64_t from = bound(start, 0);
  const int64_t to = std::min(bound(end, size), size);
  if (from > to) return {.text = {}, .begin = from, .is_crossed = true};
  const size_t first = byte_of(self.text(), from);
  const size_t last = byte_of(self.text(), to);
  return {std::string_view(self.text()).substr(first, last - first), from, false};
}

// startswith and endswith take one text or a tuple of them.
template <bool AtEnd>
Value has_affix(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  const std::string name = AtEnd ? "endswith" : "startswith";
  ArgumentReader reader(AtEnd ? "endswith()" : "startswith()", arguments);
  const Value& wanted = reader.next_required("prefix");
  const SearchedText in = read_searched_text(self, reader);
  const bool is_tuple = wanted.is_list() && wanted.as_list().kind == List::Kind::kTuple;
  if (!wanted.is_string() && !is_tuple)
    template_fault(name + " first arg must be str or a tuple of str, not " + wanted.type_name());
  const auto all = is_tuple ? interpreter.collect_items(wanted) : std::vector<Value>{wanted};
  return std::any_of(all.begin(), all.end(), [&](const Value& one) {
    if (!one.is_string())
      template_fault("tuple for " + name + " must only contain str, not " + one.type_name());
    if (in.is_crossed) return false;
    return AtEnd ? in.text.ends_with(one.text()) : in.text.starts_with(one.text());
  });
}

const std::string& read_required_text(ArgumentReader& reader) {
  const Value& value = reader.next_required("sub");
  if (!value.is_string()) template_fault("must be str, not " + value.type_name());
  return value.text();
}

template <bool FromRight, bool MustBeThere>
Value find(Interpreter&, const Value& self, Arguments& arguments) {
  ArgumentReader reader("find()", arguments);
  const std::string& wanted = read_required_text(reader);
  const SearchedText in = read_searched_text(self, reader);
  const size_t at = FromRight ? rfind_text(in.text, wanted) : find_text(in.text, wanted);
  if (in.is_crossed || at == std::string_view::npos) {
    if (MustBeThere) template_fault("substring not found");
    return int64_t{-1};
  }
  return in.begin + count_code_points(in.text.substr(0, at));
}

Value count(Interpreter&, const Value& self, Arguments& arguments) {
  ArgumentReader reader("count()", arguments);
  const std::string& wanted = read_required_text(reader);
  const SearchedText in = read_searched_text(self, reader);
  const std::string_view text = in.text;
  if (in.is_crossed) return int64_t{0};
  if (wanted.empty()) return count_code_points(text) + 1;
  return count_text(text, wanted);
}

// The filter takes any value; the method wants texts.
Value replace(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  for (size_t i = 0; i < arguments.positional.size(); ++i) {
    const Value& value = arguments.positional[i];
    if (i < 2 ? !value.is_string() : !value.is_int() && !value.is_bool())
      template_fault("replace() argument " + std::to_string(i + 1) + " must be " +
                     (i < 2 ? "str" : "int") + ", not " + value.type_name());
  }
  return interpreter.apply_filter("replace", self, arguments);
}

Value join(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  ArgumentReader reader("join()", arguments);
  const std::vector<Value> items = interpreter.collect_items(reader.next_required("iterable"));
  reader.expect_no_more();
  std::string out;
  for (size_t i = 0; i < items.size(); ++i) {
    if (!items[i].is_string())
      template_fault("sequence item " + std::to_string(i) + ": expected str instance, " +
                     items[i].type_name() + " found");
    interpreter.charge_made(items[i].weight() + self.weight());
    if (i > 0) out += self.text();
    out += items[i].text();
  }
  return out;
}

template <std::string (*Change)(std::string_view)>
Value apply_to_text(Interpreter&, const Value& self, Arguments& arguments) {
  ArgumentReader("this method", arguments).expect_no_more();
  return Change(self.text());
}

template <CharTest Test>
Value is_all(Interpreter&, const Value& self, Arguments& arguments) {
  ArgumentReader("this method", arguments).expect_no_more();
  return py_is_all(self.text(), Test);
}

Value splitlines(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  ArgumentReader reader("splitlines()", arguments);
  const bool keep_ends = reader.next_bool_or("keepends", false);
  reader.expect_no_more();
  return list_of_strings(interpreter.split_lines(self.text(), keep_ends));
}

template <bool AtEnd>
Value remove_affix(Interpreter&, const Value& self, Arguments& arguments) {
  ArgumentReader reader(AtEnd ? "removesuffix()" : "removeprefix()", arguments);
  const std::string& affix = read_required_text(reader);
  reader.expect_no_more();
  const std::string& text = self.text();
  const bool there = AtEnd ? text.ends_with(affix) : text.starts_with(affix);
  if (!there || affix.empty()) return self;
  return AtEnd ? text.substr(0, text.size() - affix.size()) : text.substr(affix.size());
}

template <bool FromRight>
Value partition(Interpreter&, const Value& self, Arguments& arguments) {
  ArgumentReader reader("partition()", arguments);
  const std::string separator = read_required_text(reader);
  reader.expect_no_more();
  if (separator.empty()) template_fault("empty separator");
  const std::string& text = self.text();
  const size_t at = FromRight ? rfind_text(text, separator) : find_text(text, separator);
  std::vector<std::string> parts = {text, "", ""};
  if (at == std::string::npos && FromRight) parts = {"", "", text};
  if (at != std::string::npos)
    parts = {text.substr(0, at), separator, text.substr(at + separator.size())};
  return list_of_strings(std::move(parts), List::Kind::kTuple);
}

int64_t read_required_int(ArgumentReader& reader, const char* name) {
  const Value& value = reader.next_required(name);
  if (!value.is_int() && !value.is_bool())
    template_fault("'" + value.type_name() + "' object cannot be interpreted as an integer");
  return value.as_int();
}

enum class Padding { kRight, kLeft, kBoth, kZeros };

// How many of the missing characters go to the left. Of an odd number Python's center puts the one
// that is left over to the left where the width is odd.
int64_t num_left_of(Padding where, int64_t missing, int64_t width) {
  if (where == Padding::kRight) return 0;
  return where == Padding::kBoth ? missing / 2 + (missing & width & 1) : missing;
}

std::string repeated(const std::string& fill, int64_t count) {
  std::string out;
  for (int64_t i = 0; i < count; ++i) out += fill;
  return out;
}

// Zeros go behind a sign.
std::string pad_with_zeros(std::string_view text, int64_t missing) {
  const bool is_signed = text.starts_with('-') || text.starts_with('+');
  const size_t digits = is_signed ? 1 : 0;
  return std::string(text.substr(0, digits)) + repeated("0", missing) +
         std::string(text.substr(digits));
}

// ljust, rjust, center, zfill.
template <Padding Where>
Value pad(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  ArgumentReader reader("this method", arguments);
  const int64_t width = read_required_int(reader, "width");
  const std::string fill = Where == Padding::kZeros ? "0" : reader.next_text_or("fillchar", " ");
  reader.expect_no_more();
  if (count_code_points(fill) != 1)
    template_fault("The fill character must be exactly one character long");
  const int64_t size = count_code_points(self.text());
  if (width <= size) return self;
  const int64_t missing = width - size;
  interpreter.charge(missing);
  if (Where == Padding::kZeros) return pad_with_zeros(self.text(), missing);
  const int64_t num_left = num_left_of(Where, missing, width);
  return repeated(fill, num_left) + self.text() + repeated(fill, missing - num_left);
}

Value format(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  return format_braces(interpreter, self.text(), arguments);
}

constexpr NamedCall kStringMethods[] = {
    {"strip", strip<true, true>},
    {"lstrip", strip<true, false>},
    {"rstrip", strip<false, true>},
    {"split", split<false>},
    {"rsplit", split<true>},
    {"splitlines", splitlines},
    {"startswith", has_affix<false>},
    {"endswith", has_affix<true>},
    {"find", find<false, false>},
    {"rfind", find<true, false>},
    {"index", find<false, true>},
    {"rindex", find<true, true>},
    {"count", count},
    {"replace", replace},
    {"join", join},
    {"lower", apply_to_text<py_lower>},
    {"upper", apply_to_text<py_upper>},
    {"title", apply_to_text<py_title>},
    {"capitalize", apply_to_text<py_capitalize>},
    {"isalpha", is_all<CharTest::kAlpha>},
    {"isdigit", is_all<CharTest::kDigit>},
    {"isdecimal", is_all<CharTest::kDecimal>},
    {"isnumeric", is_all<CharTest::kNumeric>},
    {"isalnum", is_all<CharTest::kAlnum>},
    {"isspace", is_all<CharTest::kSpace>},
    {"islower", is_all<CharTest::kLower>},
    {"isupper", is_all<CharTest::kUpper>},
    {"removeprefix", remove_affix<false>},
    {"removesuffix", remove_affix<true>},
    {"partition", partition<false>},
    {"rpartition", partition<true>},
    {"ljust", pad<Padding::kRight>},
    {"rjust", pad<Padding::kLeft>},
    {"center", pad<Padding::kBoth>},
    {"zfill", pad<Padding::kZeros>},
    {"format", format},
};

Value dict_items(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  ArgumentReader("items()", arguments).expect_no_more();
  return Value::make_set_view(self, pairs_of(interpreter, self), "dict_items");
}

template <bool Keys>
Value dict_view(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  ArgumentReader(Keys ? "keys()" : "values()", arguments).expect_no_more();
  interpreter.charge_items(static_cast<int64_t>(self.as_dict().items.size()));
  std::vector<Value> out;
  for (const auto& [key, value] : self.as_dict().items) out.push_back(Keys ? key : value);
  if (Keys) return Value::make_set_view(self, std::move(out), "dict_keys");
  return Value::list(std::move(out), List::Kind::kView, "dict_values");
}

Value dict_get(Interpreter&, const Value& self, Arguments& arguments) {
  ArgumentReader reader("get()", arguments);
  const Value& key = reader.next_required("key");
  Value fallback = reader.next_or("default", {});
  reader.expect_no_more();
  expect_hashable(key);
  const Value* found = self.as_dict().find(key);
  return found == nullptr ? fallback : *found;
}

Value copy(Interpreter&, const Value& self, Arguments& arguments) {
  ArgumentReader("copy()", arguments).expect_no_more();
  return self;
}

constexpr NamedCall kDictMethods[] = {{"items", dict_items},
                                      {"keys", dict_view<true>},
                                      {"values", dict_view<false>},
                                      {"get", dict_get},
                                      {"copy", copy}};

template <bool Count>
Value list_index_or_count(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  ArgumentReader reader(Count ? "count()" : "index()", arguments);
  const Value& wanted = reader.next_required("value");
  reader.expect_no_more();
  const auto& items = self.as_list().items;
  interpreter.charge_value(self);
  if (Count) return static_cast<int64_t>(std::count(items.begin(), items.end(), wanted));
  const auto found = std::find(items.begin(), items.end(), wanted);
  if (found == items.end()) template_fault("the value is not in the list");
  return static_cast<int64_t>(found - items.begin());
}

constexpr NamedCall kListMethods[] = {
    {"index", list_index_or_count<false>}, {"count", list_index_or_count<true>}, {"copy", copy}};

Value cycle(Interpreter&, const Value& self, Arguments& arguments) {
  if (arguments.positional.empty() || !arguments.named.empty())
    template_fault("no items for cycling given");
  return arguments.positional[self.as_loop().index % arguments.positional.size()];
}

Value loop_changed(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  if (!arguments.named.empty()) template_fault("loop.changed() takes no keyword arguments");
  LoopState& loop = self.as_loop();
  Value now = Value::list(arguments.positional, List::Kind::kTuple);
  if (now.depth() >= Value::kMaxDepth) template_fault("values nested too deep for a loop");
  const bool same = loop.has_changed && loop.last_changed == now;
  if (!loop.has_changed) interpreter.keep_changed_loop(self);
  loop.has_changed = true;
  loop.depth = std::max(loop.depth, now.depth() + 1);
  loop.last_changed = std::move(now);
  return !same;
}

constexpr NamedCall kLoopMethods[] = {{"cycle", cycle}, {"changed", loop_changed}};

// Null where it has none of that name.
const NamedCall* find_method(const Value& object, std::string_view name) {
  if (object.is_string()) return find_entry<NamedCall>(kStringMethods, name);
  if (object.is_dict()) return find_entry<NamedCall>(kDictMethods, name);
  if (object.is_loop()) return find_entry<NamedCall>(kLoopMethods, name);
  return object.is_sequence() ? find_entry<NamedCall>(kListMethods, name) : nullptr;
}

// A |safe string makes |safe strings, and escapes what it takes in: what needs that is refused.
Value call_on_safe_string(Interpreter& interpreter, const Value& object, const std::string& name,
                          Arguments& arguments) {
  bool escapes = name == "format" || name == "join";
  for (const Value& value : arguments.positional)
    escapes = escapes || (name == "replace" && value.is_string() && !value.str().safe &&
                          value.text().find_first_of("<>&'\"") != std::string::npos);
  if (escapes) unsupported("'" + name + "' of a |safe string");
  const Value result = find_method(object, name)->call(interpreter, object, arguments);
  if (result.is_string()) return Value(result.text(), true);
  if (!result.is_list()) return result;
  std::vector<Value> items;
  for (const Value& item : result.as_list().items) items.emplace_back(item.text(), true);
  return Value::list(std::move(items), result.as_list().kind);
}

template <size_t N>
bool is_one_of(const std::string_view (&names)[N], std::string_view name) {
  return std::ranges::find(names, name) != std::end(names);
}

// Python names the arguments of few methods; the loop's own say so themselves.
void expect_takes_named_arguments(const Value& object, const std::string& name) {
  constexpr std::string_view kNaming[] = {"split", "rsplit", "splitlines", "format"};
  if (!object.is_loop() && !is_one_of(kNaming, name))
    template_fault(object.type_name() + "." + name + "() takes no keyword arguments");
}

}  // namespace

bool has_method(const Value& object, const std::string& name) {
  return find_method(object, name) != nullptr;
}

Value call_method(Interpreter& interpreter, const Value& object, const std::string& name,
                  Arguments& arguments) {
  if (object.is_string()) interpreter.charge_value(object);
  interpreter.charge_arguments(arguments);
  if (!arguments.named.empty()) expect_takes_named_arguments(object, name);
  if (object.is_string() && object.str().safe)
    return call_on_safe_string(interpreter, object, name, arguments);
  return find_method(object, name)->call(interpreter, object, arguments);
}

// What Python has and the sandbox forbids or this interpreter lacks: it would print nothing.
void check_attribute(const Value& object, const std::string& name) {
  constexpr std::string_view kForbiddenOfLists[] = {"append", "clear",      "extend",  "insert",
                                                    "pop",    "remove",     "reverse", "sort",
                                                    "update", "setdefault", "popitem"};
  constexpr std::string_view kForbiddenOfDicts[] = {"clear", "pop", "popitem", "setdefault",
                                                    "update"};
  constexpr std::string_view kMissing[] = {"casefold", "encode",       "expandtabs",  "format_map",
                                           "isascii",  "isidentifier", "isprintable", "istitle",
                                           "swapcase", "translate",    "maketrans",   "fromkeys"};
  if ((object.is_sequence() && is_one_of(kForbiddenOfLists, name)) ||
      (object.is_dict() && is_one_of(kForbiddenOfDicts, name)))
    template_fault("access to attribute '" + name + "' of '" + object.type_name() +
                   "' object is unsafe.");
  if ((object.is_string() || (object.is_dict() && name == "fromkeys")) && is_one_of(kMissing, name))
    unsupported("the method '" + name + "' of " + object.type_name());
}

Value bind_method(const Value& object, const std::string& name) {
  auto function = std::make_shared<Function>();
  function->name = name;
  function->depth = object.depth() + 1;
  if (function->depth > Value::kMaxDepth) template_fault("values nested too deep for a method");
  function->call = [object, name](Interpreter& interpreter, Arguments& arguments) {
    return call_method(interpreter, object, name, arguments);
  };
  return function;
}

}  // namespace strata::text
