#include "apps/command_line.h"

#include <CLI/CLI.hpp>

namespace strata::apps {

void add_row(CLI::App& command, const OptionRow& row) {
  const std::string name = (row.is_positional ? "" : "--") + row.name;
  if (row.kind == OptionKind::kFlag) {
    command.add_flag_callback(name, [&row] { row.set("on"); }, row.help);
    return;
  }
  CLI::Option* option = nullptr;
  if (row.kind == OptionKind::kList) {
    const auto set = [&row](const std::vector<std::string>& texts) {
      for (const std::string& text : texts) row.set(text);
    };
    option = command.add_option_function<std::vector<std::string>>(name, set, row.help);
    option->allow_extra_args(false);
  } else {
    option = command.add_option_function<std::string>(name, row.set, row.help);
  }
  option->type_name(row.unit)->required(row.is_required);
  if (!row.default_text.empty()) option->default_str(row.default_text);
}

}  // namespace strata::apps
