// SPDX-License-Identifier: Apache-2.0
// Value: what a chat template computes with, with Python's meaning: None, bool, int, float, str,
// list, tuple, dict, and jinja2's undefined, namespaces, loops and callables. Lists and dicts never
// change once made (the sandbox that templates are written for forbids it), so copies share them.
// One thread.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

namespace strata::text {

class Interpreter;
class Value;
struct Dict;
struct LoopState;

struct Undefined {
  std::string message;  // "'x' is undefined"
};
struct None {};

struct Str {
  std::string text;   // valid UTF-8
  bool safe = false;  // went through |safe
};

// list, tuple, and the iterables that are not lists: a generator can be read once, a view and a
// range have a length but print otherwise.
struct List {
  enum class Kind { kList, kTuple, kGenerator, kView, kRange };
  std::vector<Value> items;
  Kind kind = Kind::kList;
  std::string printed;           // kGenerator, kRange: how it prints; kView: dict_items, ...
  std::shared_ptr<Dict> set_of;  // kView of keys() or items(), which Python has as sets
  bool consumed = false;         // kGenerator
  int depth = 1;
  int64_t weight = 1;
};

struct Dict {
  std::vector<std::pair<Value, Value>> items;       // in order of insertion
  std::unordered_multimap<size_t, size_t> by_hash;  // where in items; not of nan
  int depth = 1;
  int64_t weight = 1;

  [[nodiscard]] const Value* find(const Value& key) const;
  [[nodiscard]] const Value* find(std::string_view key) const;
  void set(Value key, Value value);
};

struct Namespace {
  std::unordered_map<std::string, Value> items;
};

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

struct Function {
  std::string name;
  std::function<Value(Interpreter&, Arguments&)> call;
  int depth = 0;  // of what it is bound to, plus one
  bool is_macro = false;
};

class Value {
 public:
  // How deep lists and dicts may nest, so that recursion over a value is bounded.
  static constexpr int kMaxDepth = 200;
  // What a value may weigh: one for each item and byte, shared parts counted each time they are
  // met. Reading, comparing or printing it costs no more than a few times that.
  static constexpr int64_t kMaxWeight = int64_t{1} << 28;

  Value() : data_(None{}) {}
  Value(bool value) : data_(value) {}         // NOLINT: implicit like literals
  Value(int64_t value) : data_(value) {}      // NOLINT
  Value(double value) : data_(value) {}       // NOLINT
  Value(std::string text, bool safe = false)  // NOLINT
      : data_(std::make_shared<const Str>(Str{std::move(text), safe})) {}
  Value(std::string_view text) : Value(std::string(text)) {}                 // NOLINT
  Value(const char* text) : Value(std::string(text)) {}                      // NOLINT
  Value(std::shared_ptr<List> list) : data_(std::move(list)) {}              // NOLINT
  Value(std::shared_ptr<Dict> dict) : data_(std::move(dict)) {}              // NOLINT
  Value(std::shared_ptr<Namespace> names) : data_(std::move(names)) {}       // NOLINT
  Value(std::shared_ptr<LoopState> loop) : data_(std::move(loop)) {}         // NOLINT
  Value(std::shared_ptr<Function> function) : data_(std::move(function)) {}  // NOLINT
  static Value undefined(std::string message);
  static Value list(std::vector<Value> items, List::Kind kind = List::Kind::kList,
                    std::string printed = {});
  // The view that a dict's keys() or items() are.
  static Value make_set_view(const Value& dict, std::vector<Value> items, std::string printed);
  static Value dict(std::vector<std::pair<Value, Value>> items);
  // From JSON text; `where` names it in messages.
  static Value from_json(std::string_view json, const std::string& where);

