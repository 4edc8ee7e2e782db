// SPDX-License-Identifier: Apache-2.0
#include "apps/help.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

namespace strata::apps {
namespace {

constexpr size_t kColumns = 100;
constexpr size_t kHelpColumn = 30;

std::string upper(std::string text) {
  for (char& c : text) c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  return text;
}

// In lines from kHelpColumn on, the first of which has begun.
std::string wrapped(const std::string& text) {
  std::string out;
  size_t column = kHelpColumn;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(' ', begin), text.size());
    const bool is_first = column == kHelpColumn;
    if (!is_first && column + 1 + (end - begin) > kColumns) {
      out += '\n' + std::string(kHelpColumn, ' ');
      column = kHelpColumn;
    } else if (!is_first) {
      out += ' ';
      ++column;
    }
    out.append(text, begin, end - begin);
    column += end - begin;
    begin = end + 1;
  }
  return out;
}

std::string format_two_columns(const std::string& left, const std::string& text) {
  const bool fits = left.size() + 2 <= kHelpColumn;
  const std::string gap =
      fits ? std::string(kHelpColumn - left.size(), ' ') : '\n' + std::string(kHelpColumn, ' ');
  return left + gap + wrapped(text) + '\n';
}

std::vector<std::string> headings_of(const std::vector<const OptionRow*>& rows) {
  std::vector<std::string> headings;
  for (const OptionRow* row : rows) {
    if (std::find(headings.begin(), headings.end(), row->group) == headings.end()) {
      headings.push_back(row->group);
    }
  }
  return headings;
}

std::string rows_help(const std::vector<const OptionRow*>& rows) {
  std::string out;
  const std::string* heading = nullptr;
  for (const OptionRow* row : rows) {
    if (heading == nullptr || *heading != row->group) {
      out += fmt::format("\n{}:\n", row->group.empty() ? "Options" : row->group);
    }
    heading = &row->group;
    out += format_two_columns("  " + row_title(*row), row_text(*row));
  }
  return out;
}

// Whether some of its options are those that most runs need.
bool marks_common(const OptionTable& table) {
  return std::any_of(table.rows().begin(), table.rows().end(),
                     [](const OptionRow& row) { return row.is_common; });
}

// The keys that stand in a file of the command's alone; "": it has none.
std::string file_keys_text(const OptionTable& table) {
  std::string keys;
  for (const OptionRow& row : table.rows()) {
    if (row.is_in_file) keys += (keys.empty() ? "" : ", ") + row.name;
  }
  return keys.empty() ? "" : format_two_columns("  In --config FILE alone:", keys);
}

std::string others_text(const std::vector<const OptionRow*>& others) {
  return fmt::format("also the {} others: {}", others.size(), fmt::join(headings_of(others), ", "));
}

}  // namespace

std::string usage(const CommandText& command, const OptionTable& table) {
  std::string line = "strata " + command.name;
  for (const OptionRow& row : table.rows()) {
    if (row.is_positional || row.may_be_bare) {
      line += row.is_required ? " " + upper(row.name) : fmt::format(" [{}]", upper(row.name));
    }
  }
  for (const OptionRow& row : table.rows()) {
    if (row.is_required && !row.is_positional && !row.may_be_bare) {
      line += fmt::format(" --{} {}", row.name, row.unit);
    }
  }
  return line + " [OPTIONS]";
}

std::string row_title(const OptionRow& row) {
  const bool is_flag = row.kind == OptionKind::kFlag;
  const std::string unit = row.unit.empty() ? ""
                           : is_flag        ? fmt::format("[={}]", row.unit)
                                            : " " + row.unit;
  return row.is_positional ? upper(row.name)
         : row.may_be_bare ? fmt::format("[--{}]{}", row.name, unit)
                           : fmt::format("--{}{}", row.name, unit);
}

std::string row_text(const OptionRow& row) {
  std::string text = row.help;
  std::string aliases;
  for (const std::string& alias : row.aliases)
    aliases += (aliases.empty() ? "" : ", ") + with_dashes(alias);
  if (!aliases.empty()) text += fmt::format(" (also {})", aliases);
  if (row.is_required && row.required_unless.empty()) text += " (required)";
  if (!row.default_text.empty()) text += fmt::format(" [{}]", row.default_text);
  return text;
}

std::vector<const OptionRow*> grouped_rows(const OptionTable& table) {
  std::vector<const OptionRow*> rows;
  for (const OptionRow& row : table.rows()) {
    if (row.is_shown()) rows.push_back(&row);
  }
  const std::vector<std::string> headings = headings_of(rows);
  std::stable_sort(rows.begin(), rows.end(), [&](const OptionRow* a, const OptionRow* b) {
    return std::find(headings.begin(), headings.end(), a->group) <
           std::find(headings.begin(), headings.end(), b->group);
  });
  return rows;
}

std::string command_help(const CommandText& command, const OptionTable& table, bool all) {
  const bool marks = marks_common(table);
  std::vector<const OptionRow*> shown;
  std::vector<const OptionRow*> others;
  for (const OptionRow* row : grouped_rows(table)) {
    (all || !marks || row->is_common ? shown : others).push_back(row);
  }
  std::string out = fmt::format("{}\n\nUsage: {}\n", command.help, usage(command, table));
  out += rows_help(shown) + "\n";
  out += format_two_columns("  --help", marks ? "the options that most runs need" : "this text");
  if (marks) out += format_two_columns("  --help-all", all ? "all options" : others_text(others));
  if (all) out += file_keys_text(table);
  return out + (command.examples.empty() ? "" : "\n" + command.examples + "\n");
}

std::vector<CommandText> plain_commands() {
  return {{"help", "Say what a command does, with its options and examples", ""},
          {"version", "Say which build this is, and which CPU path it takes", ""}};
}

std::string overview(std::span<const CommandText> commands) {
  std::string out =
      "Strata trains and serves decoder-only language models.\n\n"
      "Usage: strata COMMAND [OPTIONS]\n\n"
      "Commands:\n";
  for (const CommandText& command : commands) {
    out += fmt::format("  {:<10} {}\n", command.name, command.help);
  }
  return out +
         "\nStart with (a model is a Hugging Face directory, or ORG/NAME of the hub):\n"
         "  strata chat MODEL                                      talk to it\n"
         "  strata train MODEL --data chats.jsonl --out adapter    fine-tune it\n"
         "  strata chat adapter                                    talk to what came out\n"
         "\n"
         "strata help COMMAND has a command's options and examples; strata version the build.\n";
}

}  // namespace strata::apps
