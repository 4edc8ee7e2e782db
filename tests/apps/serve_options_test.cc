// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "apps/command_line.h"
#include "apps/help.h"
#include "apps/serve/options.h"
#include "base/error.h"
#include "tests/base/temp_dir.h"

namespace strata::apps {
namespace {

using strata::testing::error_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

const CommandText kServe = {"serve", "Serve models", ""};

TEST(ServeOptions, TheCommandLineKeepsWhatWasGiven) {
  const auto line = make_serve_command_line();
  const std::vector<std::string> arguments = {"--model",   "A=/x",       "--model",
                                              "B=/y",      "--max-body", "1MiB",
                                              "--no-keys", "--config",   "f.toml"};
  EXPECT_EQ(read_command_line(kServe, line->rows, arguments), HelpWanted::kNo);
  EXPECT_EQ(line->config, "f.toml");
  EXPECT_THAT(line->source.values.at("model"), ElementsAre("A=/x", "B=/y"));
  EXPECT_THAT(line->source.values.at("max-body"), ElementsAre("1MiB"));
  EXPECT_THAT(line->source.values.at("no-keys"), ElementsAre("on"));
  EXPECT_EQ(line->source.values.size(), 3u);
}

// What --help-all says of them: alone they are on, and a value stands behind '='. The word behind
// one may be a model's directory, so it is never taken for its value.
TEST(ServeOptions, AFlagHasItsValueBehindAnEqualsSign) {
  const auto read = [](const std::vector<std::string>& arguments) {
    const auto line = make_serve_command_line();
    read_command_line(kServe, line->rows, arguments);
    return *line;
  };
  for (const char* on : {"--merged", "--merged=on", "--merged=true", "--merged=1"}) {
    EXPECT_THAT(read({on}).source.values.at("merged"), ElementsAre("on")) << on;
  }
  for (const char* off : {"--merged=off", "--merged=false", "--merged=0"}) {
    EXPECT_THAT(read({off}).source.values.at("merged"), ElementsAre("off")) << off;
  }
  EXPECT_EQ(read({"--merged", "models/tiny"}).model, "models/tiny");
  EXPECT_EQ(read({"--merged", "./on"}).model, "./on");
  for (const char* value : {"on", "off"}) {
    EXPECT_THAT(error_of([&] { read({"--model", "A=/x", "--merged", value}); }),
                HasSubstr(std::string("stands behind '=': --merged=") + value));
  }
  for (const char* other : {"--merged=maybe", "--merged=", "--merged=5"}) {
    EXPECT_THAT(error_of([&] { read({other}); }), HasSubstr("want on or off")) << other;
  }
  // A switch that must have one.
  EXPECT_THAT(read({"--prefix-cache", "on"}).source.values.at("prefix-cache"), ElementsAre("on"));
}

TEST(ServeOptions, AnUnknownOptionOrAStrayWordIsAnError) {
  const std::vector<std::vector<std::string>> bad = {
      {"--max-bodi", "1"}, {"--model", "A=/x", "one", "two"}, {"one", "two"}, {"--max-body"}};
  for (const std::vector<std::string>& arguments : bad) {
    const auto line = make_serve_command_line();
    EXPECT_THROW(read_command_line(kServe, line->rows, arguments), Error) << arguments[0];
  }
}

// With the breaks of lines as spaces.
std::string whole_help() {
  const std::string help = command_help(kServe, make_serve_command_line()->rows, /*all=*/true);
  std::string out;
  for (const char c : help) {
    const bool is_space = c == ' ' || c == '\n';
    if (!is_space || (!out.empty() && out.back() != ' ')) out += is_space ? ' ' : c;
  }
  return out;
}

TEST(ServeOptions, HelpNamesEachOptionWithUnitAndDefault) {
  const std::string help = whole_help();
  server::ServeOptions options;
  const OptionTable table = server::option_table_of(options);
  EXPECT_GT(table.rows().size(), 50u);
  for (const OptionRow& row : table.rows()) {
    if (row.is_retired) continue;
    if (row.is_in_file) {  // a key of a file has its name alone
      EXPECT_THAT(help, Not(HasSubstr("--" + row.name + " " + row.unit)));
      EXPECT_THAT(help.substr(help.find("In --config FILE alone:")), HasSubstr(row.name));
      continue;
    }
    const bool is_flag = row.kind == OptionKind::kFlag;
    const std::string unit = is_flag ? "[=" + row.unit + "]" : " " + row.unit;
    EXPECT_THAT(help, HasSubstr("--" + row.name + (row.unit.empty() ? "" : unit)));
    EXPECT_THAT(help, HasSubstr(row.help));
    if (row.kind != OptionKind::kFlag) {
      EXPECT_THAT(help, HasSubstr(row.default_text));
    }
  }
}

TEST(ServeOptions, SaysWhatResultsDependOn) {
  server::ServeOptions options;
  const OptionTable table = server::option_table_of(options);
  std::vector<std::string> marked;
  for (const OptionRow& row : table.rows()) {
    if (row.results_by != ResultsBy::kNothing) marked.push_back(row.name);
  }
  EXPECT_THAT(marked, ElementsAre("expert-rank", "dtype", "context"));
}

}  // namespace
}  // namespace strata::apps
