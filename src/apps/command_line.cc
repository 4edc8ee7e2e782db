// SPDX-License-Identifier: Apache-2.0
#include "apps/command_line.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "apps/suggest.h"
#include "base/error.h"
#include "trainer/recipe.h"

namespace strata::apps {
namespace {

struct Given {
  std::map<std::string, std::vector<std::string>> values;  // by name; of a flag "on" or "off"
  std::vector<std::string> unknown;                        // options, in the order they came in
  std::vector<std::string> extra;                          // values that no row takes, likewise
  HelpWanted help = HelpWanted::kNo;
};

[[noreturn]] void refuse(const CommandText& command, const std::string& message) {
  throw Error(ErrorCode::kInvalidArgument, fmt::format("{}: {}", command.name, message));
}

// The name in "--name" or "--name=value".
std::string_view name_of_option(std::string_view argument) {
  return argument.substr(2, argument.find('=') - 2);
}

bool is_named(const OptionTable& table, std::string_view argument) {
  if (!argument.starts_with("--")) return false;
  const OptionRow* row = table.find(name_of_option(argument));
  return row != nullptr && !row->is_positional;
}

// How the row is spoken of.
std::string shown_name(const OptionRow& row) { return (row.is_positional ? "" : "--") + row.name; }

constexpr int kMostBare = 1 << 20;  // of a list

// As CLI11 takes them.
std::string names_and_aliases(const OptionRow& row) {
  std::string names = shown_name(row);
  for (const std::string& alias : row.aliases) names += "," + with_dashes(alias);
  return names;
}

void add_cli_option(CLI::App& app, const OptionRow& row, Given& given) {
  std::vector<std::string>* values = &given.values[row.name];
  const std::string names = names_and_aliases(row);
  if (row.kind == OptionKind::kFlag) {
    // Its own value stands behind '=': what follows may be a model's name.
    app.add_flag_function(names, [values](int64_t is_on) { *values = {is_on > 0 ? "on" : "off"}; });
    return;
  }
  const std::string bare = row.may_be_bare ? "," + row.name : "";
  CLI::Option* option = app.add_option(names + bare, [values](const CLI::results_t& texts) {
    *values = texts;
    return true;
  });
  option->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  if (row.kind == OptionKind::kList && row.may_be_bare)
    option->expected(1, kMostBare)->allow_extra_args();
}

// "--merged on" could be a flag and a model; whoever writes it means neither.
void check_flag_value(const CommandText& command, const std::string& name,
                      const std::optional<std::string>& value, const std::string& next_argument) {
  if (!value && (next_argument == "on" || next_argument == "off")) {
    refuse(command, fmt::format("--{0} {1}: the value of a switch that may do without one stands "
                                "behind '=': --{0}={1}",
                                name, next_argument));
  }
  constexpr std::string_view kValues[] = {"on", "off", "true", "false", "1", "0"};
  if (value && std::ranges::find(kValues, *value) == std::end(kValues))
    refuse(command, fmt::format("--{}: got '{}', want on or off", name, *value));
}

std::optional<std::string> value_behind_equals(const std::string& argument) {
  const size_t equals = argument.find('=');
  if (equals == std::string::npos) return std::nullopt;
  return argument.substr(equals + 1);
}

void check_flag_values(const CommandText& command, const OptionTable& table,
                       std::span<const std::string> arguments) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (!is_named(table, arguments[i])) continue;
    const std::string name(name_of_option(arguments[i]));
    if (table.find(name)->kind != OptionKind::kFlag) continue;
    check_flag_value(command, name, value_behind_equals(arguments[i]),
                     i + 1 < arguments.size() ? arguments[i + 1] : "");
  }
}

// A negative number is a value.
bool looks_like_option(const std::string& argument) {
  return argument.size() > 1 && argument[0] == '-' && (argument[1] < '0' || argument[1] > '9');
}

void add_help_flags(CLI::App& app, Given& given) {
  app.set_help_flag();
  app.add_flag_callback("-h,--help", [&given] {
    if (given.help == HelpWanted::kNo) given.help = HelpWanted::kCommon;
  });
  app.add_flag_callback("--help-all", [&given] { given.help = HelpWanted::kAll; });
}

void parse_command_arguments(CLI::App& app, const CommandText& command, const OptionTable& table,
                             std::span<const std::string> arguments) {
  std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
  try {
    app.parse(reversed);
  } catch (const CLI::ParseError& error) {
    if (is_named(table, arguments.back())) {
      refuse(command, arguments.back() + ": want a value behind it");
    }
    refuse(command, error.what());
  }
}

Given parse_arguments(const CommandText& command, const OptionTable& table,
                      std::span<const std::string> arguments) {
  Given given;
  CLI::App app;
  app.allow_extras();
  add_help_flags(app, given);
  for (const OptionRow& row : table.rows()) add_cli_option(app, row, given);
  parse_command_arguments(app, command, table, arguments);
  for (const std::string& argument : app.remaining()) {
    if (argument == "--") continue;
    (looks_like_option(argument) ? given.unknown : given.extra).push_back(argument);
  }
  return given;
}

// What a recipe says and the command line does not.
void fill_from_recipe(const OptionTable& table, Given& given) {
  const auto found = given.values.find("config");
  if (found == given.values.end() || found->second.empty()) return;
  for (auto& [name, values] : read_recipe(found->second.back(), table)) {
    std::vector<std::string>& own = given.values.at(name);
    if (own.empty()) own = std::move(values);
  }
}

