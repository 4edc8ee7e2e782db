// SPDX-License-Identifier: Apache-2.0
// What --help says, from the rows of a command's table.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "apps/command_line.h"

namespace strata::apps {

// Usage, the rows under their headings, examples. Without `all` only the common rows, of a table
// that marks some so, and where the others are. Lines of 100 columns at most.
std::string command_help(const CommandText& command, const OptionTable& table, bool all);

// How a command is typed: "strata chat MODEL [OPTIONS]".
std::string usage(const CommandText& command, const OptionTable& table);
// What a row is typed as, "[--model] TEXT"; and what it is about, whether it is required, and its
// default.
std::string row_title(const OptionRow& row);
std::string row_text(const OptionRow& row);

// All rows, those of one heading together, in the order in which headings come first.
std::vector<const OptionRow*> grouped_rows(const OptionTable& table);

// The commands that have no options.
std::vector<CommandText> plain_commands();
// The commands, a line each, and what to start with.
std::string overview(std::span<const CommandText> commands);

}  // namespace strata::apps
