// SPDX-License-Identifier: Apache-2.0
// The only place that includes toml++.
#define TOML_HEADER_ONLY 0
#include "text/toml_file.h"

#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>

#include "base/error.h"
#include "base/files.h"

namespace strata::text {
namespace {

constexpr int64_t kMaxConfigBytes = 1 << 20;

[[noreturn]] void fail(const std::string& path, const toml::source_region& where,
                       const std::string& what) {
  throw Error(ErrorCode::kInvalidArgument, fmt::format("{}:{}: {}", path, where.begin.line, what));
}

std::string scalar_text(const std::string& path, std::string_view key, const toml::node& node) {
  if (const auto text = node.value_exact<std::string>()) return *text;
  if (const auto number = node.value_exact<int64_t>()) return std::to_string(*number);
  if (const auto number = node.value_exact<double>()) return fmt::format("{}", *number);
  if (const auto flag = node.value_exact<bool>()) return *flag ? "true" : "false";
  fail(path, node.source(), fmt::format("'{}': want a text, a number or true/false", key));
}

void add_values(const std::string& path, const std::string& name, const toml::node& node,
                OptionKind kind, std::vector<std::string>& values) {
  const toml::array* list = node.as_array();
  if (list == nullptr) {
    values.push_back(scalar_text(path, name, node));
  } else if (kind == OptionKind::kList) {
    for (const toml::node& item : *list) values.push_back(scalar_text(path, name, item));
  } else {
    fail(path, node.source(), fmt::format("'{}': got a list, want one value", name));
  }
}

toml::table parse_table(std::string_view text, const std::string& path) {
  try {
    return toml::parse(text);
  } catch (const toml::parse_error& error) {
    fail(path, error.source(), std::string(error.description()));
  }
}

}  // namespace

std::map<std::string, std::vector<std::string>> read_toml_options(const std::string& path,
                                                                  const OptionTable& known,
                                                                  const std::string& command) {
  std::map<std::string, std::vector<std::string>> all;
  const toml::table table = parse_table(read_file(path, kMaxConfigBytes), path);
  for (const auto& [key, node] : table) {
    std::string name(key.str());
    std::ranges::replace(name, '_', '-');  // learning_rate, as others write it
    const OptionRow* row = known.find(name);
    if (row == nullptr) {
      fail(path, node.source(), fmt::format("'{}' is no option of strata {}", name, command));
    }
    add_values(path, name, node, row->kind, all[row->name]);
  }
  return all;
}

std::map<std::string, std::string> read_toml_scalars(const std::string& path) {
  return parse_toml_scalars(read_file(path, kMaxConfigBytes), path);
}

std::map<std::string, std::string> parse_toml_scalars(std::string_view text,
                                                      const std::string& name) {
  std::map<std::string, std::string> all;
  const toml::table table = parse_table(text, name);
  for (const auto& [key, node] : table) {
    const std::string field(key.str());
    all[field] = scalar_text(name, field, node);
  }
  return all;
}

}  // namespace strata::text
