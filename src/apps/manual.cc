// SPDX-License-Identifier: Apache-2.0
#include "apps/manual.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "apps/help.h"
#include "base/ascii.h"
#include "base/error.h"
#include "base/files.h"

namespace strata::apps {
namespace {

// Text of roff: a line may not begin as a request, and - is a hyphen unless it is escaped.
std::string to_roff(const std::string& text) {
  std::string out;
  for (const char c : text) {
    const bool begins = out.empty() || out.back() == '\n';
    if (begins && (c == '.' || c == '\'')) out += "\\&";
    if (c == '\\') {
      out += "\\e";
    } else if (c == '-') {
      out += "\\-";
    } else {
      out += c;
    }
  }
  return out;
}

std::string page_head(const std::string& page, const std::string& about) {
  return fmt::format(".TH {} 1 \"\" \"strata\" \"User Commands\"\n.SH NAME\n{} \\- {}\n", page,
                     to_roff(page), to_roff(about));
}

std::string replace_with_spaces(std::string text, std::string_view characters) {
  for (char& c : text) {
    if (characters.find(c) != std::string_view::npos) c = ' ';
  }
  return text;
}

// Those that have dashes.
std::vector<const OptionRow*> dashed_options_of(const DocumentedCommand& command) {
  std::vector<const OptionRow*> rows;
  for (const OptionRow& row : command.table->rows()) {
    if (!row.is_positional && row.is_shown()) rows.push_back(&row);
  }
  return rows;
}

// The assignment of an option's default in TOML, as a comment.
std::string commented_assignment(const OptionRow& row) {
  if (row.kind == OptionKind::kFlag) return fmt::format("#{} = true\n", row.name);
  const std::string value =
      replace_with_spaces(row.default_text.empty() ? row.unit : row.default_text, "\"\n");
  return row.kind == OptionKind::kList ? fmt::format("#{} = [\"{}\"]\n", row.name, value)
                                       : fmt::format("#{} = \"{}\"\n", row.name, value);
}

// With those that have no options.
std::vector<CommandText> texts_with_plain_commands(std::span<const DocumentedCommand> commands) {
  std::vector<CommandText> texts;
  for (const DocumentedCommand& command : commands) texts.push_back(command.text);
  for (CommandText& text : plain_commands()) texts.push_back(std::move(text));
  return texts;
}

constexpr std::string_view kHelp = "what it does, and its common options";
constexpr std::string_view kHelpAll = "what it does, and all of its options";

}  // namespace

std::string man_page(const DocumentedCommand& command) {
  const CommandText& text = command.text;
  std::string out = page_head("strata-" + text.name, text.help);
  out += fmt::format(".SH SYNOPSIS\n{}\n.SH OPTIONS\n", to_roff(usage(text, *command.table)));
  std::string group;
  for (const OptionRow* row : grouped_rows(*command.table)) {
    if (row->group != group && !row->group.empty()) {
      out += fmt::format(".SS {}\n", to_roff(row->group));
    }
    group = row->group;
    out += fmt::format(".TP\n.B {}\n{}\n", to_roff(row_title(*row)), to_roff(row_text(*row)));
  }
  if (!text.examples.empty()) {
    out += fmt::format(".SH EXAMPLES\n.nf\n{}\n.fi\n", to_roff(text.examples));
  }
  return out + ".SH SEE ALSO\n.BR strata (1)\n";
}

std::string man_overview(std::span<const DocumentedCommand> commands) {
  std::string out = page_head("strata", "fine-tune and serve language models on a CPU");
  out += ".SH SYNOPSIS\n.B strata\n.I COMMAND\n[options]\n.SH COMMANDS\n";
  for (const DocumentedCommand& command : commands) {
    out += fmt::format(".TP\n.BR strata\\-{} (1)\n{}\n", to_roff(command.text.name),
                       to_roff(command.text.help));
  }
  return out +
         ".SH EXIT STATUS\n0 done; 2 a fault of the request, an option or a file; 1 anything "
         "else.\n.SH ENVIRONMENT\n.TP\n.B STRATA_CPU_PATH\namx, avx512_bf16, avx512, avx2 or "
         "reference; the best that the machine has unless named\n.TP\n.B STRATA_LOG\n0 (errors) to "
         "3 (each request)\n";
}

namespace {

std::string bash_case(const DocumentedCommand& command) {
  std::string out = fmt::format("    {}) options='", command.text.name);
  for (const OptionRow* row : dashed_options_of(command)) {
    for (const std::string& name : row->names()) out += with_dashes(name) + " ";
  }
  return out + "--help --help-all' ;;\n";
}

std::string zsh_option(const OptionRow& row, const std::string& name) {
  const bool is_flag = row.kind == OptionKind::kFlag;
  const std::string repeats = row.kind == OptionKind::kList ? "*" : "";
  return shell_quoted(fmt::format("{}{}[{}]{}", repeats, with_dashes(name),
                                  replace_with_spaces(row.help, "[]:\n"),
                                  is_flag ? "" : ":value:_files"));
}

std::string zsh_case(const DocumentedCommand& command) {
  std::string out = fmt::format("    {}) _arguments", command.text.name);
  for (const OptionRow* row : dashed_options_of(command)) {
    for (const std::string& name : row->names()) out += " \\\n      " + zsh_option(*row, name);
  }
  out += fmt::format(" \\\n      '--help[{}]' '--help-all[{}]'", kHelp, kHelpAll);
  return out + " \\\n      '*:file:_files' ;;\n";
}

}  // namespace

std::string bash_completion(std::span<const DocumentedCommand> commands) {
  std::string out =
      "# bash completion of strata; made by `strata manual`\n"
      "_strata() {\n"
      "  local word=${COMP_WORDS[COMP_CWORD]} options=\n"
      "  if [ \"$COMP_CWORD\" -eq 1 ]; then\n";
  out += "    COMPREPLY=($(compgen -W '";
  for (const CommandText& text : texts_with_plain_commands(commands)) out += text.name + " ";
  out += "' -- \"$word\"))\n    return\n  fi\n";
  out += "  case ${COMP_WORDS[1]} in\n";
  for (const DocumentedCommand& command : commands) out += bash_case(command);
  return out +
         "  esac\n"
         "  case $word in -*) COMPREPLY=($(compgen -W \"$options\" -- \"$word\")) ;; esac\n"
         "}\n"
         "complete -o default -F _strata strata\n";
}

std::string zsh_completion(std::span<const DocumentedCommand> commands) {
  std::string out =
      "#compdef strata\n# made by `strata manual`\n_strata() {\n  local -a commands\n  "
      "commands=(\n";
  for (const CommandText& text : texts_with_plain_commands(commands)) {
    out += fmt::format("    {}\n",
                       shell_quoted(text.name + ":" + replace_with_spaces(text.help, ":")));
  }
  out +=
      "  )\n  if (( CURRENT == 2 )); then\n    _describe command commands\n    return\n  fi\n"
      "  case $words[2] in\n";
  for (const DocumentedCommand& command : commands) out += zsh_case(command);
  return out + "  esac\n}\n_strata \"$@\"\n";
}

std::string fish_completion(std::span<const DocumentedCommand> commands) {
  std::string out = "# fish completion of strata; made by `strata manual`\n";
  for (const CommandText& text : texts_with_plain_commands(commands)) {
    out += fmt::format("complete -c strata -f -n __fish_use_subcommand -a {} -d {}\n", text.name,
                       shell_quoted(replace_with_spaces(text.help, "\\\n")));
  }
  for (const DocumentedCommand& command : commands) {
    for (const OptionRow* row : dashed_options_of(command)) {
      std::string names;
      for (const std::string& name : row->names())
        names += (name.size() == 1 ? " -s " : " -l ") + name;
      out += fmt::format("complete -c strata -n '__fish_seen_subcommand_from {}'{} -d {}{}\n",
                         command.text.name, names,
                         shell_quoted(replace_with_spaces(row->help, "\\\n")),
                         row->kind == OptionKind::kFlag ? "" : " -r");
    }
  }
  return out + fmt::format(
                   "complete -c strata -n 'not __fish_use_subcommand' -l help -d '{}'\n"
                   "complete -c strata -n 'not __fish_use_subcommand' -l help-all -d '{}'\n",
                   kHelp, kHelpAll);
}

std::string example_config(const OptionTable& serve) {
  std::string out =
      "# A configuration of `strata serve --config FILE`. Every line is an option of the command\n"
      "# line without its dashes; take away the # of what you set. The command line and the\n"
      "# environment (STRATA_MAX_BODY for max-body) win over it.\n";
  for (const OptionRow& row : serve.rows()) {
    if (row.is_positional || row.name == "config") continue;
    out += fmt::format("\n# {}\n", replace_with_spaces(row.help, "\n"));
    out += commented_assignment(row);
  }
  return out;
}

void write_manual(const std::string& dir, std::span<const DocumentedCommand> commands) {
  make_folders(dir + "/man1");
  write_file_atomic(dir + "/man1/strata.1", man_overview(commands));
  for (const DocumentedCommand& command : commands) {
    write_file_atomic(fmt::format("{}/man1/strata-{}.1", dir, command.text.name),
                      man_page(command));
    if (command.text.name == "serve") {
      write_file_atomic(dir + "/strata.toml", example_config(*command.table));
    }
  }
  write_file_atomic(dir + "/strata.bash", bash_completion(commands));
  write_file_atomic(dir + "/strata.zsh", zsh_completion(commands));
  write_file_atomic(dir + "/strata.fish", fish_completion(commands));
}

}  // namespace strata::apps
