// SPDX-License-Identifier: Apache-2.0
#include "text/jinja/interpreter.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/error.h"
#include "text/jinja/lexer.h"
#include "text/jinja/py_string.h"

namespace strata::text {
namespace {

std::shared_ptr<Scope> scope_in(const std::shared_ptr<Scope>& parent) {
  auto made = std::make_shared<Scope>();
  made->parent = parent;
  return made;
}

std::optional<Value> take_named(std::vector<std::pair<std::string, Value>>& named,
                                std::string_view name) {
  const auto found = std::find_if(named.begin(), named.end(),
                                  [&](const auto& item) { return item.first == name; });
  if (found == named.end()) return std::nullopt;
  Value value = std::move(found->second);
  named.erase(found);
  return value;
}

// Binds each parameter to what is given by position, or else by name, which is taken out of
// `named`. Returns those that are not given; they are bound to an undefined.
std::vector<const Parameter*> bind_parameters(const std::vector<Parameter>& parameters,
                                              std::vector<Value>& positional,
                                              std::vector<std::pair<std::string, Value>>& named,
                                              Scope& scope) {
  std::vector<const Parameter*> missing;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const std::string& name = parameters[i].name;
    std::optional<Value> value =
        i < positional.size() ? std::move(positional[i]) : take_named(named, name);
    if (!value) missing.push_back(&parameters[i]);
    scope.names[name] = value ? *std::move(value) : Value::undefined("'" + name + "' is undefined");
  }
  return missing;
}

// What is given by position and has no parameter.
std::vector<Value> behind_parameters(const std::vector<Parameter>& parameters,
                                     const std::vector<Value>& positional) {
  const size_t bound = std::min(parameters.size(), positional.size());
  return {positional.begin() + static_cast<int64_t>(bound), positional.end()};
}

[[noreturn]] void fail_unpacking(size_t got, size_t wanted) {
  const std::string expected = "values to unpack (expected " + std::to_string(wanted);
  template_fault(got < wanted ? "not enough " + expected + ", got " + std::to_string(got) + ")"
                              : "too many " + expected + ")");
}

}  // namespace

Interpreter::Nested::Nested(Interpreter& in) : interpreter(in) {
  if (interpreter.calls_ >= kMaxCalls) {
    throw Error(ErrorCode::kResourceExhausted, "more than " + std::to_string(kMaxCalls) +
                                                   " nested evaluations; endless recursion?");
  }
  ++interpreter.calls_;
}

Interpreter::Interpreter(std::string now) : now_(std::move(now)) {}

Interpreter::~Interpreter() {
  for (const auto& scope : captured_) scope->names.clear();
  for (const auto& names : namespaces_) names->items.clear();
  for (const Value& loop : changed_loops_) loop.as_loop().last_changed = {};
}

void Interpreter::charge(int64_t steps) {
  steps_left_ -= steps;
  if (steps_left_ < 0)
    throw Error(ErrorCode::kResourceExhausted,
                "more than " + std::to_string(kMaxSteps) + " steps; an endless template?");
}

void Interpreter::charge_arguments(const Arguments& arguments) {
  for (const Value& value : arguments.positional) charge_value(value);
  for (const auto& [name, value] : arguments.named) charge_value(value);
}

std::vector<std::string> Interpreter::split(std::string_view text, std::string_view separator,
                                            int64_t most, bool from_right) {
  if (most < 0) most = max_splits();
  auto parts = py_split(text, separator, std::min(most, max_splits()), from_right);
  charge_items(static_cast<int64_t>(parts.size()));
  return parts;
}

std::vector<std::string> Interpreter::split_lines(std::string_view text, bool keep_ends) {
  auto lines = py_splitlines(text, keep_ends, max_splits());
  charge_items(static_cast<int64_t>(lines.size()));
  return lines;
}

std::shared_ptr<Namespace> Interpreter::make_namespace() {
  charge(50);
  namespaces_.push_back(std::make_shared<Namespace>());
  return namespaces_.back();
}

void Interpreter::append_output(std::string_view text, std::string& out) {
  charge_made(static_cast<int64_t>(text.size()));
  if (out.size() + text.size() > kMaxOutputBytes)
    throw Error(ErrorCode::kResourceExhausted,
                "more than " + std::to_string(kMaxOutputBytes) + " bytes of output");
  out += text;
}

void Interpreter::append_block_output(const Value& value, std::string& out) {
  if (!value.is_string()) template_fault("a block must give str, not " + value.type_name());
  append_output(value.text(), out);
}

std::string Interpreter::render(const Block& program,
                                std::vector<std::pair<std::string, Value>> variables) {
  auto scope = std::make_shared<Scope>();
  captured_.push_back(scope);
  for (auto& [name, value] : variables) scope->names[name] = std::move(value);
  std::string out;
  rendered_ = &out;
  try {
    run_block(program, scope, out);
  } catch (const Error& error) {
    const std::string message = error.what();
    if (message.starts_with("chat template: ")) throw;
    throw Error(error.code, "chat template: line " + std::to_string(line_) + ": " + message);
  }
  return out;
}

