// SPDX-License-Identifier: Apache-2.0
// A YAML file of options, as other trainers have their recipes: NAME: VALUE, with the names of a
// command's table.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "base/option_table.h"

namespace strata::text {

// Texts by option, as read_toml_options() has them of TOML (text/toml_file.h); lists are sequences.
// Throws Error with "FILE:LINE: what" for a key that is no option of `command` or stands twice, and
// for values of other kinds.
std::map<std::string, std::vector<std::string>> read_yaml_options(const std::string& path,
                                                                  const OptionTable& known,
                                                                  const std::string& command);

}  // namespace strata::text
