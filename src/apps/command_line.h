// SPDX-License-Identifier: Apache-2.0
// A command's line: its arguments read into the rows of its table (base/option_table.h). CLI11
// tells options from values; what was typed wrong is said here, with what was likely meant.
#pragma once
#include <span>
#include <string>
#include <string_view>

#include "base/option_table.h"

namespace strata::apps {

enum class HelpWanted : uint8_t { kNo, kCommon, kAll };

// What a command's messages and its help say of it.
struct CommandText {
  std::string name;
  std::string help;      // one line
  std::string examples;  // "Example:\n  strata ..." and what else stands at the end of its help
};

// A name as it is typed: "--verbose", "-v".
std::string with_dashes(std::string_view name);

// Sets the rows that `arguments` (without the command's name) give, in the order of the table.
// Nothing is set, and nothing is checked, where --help or --help-all is among them. Error that
// names: unknown options, each with what it is close to; arguments too many, in their order; a
// value that is no such value; all required options that are missing, together.
HelpWanted read_command_line(const CommandText& command, const OptionTable& table,
                             std::span<const std::string> arguments);

}  // namespace strata::apps