  [[nodiscard]] bool is_undefined() const { return holds<std::shared_ptr<const Undefined>>(); }
  [[nodiscard]] bool is_none() const { return holds<None>(); }
  [[nodiscard]] bool is_bool() const { return holds<bool>(); }
  [[nodiscard]] bool is_int() const { return holds<int64_t>(); }
  [[nodiscard]] bool is_float() const { return holds<double>(); }
  [[nodiscard]] bool is_number() const { return is_bool() || is_int() || is_float(); }
  [[nodiscard]] bool is_string() const { return holds<std::shared_ptr<const Str>>(); }
  [[nodiscard]] bool is_list() const { return holds<std::shared_ptr<List>>(); }
  [[nodiscard]] bool is_dict() const { return holds<std::shared_ptr<Dict>>(); }
  [[nodiscard]] bool is_namespace() const { return holds<std::shared_ptr<Namespace>>(); }
  [[nodiscard]] bool is_loop() const { return holds<std::shared_ptr<LoopState>>(); }
  [[nodiscard]] bool is_function() const { return holds<std::shared_ptr<Function>>(); }
  // list or tuple, or something with a length and an order that can be indexed (range).
  [[nodiscard]] bool is_sequence() const;

  [[nodiscard]] bool as_bool() const { return std::get<bool>(data_); }
  [[nodiscard]] int64_t as_int() const;   // bool or int
  [[nodiscard]] double as_float() const;  // bool, int or float
  [[nodiscard]] const Str& str() const { return *std::get<std::shared_ptr<const Str>>(data_); }
  [[nodiscard]] const std::string& text() const { return str().text; }
  [[nodiscard]] List& as_list() const { return *std::get<std::shared_ptr<List>>(data_); }
  [[nodiscard]] Dict& as_dict() const { return *std::get<std::shared_ptr<Dict>>(data_); }
  [[nodiscard]] const std::shared_ptr<Namespace>& as_namespace() const {
    return std::get<std::shared_ptr<Namespace>>(data_);
  }
  [[nodiscard]] LoopState& as_loop() const { return *std::get<std::shared_ptr<LoopState>>(data_); }
  [[nodiscard]] Function& as_function() const {
    return *std::get<std::shared_ptr<Function>>(data_);
  }
  [[nodiscard]] const std::string& undefined_message() const {
    return std::get<std::shared_ptr<const Undefined>>(data_)->message;
  }

  [[nodiscard]] bool truthy() const;
  [[nodiscard]] std::string type_name() const;  // Python's
  [[nodiscard]] int depth() const;
  [[nodiscard]] int64_t weight() const;
  // Two names of one thing: `is sameas`.
  [[nodiscard]] bool is_same_object(const Value& other) const;
  // Python's ==, but for one nan in two lists: it has no place by which it would be known.
  bool operator==(const Value& other) const;
  // Equal values have equal hashes; a text's is that of its bytes.
  [[nodiscard]] size_t hash() const;

 private:
  // Where it is kept; null of what is no more than its value.
  [[nodiscard]] const void* address() const;
  template <typename T>
  [[nodiscard]] bool holds() const {
    return std::holds_alternative<T>(data_);
  }
  std::variant<None, bool, int64_t, double, std::shared_ptr<const Undefined>,
               std::shared_ptr<const Str>, std::shared_ptr<List>, std::shared_ptr<Dict>,
               std::shared_ptr<Namespace>, std::shared_ptr<LoopState>, std::shared_ptr<Function>>
      data_;
};

// -1, 0, 1; an Error when Python has no order for the two.
int compare(const Value& a, const Value& b);
// str(value) and repr(value).
std::string to_text(const Value& value);
std::string to_repr(const Value& value);
std::string float_text(double value);

struct JsonStyle {
  bool ascii = false;
  bool sort_keys = false;
  bool has_indent = false;
  std::string indent;
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};
// json.dumps; an Error for what it cannot write.
std::string to_json(const Value& value, const JsonStyle& style);

// A fault of the template or of its values; the interpreter adds the line.
[[noreturn]] void template_fault(const std::string& message);
[[noreturn]] void unsupported(const std::string& what);  // "what is not supported"
// Lists and dicts cannot be keys, nor can a tuple that holds one.
void expect_hashable(const Value& value);

}  // namespace strata::text
