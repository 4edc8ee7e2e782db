// SPDX-License-Identifier: Apache-2.0
// Tests: what stands behind `is`.
#include "text/jinja/filters.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/py_string.h"

namespace strata::text {
namespace {

using Test = bool (*)(Interpreter&, const Value&, Arguments&);
struct Entry {
  std::string_view name;
  Test test;
};

template <bool (Value::*Is)() const>
bool is_type(Interpreter&, const Value& value, Arguments& arguments) {
  expect_no_arguments("this test", arguments);
  return (value.*Is)();
}

// `name`: as jinja2 has it; "": it goes by its place alone.
const Value& read_single_argument(Arguments& arguments, const char* test, const char* name = "") {
  ArgumentReader reader(test, arguments);
  const Value& value = reader.next_required(name);
  reader.expect_no_more();
  return value;
}

// Whether value % by is a number, and that one.
bool has_remainder(Interpreter& interpreter, const Value& value, const Value& by, double rest) {
  const Value left = interpreter.apply_binary("%", value, by);
  return left.is_number() && left.as_float() == rest;
}

template <int Rest>
bool is_parity(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  expect_no_arguments(Rest == 0 ? "even" : "odd", arguments);
  return has_remainder(interpreter, value, int64_t{2}, Rest);
}
bool is_divisible(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  return has_remainder(interpreter, value, read_single_argument(arguments, "divisibleby", "num"),
                       0);
}

bool is_defined(Interpreter&, const Value& value, Arguments& arguments) {
  expect_no_arguments("defined", arguments);
  return !value.is_undefined();
}
template <bool Wanted>
bool is_exactly(Interpreter&, const Value& value, Arguments& arguments) {
  expect_no_arguments(Wanted ? "true" : "false", arguments);
  return value.is_bool() && value.as_bool() == Wanted;
}
bool is_sequence(Interpreter&, const Value& value, Arguments& arguments) {
  expect_no_arguments("sequence", arguments);
  return value.is_string() || value.is_dict() || value.is_sequence() || value.is_undefined();
}
bool is_iterable(Interpreter&, const Value& value, Arguments& arguments) {
  expect_no_arguments("iterable", arguments);
  return value.is_string() || value.is_dict() || value.is_list() || value.is_undefined() ||
         value.is_loop();
}
bool is_callable(Interpreter&, const Value& value, Arguments& arguments) {
  expect_no_arguments("callable", arguments);
  return value.is_function() || value.is_loop() || value.is_undefined();
}
bool is_same(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  interpreter.charge_value(value);
  return value.is_same_object(read_single_argument(arguments, "sameas", "other"));
}

constexpr char kIn[] = "in", kEqual[] = "==", kNotEqual[] = "!=", kLess[] = "<",
               kAtMost[] = "<=", kGreater[] = ">", kAtLeast[] = ">=";
template <const char* Op>
bool holds(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  const char* name = std::string_view(Op) == kIn ? "seq" : "";
  return interpreter.comparison_holds(Op, value, read_single_argument(arguments, Op, name));
}

template <CharTest Case>
bool is_case(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  expect_no_arguments("lower", arguments);
  return py_is_all(text_of(interpreter, value), Case);
}
template <bool (*Has)(const std::string&)>
bool is_known(Interpreter&, const Value& value, Arguments& arguments) {
  expect_no_arguments(Has == has_filter ? "filter" : "test", arguments);
  expect_hashable(value);
  return value.is_string() && Has(value.text());
}

constexpr Entry kTests[] = {
    {"boolean", is_type<&Value::is_bool>},
    {"callable", is_callable},
    {"defined", is_defined},
    {"divisibleby", is_divisible},
    {"==", holds<kEqual>},
    {"eq", holds<kEqual>},
    {"equalto", holds<kEqual>},
    {"even", is_parity<0>},
    {"false", is_exactly<false>},
    {"filter", is_known<has_filter>},
    {"float", is_type<&Value::is_float>},
    {">", holds<kGreater>},
    {"gt", holds<kGreater>},
    {"greaterthan", holds<kGreater>},
    {">=", holds<kAtLeast>},
    {"ge", holds<kAtLeast>},
    {"in", holds<kIn>},
    {"integer", is_type<&Value::is_int>},
    {"iterable", is_iterable},
    {"<", holds<kLess>},
    {"lt", holds<kLess>},
    {"lessthan", holds<kLess>},
    {"<=", holds<kAtMost>},
    {"le", holds<kAtMost>},
    {"lower", is_case<CharTest::kLower>},
    {"mapping", is_type<&Value::is_dict>},
    {"!=", holds<kNotEqual>},
    {"ne", holds<kNotEqual>},
    {"none", is_type<&Value::is_none>},
    {"number", is_type<&Value::is_number>},
    {"odd", is_parity<1>},
    {"sameas", is_same},
    {"sequence", is_sequence},
    {"string", is_type<&Value::is_string>},
    {"test", is_known<has_test>},
    {"true", is_exactly<true>},
    {"undefined", is_type<&Value::is_undefined>},
    {"upper", is_case<CharTest::kUpper>},
};

}  // namespace

bool has_test(const std::string& name) { return find_entry<Entry>(kTests, name) != nullptr; }

bool Interpreter::apply_test(const std::string& name, const Value& value, Arguments& arguments) {
  const Entry* entry = find_entry<Entry>(kTests, name);
  if (entry == nullptr) unsupported("the test '" + name + "'");
  // What reads a value charges for it; `select` copies the arguments for each item.
  charge(1 + static_cast<int64_t>(arguments.positional.size() + arguments.named.size()));
  return entry->test(*this, value, arguments);
}

}  // namespace strata::text
