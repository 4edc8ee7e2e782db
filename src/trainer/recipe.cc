// SPDX-License-Identifier: Apache-2.0
#include "trainer/recipe.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "base/error.h"
#include "base/files.h"
#include "setup/hub_cache.h"
#include "setup/shared_options.h"
#include "text/json_reader.h"
#include "text/toml_file.h"
#include "text/yaml_file.h"
#include "trainer/options.h"

namespace strata::apps {
namespace {

bool is_of_one_run(std::string_view name) {
  constexpr std::array<std::string_view, 5> kNames = {"out", "resume", "dry-run", "config",
                                                      "save-config"};
  return std::find(kNames.begin(), kNames.end(), name) != kNames.end();
}

// That TOML's numbers hold; others are written as texts, which are read alike.
bool is_number(const OptionRow& row, const std::string& text) {
  constexpr size_t kDigits = 18;
  const bool is_text = row.unit != "INT" && row.unit != "UINT" && row.unit != "FLOAT";
  return !is_text && text.size() <= kDigits &&
         text.find_first_not_of("0123456789+-.e") == std::string::npos;
}

// As TOML. A text in quotes is written as in JSON, which TOML takes.
std::string toml_value(const OptionRow& row, const std::vector<std::string>& values) {
  if (row.kind == OptionKind::kFlag) return values.front() == "off" ? "false" : "true";
  if (row.kind != OptionKind::kList) {
    return is_number(row, values.front()) ? values.front() : text::json_quote(values.front());
  }
  std::string list;
  for (const std::string& value : values) {
    list += (list.empty() ? "" : ", ") + text::json_quote(value);
  }
  return "[" + list + "]";
}

// The values of a row; of a list each.
std::vector<std::string> values_of(const OptionRow& row, const TrainOptions& o) {
  if (row.name == "data") return o.data;
  if (row.name == "eval") return o.eval;
  if (row.name == "sample") return o.samples;
  return {row.text()};
}

[[noreturn]] void refuse_option_of_one_run(const std::string& path, const std::string& name) {
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("--config: {}: '{}' says where one run is; give it on the command line",
                          path, name));
}

// A flag's value in a file, as the command line has it.
std::vector<std::string> parse_flag_values(const std::string& path, const std::string& name,
                                           const std::vector<std::string>& values) {
  if (values.size() != 1 || (values[0] != "true" && values[0] != "false")) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("--config: {}: '{}': want true or false", path, name));
  }
  return {values[0] == "true" ? "on" : "off"};
}

}  // namespace

std::map<std::string, std::vector<std::string>> read_recipe(const std::string& path,
                                                            const OptionTable& table) {
  const bool is_yaml = path.ends_with(".yaml") || path.ends_with(".yml");
  auto all = is_yaml ? text::read_yaml_options(path, table, "train")
                     : text::read_toml_options(path, table, "train");
  for (auto& [name, values] : all) {
    if (is_of_one_run(name)) refuse_option_of_one_run(path, name);
    if (table.find(name)->kind == OptionKind::kFlag) values = parse_flag_values(path, name, values);
  }
  return all;
}

std::string recipe_text(const TrainOptions& options) {
  TrainOptions o = options, defaults;
  const std::string name = hub_name_of_snapshot(o.model);
  if (!name.empty()) o.model = name;
  const OptionTable table = option_table_of(o), usual = option_table_of(defaults);
  std::string text = "# strata train --config FILE --out FOLDER\n";
  for (size_t i = 0; i < table.rows().size(); ++i) {
    const OptionRow& row = table.rows()[i];
    if (is_of_one_run(row.name) || row.text() == usual.rows()[i].text()) continue;
    text += fmt::format("{} = {}\n", row.name, toml_value(row, values_of(row, o)));
  }
  return text;
}

void save_recipe(const TrainOptions& options) {
  write_file_atomic(options.save_config, recipe_text(options));
}

namespace {

std::string path_of_run_recipe(const std::string& out) { return out + "/recipe.toml"; }

// Makes a path absolute, that of FILE:WEIGHT too; stdin stays "-".
void make_absolute(std::string& path) {
  if (!path.empty() && path != "-") path = std::filesystem::absolute(path).string();
}

bool is_of_machine(const OptionRow& row) {
  return row.results_by == ResultsBy::kNothing &&
         (row.group == "Memory" || row.group == "Pipeline stages" || row.group == kMachineGroup);
}

}  // namespace

void save_recipe_of_run(const TrainOptions& options) {
  TrainOptions o = options;
  make_absolute(o.model);
  make_absolute(o.adapter);
  make_absolute(o.tensorboard);
  make_absolute(o.report);
  for (std::vector<std::string>* files : {&o.data, &o.eval}) {
    for (std::string& file : *files) make_absolute(file);
  }
  write_file_atomic(path_of_run_recipe(o.out), recipe_text(o));
}

std::map<std::string, std::vector<std::string>> read_recipe_of_run(const std::string& out,
                                                                   const OptionTable& table) {
  const std::string path = path_of_run_recipe(out);
  if (!file_exists(path)) return {};
  auto all = read_recipe(path, table);
  std::erase_if(all, [&](const auto& option) { return is_of_machine(*table.find(option.first)); });
  return all;
}

}  // namespace strata::apps
