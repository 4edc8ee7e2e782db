// SPDX-License-Identifier: Apache-2.0
// A TOML file of options: key = value, with the names of a command's table.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "base/option_table.h"

namespace strata::text {

// Texts by option, as a command line would give them. Throws Error with "FILE:LINE: what" for a key
// that is no option of `command` and for values of other kinds.
std::map<std::string, std::vector<std::string>> read_toml_options(const std::string& path,
                                                                  const OptionTable& known,
                                                                  const std::string& command);

}  // namespace strata::text
