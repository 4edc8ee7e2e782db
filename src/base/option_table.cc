// SPDX-License-Identifier: Apache-2.0
#include "base/option_table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <type_traits>

#include "base/check.h"
#include "base/error.h"
#include "base/log.h"

namespace strata {
namespace {

constexpr size_t kLongestUnit = 20;  // characters, of choices in help

[[noreturn]] void refuse(const std::string& name, const std::string& got,
                         const std::string& wanted) {
  throw Error(ErrorCode::kInvalidArgument, fmt::format("--{}: got {}, want {}", name, got, wanted));
}

template <typename T>
T parse_number(const std::string& name, const std::string& text, const std::string& wanted) {
  T value = {};
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc{} || rest != end) refuse(name, "'" + text + "'", wanted);
  return value;
}

template <typename T>
void check_range(const std::string& name, T value, const auto& range) {
  if (value >= range.least && value <= range.most) return;  // NaN fails
  refuse(name, fmt::format("{}", value), range.wanted);
}

// What a field holds; null where it may be absent, and is.
template <typename T>
const T* value_of(const T& field) {
  return &field;
}
template <typename T>
const T* value_of(const std::optional<T>& field) {
  return field ? &*field : nullptr;
}

template <typename T>
std::string number_text(const T* value) {
  if (value == nullptr) return "";
  if (std::is_integral_v<T>) return fmt::format("{}", *value);
  return fmt::format("{:g}", static_cast<double>(*value));
}

// A row of one number, read as Read and held as Field, which may be absent.
template <typename Read, typename Field>
OptionRow make_number_row(const std::string& name, const char* unit, Field& field,
                          const OptionRange<Read>& range, const std::string& help) {
  Field* at = &field;
  return {.name = name,
          .unit = unit,
          .help = help,
          .default_text = number_text(value_of(field)),
          .set =
              [at, name, range](const std::string& text) {
                const Read value = parse_number<Read>(name, text, range.wanted);
                check_range(name, value, range);
                *at = static_cast<Field>(value);
              },
          .text =
              [at] {
                const auto* value = value_of(*at);
                return value == nullptr ? "default" : fmt::format("{}", *value);
              },
          .check =
              [at, name, range] {
                const auto* value = value_of(*at);
                if (value != nullptr) check_range(name, static_cast<Read>(*value), range);
              }};
}

// "a, b or c".
std::string choices_text(const std::vector<std::string>& choices) {
  std::string text;
  for (size_t i = 0; i < choices.size(); ++i)
    text += (i == 0 ? "" : i + 1 == choices.size() ? " or " : ", ") + choices[i];
  return text;
}

OptionRange<uint64_t> seeds() { return {0, UINT64_MAX, "a whole number from 0 to 2^64 - 1"}; }

}  // namespace

std::vector<std::string> OptionRow::names() const {
  std::vector<std::string> names = {name};
  names.insert(names.end(), aliases.begin(), aliases.end());
  return names;
}

bool OptionRow::is_called(std::string_view candidate) const {
  return candidate == name || std::find(aliases.begin(), aliases.end(), candidate) != aliases.end();
}

OptionRow& OptionTable::add(OptionRow row) {
  if (row.group.empty()) row.group = group_;
  return rows_.emplace_back(std::move(row));
}

OptionRow& OptionTable::text(const std::string& name, std::string& field, const std::string& help) {
  std::string* at = &field;
  return add({.name = name,
              .unit = "TEXT",
              .help = help,
              .default_text = field,
              .set = [at](const std::string& text) { *at = text; },
              .text = [at] { return *at; }});
}

OptionRow& OptionTable::choice(const std::string& name, std::string& field,
                               const std::vector<std::string>& choices, const std::string& help) {
  OptionRow& row = text(name, field, help);
  const std::string all = fmt::format("{}", fmt::join(choices, "|"));
  row.unit = all.size() <= kLongestUnit ? all : "NAME";
  row.check = [at = &field, name, choices] {
    if (std::find(choices.begin(), choices.end(), *at) == choices.end())
      refuse(name, "'" + *at + "'", choices_text(choices));
  };
  return row;
}

