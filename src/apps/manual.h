// SPDX-License-Identifier: Apache-2.0
// Man pages and completions of shells, made from the commands' tables of options, so that none can
// say what the program does not have. `strata manual --out DIR` writes them; cmake --install puts
// them where they belong.
#pragma once
#include <memory>
#include <span>
#include <string>

#include "apps/command_line.h"
#include "base/option_table.h"

namespace strata::apps {

struct DocumentedCommand {
  CommandText text;
  std::shared_ptr<const OptionTable> table;
};

std::string man_page(const DocumentedCommand& command);  // strata-COMMAND(1), in roff
std::string man_overview(std::span<const DocumentedCommand> commands);  // strata(1)
std::string bash_completion(std::span<const DocumentedCommand> commands);
std::string zsh_completion(std::span<const DocumentedCommand> commands);
std::string fish_completion(std::span<const DocumentedCommand> commands);
// Each option of `serve` as a commented line of a --config file.
std::string example_config(const OptionTable& serve);

// Writes DIR/man1/*.1, strata.bash, strata.zsh, strata.fish and strata.toml; makes DIR. Throws
// Error{kIo}.
void write_manual(const std::string& dir, std::span<const DocumentedCommand> commands);

}  // namespace strata::apps
