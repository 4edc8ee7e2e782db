// SPDX-License-Identifier: Apache-2.0
// The functions that a template finds: range, dict, namespace, raise_exception, strftime_now.
#include <ctime>

#include "text/jinja/argument_reader.h"
#include "text/jinja/interpreter.h"

namespace strata::text {
namespace {

constexpr int64_t kMaxRange = 100'000;  // jinja2's sandbox

struct RangeBounds {
  int64_t begin, end, step;
};

RangeBounds read_range_bounds(const Arguments& arguments) {
  if (!arguments.named.empty() || arguments.positional.empty() || arguments.positional.size() > 3)
    template_fault("range expected 1 to 3 arguments");
  int64_t bounds[3] = {0, 0, 1};
  const size_t count = arguments.positional.size();
  for (size_t i = 0; i < count; ++i) {
    const Value& value = arguments.positional[i];
    if (value.is_undefined()) template_fault(value.undefined_message());
    if (!value.is_int() && !value.is_bool())
      template_fault("'" + value.type_name() + "' object cannot be interpreted as an integer");
    bounds[count == 1 ? 1 : i] = value.as_int();
  }
  if (bounds[2] == 0) template_fault("range() arg 3 must not be zero");
  return {bounds[0], bounds[1], bounds[2]};
}

Value range(Interpreter& interpreter, Arguments& arguments) {
  const auto [begin, end, step] = read_range_bounds(arguments);
  std::vector<Value> items;
  for (__int128 i = begin; step > 0 ? i < end : i > end; i += step) {
    if (static_cast<int64_t>(items.size()) == kMaxRange)
      template_fault("Range too big. The sandbox blocks ranges larger than MAX_RANGE (" +
                     std::to_string(kMaxRange) + ").");
    interpreter.charge(4);
    items.emplace_back(static_cast<int64_t>(i));
  }
  std::string printed = "range(" + std::to_string(begin) + ", " + std::to_string(end);
  if (step != 1) printed += ", " + std::to_string(step);
  return Value::list(std::move(items), List::Kind::kRange, printed + ")");
}

// dict(mapping or pairs, name=value, ...)
Value make_dict(Interpreter& interpreter, Arguments& arguments) {
  auto dict = std::make_shared<Dict>();
  const auto set = [&](const Value& key, const Value& value) {
    interpreter.charge(4);
    interpreter.charge_value(key);
    dict->set(key, value);
  };
  if (arguments.positional.size() > 1) template_fault("dict expected at most 1 argument");
  if (!arguments.positional.empty()) {
    const Value& given = arguments.positional[0];
    if (given.is_dict()) {
      for (const auto& [key, value] : given.as_dict().items) set(key, value);
    } else if (!given.is_undefined()) {
      for (const Value& pair : interpreter.collect_items(given)) {
        const auto parts = interpreter.collect_items(pair);
        if (parts.size() != 2) template_fault("dict: each item must be a pair");
        set(parts[0], parts[1]);
      }
    }
  }
  for (const auto& [key, value] : arguments.named) set(key, value);
  return dict;
}

Value make_namespace(Interpreter& interpreter, Arguments& arguments) {
  const Value attributes = make_dict(interpreter, arguments);
  auto names = interpreter.make_namespace();
  for (const auto& [key, value] : attributes.as_dict().items) {
    if (!key.is_string()) template_fault("the attributes of a namespace are named by strings");
    if (key.text().starts_with('_'))
      template_fault("cannot store the underscore-prefixed attribute '" + key.text() + "'");
    names->items.emplace(key.text(), value);
  }
  return names;
}

Value raise_exception(Interpreter&, Arguments& arguments) {
  ArgumentReader reader("raise_exception()", arguments);
  const Value message = reader.next_required("message");
  reader.expect_no_more();
  template_fault(to_text(message));
}

// "2026-01-31", "2026-01-31T12:30:00" or "2026-01-31 12:30"; empty: the local clock.
std::tm resolve_now(const std::string& now) {
  std::tm time{};
  if (now.empty()) {
    const std::time_t clock = std::time(nullptr);
    localtime_r(&clock, &time);
    return time;
  }
  const char* rest = strptime(now.c_str(), "%Y-%m-%d", &time);
  if (rest != nullptr && (*rest == 'T' || *rest == ' ')) {
    const char* seconds = strptime(rest + 1, "%H:%M:%S", &time);
    rest = seconds != nullptr ? seconds : strptime(rest + 1, "%H:%M", &time);
  }
  if (rest == nullptr || *rest != '\0')
    template_fault("now: got '" + now + "', wanted a date like 2026-01-31");
  time.tm_isdst = -1;
  mktime(&time);  // fills in the day of the week and of the year
  return time;
}

Value strftime_now(Interpreter& interpreter, Arguments& arguments) {
  ArgumentReader reader("strftime_now()", arguments);
  const Value format = reader.next_required("format");
  reader.expect_no_more();
  if (!format.is_string()) template_fault("strftime_now() needs a str");
  if (format.text().size() > 1000) template_fault("strftime_now(): the format is too long");
  const std::tm time = resolve_now(interpreter.read_clock());
  // A leading blank tells an empty result from a full buffer.
  std::string buffer(64 << 10, '\0');
  const size_t size =
      std::strftime(buffer.data(), buffer.size(), (" " + format.text()).c_str(), &time);
  if (size == 0) template_fault("strftime_now(): the format is too long");
  return buffer.substr(1, size - 1);
}

Value make_function(const std::string& name, Value (*call)(Interpreter&, Arguments&)) {
  auto function = std::make_shared<Function>();
  function->name = name;
  function->call = call;
  return function;
}

}  // namespace

Value find_global(const std::string& name) {
  if (name == "range") return make_function(name, range);
  if (name == "dict") return make_function(name, make_dict);
  if (name == "namespace") return make_function(name, make_namespace);
  if (name == "raise_exception") return make_function(name, raise_exception);
  if (name == "strftime_now") return make_function(name, strftime_now);
  return Value::undefined("'" + name + "' is undefined");
}

}  // namespace strata::text