OptionRow& OptionTable::texts(const std::string& name, std::vector<std::string>& field,
                              const std::string& help) {
  std::vector<std::string>* at = &field;
  return add({.name = name,
              .unit = "TEXT",
              .help = help,
              .kind = OptionKind::kList,
              .set = [at](const std::string& text) { at->push_back(text); },
              .text = [at] { return fmt::format("{}", fmt::join(*at, ",")); }});
}

OptionRow& OptionTable::flag(const std::string& name, bool& field, const std::string& help) {
  bool* at = &field;
  return add({.name = name,
              .help = help,
              .kind = OptionKind::kFlag,
              .set = [at](const std::string& text) { *at = text != "off"; },
              .text = [at] { return std::string(*at ? "on" : "off"); }});
}

OptionRow& OptionTable::integer(const std::string& name, int64_t& field,
                                const OptionRange<int64_t>& range, const std::string& help) {
  return add(make_number_row(name, "INT", field, range, help));
}

OptionRow& OptionTable::integer(const std::string& name, int& field,
                                const OptionRange<int64_t>& range, const std::string& help) {
  return add(make_number_row(name, "INT", field, range, help));
}

OptionRow& OptionTable::integer(const std::string& name, std::optional<int64_t>& field,
                                const OptionRange<int64_t>& range, const std::string& help) {
  return add(make_number_row(name, "INT", field, range, help));
}

OptionRow& OptionTable::number(const std::string& name, double& field,
                               const OptionRange<double>& range, const std::string& help) {
  return add(make_number_row(name, "FLOAT", field, range, help));
}

OptionRow& OptionTable::number(const std::string& name, std::optional<double>& field,
                               const OptionRange<double>& range, const std::string& help) {
  return add(make_number_row(name, "FLOAT", field, range, help));
}

OptionRow& OptionTable::seed(const std::string& name, uint64_t& field, const std::string& help) {
  return add(make_number_row(name, "UINT", field, seeds(), help));
}

OptionRow& OptionTable::seed(const std::string& name, std::optional<uint64_t>& field,
                             const std::string& help) {
  return add(make_number_row(name, "UINT", field, seeds(), help));
}

OptionRow& OptionTable::retired(const std::string& name, const std::string& what) {
  return add({.name = name,
              .is_retired = true,
              .set =
                  [name, what](const std::string&) {
                    log(LogLevel::kWarning, fmt::format("--{} does nothing: {}", name, what));
                  },
              .text = [] { return std::string(); }});
}

OptionRow& OptionTable::row_of(std::string_view name) {
  const auto row = std::find_if(rows_.begin(), rows_.end(),
                                [&](const OptionRow& candidate) { return candidate.name == name; });
  CHECK(row != rows_.end(), name);
  return *row;
}

void OptionTable::mark_common(std::initializer_list<const char*> names) {
  for (const char* name : names) row_of(name).is_common = true;
}

void OptionTable::keep_only(std::span<const std::string_view> names) {
  for (const std::string_view name : names) CHECK(find(name) != nullptr);
  std::erase_if(rows_, [&](const OptionRow& row) {
    return std::find(names.begin(), names.end(), row.name) == names.end();
  });
}

void OptionTable::mark_required(std::string_view name) {
  OptionRow& row = row_of(name);
  row.is_required = row.is_common = true;
}

const OptionRow* OptionTable::find(std::string_view name) const {
  for (const OptionRow& row : rows_) {
    if (row.is_called(name)) return &row;
  }
  return nullptr;
}

void OptionTable::check() const {
  for (const OptionRow& row : rows_) {
    if (row.check) row.check();
  }
}

}  // namespace strata
