// SPDX-License-Identifier: Apache-2.0
// Recipes: options of strata train in a TOML or YAML file (--config), which the command line
// overrides, and the file that --save-config writes.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "base/option_table.h"
#include "trainer/train.h"

namespace strata::apps {

// Texts by option, as the command line would give them; of a flag "on" or "off". An option that
// says where one run is (out, resume, config, save-config) is refused.
std::map<std::string, std::vector<std::string>> read_recipe(const std::string& path,
                                                            const OptionTable& table);

// The options that differ from their defaults, but where the run is.
std::string recipe_text(const TrainOptions& options);
// To options.save_config.
void save_recipe(const TrainOptions& options);

// The recipe of the run in --out, which --resume goes by: recipe.toml there, with paths that are
// the same from any folder.
void save_recipe_of_run(const TrainOptions& options);
// What it says but of memory, ranks and the machine, which may be others now; nothing of a run
// without one.
std::map<std::string, std::vector<std::string>> read_recipe_of_run(const std::string& out,
                                                                   const OptionTable& table);

}  // namespace strata::apps
