// SPDX-License-Identifier: Apache-2.0
// `strata manual`: each command and option stands in its man page and in each shell's completion,
// and shells take what is written.
#include "apps/manual.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "base/files.h"
#include "tests/apps/program.h"
#include "tests/base/temp_dir.h"

namespace strata::apps {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class Manual : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_ = folder_.file("manual");
    const Ran ran = run_program({"manual", "--out", dir_});
    ASSERT_EQ(ran.code, 0) << ran.err;
  }
  [[nodiscard]] std::string file(const std::string& name) const {
    return read_file(dir_ + "/" + name, 1 << 24);
  }

  const testing::TempDir folder_;
  std::string dir_;
};

std::set<std::string> options_of_help(const std::string& command) {
  const std::string help = run_program({command, "--help-all"}).out;
  const std::regex option("\n  (--[a-z][a-z0-9-]*)");
  std::set<std::string> names;
  for (std::sregex_iterator it(help.begin(), help.end(), option), end; it != end; ++it) {
    names.insert((*it)[1]);
  }
  names.erase("--help");
  names.erase("--help-all");
  return names;
}

// What bash offers for a line whose last word is begun.
std::string offered(const std::string& dir, const std::string& words) {
  const std::string script =
      ". " + dir + "/strata.bash; COMP_WORDS=(" + words +
      "); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _strata; echo ${COMPREPLY[@]} > " + dir + "/out";
  EXPECT_EQ(::system(("bash -c '" + script + "'").c_str()), 0) << words;
  return read_file(dir + "/out", 1 << 20);
}

TEST_F(Manual, HasEveryOptionOfEveryCommand) {
  const std::string bash = file("strata.bash"), zsh = file("strata.zsh"),
                    fish = file("strata.fish");
  for (const std::string command : {"train", "serve", "chat", "plan", "keygen"}) {
    const std::string page = file("man1/strata-" + command + ".1");
    const std::set<std::string> options = options_of_help(command);
    EXPECT_FALSE(options.empty());
    for (const std::string& option : options) {
      const std::string escaped = std::regex_replace(option, std::regex("-"), "\\-");
      EXPECT_THAT(page, HasSubstr("\n.B " + escaped)) << command;
      EXPECT_THAT(bash, HasSubstr(option + " "));
      EXPECT_THAT(zsh, HasSubstr(option + "["));
      EXPECT_THAT(fish, HasSubstr("-l " + option.substr(2) + " "));
    }
  }
  EXPECT_THAT(file("man1/strata.1"), HasSubstr("strata\\-train"));
}

TEST_F(Manual, HasTheAliases) {
  EXPECT_THAT(file("man1/strata-train.1"), HasSubstr("\n.B \\-\\-lr FLOAT\n"));
  EXPECT_THAT(file("man1/strata-train.1"), HasSubstr(" (also \\-\\-learning\\-rate)\n"));
  EXPECT_THAT(file("strata.zsh"), HasSubstr("'--learning-rate["));
  EXPECT_THAT(file("strata.fish"), HasSubstr(" -l lr -l learning-rate -d "));
  EXPECT_EQ(offered(dir_, "strata train --learning"), "--learning-rate\n");
  EXPECT_THAT(run_program({"train", "--help-all"}).out, HasSubstr("--learning-rate)"));
}

TEST(OptionNames, AnAliasIsFound) {
  OptionTable table;
  double rate = 0;
  table.number("lr", rate, {0, 1, "0 to 1"}, "").also("learning-rate");
  EXPECT_EQ(table.find("learning-rate"), table.find("lr"));
  EXPECT_NE(table.find("lr"), nullptr);
  EXPECT_EQ(table.find("learning"), nullptr);
}

TEST_F(Manual, BashOffersCommandsAndOptions) {
  EXPECT_EQ(offered(dir_, "strata tra"), "train\n");
  EXPECT_THAT(offered(dir_, "strata chat --ada"), HasSubstr("--adapter"));
  EXPECT_THAT(offered(dir_, "strata chat --ada"), Not(HasSubstr("--model")));
}

// As bash does.
TEST_F(Manual, OtherShellsOfferWhatEveryCommandTakes) {
  const std::string zsh = file("strata.zsh"), fish = file("strata.fish");
  EXPECT_EQ(offered(dir_, "strata hel"), "help\n");
  EXPECT_EQ(offered(dir_, "strata vers"), "version\n");
  for (const std::string command : {"help", "version"}) {
    EXPECT_THAT(zsh, HasSubstr("\n    '" + command + ":"));
    EXPECT_THAT(fish, HasSubstr(" -a " + command + " -d "));
  }
  for (const std::string option : {"help", "help-all"}) {
    EXPECT_EQ(offered(dir_, "strata train --" + option).substr(0, 6), "--help");
    EXPECT_THAT(zsh, HasSubstr("'--" + option + "["));
    EXPECT_THAT(fish, HasSubstr(" -l " + option + " -d "));
  }
}

TEST_F(Manual, TheExampleConfigurationIsOneThatServeReads) {
  std::string config = file("strata.toml");
  EXPECT_THAT(config, HasSubstr("\n#listen = \""));
  EXPECT_THAT(config, HasSubstr("\n#max-body = \""));
  // Every line that is not commented out would be set; there is none.
  EXPECT_EQ(std::regex_search(config, std::regex("\n[a-z]")), false);
}

TEST(ManPage, LinesOfTextAreNoRequests) {
  auto table = std::make_shared<OptionTable>();
  std::string field;
  table->text("x", field, ".a leading dot and a back\\slash");
  const std::string page = man_page({{"c", "a command", "'quoted\n.dot"}, table});
  EXPECT_THAT(page, HasSubstr("\n\\&.a leading dot and a back\\eslash"));
  EXPECT_THAT(page, HasSubstr("\n\\&'quoted\n\\&.dot"));
}

// As --help has it, and `strata help` types it.
TEST(ManPage, TheSynopsisHasTheCommandsArgument) {
  auto table = std::make_shared<OptionTable>();
  std::string model;
  table->text("model", model, "of the hub, or a folder").required().or_bare();
  const std::string page = man_page({{"c", "a command", ""}, table});
  EXPECT_THAT(page, HasSubstr(".SH SYNOPSIS\nstrata c MODEL [OPTIONS]\n"));
  EXPECT_THAT(page, HasSubstr("\n.B [\\-\\-model] TEXT\nof the hub, or a folder (required)\n"));
}

TEST(ZshCompletion, HelpCannotEndItsQuotes) {
  auto table = std::make_shared<OptionTable>();
  std::string field;
  table->text("xy", field, "it's [so]: $(rm)");
  const std::vector<DocumentedCommand> commands = {{{"c", "a: command", ""}, table}};
  const std::string zsh = zsh_completion(commands);
  EXPECT_THAT(zsh, HasSubstr("'--xy[it'\\''s  so   $(rm)]:value:_files'"));
  EXPECT_THAT(zsh, HasSubstr("'c:a  command'"));
}

}  // namespace
}  // namespace strata::apps