Interpreter::Flow Interpreter::run_block(const Block& block, const ScopePtr& scope,
                                         std::string& out) {
  const Nested nested(*this);
  for (const Statement& statement : block) {
    const Flow flow = run_statement(statement, scope, out);
    if (flow != Flow::kNormal) return flow;
  }
  return Flow::kNormal;
}

Interpreter::Flow Interpreter::run_statement(const Statement& statement, const ScopePtr& scope,
                                             std::string& out) {
  using Kind = Statement::Kind;
  line_ = statement.line;
  charge(1);
  switch (statement.kind) {
    case Kind::kText:
      append_output(statement.text, out);
      break;
    case Kind::kPrint: {
      const Value value = evaluate(*statement.expression, scope);
      charge_value(value);
      append_output(to_text(value), out);
      break;
    }
    case Kind::kIf:
      return run_if(statement, scope, out);
    case Kind::kFor:
      return run_for(statement, scope, evaluate(*statement.expression, scope), 0, out);
    case Kind::kSet:
      assign(statement.target, evaluate(*statement.expression, scope), *scope, scope);
      break;
    case Kind::kSetBlock:
    case Kind::kFilterBlock:
    case Kind::kGeneration:
      return run_captured_block(statement, scope, out);
    case Kind::kMacro:
      scope->names[statement.name] = make_macro(statement, statement.name, scope);
      break;
    case Kind::kCallBlock:
      run_call_block(statement, scope, out);
      break;
    case Kind::kWith:
      return run_with(statement, scope, out);
    case Kind::kBreak:
      return Flow::kBreak;
    case Kind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNormal;
}

Interpreter::Flow Interpreter::run_if(const Statement& statement, const ScopePtr& scope,
                                      std::string& out) {
  for (const auto& [test, body] : statement.branches) {
    if (!test || evaluate(*test, scope).truthy()) return run_block(body, scope, out);
  }
  return Flow::kNormal;
}

// With the items that pass the loop's test.
std::shared_ptr<LoopState> Interpreter::make_loop_state(const Statement& statement,
                                                        const ScopePtr& scope, const Value& items) {
  auto loop = std::make_shared<LoopState>();
  for (Value& value : collect_items(items)) {
    if (statement.test) {
      const ScopePtr inner = scope_in(scope);
      assign(statement.target, value, *inner, inner);
      if (!evaluate(*statement.test, inner).truthy()) continue;
    }
    loop->depth = std::max(loop->depth, value.depth() + 1);
    loop->items.push_back(std::move(value));
  }
  if (loop->depth > Value::kMaxDepth) template_fault("values nested too deep for a loop");
  return loop;
}

// A break or continue of `else` is that of the loop around it.
Interpreter::Flow Interpreter::run_for(const Statement& statement, const ScopePtr& scope,
                                       const Value& items, int level, std::string& out) {
  const Nested nested(*this);
  const std::shared_ptr<LoopState> loop = make_loop_state(statement, scope, items);
  loop->level = level;
  loop->loop = statement.recursive ? &statement : nullptr;
  if (statement.recursive) loop->scope = scope;
  if (loop->items.empty()) return run_block(statement.otherwise, scope_in(scope), out);
  for (; loop->index < loop->items.size(); ++loop->index) {
    charge(1);
    const ScopePtr inner = scope_in(scope);
    inner->names["loop"] = loop;
    assign(statement.target, loop->items[loop->index], *inner, inner);
    if (run_block(statement.body, inner, out) == Flow::kBreak) break;
  }
  // A name that outlives the loop must not keep the scope that holds it.
  loop->scope.reset();
  return Flow::kNormal;
}

// A body whose text is used as a whole: of one that a break or continue leaves, nothing is.
Interpreter::Flow Interpreter::run_captured_block(const Statement& statement, const ScopePtr& scope,
                                                  std::string& out) {
  std::string text;
  const Flow flow = run_block(statement.body, scope_in(scope), text);
  if (flow != Flow::kNormal) return flow;
  Value value = std::move(text);
  if (statement.expression) {  // its filters
    const ScopePtr holder = scope_in(scope);
    holder->names[""] = std::move(value);
    value = evaluate(*statement.expression, holder);
  }
  if (statement.kind == Statement::Kind::kSetBlock) {
    assign(statement.target, value, *scope, scope);
  } else {
    const size_t begin = out.size();
    append_block_output(value, out);
    if (statement.kind == Statement::Kind::kGeneration && &out == rendered_)
      generated_.emplace_back(begin, out.size());
  }
  return Flow::kNormal;
}

Interpreter::Flow Interpreter::run_with(const Statement& statement, const ScopePtr& scope,
                                        std::string& out) {
  const ScopePtr inner = scope_in(scope);
  for (const auto& [target, expression] : statement.bindings)
    assign(target, evaluate(*expression, scope), *inner, scope);
  return run_block(statement.body, inner, out);
}

void Interpreter::run_call_block(const Statement& statement, const ScopePtr& scope,
                                 std::string& out) {
  const Expression& node = *statement.expression;
  const Value callee = evaluate(*node.parts[0], scope);
  Arguments arguments = evaluate_arguments(node.arguments, scope);
  arguments.named.emplace_back("caller", make_macro(statement, "caller", scope));
  append_block_output(call(callee, arguments), out);
}

void Interpreter::assign(const Target& target, const Value& value, Scope& names,
                         const ScopePtr& lookup) {
  if (!target.targets.empty()) {
    const std::vector<Value> values = collect_items(value);
    if (values.size() != target.targets.size())
      fail_unpacking(values.size(), target.targets.size());
    for (size_t i = 0; i < values.size(); ++i) assign(target.targets[i], values[i], names, lookup);
  } else if (target.attribute.empty()) {
    names.names[target.name] = value;
  } else {
    assign_attribute(target, value, lookup);
  }
}

void Interpreter::assign_attribute(const Target& target, const Value& value,
                                   const ScopePtr& lookup) {
  Expression name;
  name.kind = Expression::Kind::kName;
  name.line = line_;
  name.name = target.name;
  const Value object = evaluate_name(name, lookup);
  if (!object.is_namespace()) template_fault("cannot assign attribute on non-namespace object");
  if (target.attribute.starts_with('_'))
    template_fault("cannot store the underscore-prefixed attribute '" + target.attribute + "'");
  object.as_namespace()->items[target.attribute] = value;
}

Value Interpreter::make_macro(const Statement& statement, const std::string& name,
                              const ScopePtr& scope) {
  charge(50);
  captured_.push_back(scope);
  auto function = std::make_shared<Function>();
  function->name = name;
  function->is_macro = true;
  function->call = [&statement, name, scope](Interpreter& self, Arguments& arguments) -> Value {
    return self.call_macro(statement, name, scope, arguments);
  };
  return function;
}

// In the order of jinja2's Macro.__call__: parameters by position, those behind them by name; the
// caller; what is left by name, and by position. A fallback sees every parameter, of those that are
// not given the ones before it alone.
void Interpreter::bind_arguments(const Statement& macro, const std::string& name,
                                 Arguments& arguments, const ScopePtr& inner) {
  auto& names = inner->names;
  std::vector<std::pair<std::string, Value>> named = std::move(arguments.named);
  const std::vector<const Parameter*> missing =
      bind_parameters(macro.parameters, arguments.positional, named, *inner);
  if (macro.takes_caller && !names.contains("caller"))
    names["caller"] = take_named(named, "caller").value_or(Value::undefined("No caller defined"));
  if (macro.takes_rest_named && !names.contains("kwargs")) {
    names["kwargs"] = Value::dict({named.begin(), named.end()});
  } else if (!named.empty()) {
    template_fault("macro '" + name + "' takes no keyword argument '" + named.front().first + "'");
  }
  std::vector<Value> rest = behind_parameters(macro.parameters, arguments.positional);
  if (macro.takes_rest && !names.contains("varargs")) {
    names["varargs"] = Value::list(std::move(rest), List::Kind::kTuple);
  } else if (!rest.empty()) {
    template_fault("macro '" + name + "' takes not more than " +
                   std::to_string(macro.parameters.size()) + " argument(s)");
  }
  bind_fallbacks(missing, inner);
}

void Interpreter::bind_fallbacks(const std::vector<const Parameter*>& missing,
                                 const ScopePtr& inner) {
  for (const Parameter* parameter : missing) {
    inner->names[parameter->name] =
        parameter->fallback
            ? evaluate(*parameter->fallback, inner)
            : Value::undefined("parameter '" + parameter->name + "' was not provided");
  }
}

std::string Interpreter::call_macro(const Statement& statement, const std::string& name,
                                    const ScopePtr& scope, Arguments& arguments) {
  const Nested nested(*this);
  // Each parameter looks through the names that are given.
  charge_items(static_cast<int64_t>(statement.parameters.size()) *
               (1 + static_cast<int64_t>(arguments.named.size()) / kBytesRead));
  const ScopePtr inner = scope_in(scope);
  bind_arguments(statement, name, arguments, inner);
  const int line = line_;
  std::string out;
  run_block(statement.body, inner, out);
  line_ = line;
  return out;
}

Value Interpreter::call(const Value& callee, Arguments& arguments) {
  const Nested nested(*this);
  charge(2);
  if (callee.is_undefined()) template_fault(callee.undefined_message());
  if (callee.is_loop()) return call_loop(callee.as_loop(), arguments);
  if (!callee.is_function()) template_fault("'" + callee.type_name() + "' object is not callable");
  // A copy: the call may replace the variable that holds the function.
  const auto function = callee;
  return function.as_function().call(*this, arguments);
}

Value Interpreter::call_loop(LoopState& loop, Arguments& arguments) {
  if (loop.loop == nullptr || !loop.scope)
    template_fault("The loop must have the 'recursive' marker to be called recursively.");
  if (arguments.positional.size() != 1 || !arguments.named.empty())
    template_fault("loop() takes one argument");
  std::string out;
  // The parser lets no break out of such a loop.
  static_cast<void>(
      run_for(*loop.loop, ScopePtr(loop.scope), arguments.positional[0], loop.level + 1, out));
  return out;
}

}  // namespace strata::text
