// SPDX-License-Identifier: Apache-2.0
#include "text/jinja/value.h"

#include <algorithm>
#include <compare>

#include "base/error.h"
#include "text/jinja/interpreter.h"

namespace strata::text {

void template_fault(const std::string& message) {
  throw Error(ErrorCode::kInvalidArgument, message);
}
void unsupported(const std::string& what) {
  throw Error(ErrorCode::kUnsupported, what + " is not supported");
}

namespace {

int checked_depth_around(int inner) {
  if (inner + 1 > Value::kMaxDepth)
    template_fault("values nested more than " + std::to_string(Value::kMaxDepth) + " deep");
  return inner + 1;
}

int64_t checked_weight(int64_t weight) {
  if (weight > Value::kMaxWeight)
    throw Error(ErrorCode::kResourceExhausted,
                "a value of more than " + std::to_string(Value::kMaxWeight) + " items and bytes");
  return weight;
}

size_t hash_of(std::string_view text) { return std::hash<std::string_view>()(text); }

size_t hash_pair(size_t first, size_t second) { return (first ^ second) * 0x9E3779B97F4A7C15; }

bool has_order(const Value& a, const Value& b) {
  return (a.is_number() && b.is_number()) || (a.is_string() && b.is_string()) ||
         (a.is_sequence() && b.is_sequence() && a.as_list().kind == b.as_list().kind);
}

// Compares numbers without rounding: 2^53 + 1 is more than 2.0^53.
std::partial_ordering compare_numbers(const Value& a, const Value& b) {
  if (a.is_float() && b.is_float()) return a.as_float() <=> b.as_float();
  if (!a.is_float() && !b.is_float()) return a.as_int() <=> b.as_int();
  if (a.is_float()) return 0 <=> compare_numbers(b, a);
  const double x = a.as_float(), y = b.as_float();
  if (x != y) return x <=> y;  // rounding a number changes no order but to equal
  if (y == 0x1p63) return std::partial_ordering::less;
  return a.as_int() <=> static_cast<int64_t>(y);
}

bool has_pair(const Dict& dict, const Value& key, const Value& value) {
  const Value* found = dict.find(key);
  return found != nullptr && *found == value;
}

bool set_contains(const List& view, const Value& value) {
  if (view.printed == "dict_keys") return view.set_of->find(value) != nullptr;
  if (!value.is_list() || value.as_list().kind != List::Kind::kTuple) return false;
  const std::vector<Value>& pair = value.as_list().items;
  return pair.size() == 2 && has_pair(*view.set_of, pair[0], pair[1]);
}

// Sets have no order; values() is itself alone.
bool views_equal(const List& a, const List& b) {
  return a.set_of != nullptr && b.set_of != nullptr && a.items.size() == b.items.size() &&
         std::ranges::all_of(a.items, [&](const Value& item) { return set_contains(b, item); });
}

}  // namespace

const Value* Dict::find(std::string_view key) const {
  const auto [begin, end] = by_hash.equal_range(hash_of(key));
  for (auto at = begin; at != end; ++at) {
    const auto& [known, value] = items[at->second];
    if (known.is_string() && known.text() == key) return &value;
  }
  return nullptr;
}

const Value* Dict::find(const Value& key) const {
  if (key.is_string()) return find(std::string_view(key.text()));
  const auto [begin, end] = by_hash.equal_range(key.hash());
  for (auto at = begin; at != end; ++at)
    if (items[at->second].first == key) return &items[at->second].second;
  return nullptr;
}

void Dict::set(Value key, Value value) {
  if (key.is_list() && key.as_list().kind != List::Kind::kTuple)
    template_fault("unhashable type: '" + key.type_name() + "'");
  expect_hashable(key);
  depth = std::max(depth, checked_depth_around(std::max(key.depth(), value.depth())));
  weight = checked_weight(weight + key.weight() + value.weight());
  if (const Value* known = find(key)) {
    *const_cast<Value*>(known) = std::move(value);
    return;
  }
  if (key == key) by_hash.emplace(key.hash(), items.size());  // nan is never found
  items.emplace_back(std::move(key), std::move(value));
}

Value Value::undefined(std::string message) {
  Value out;
  out.data_ = std::make_shared<const Undefined>(Undefined{std::move(message)});
  return out;
}

Value Value::list(std::vector<Value> items, List::Kind kind, std::string printed) {
  auto list = std::make_shared<List>();
  int inner = 0;
  for (const Value& item : items) {
    inner = std::max(inner, item.depth());
    list->weight = checked_weight(list->weight + item.weight());
  }
  list->depth = checked_depth_around(inner);
  list->items = std::move(items);
  list->kind = kind;
  list->printed = std::move(printed);
  return list;
}

Value Value::make_set_view(const Value& dict, std::vector<Value> items, std::string printed) {
  Value out = list(std::move(items), List::Kind::kView, std::move(printed));
  out.as_list().set_of = std::get<std::shared_ptr<Dict>>(dict.data_);
  out.as_list().depth = std::max(out.depth(), checked_depth_around(dict.depth()));
  return out;
}

Value Value::dict(std::vector<std::pair<Value, Value>> items) {
  auto dict = std::make_shared<Dict>();
  for (auto& [key, value] : items) dict->set(std::move(key), std::move(value));
  return dict;
}

int64_t Value::as_int() const {
  return is_bool() ? static_cast<int64_t>(as_bool()) : std::get<int64_t>(data_);
}

double Value::as_float() const {
  return is_float() ? std::get<double>(data_) : static_cast<double>(as_int());
}

int Value::depth() const {
  if (is_list()) return as_list().depth;
  if (is_dict()) return as_dict().depth;
  if (is_function()) return as_function().depth;
  if (is_loop()) return as_loop().depth;
  return 0;
}

int64_t Value::weight() const {
  if (is_string()) return 1 + static_cast<int64_t>(text().size());
  if (is_list()) return as_list().weight;
  if (is_dict()) return as_dict().weight;
  return 1;
}

bool Value::is_sequence() const {
  if (!is_list()) return false;
  const List::Kind kind = as_list().kind;
  return kind == List::Kind::kList || kind == List::Kind::kTuple || kind == List::Kind::kRange;
}

bool Value::truthy() const {
  if (is_none() || is_undefined()) return false;
  if (is_number()) return as_float() != 0;
  if (is_string()) return !text().empty();
  if (is_list()) return as_list().kind == List::Kind::kGenerator || !as_list().items.empty();
  if (is_dict()) return !as_dict().items.empty();
  return true;
}

std::string Value::type_name() const {
  if (is_undefined()) return "Undefined";
  if (is_none()) return "NoneType";
  if (is_bool()) return "bool";
  if (is_int()) return "int";
  if (is_float()) return "float";
  if (is_string()) return "str";
  if (is_dict()) return "dict";
  if (is_namespace()) return "Namespace";
  if (is_loop()) return "LoopContext";
  if (is_function()) return "function";
  switch (as_list().kind) {
    case List::Kind::kList:
      return "list";
    case List::Kind::kTuple:
      return "tuple";
    case List::Kind::kGenerator:
      return "generator";
    case List::Kind::kView:
      return as_list().printed;
    case List::Kind::kRange:
      return "range";
  }
  return "list";
}

void expect_hashable(const Value& value) {
  const List* list = value.is_list() ? &value.as_list() : nullptr;
  const bool is_set = list != nullptr && list->set_of != nullptr;
  if ((list != nullptr && list->kind == List::Kind::kList) || is_set || value.is_dict())
    template_fault("unhashable type: '" + value.type_name() + "'");
  if (list != nullptr && list->kind == List::Kind::kTuple)
    for (const Value& item : list->items) expect_hashable(item);
}

size_t Value::hash() const {
  if (is_number()) return std::hash<double>()(as_float());
  if (is_string()) return hash_of(text());
  if (is_list() && as_list().kind != List::Kind::kGenerator) {
    size_t hash = as_list().items.size();
    for (const Value& item : as_list().items) hash = hash_pair(hash, item.hash());
    return hash;
  }
  return is_undefined() ? 0 : std::hash<const void*>()(address());
}

const void* Value::address() const {
  const auto where = [](const auto& held) -> const void* {
    if constexpr (requires { held.get(); }) return held.get();
    return nullptr;
  };
  return std::visit(where, data_);
}

bool Value::is_same_object(const Value& other) const {
  if (data_.index() != other.data_.index()) return false;
  if (is_undefined()) return false;  // each look-up makes its own
  return is_string() || address() == nullptr ? *this == other : address() == other.address();
}

bool Value::operator==(const Value& other) const {
  if (is_number() && other.is_number()) return compare_numbers(*this, other) == 0;
  if (data_.index() != other.data_.index()) return false;
  if (is_none() || is_undefined()) return true;
  if (is_string()) return text() == other.text();
  if (is_dict()) {
    const Dict& a = as_dict();
    const Dict& b = other.as_dict();
    const auto is_in_b = [&](const auto& item) { return has_pair(b, item.first, item.second); };
    return a.items.size() == b.items.size() && std::ranges::all_of(a.items, is_in_b);
  }
  if (is_list()) {
    const List& a = as_list();
    const List& b = other.as_list();
    if (&a == &b || a.kind != b.kind || a.kind == List::Kind::kGenerator) return &a == &b;
    return a.kind == List::Kind::kView ? views_equal(a, b) : a.items == b.items;
  }
  return is_same_object(other);
}

int compare(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    const std::partial_ordering order = compare_numbers(a, b);
    // Sorting needs an order that is total.
    if (order == std::partial_ordering::unordered) template_fault("no order for nan");
    return order < 0 ? -1 : order > 0 ? 1 : 0;
  }
  if (a.is_string() && b.is_string()) {
    // UTF-8 bytes are in the order of code points.
    const int order = a.text().compare(b.text());
    return order < 0 ? -1 : order > 0 ? 1 : 0;
  }
  if (a.is_sequence() && b.is_sequence() && a.as_list().kind == b.as_list().kind) {
    const auto& x = a.as_list().items;
    const auto& y = b.as_list().items;
    for (size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
      // Where there is an order it alone is asked: lists would be read again at each depth.
      const bool same = !has_order(x[i], y[i]) && x[i] == y[i];
      const int order = same ? 0 : compare(x[i], y[i]);
      if (order != 0) return order;
    }
    return x.size() < y.size() ? -1 : x.size() > y.size() ? 1 : 0;
  }
  if (a.is_undefined()) template_fault(a.undefined_message());
  if (b.is_undefined()) template_fault(b.undefined_message());
  template_fault("no order between '" + a.type_name() + "' and '" + b.type_name() + "'");
}

}  // namespace strata::text
