// SPDX-License-Identifier: Apache-2.0
// The front of the command line, through the program: what it says to nothing, to help, and to what
// was typed wrong.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "apps/suggest.h"
#include "base/files.h"
#include "tests/apps/program.h"

namespace strata::apps {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// Each command that the overview has.
const std::vector<std::string> kCommands = {"train",   "plan",   "generate", "chat",  "inspect",
                                            "probe",   "init",   "tokenize", "bench", "serve",
                                            "keygen",  "backup", "restore",  "check", "merge",
                                            "convert", "data",   "eval",     "pull"};

void expect_refused(const Ran& ran, const std::string& what) {
  EXPECT_EQ(ran.code, 2) << ran.err;
  EXPECT_EQ(ran.out, "");
  EXPECT_THAT(ran.err, HasSubstr(what));
}

TEST(Front, AloneItListsTheCommandsAndWhatToStartWith) {
  const Ran ran = run_program({});
  EXPECT_EQ(ran.code, 0);
  EXPECT_EQ(ran.err, "");
  for (const std::string& command : kCommands) EXPECT_THAT(ran.out, HasSubstr("\n  " + command));
  const std::string start = ran.out.substr(ran.out.find("Start with"));
  size_t lines = 0;
  for (size_t at = 0; (at = start.find("\n  strata ", at)) != std::string::npos; ++at) ++lines;
  EXPECT_EQ(lines, 3u);
  for (const char* same : {"help", "--help", "-h"}) EXPECT_EQ(run_program({same}).out, ran.out);
}

TEST(Front, HelpOfACommandIsItsOwnHelp) {
  for (const std::string& command : kCommands) {
    const Ran ran = run_program({command, "--help"});
    EXPECT_EQ(ran.code, 0);
    EXPECT_THAT(ran.out, HasSubstr("Usage: strata " + command));
    EXPECT_EQ(run_program({"help", command}).out, ran.out);
  }
}

// They are in the list that help prints.
TEST(Front, HelpOfThoseWithoutOptionsSaysWhatTheyDo) {
  for (const std::string command : {"help", "version"}) {
    const Ran ran = run_program({"help", command});
    EXPECT_EQ(ran.code, 0) << ran.err;
    EXPECT_THAT(ran.out, HasSubstr("\n\nUsage: strata " + command));
  }
}

TEST(Front, VersionIsACommandAndAnOption) {
  const Ran ran = run_program({"version"});
  EXPECT_EQ(ran.code, 0);
  EXPECT_THAT(
      ran.out,
      ::testing::MatchesRegex(
          "strata [0-9]+\\.[0-9]+\\.[0-9]+, CPU path [^(]+( \\(arch_prctl[^)]*\\))?(, commit "
          "[^ ]+)? \\([A-Za-z]+, [^)]+\\)\n"));
  EXPECT_EQ(run_program({"--version"}).out, ran.out);
}

TEST(Front, AnUnknownCommandIsNamedWithWhatItIsCloseTo) {
  expect_refused(run_program({"trian", "--model", "x"}),
                 "there is no command 'trian'; did you mean train?");
  expect_refused(run_program({"download", "x"}), "'download'; did you mean pull?");
  expect_refused(run_program({"help", "servr"}),
                 "there is no command 'servr'; did you mean serve?");
  expect_refused(run_program({"finetune"}), "'finetune'; did you mean train?");
  expect_refused(run_program({"--modle", "x"}), "there is no command '--modle'");
  const Ran far = run_program({"yodel"});
  expect_refused(far, "there is no command 'yodel'\n`strata help` lists the commands");
}

TEST(Front, AnUnknownOptionIsNamedWithWhatItIsCloseTo) {
  expect_refused(run_program({"train", "--modle", "M", "--data", "D", "--out", "O"}),
                 "train: there is no option --modle; did you mean --model?");
  expect_refused(
      run_program({"train", "--model", "M", "--data", "D", "--out", "O", "--batch_tokens", "1e-3"}),
      "there is no option --batch_tokens; did you mean --batch-tokens?");
  expect_refused(run_program({"chat", "--model", "M", "--max-new-tokens=5"}),
                 "there is no option --max-new-tokens; did you mean --max-tokens?");
  expect_refused(run_program({"chat", "-m", "M"}), "there is no option -m; did you mean --model?");
  expect_refused(
      run_program({"train", "--zzzz", "1", "--rnak", "2"}),
      "there is no option --zzzz\n  and there is no option --rnak; did you mean --rank?");
}

TEST(Front, RequiredOptionsAreNamedTogether) {
  const Ran ran = run_program({"train"});
  expect_refused(ran, "train: these are required:");
  for (const char* name : {"\n  --model ", "\n  --data ", "\n  --out "}) {
    EXPECT_THAT(ran.err, HasSubstr(name));
  }
  EXPECT_THAT(ran.err, HasSubstr("strata train --model qwen3 --data chats.jsonl --out adapter"));
  const Ran one = run_program({"restore", "--in", "x"});
  expect_refused(one, "restore: this is required:\n  --data");
  EXPECT_THAT(one.err, Not(HasSubstr("  --in")));
}

TEST(Front, UnexpectedArgumentsComeInTheirOrder) {
  expect_refused(run_program({"keygen", "a", "b", "c"}), "keygen: not expected: a b c");
}

TEST(Front, AValueIsWanted) {
  expect_refused(run_program({"keygen", "--hash", "x"}), "not expected: x");
  expect_refused(run_program({"check", "--data"}), "check: --data: want a value behind it");
  expect_refused(run_program({"backup", "--data", "--out", "x"}), "not expected: x");
  expect_refused(run_program({"backup", "--data", "--out"}),
                 "--data: got the option --out, want a value");
  expect_refused(run_program({"check", "--data", "a", "--data", "b"}),
                 "--data is given 2 times, want one value: a b");
}

TEST(Front, HelpWinsOverWhatIsWrong) {
  for (const char* help : {"--help", "-h", "--help-all"}) {
    const Ran ran = run_program({"train", "--modle", "M", help});
    EXPECT_EQ(ran.code, 0);
    EXPECT_THAT(ran.out, HasSubstr("Usage: strata train"));
  }
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

// The names in a help: of rows, at their place alone.
std::vector<std::string> options_in(const std::string& help) {
  std::vector<std::string> names;
  for (const std::string& line : lines_of(help)) {
    const size_t at = line.starts_with("  --") ? 4 : line.starts_with("  [--") ? 5 : 0;
    if (at > 0) names.push_back(line.substr(at, line.find_first_of(" ]", at) - at));
  }
  return names;
}

TEST(Front, HelpIsAPageOfCommonOptionsAndHelpAllHasTheRest) {
  for (const char* command : {"train", "plan", "generate", "chat", "probe", "bench", "serve"}) {
    const std::string some = run_program({command, "--help"}).out;
    const std::string all = run_program({command, "--help-all"}).out;
    EXPECT_LE(lines_of(some).size(), 80u) << command;
    const std::vector<std::string> common = options_in(some);
    const std::vector<std::string> every = options_in(all);
    EXPECT_LT(common.size(), every.size()) << command;
    for (const std::string& name : common) {
      EXPECT_THAT(every, ::testing::Contains(name)) << command;
    }
    // More than one heading, and --help names those that it leaves out.
    const auto is_heading = [](const std::string& line) {
      return line.ends_with(":") && line[0] != ' ' && !line.starts_with("Example");
    };
    const std::vector<std::string> lines = lines_of(all);
    EXPECT_GE(std::count_if(lines.begin(), lines.end(), is_heading), 3) << command;
    EXPECT_THAT(some, HasSubstr("--help-all"));
  }
}

TEST(Front, HelpHasAHundredColumnsAtMost) {
  for (const std::string& command : kCommands) {
    for (const char* help : {"--help", "--help-all"}) {
      for (const std::string& line : lines_of(run_program({command, help}).out)) {
        EXPECT_LE(line.size(), 100u) << command << ": " << line;
      }
    }
  }
  for (const std::string& line : lines_of(run_program({}).out)) EXPECT_LE(line.size(), 100u);
}

TEST(Front, HelpOfServeHasNoDotsBehindOptions) {
  EXPECT_THAT(run_program({"serve", "--help-all"}).out, Not(HasSubstr(" ... ")));
}

TEST(Front, AFewBytesOfMemoryAreCalledBytes) {
  for (const std::vector<std::string>& line :
       {std::vector<std::string>{"train", "--model", "M", "--data", "D", "--out", "O"},
        {"plan", "--model", "qwen3-0.6b", "--tokens", "1x8"},
        {"bench", "train_s512"},
        {"serve", "--model", "a=b", "--data", "c"}}) {
    std::vector<std::string> arguments = line;
    arguments.insert(arguments.end(), {"--memory", "10"});
    expect_refused(run_program(arguments), "--memory: got '10', which is 10 bytes; want at least");
  }
}

TEST(Front, LongTimesAreThoseOfAClock) {
  for (const Words& stages : {Words{}, Words{"--stages", "2", "--microbatches", "8"}}) {
    Words arguments = {"plan", "--model", "qwen3-0.6b", "--tokens", "512x4096"};
    arguments.insert(arguments.end(), stages.begin(), stages.end());
    const Ran ran = run_program(arguments);
    EXPECT_EQ(ran.code, 0) << ran.err;
    EXPECT_TRUE(std::regex_search(ran.out, std::regex("\na step +([0-9]+ d [0-9]+ h|[0-9]+:[0-9:]+)"
                                                      " predicted")))
        << ran.out;
    EXPECT_THAT(ran.out, Not(HasSubstr("e+0")));
  }
}

// cmake/version.cmake, as the build runs it, for a tree in `source`.
std::string version_of(const std::string& source, const std::string& out) {
  const std::string root = STRATA_SOURCE_DIR;
  const std::string command = "cmake -D SOURCE=" + source + " -D IN=" + root +
                              "/src/setup/version.cc.in -D OUT=" + out +
                              " -D VERSION=1.2.3 -D BUILD=Test -P " + root + "/cmake/version.cmake";
  EXPECT_EQ(std::system(command.c_str()), 0);
  return read_file(out, 1 << 20);
}

TEST(Front, VersionNamesTheCommitWhereThereIsOne) {
  namespace fs = std::filesystem;
  const std::string root = ::testing::TempDir() + "strata_version";
  fs::remove_all(root);
  fs::create_directories(root + "/tree/inner");
  const std::string out = root + "/version.cc";
  EXPECT_THAT(version_of(root + "/tree", out), HasSubstr("kCommit = \"\""));
  const std::string commit =
      "cd " + root +
      "/tree && git init -q && touch a && git add a && "
      "git -c user.name=a -c user.email=a@b commit -q -m a && git tag -m v v1.2.3 2>/dev/null; "
      "git -C " +
      root + "/tree -c user.name=a -c user.email=a@b tag -f v1.2.3 >/dev/null";
  ASSERT_EQ(std::system(commit.c_str()), 0);
  EXPECT_THAT(version_of(root + "/tree", out), HasSubstr("kCommit = \"v1.2.3\""));
  // The same commit leaves the file alone, so nothing is built again.
  const auto written = fs::last_write_time(out) - std::chrono::hours(1);
  fs::last_write_time(out, written);
  version_of(root + "/tree", out);
  EXPECT_EQ(fs::last_write_time(out), written);
  std::ofstream(root + "/tree/a") << "b";
  EXPECT_THAT(version_of(root + "/tree", out), HasSubstr("kCommit = \"v1.2.3-modified\""));
  // A tarball unpacked in somebody else's repository is not that repository's commit.
  EXPECT_THAT(version_of(root + "/tree/inner", out), HasSubstr("kCommit = \"\""));
  fs::remove_all(root);
}

TEST(Suggest, CountsInsertionsRemovalsReplacementsAndSwaps) {
  EXPECT_EQ(edit_distance("", ""), 0u);
  EXPECT_EQ(edit_distance("abc", ""), 3u);
  EXPECT_EQ(edit_distance("train", "trian"), 1u);
  EXPECT_EQ(edit_distance("train", "rain"), 1u);
  EXPECT_EQ(edit_distance("train", "strains"), 2u);
  EXPECT_EQ(edit_distance("chat", "plan"), 3u);
}

TEST(Suggest, KnowsOtherProgramsNamesOnlyWhereThereIsTheOption) {
  const std::vector<std::string> with = {"lr", "model", "max-tokens"};
  EXPECT_THAT(similar_options("learning-rate", with), ElementsAre("lr"));
  EXPECT_THAT(similar_options("Learning_Rate", with), ElementsAre("lr"));
  EXPECT_THAT(similar_options("learning-rate", std::vector<std::string>{"model"}), IsEmpty());
  EXPECT_THAT(similar_options("learning-rate", std::vector<std::string>{"learning-rate", "lr"}),
              ElementsAre("learning-rate"));
  EXPECT_THAT(similar_options("max", std::vector<std::string>{"max-rank", "max-body", "max-disk",
                                                              "max-parked", "min"}),
              ElementsAre("max-rank", "max-body", "max-disk"));
  EXPECT_THAT(similar_options(std::string(100'000, 'x'), with), IsEmpty());
  EXPECT_THAT(similar_options("", with), IsEmpty());
}

}  // namespace
}  // namespace strata::apps
