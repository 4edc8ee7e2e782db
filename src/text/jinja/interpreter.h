// SPDX-License-Identifier: Apache-2.0
// Interpreter: runs a chat template's tree, with the meaning of jinja2's
// ImmutableSandboxedEnvironment as Hugging Face transformers sets it up. Bounded: kMaxSteps (one a
// node, one for kBytesRead bytes read or kBytesMade bytes made, four for an item of a list),
// kMaxOutputBytes, kMaxCalls nested evaluations. Faults are Errors that name the line. One use:
// construct, render, destroy. One thread.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "text/jinja/ast.h"
#include "text/jinja/value.h"

namespace strata::text {

// Names and values of one block; an inner scope sees the outer ones and writes to itself.
struct Scope {
  std::shared_ptr<Scope> parent;
  std::unordered_map<std::string, Value> names;
};

// The variable `loop`.
struct LoopState {
  std::vector<Value> items;
  size_t index = 0;
  int level = 0;                    // of recursive loops
  const Statement* loop = nullptr;  // to call it again; null unless recursive
  std::shared_ptr<Scope> scope;     // where it stands
  Value last_changed;
  bool has_changed = false;
  int depth = 1;
};

class Interpreter {
 public:
  static constexpr int64_t kMaxSteps = 20'000'000;
  static constexpr int64_t kBytesRead = 64;
  static constexpr int64_t kBytesMade = 16;
  static constexpr size_t kMaxOutputBytes = size_t{64} << 20;
  static constexpr int kMaxCalls = 800;

  // `now` fixes strftime_now: "2026-01-31", a time behind 'T' or a blank if wanted; empty: the
  // clock.
  explicit Interpreter(std::string now);
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  std::string render(const Block& program, std::vector<std::pair<std::string, Value>> variables);

  // For filters, tests, methods and functions.
  void charge(int64_t steps);
  void charge_value(const Value& value) { charge(value.weight() / kBytesRead + 1); }
  void charge_items(int64_t count) { charge(count > kMaxSteps ? count : count * 4); }
  void charge_made(int64_t bytes) { charge(bytes / kBytesMade + 1); }
  // Each of them as a value that is read, by position and by name.
  void charge_arguments(const Arguments& arguments);
  // py_split and py_splitlines, whose parts are items: they make no more than steps are left for.
  std::vector<std::string> split(std::string_view text, std::string_view separator,
                                 int64_t max_splits = -1, bool from_right = false);
  std::vector<std::string> split_lines(std::string_view text, bool keep_ends);
  Value call(const Value& callee, Arguments& arguments);
  Value get_attribute(const Value& object, const std::string& name);
  Value get_item(const Value& object, const Value& index);
  // The items that a loop over `value` sees; a generator is then used up.
  std::vector<Value> collect_items(const Value& value);
  bool contains(const Value& container, const Value& value);
  // a op b, of: in, not in, ==, !=, <, <=, >, >=.
  bool comparison_holds(const std::string& op, const Value& a, const Value& b);
  Value apply_filter(const std::string& name, const Value& value, Arguments& arguments);
  bool apply_test(const std::string& name, const Value& value, Arguments& arguments);
  Value apply_binary(const std::string& op, const Value& a, const Value& b);
  std::shared_ptr<Namespace> make_namespace();
  // Keeps a loop whose changed() was given a value, which may be the loop itself.
  void keep_changed_loop(const Value& loop) { changed_loops_.push_back(loop); }
  // For strftime_now.
  const std::string& read_clock() {
    has_read_clock_ = true;
    return now_;
  }
  // Whether what was rendered called strftime_now, and the bytes that its {% generation %} blocks
  // wrote into the text, begin and end. Those inside macros and other blocks have none.
  [[nodiscard]] bool has_read_clock() const { return has_read_clock_; }
  [[nodiscard]] std::vector<std::pair<size_t, size_t>> take_generated() {
    return std::move(generated_);
  }

 private:
  enum class Flow { kNormal, kBreak, kContinue };
  using ScopePtr = std::shared_ptr<Scope>;
  // Counts nested evaluations, so that neither a macro nor a tree can use up the stack.
  struct Nested {
    explicit Nested(Interpreter& in);
    ~Nested() { --interpreter.calls_; }
    Nested(const Nested&) = delete;
    Nested& operator=(const Nested&) = delete;
    Interpreter& interpreter;
  };

