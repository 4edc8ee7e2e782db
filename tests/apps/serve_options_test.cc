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
    add_serve_options(app);
    EXPECT_THROW(app.parse(bad), CLI::ParseError) << bad;
  }
}

TEST(ServeOptions, HelpNamesEachOptionWithUnitAndDefault) {
  CLI::App app;
  add_serve_options(app);
  const std::string help = app.help();
  for (const server::OptionRow& row : server::serve_option_rows()) {
    EXPECT_THAT(help, HasSubstr("--" + std::string(row.name)));
    EXPECT_THAT(help, HasSubstr(std::string(row.unit)));
    if (row.kind != server::OptionRow::Kind::kFlag) {
      EXPECT_THAT(help, HasSubstr(std::string(row.default_text)));
    }
  }
}

}  // namespace
}  // namespace strata::apps
