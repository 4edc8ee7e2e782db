// SPDX-License-Identifier: Apache-2.0
// Tests: what stands behind `is`.
#include <algorithm>

#include "base/error.h"
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
  ArgumentReader("this test", arguments).done();
  return (value.*Is)();
}

const Value& other(Arguments& arguments) {
  ArgumentReader reader("this test", arguments);
  const Value& value = reader.required("other");
  reader.done();
  return value;
}

int64_t remainder(Interpreter& interpreter, const Value& value, int64_t by) {
  const Value rest = interpreter.binary("%", value, by);
  return rest.is_number() ? (rest.as_float() == 0 ? 0 : 1) : 1;
}

bool is_even(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  ArgumentReader("even", arguments).done();
  return remainder(interpreter, value, 2) == 0;
}
bool is_odd(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  ArgumentReader("odd", arguments).done();
  const Value rest = interpreter.binary("%", value, int64_t{2});
  return rest.is_number() && rest.as_float() == 1;
}
bool is_divisible(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  const Value rest = interpreter.binary("%", value, other(arguments));
  return rest.is_number() && rest.as_float() == 0;
}

bool is_defined(Interpreter&, const Value& value, Arguments& arguments) {
  ArgumentReader("defined", arguments).done();
  return !value.is_undefined();
}
bool is_true(Interpreter&, const Value& value, Arguments& arguments) {
  ArgumentReader("true", arguments).done();
  return value.is_bool() && value.as_bool();
}
bool is_false(Interpreter&, const Value& value, Arguments& arguments) {
  ArgumentReader("false", arguments).done();
  return value.is_bool() && !value.as_bool();
}
bool is_sequence(Interpreter&, const Value& value, Arguments& arguments) {
  ArgumentReader("sequence", arguments).done();
  return value.is_string() || value.is_dict() || value.is_sequence() || value.is_undefined();
}
bool is_iterable(Interpreter&, const Value& value, Arguments& arguments) {
  ArgumentReader("iterable", arguments).done();
  return value.is_string() || value.is_dict() || value.is_list() || value.is_undefined() ||
         value.is_loop();
}
bool is_callable(Interpreter&, const Value& value, Arguments& arguments) {
  ArgumentReader("callable", arguments).done();
  return value.is_function() || value.is_loop() || value.is_undefined();
}
bool is_same(Interpreter&, const Value& value, Arguments& arguments) {
  return value.same(other(arguments));
}
bool is_in(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  return interpreter.contains(other(arguments), value);
}
bool is_equal(Interpreter&, const Value& value, Arguments& arguments) {
  return value == other(arguments);
}
bool is_not_equal(Interpreter&, const Value& value, Arguments& arguments) {
  return !(value == other(arguments));
}
bool is_less(Interpreter&, const Value& value, Arguments& arguments) {
  return compare(value, other(arguments)) < 0;
}
bool is_at_most(Interpreter&, const Value& value, Arguments& arguments) {
  return compare(value, other(arguments)) <= 0;
}
bool is_greater(Interpreter&, const Value& value, Arguments& arguments) {
  return compare(value, other(arguments)) > 0;
}
bool is_at_least(Interpreter&, const Value& value, Arguments& arguments) {
  return compare(value, other(arguments)) >= 0;
}
template <CharTest Case>
bool is_case(Interpreter&, const Value& value, Arguments& arguments) {
  ArgumentReader("lower", arguments).done();
  return py_is(to_text(value), Case);
}
bool is_filter(Interpreter&, const Value& value, Arguments& arguments) {
  ArgumentReader("filter", arguments).done();
  expect_hashable(value);
  return value.is_string() && has_filter(value.text());
}
bool is_test(Interpreter&, const Value& value, Arguments& arguments) {
  ArgumentReader("test", arguments).done();
  expect_hashable(value);
  return value.is_string() && has_test(value.text());
}

constexpr Entry kTests[] = {
    {"boolean", is_type<&Value::is_bool>},
    {"callable", is_callable},
    {"defined", is_defined},
    {"divisibleby", is_divisible},
    {"==", is_equal},
    {"eq", is_equal},
    {"equalto", is_equal},
    {"even", is_even},
    {"false", is_false},
    {"filter", is_filter},
    {"float", is_type<&Value::is_float>},
    {">", is_greater},
    {"gt", is_greater},
    {"greaterthan", is_greater},
    {">=", is_at_least},
    {"ge", is_at_least},
    {"in", is_in},
    {"integer", is_type<&Value::is_int>},
    {"iterable", is_iterable},
    {"<", is_less},
    {"lt", is_less},
    {"lessthan", is_less},
    {"<=", is_at_most},
    {"le", is_at_most},
    {"lower", is_case<CharTest::kLower>},
    {"mapping", is_type<&Value::is_dict>},
    {"!=", is_not_equal},
    {"ne", is_not_equal},
    {"none", is_type<&Value::is_none>},
    {"number", is_type<&Value::is_number>},
    {"odd", is_odd},
    {"sameas", is_same},
    {"sequence", is_sequence},
    {"string", is_type<&Value::is_string>},
    {"test", is_test},
    {"true", is_true},
    {"undefined", is_type<&Value::is_undefined>},
    {"upper", is_case<CharTest::kUpper>},
};

}  // namespace

bool has_test(const std::string& name) { return find_entry<Entry>(kTests, name) != nullptr; }

bool Interpreter::test(const std::string& name, const Value& value, Arguments& arguments) {
  const Entry* entry = find_entry<Entry>(kTests, name);
  if (entry == nullptr)
    throw Error(ErrorCode::kUnsupported, "the test '" + name + "' is not supported");
  charge(1);
  for (const Value& argument : arguments.positional)
    charge(std::min(argument.weight(), value.weight()) / kBytesRead + 1);
  return entry->test(*this, value, arguments);
}

}  // namespace strata::text