// Options that say the same in two ways: the one that is typed counts.
constexpr std::pair<const char*, const char*> kAlternatives[] = {
    {"steps", "epochs"}, {"warmup-steps", "warmup-ratio"}, {"eval", "eval-fraction"}};

bool has_typed_alternative(const std::string& name, const std::set<std::string>& typed) {
  return std::ranges::any_of(kAlternatives, [&](const auto& pair) {
    return (name == pair.first && typed.contains(pair.second)) ||
           (name == pair.second && typed.contains(pair.first));
  });
}

// What the run that goes on was given, and the command line does not say now.
void fill_from_run(const OptionTable& table, Given& given) {
  const std::vector<std::string>& resume = given.values.at("resume");
  const std::vector<std::string>& out = given.values.at("out");
  if (resume.empty() || resume.back() == "off" || out.empty()) return;
  std::set<std::string> typed;
  for (const auto& [name, values] : given.values) {
    if (!values.empty()) typed.insert(name);
  }
  for (auto& [name, values] : read_recipe_of_run(out.back(), table)) {
    if (!typed.contains(name) && !has_typed_alternative(name, typed))
      given.values.at(name) = std::move(values);
  }
}

std::string see_help(const CommandText& command) {
  return fmt::format("`strata {} --help-all` lists its options", command.name);
}

std::vector<std::string> option_names(const OptionTable& table) {
  std::vector<std::string> names;
  for (const OptionRow& row : table.rows()) {
    if (row.is_positional || !row.is_shown()) continue;
    for (std::string& name : row.names()) {
      if (name.size() > 1) names.push_back(std::move(name));
    }
  }
  return names;
}

std::string unknown_option_text(const std::string& argument,
                                const std::vector<std::string>& known_names) {
  const std::string option = argument.substr(0, argument.find('='));
  const std::string name = option.substr(std::min(option.find_first_not_of('-'), option.size()));
  return fmt::format("there is no option {}{}", option,
                     did_you_mean(similar_options(name, known_names), "--"));
}

void refuse_unknown_options(const CommandText& command, const OptionTable& table,
                            const Given& given) {
  const std::vector<std::string> names = option_names(table);
  std::vector<std::string> faults;
  for (const std::string& argument : given.unknown)
    faults.push_back(unknown_option_text(argument, names));
  refuse(command, fmt::format("{}\n{}", fmt::join(faults, "\n  and "), see_help(command)));
}

void refuse_extra_values(const CommandText& command, const OptionTable& table, const Given& given) {
  std::string why;
  for (const OptionRow& row : table.rows()) {
    const auto found = given.values.find(row.name);
    if (found->second.empty() || (!row.may_be_bare && !row.is_positional)) continue;
    why += fmt::format("; {} is {}", row.name, found->second.front());
  }
  refuse(command, fmt::format("not expected: {}{}\n{}", fmt::join(given.extra, " "), why,
                              see_help(command)));
}

void check_given_once(const CommandText& command, const OptionRow& row,
                      const std::vector<std::string>& values) {
  if (row.kind != OptionKind::kValue || values.size() <= 1) return;
  refuse(command, fmt::format("{} is given {} times, want one value: {}", shown_name(row),
                              values.size(), fmt::join(values, " ")));
}

// "--out --json" names two options; whoever writes it means no file of this name.
void check_names_no_option(const CommandText& command, const OptionTable& table,
                           const OptionRow& row, const std::string& value) {
  if (row.kind == OptionKind::kFlag || !is_named(table, value)) return;
  refuse(command, fmt::format("{0}: got the option {1}, want a value (one that begins so is "
                              "written {0}={1})",
                              shown_name(row), value));
}

// Sets the options to what was given, after checks.
void apply_values(const CommandText& command, const OptionTable& table, const Given& given) {
  for (const OptionRow& row : table.rows()) {
    const std::vector<std::string>& values = given.values.at(row.name);
    check_given_once(command, row, values);
    for (const std::string& value : values) {
      check_names_no_option(command, table, row, value);
      row.set(value);
    }
  }
}

bool is_missing(const OptionRow& row, const Given& given) {
  if (!row.is_required || !given.values.at(row.name).empty()) return false;
  const auto other = given.values.find(row.required_unless);
  return other == given.values.end() || other->second.empty();
}

void check_required(const CommandText& command, const OptionTable& table, const Given& given) {
  std::string missing;
  int count = 0;
  for (const OptionRow& row : table.rows()) {
    if (!is_missing(row, given)) continue;
    ++count;
    missing += fmt::format("\n  {:<14}  {}", shown_name(row), row.help);
  }
  if (missing.empty()) return;
  refuse(command, fmt::format("{} required:{}\n{}", count == 1 ? "this is" : "these are", missing,
                              command.examples));
}

}  // namespace

std::string with_dashes(std::string_view name) {
  return (name.size() == 1 ? "-" : "--") + std::string(name);
}

HelpWanted read_command_line(const CommandText& command, const OptionTable& table,
                             std::span<const std::string> arguments) {
  check_flag_values(command, table, arguments);
  Given given = parse_arguments(command, table, arguments);
  if (given.help != HelpWanted::kNo) return given.help;
  if (!given.unknown.empty()) refuse_unknown_options(command, table, given);
  if (!given.extra.empty()) refuse_extra_values(command, table, given);
  if (command.name == "train") {
    fill_from_recipe(table, given);
    fill_from_run(table, given);
  }
  apply_values(command, table, given);
  check_required(command, table, given);
  return HelpWanted::kNo;
}

}  // namespace strata::apps