  Flow run_block(const Block& block, const ScopePtr& scope, std::string& out);
  Flow run_statement(const Statement& statement, const ScopePtr& scope, std::string& out);
  Flow run_if(const Statement& statement, const ScopePtr& scope, std::string& out);
  Flow run_for(const Statement& statement, const ScopePtr& scope, const Value& items, int level,
               std::string& out);
  std::shared_ptr<LoopState> make_loop_state(const Statement& statement, const ScopePtr& scope,
                                             const Value& items);
  Flow run_captured_block(const Statement& statement, const ScopePtr& scope, std::string& out);
  Flow run_with(const Statement& statement, const ScopePtr& scope, std::string& out);
  void run_call_block(const Statement& statement, const ScopePtr& scope, std::string& out);
  void assign(const Target& target, const Value& value, Scope& names, const ScopePtr& lookup);
  void assign_attribute(const Target& target, const Value& value, const ScopePtr& lookup);
  Value make_macro(const Statement& statement, const std::string& name, const ScopePtr& scope);
  void bind_arguments(const Statement& macro, const std::string& name, Arguments& arguments,
                      const ScopePtr& inner);
  void bind_fallbacks(const std::vector<const Parameter*>& missing, const ScopePtr& inner);
  std::string call_macro(const Statement& statement, const std::string& name, const ScopePtr& scope,
                         Arguments& arguments);
  void append_output(std::string_view text, std::string& out);
  // What a call or filter block gives: only text, where {{ }} takes any value.
  void append_block_output(const Value& value, std::string& out);

  Value evaluate(const Expression& node, const ScopePtr& scope);
  Value evaluate_name(const Expression& node, const ScopePtr& scope);
  Value evaluate_list(const Expression& node, const ScopePtr& scope);
  Value evaluate_concat(const Expression& node, const ScopePtr& scope);
  Value evaluate_filter_or_test(const Expression& node, const ScopePtr& scope);
  Value evaluate_dict(const Expression& node, const ScopePtr& scope);
  Value evaluate_compare(const Expression& node, const ScopePtr& scope);
  Value evaluate_item(const Expression& node, const ScopePtr& scope);
  Value evaluate_slice(const Expression& node, const Value& object, const ScopePtr& scope);
  Value evaluate_call(const Expression& node, const ScopePtr& scope);
  Arguments evaluate_arguments(const CallArguments& arguments, const ScopePtr& scope);
  Value call_loop(LoopState& loop, Arguments& arguments);
  void charge_repeat(const Value& repeated, int64_t count);

  std::string now_;
  bool has_read_clock_ = false;
  const std::string* rendered_ = nullptr;  // what render() returns
  std::vector<std::pair<size_t, size_t>> generated_;
  // How often a text may be cut: charging for one more is a fault.
  [[nodiscard]] int64_t max_splits() const { return steps_left_ / 4 + 1; }

  int64_t steps_left_ = kMaxSteps;
  int calls_ = 0;
  int line_ = 1;
  // Scopes that macros hold, namespaces and what loops were told may refer to themselves: they are
  // emptied at the end.
  std::vector<ScopePtr> captured_;
  std::vector<std::shared_ptr<Namespace>> namespaces_;
  std::vector<Value> changed_loops_;
};

// methods.cc: methods of str, dict, list and tuple.
bool has_method(const Value& object, const std::string& name);
Value call_method(Interpreter& interpreter, const Value& object, const std::string& name,
                  Arguments& arguments);
Value bind_method(const Value& object, const std::string& name);
// An Error when Python has this attribute and the sandbox or this interpreter does not.
void check_attribute(const Value& object, const std::string& name);
// globals.cc: range, dict, namespace, raise_exception, strftime_now; else undefined.
Value find_global(const std::string& name);
// format.cc: text % values, and str.format.
std::string format_percent(Interpreter& interpreter, const std::string& format,
                           const Value& values);
std::string format_braces(Interpreter& interpreter, const std::string& format,
                          Arguments& arguments);
// filters.cc and tests.cc.
bool has_filter(const std::string& name);
bool has_test(const std::string& name);

}  // namespace strata::text
