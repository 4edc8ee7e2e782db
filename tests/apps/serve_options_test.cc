#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>

#include "apps/serve/options.h"

namespace strata::apps {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ServeOptions, TheCommandLineKeepsWhatWasGiven) {
  CLI::App app;
  const auto line = add_serve_options(app);
  app.parse("--model A=/x --model B=/y --max-body 1MiB --no-keys --config f.toml");
  EXPECT_EQ(line->config, "f.toml");
  EXPECT_THAT(line->source.values.at("model"), ElementsAre("A=/x", "B=/y"));
  EXPECT_THAT(line->source.values.at("max-body"), ElementsAre("1MiB"));
  EXPECT_THAT(line->source.values.at("no-keys"), ElementsAre("on"));
  EXPECT_EQ(line->source.values.size(), 3u);
}

TEST(ServeOptions, AnUnknownOptionOrAStrayWordIsAnError) {
  for (const char* bad : {"--max-bodi 1", "--model A=/x B=/y", "word", "--max-body"}) {
    CLI::App app;
    const auto line = add_serve_options(app);
    EXPECT_THROW(app.parse(bad), CLI::ParseError) << bad;
  }
}

TEST(ServeOptions, HelpNamesEachOptionWithUnitAndDefault) {
  CLI::App app;
  const auto line = add_serve_options(app);
  const std::string help = app.help();
  server::ServeOptions options;
  const OptionTable table = server::options_of(options);
  EXPECT_GT(table.rows().size(), 50u);
  for (const OptionRow& row : table.rows()) {
    EXPECT_THAT(help, HasSubstr("--" + row.name));
    EXPECT_THAT(help, HasSubstr(row.unit));
    if (row.kind != OptionKind::kFlag) {
      EXPECT_THAT(help, HasSubstr(row.default_text));
    }
  }
}

TEST(ServeOptions, SaysWhatResultsDependOn) {
  server::ServeOptions options;
  const OptionTable table = server::options_of(options);
  std::vector<std::string> marked;
  for (const OptionRow& row : table.rows()) {
    if (row.results_by != ResultsBy::kNothing) marked.push_back(row.name);
  }
  EXPECT_THAT(marked, ElementsAre("expert-rank", "dtype"));
}

}  // namespace
}  // namespace strata::apps
