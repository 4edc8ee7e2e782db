// SPDX-License-Identifier: Apache-2.0
// Expressions.
#include <algorithm>
#include <cmath>
#include <optional>
#include <string_view>
#include <unordered_set>

#include "base/error.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/lexer.h"
#include "text/jinja/py_string.h"
#include "text/jinja/sequence.h"
#include "text/unicode/unicode.h"

namespace strata::text {
namespace {

using Kind = Expression::Kind;

[[noreturn]] void refuse_operands(const std::string& op, const Value& a, const Value& b) {
  for (const Value* value : {&a, &b})
    if (value->is_undefined()) template_fault(value->undefined_message());
  template_fault("unsupported operand type(s) for " + op + ": '" + a.type_name() + "' and '" +
                 b.type_name() + "'");
}

[[noreturn]] void too_large(const std::string& op) {
  throw Error(ErrorCode::kUnsupported, "the result of " + op + " does not fit 64 bits");
}

int64_t floor_divide(int64_t a, int64_t b) {
  const int64_t quotient = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

int64_t integer_power(int64_t base, int64_t exponent) {
  int64_t result = 1;
  for (; exponent > 0; exponent >>= 1) {
    if ((exponent & 1) != 0 && __builtin_mul_overflow(result, base, &result)) too_large("**");
    if (exponent > 1 && __builtin_mul_overflow(base, base, &base)) too_large("**");
  }
  return result;
}

Value apply_float_binary(const std::string& op, double a, double b) {
  if (op == "+") return a + b;
  if (op == "-") return a - b;
  if (op == "*") return a * b;
  if (op == "**") {
    const double power = std::pow(a, b);
    if (!std::isfinite(power) && std::isfinite(a) && std::isfinite(b))
      template_fault("the result of ** is not a finite real number");
    return power;
  }
  if (b == 0) template_fault("float division by zero");
  if (op == "/") return a / b;
  if (op == "//") return std::floor(a / b);
  const double rest = std::fmod(a, b);
  if (rest == 0) return std::copysign(0.0, b);
  return (rest < 0) != (b < 0) ? rest + b : rest;
}

Value apply_integer_binary(const std::string& op, int64_t a, int64_t b) {
  int64_t result = 0;
  bool overflow = false;
  if (op == "+") overflow = __builtin_add_overflow(a, b, &result);
  if (op == "-") overflow = __builtin_sub_overflow(a, b, &result);
  if (op == "*") overflow = __builtin_mul_overflow(a, b, &result);
  if (op == "**") {
    if (b < 0) return apply_float_binary(op, static_cast<double>(a), static_cast<double>(b));
    result = integer_power(a, b);
  }
  if (op == "/" || op == "//" || op == "%") {
    if (b == 0) template_fault("division by zero");
    if (op == "/") return static_cast<double>(a) / static_cast<double>(b);
    if (b == -1) {
      overflow = op == "//" && __builtin_sub_overflow(int64_t{0}, a, &result);
    } else {
      result = op == "//" ? floor_divide(a, b) : a - floor_divide(a, b) * b;
    }
  }
  if (overflow) too_large(op);
  return result;
}

bool needs_escape(std::string_view text) {
  return text.find_first_of("&<>'\"") != std::string_view::npos;
}

// A |safe string escapes what is added to it; only additions that need no escape are done.
Value add_strings(const Str& a, const Str& b) {
  if (a.safe != b.safe && needs_escape(a.safe ? b.text : a.text))
    unsupported("adding to a |safe string");
  return Value(a.text + b.text, a.safe || b.safe);
}

std::string object_name(const Value& object) {
  return object.is_none() ? "None" : "'" + object.type_name() + " object'";
}

// An attribute of `loop` that is a value; nothing where it has none of that name.
std::optional<Value> loop_attribute(const LoopState& loop, const std::string& name) {
  const auto index = static_cast<int64_t>(loop.index);
  const auto length = static_cast<int64_t>(loop.items.size());
  if (name == "index") return index + 1;
  if (name == "index0") return index;
  if (name == "revindex") return length - index;
  if (name == "revindex0") return length - index - 1;
  if (name == "first") return index == 0;
  if (name == "last") return index + 1 == length;
  if (name == "length") return length;
  if (name == "depth") return int64_t{loop.level} + 1;
  if (name == "depth0") return int64_t{loop.level};
  if (name == "previtem" && index > 0) return loop.items[loop.index - 1];
  if (name == "nextitem" && index + 1 < length) return loop.items[loop.index + 1];
  if (name == "previtem") return Value::undefined("there is no previous item");
  if (name == "nextitem") return Value::undefined("there is no next item");
  return std::nullopt;
}

}  // namespace

Value Interpreter::evaluate(const Expression& node, const ScopePtr& scope) {
  const Nested nested(*this);
  charge(1);
  line_ = node.line;
  const auto part = [&](size_t i) { return evaluate(*node.parts[i], scope); };
  switch (node.kind) {
    case Kind::kConst:
      return node.value;
    case Kind::kName:
      return evaluate_name(node, scope);
    case Kind::kList:
    case Kind::kTuple:
      return evaluate_list(node, scope);
    case Kind::kDict:
      return evaluate_dict(node, scope);
    case Kind::kNegate:
      return apply_binary("-", int64_t{0}, part(0));
    case Kind::kPlus:
      return apply_binary("+", int64_t{0}, part(0));
    case Kind::kNot:
      return !part(0).truthy();
    case Kind::kAnd:
    case Kind::kOr: {
      Value left = part(0);
      return left.truthy() == (node.kind == Kind::kAnd) ? part(1) : left;
    }
    case Kind::kBinary: {
      const Value left = part(0);
      const Value right = part(1);
      line_ = node.line;
      return apply_binary(node.name, left, right);
    }
    case Kind::kConcat:
      return evaluate_concat(node, scope);
    case Kind::kCompare:
      return evaluate_compare(node, scope);
    case Kind::kConditional:
      if (part(0).truthy()) return part(1);
      if (node.parts[2]) return part(2);
      return Value::undefined("the inline if-expression on line " + std::to_string(node.line) +
                              " evaluated to false and no else section was defined.");
    case Kind::kAttribute:
      return get_attribute(part(0), node.name);
    case Kind::kItem:
      return evaluate_item(node, scope);
    case Kind::kSlice:
      template_fault("a slice outside of a subscript");
    case Kind::kCall:
      return evaluate_call(node, scope);
    case Kind::kFilter:
    case Kind::kTest:
      return evaluate_filter_or_test(node, scope);
  }
  return {};
}

Value Interpreter::evaluate_name(const Expression& node, const ScopePtr& scope) {
  for (const Scope* at = scope.get(); at != nullptr; at = at->parent.get()) {
    const auto found = at->names.find(node.name);
    if (found != at->names.end()) return found->second;
  }
  for (const char* name : {"lipsum", "cycler", "joiner", "self"})
    if (node.name == name) template_unsupported(node.line, "the global '" + node.name + "'");
  return find_global(node.name);
}

Value Interpreter::evaluate_list(const Expression& node, const ScopePtr& scope) {
  charge_items(static_cast<int64_t>(node.parts.size()));
  std::vector<Value> items;
  for (const auto& item : node.parts) items.push_back(evaluate(*item, scope));
  return Value::list(std::move(items),
                     node.kind == Kind::kList ? List::Kind::kList : List::Kind::kTuple);
}

Value Interpreter::evaluate_concat(const Expression& node, const ScopePtr& scope) {
  std::string out;
  for (const auto& piece : node.parts) {
    const Value value = evaluate(*piece, scope);
    charge_value(value);
    append_output(to_text(value), out);
  }
  return out;
}

// What runs with the value before it: a filter gives another, a test says whether it holds.
Value Interpreter::evaluate_filter_or_test(const Expression& node, const ScopePtr& scope) {
  const Value value = node.parts[0] ? evaluate(*node.parts[0], scope) : scope->names[""];
  Arguments arguments = evaluate_arguments(node.arguments, scope);
  line_ = node.line;
  return node.kind == Kind::kFilter ? apply_filter(node.name, value, arguments)
                                    : apply_test(node.name, value, arguments);
}

Value Interpreter::evaluate_dict(const Expression& node, const ScopePtr& scope) {
  auto dict = std::make_shared<Dict>();
  for (size_t i = 0; i < node.parts.size(); i += 2) {
    Value key = evaluate(*node.parts[i], scope);
    charge(4);
    charge_value(key);
    dict->set(std::move(key), evaluate(*node.parts[i + 1], scope));
  }
  return dict;
}

bool Interpreter::contains(const Value& container, const Value& value) {
  charge_value(value);
  if (!container.is_dict()) charge_value(container);
  if (container.is_string()) {
    if (!value.is_string())
      template_fault("'in <string>' requires string as left operand, not " + value.type_name());
    return find_text(container.text(), value.text()) != std::string::npos;
  }
  if (container.is_dict()) {
    expect_hashable(value);
    return container.as_dict().find(value) != nullptr;
  }
  const std::vector<Value> items = collect_items(container);
  return std::any_of(items.begin(), items.end(), [&](const Value& item) { return item == value; });
}

bool Interpreter::comparison_holds(const std::string& op, const Value& a, const Value& b) {
  if (op == "in") return contains(b, a);
  if (op == "not in") return !contains(b, a);
  charge(std::min(a.weight(), b.weight()) / kBytesRead + 1);
  if (op == "==") return a == b;
  if (op == "!=") return !(a == b);
  if (a.is_number() && b.is_number() && (std::isnan(a.as_float()) || std::isnan(b.as_float())))
    return false;
  const int order = compare(a, b);
  if (op == "<") return order < 0;
  if (op == "<=") return order <= 0;
  if (op == ">") return order > 0;
  return order >= 0;
}

Value Interpreter::evaluate_compare(const Expression& node, const ScopePtr& scope) {
  Value left = evaluate(*node.parts[0], scope);
  for (size_t i = 0; i < node.operators.size(); ++i) {
    Value right = evaluate(*node.parts[i + 1], scope);
    line_ = node.line;
    if (!comparison_holds(node.operators[i], left, right)) return false;
    left = std::move(right);
  }
  return true;
}

void Interpreter::charge_repeat(const Value& repeated, int64_t count) {
  const int64_t size = repeated.is_string()
                           ? repeated.weight()
                           : static_cast<int64_t>(repeated.as_list().items.size()) * 64 + 1;
  if (count > kMaxSteps) charge(kMaxSteps + 1);
  charge_made(size * std::max<int64_t>(count, 0));
}

Value Interpreter::apply_binary(const std::string& op, const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    if (a.is_float() || b.is_float()) return apply_float_binary(op, a.as_float(), b.as_float());
    return apply_integer_binary(op, a.as_int(), b.as_int());
  }
  if (op == "+" && a.is_string() && b.is_string()) {
    charge_made(a.weight() + b.weight());
    return add_strings(a.str(), b.str());
  }
  if (op == "+" && is_list_or_tuple(a) && is_list_or_tuple(b) &&
      a.as_list().kind == b.as_list().kind) {
    charge_items(std::ssize(a.as_list().items) + std::ssize(b.as_list().items));
    return concat_lists(a.as_list(), b.as_list());
  }
  if (op == "%" && a.is_string()) {
    if (a.str().safe) unsupported("% of a |safe string");
    charge_value(a);
    charge_value(b);
    return format_percent(*this, a.text(), b);
  }
  const bool left = a.is_string() || is_list_or_tuple(a);
  const Value& repeated = left ? a : b;
  const Value& count = left ? b : a;
  if (op == "*" && (repeated.is_string() || is_list_or_tuple(repeated)) &&
      (count.is_int() || count.is_bool())) {
    charge_repeat(repeated, count.as_int());
    return repeat_value(repeated, count.as_int());
  }
  refuse_operands(op, a, b);
}

Value Interpreter::get_attribute(const Value& object, const std::string& name) {
  if (object.is_undefined()) template_fault(object.undefined_message());
  if (object.is_loop()) {
    // loop.cycle and loop.changed are methods, the rest are values.
    if (has_method(object, name)) return bind_method(object, name);
    if (auto value = loop_attribute(object.as_loop(), name)) return *std::move(value);
  } else if (object.is_namespace()) {
    const auto& items = object.as_namespace()->items;
    const auto found = items.find(name);
    if (found != items.end()) return found->second;
  } else if (object.is_function() && object.as_function().is_macro) {
    if (name == "name") return object.as_function().name;
    for (const char* other : {"arguments", "caller", "catch_kwargs", "catch_varargs"})
      if (name == other) template_unsupported(line_, "the attribute '" + name + "' of a macro");
  } else if (has_method(object, name)) {
    return bind_method(object, name);
  } else if (object.is_dict()) {
    if (const Value* found = object.as_dict().find(std::string_view(name))) return *found;
  }
  check_attribute(object, name);
  return Value::undefined(object_name(object) + " has no attribute '" + name + "'");
}

Value Interpreter::get_item(const Value& object, const Value& index) {
  if (object.is_undefined()) template_fault(object.undefined_message());
  charge_value(index);  // it is hashed, or told
  if (object.is_dict()) {
    if (const Value* found = object.as_dict().find(index)) return *found;
  }
  if ((index.is_int() || index.is_bool()) && (object.is_string() || object.is_sequence())) {
    if (object.is_string()) charge_value(object);
    if (auto found = element_at(object, index.as_int())) return *std::move(found);
  }
  if (index.is_string() && (!object.is_dict() || has_method(object, index.text())))
    return get_attribute(object, index.text());
  return Value::undefined(object_name(object) + " has no " +
                          (index.is_string() ? "attribute " : "element ") + to_repr(index));
}

Value Interpreter::evaluate_item(const Expression& node, const ScopePtr& scope) {
  const Value object = evaluate(*node.parts[0], scope);
  if (node.parts[1]->kind == Kind::kSlice) return evaluate_slice(*node.parts[1], object, scope);
  const Value index = evaluate(*node.parts[1], scope);
  line_ = node.line;
  return get_item(object, index);
}

namespace {

// Nothing of None. An index far outside is as good as any other there.
std::optional<int64_t> slice_index(const Value& value) {
  if (value.is_none()) return std::nullopt;
  if (!value.is_int() && !value.is_bool()) template_fault("slice indices must be integers or None");
  return std::clamp<int64_t>(value.as_int(), -(int64_t{1} << 40), int64_t{1} << 40);
}

}  // namespace

Value Interpreter::evaluate_slice(const Expression& node, const Value& object,
                                  const ScopePtr& scope) {
  if (object.is_undefined()) template_fault(object.undefined_message());
  std::optional<int64_t> indices[3];
  for (size_t i = 0; i < 3; ++i) {
    if (node.parts[i]) indices[i] = slice_index(evaluate(*node.parts[i], scope));
  }
  const auto& [begin, end, step] = indices;
  if (step == 0) template_fault("slice step cannot be zero");
  if (object.is_string()) charge_value(object);
  const auto cut = [&](int64_t size) {
    return py_slice_bounds(size, begin ? &*begin : nullptr, end ? &*end : nullptr,
                           step.value_or(1));
  };
  if (object.is_string())
    return py_slice_text(object.text(), cut(count_code_points(object.text())));
  // Unlike a subscript, a slice of what has none is a fault.
  if (!object.is_sequence())
    template_fault(object.is_dict() ? "unhashable type: 'slice'"
                                    : "'" + object.type_name() + "' object is not subscriptable");
  const SliceBounds slice = cut(std::ssize(object.as_list().items));
  charge_items(slice.count);
  return slice_list(object.as_list(), slice);
}

namespace {

void append_named(const Dict& more, Arguments& out) {
  for (const auto& [key, value] : more.items) {
    if (!key.is_string()) template_fault("keywords must be strings");
    out.named.emplace_back(key.text(), value);
  }
}

void refuse_repeated_names(const Arguments& arguments) {
  std::unordered_set<std::string_view> names;
  for (const auto& [name, value] : arguments.named) {
    if (!names.insert(name).second) template_fault("keyword argument repeated: " + name);
  }
}

}  // namespace

Arguments Interpreter::evaluate_arguments(const CallArguments& given, const ScopePtr& scope) {
  Arguments out;
  for (const auto& node : given.positional) out.positional.push_back(evaluate(*node, scope));
  for (const auto& [name, node] : given.named) out.named.emplace_back(name, evaluate(*node, scope));
  if (given.rest) {
    for (Value& value : collect_items(evaluate(*given.rest, scope)))
      out.positional.push_back(std::move(value));
  }
  if (given.rest_named) {
    const Value more = evaluate(*given.rest_named, scope);
    if (!more.is_dict()) template_fault("argument after ** must be a mapping");
    charge_value(more);
    append_named(more.as_dict(), out);
  }
  refuse_repeated_names(out);
  return out;
}

Value Interpreter::evaluate_call(const Expression& node, const ScopePtr& scope) {
  const Expression& callee = *node.parts[0];
  const bool is_member = callee.kind == Kind::kAttribute;
  const Value object = is_member ? evaluate(*callee.parts[0], scope) : Value();
  const bool is_method = is_member && has_method(object, callee.name);
  const Value function = is_method   ? Value()
                         : is_member ? get_attribute(object, callee.name)
                                     : evaluate(callee, scope);
  Arguments arguments = evaluate_arguments(node.arguments, scope);
  line_ = node.line;
  if (!is_method) return call(function, arguments);
  return call_method(*this, object, callee.name, arguments);
}

std::vector<Value> Interpreter::collect_items(const Value& value) {
  if (value.is_undefined()) return {};
  std::vector<Value> out;
  if (value.is_list()) {
    List& list = value.as_list();
    charge(static_cast<int64_t>(list.items.size()) + 1);
    if (list.kind == List::Kind::kGenerator && std::exchange(list.consumed, true)) return {};
    return list.items;
  }
  if (value.is_dict()) {
    charge(static_cast<int64_t>(value.as_dict().items.size()) + 1);
    for (const auto& item : value.as_dict().items) out.push_back(item.first);
    return out;
  }
  if (value.is_string()) {
    charge_items(static_cast<int64_t>(value.text().size()));
    return characters_of(value.text());
  }
  template_fault("'" + value.type_name() + "' object is not iterable");
}

}  // namespace strata::text
