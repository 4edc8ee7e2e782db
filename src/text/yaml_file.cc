// SPDX-License-Identifier: Apache-2.0
// The only place that includes yaml-cpp.
#include "text/yaml_file.h"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>

#include "base/error.h"
#include "base/files.h"

namespace strata::text {
namespace {

constexpr int64_t kMaxConfigBytes = 1 << 20;

[[noreturn]] void fail(const std::string& path, const YAML::Mark& where, const std::string& what) {
  throw Error(ErrorCode::kInvalidArgument, fmt::format("{}:{}: {}", path, where.line + 1, what));
}

std::string scalar_text(const std::string& path, const std::string& name, const YAML::Node& node) {
  if (node.IsScalar()) return node.Scalar();
  fail(path, node.Mark(), fmt::format("'{}': want a text, a number or true/false", name));
}

void add_values(const std::string& path, const std::string& name, const YAML::Node& node,
                OptionKind kind, std::vector<std::string>& values) {
  if (!node.IsSequence()) {
    values.push_back(scalar_text(path, name, node));
  } else if (kind == OptionKind::kList) {
    for (const YAML::Node& item : node) values.push_back(scalar_text(path, name, item));
  } else {
    fail(path, node.Mark(), fmt::format("'{}': got a list, want one value", name));
  }
}

YAML::Node parse(const std::string& path) {
  const std::string text = read_file(path, kMaxConfigBytes);
  try {
    return YAML::Load(text);
  } catch (const YAML::Exception& error) {
    fail(path, error.mark, error.msg);
  }
}

}  // namespace

std::map<std::string, std::vector<std::string>> read_yaml_options(const std::string& path,
                                                                  const OptionTable& known,
                                                                  const std::string& command) {
  const YAML::Node all = parse(path);
  if (!all.IsMap()) fail(path, all.Mark(), "want a line NAME: VALUE for each option");
  std::map<std::string, std::vector<std::string>> options;
  for (const auto& option : all) {
    const YAML::Node &key = option.first, &value = option.second;
    std::string name = scalar_text(path, "a name", key);
    std::ranges::replace(name, '_', '-');  // learning_rate, as others write it
    const OptionRow* row = known.find(name);
    if (row == nullptr)
      fail(path, key.Mark(), fmt::format("'{}' is no option of strata {}", name, command));
    const auto [values, is_new] = options.try_emplace(row->name);
    if (!is_new) fail(path, key.Mark(), fmt::format("'{}' is given twice", row->name));
    add_values(path, name, value, row->kind, values->second);
  }
  return options;
}

}  // namespace strata::text
