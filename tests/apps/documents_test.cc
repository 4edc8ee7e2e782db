// SPDX-License-Identifier: Apache-2.0
// What documents say of the program is so: each command line in them, and in the examples of
// `--help`, names a command and options that the program has.
#include <gtest/gtest.h>
#include <stdio.h>

#include <filesystem>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "base/files.h"

namespace strata::apps {
namespace {

namespace fs = std::filesystem;

std::string output_of(const std::string& command) {
  FILE* pipe = ::popen((command + " 2>&1").c_str(), "r");
  std::string out;
  char buffer[4096];
  for (size_t got = 0; (got = ::fread(buffer, 1, sizeof(buffer), pipe)) > 0;) {
    out.append(buffer, got);
  }
  EXPECT_EQ(::pclose(pipe), 0) << command << "\n" << out;
  return out;
}

std::string help_of(const std::string& command) {
  static std::map<std::string, std::string> seen;
  const auto found = seen.find(command);
  if (found != seen.end()) return found->second;
  return seen[command] = output_of(std::string(STRATA_BINARY) + " " + command + " --help-all");
}

// The commands that `strata --help` lists.
std::set<std::string> commands() {
  const std::string help = help_of("");
  const std::regex row("\n  ([a-z]+) +");
  std::set<std::string> names;
  const auto begin = help.find("Commands:");
  EXPECT_NE(begin, std::string::npos);
  const std::string rows = help.substr(begin, help.find("\n\n", begin) - begin);
  for (std::sregex_iterator it(rows.begin(), rows.end(), row), end; it != end; ++it) {
    names.insert((*it)[1]);
  }
  return names;
}

struct CommandLine {
  std::string where, text;
};

// "strata" at the start of a line, after a path, or after a backquote, with a word behind it; a
// line that ends in a backslash goes on.
std::vector<CommandLine> command_lines(const std::string& where, std::string text) {
  text = std::regex_replace(text, std::regex("\\\\\n *"), " ");
  std::vector<CommandLine> lines;
  std::istringstream in(text);
  const std::regex start("(?:^ *|`)(?:[\\w./-]*/)?strata ([a-z]+\\b[^`#]*)");
  for (std::string line; std::getline(in, line);) {
    for (std::sregex_iterator it(line.begin(), line.end(), start), end; it != end; ++it) {
      lines.push_back({where, (*it)[1]});
    }
  }
  return lines;
}

void expect_options_exist(const CommandLine& line, const std::set<std::string>& known) {
  std::string command = line.text.substr(0, line.text.find(' '));
  ASSERT_TRUE(known.contains(command)) << line.where << ": strata " << line.text;
  std::smatch word;
  if (std::regex_search(line.text, word, std::regex("^plan (train|serve|schedule)\\b")))
    command = word.str();
  const std::string help = help_of(command);
  const std::regex option("(?:^|\\s)(--[a-z][a-z0-9-]*)");
  for (std::sregex_iterator it(line.text.begin(), line.text.end(), option), end; it != end; ++it) {
    const std::regex row("[\\s[]" + (*it)[1].str() + "(?=[\\s\\[\\],)])");
    EXPECT_TRUE(std::regex_search(help, row)) << line.where << ": strata " << line.text
                                              << ": `strata " << command << "` has no " << (*it)[1];
  }
}

TEST(Documents, NameCommandsAndOptionsThatExist) {
  const std::set<std::string> known = commands();
  EXPECT_TRUE(known.contains("train"));
  const fs::path root = STRATA_SOURCE_DIR;
  std::vector<fs::path> files = {root / "README.md", root / "CONTRIBUTING.md"};
  for (const auto& entry : fs::recursive_directory_iterator(root / "docs")) {
    // The log names what there was on its day.
    const bool is_log = entry.path().parent_path().filename() == "log";
    if (entry.path().extension() == ".md" && !is_log) files.push_back(entry.path());
  }
  size_t checked = 0;
  for (const fs::path& file : files) {
    const std::string name = file.filename().string();
    for (const CommandLine& line : command_lines(name, read_file(file.string(), 1 << 24))) {
      expect_options_exist(line, known);
      ++checked;
    }
  }
  EXPECT_GE(checked, 5u);
}

TEST(Documents, EveryCommandsExamplesUseItsOptions) {
  const std::set<std::string> known = commands();
  for (const std::string& command : known) {
    if (command == "help" || command == "version") continue;
    const std::string help = help_of(command);
    const auto begin = help.find("\nExample");
    EXPECT_NE(begin, std::string::npos) << "`strata " << command << " --help` has no example";
    if (begin == std::string::npos) continue;
    for (const CommandLine& line : command_lines(command + " --help", help.substr(begin))) {
      expect_options_exist(line, known);
    }
  }
}

}  // namespace
}  // namespace strata::apps
