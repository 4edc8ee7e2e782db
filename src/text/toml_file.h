// SPDX-License-Identifier: Apache-2.0
// TOML files of key = value: of options, with the names of a command's table, or of anything else.
#pragma once
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/option_table.h"

namespace strata::text {

// Texts by option, as a command line would give them. Throws Error with "FILE:LINE: what" for a key
// that is no option of `command` and for values of other kinds.
std::map<std::string, std::vector<std::string>> read_toml_options(const std::string& path,
                                                                  const OptionTable& known,
                                                                  const std::string& command);

// The texts of a file's keys, each of which has one value: a text, a number or true/false. Throws
// Error with "FILE:LINE: what" for values of other kinds and for what is no TOML.
std::map<std::string, std::string> read_toml_scalars(const std::string& path);
// Those of a text; `name` is what messages call it.
std::map<std::string, std::string> parse_toml_scalars(std::string_view text,
                                                      const std::string& name);

}  // namespace strata::text
