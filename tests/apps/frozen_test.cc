// SPDX-License-Identifier: Apache-2.0
// What people's scripts name: each command with its options, and each variable. A new one gets its
// line in frozen_options.txt; one that is there is neither renamed nor taken away. And the places
// that make and run passes, which are to stay few.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <regex>
#include <set>
#include <sstream>
#include <string>

#include "base/files.h"
#include "tests/apps/program.h"

namespace strata::apps {
namespace {

using ::testing::ContainerEq;
using ::testing::IsEmpty;
using Names = std::set<std::string>;

std::string source(const std::string& path) {
  return read_file(std::string(STRATA_SOURCE_DIR) + "/" + path, 1 << 20);
}

void add_matches(const std::string& text, const std::string& pattern, const std::string& before,
                 Names& names) {
  const std::regex expression(pattern);
  for (std::sregex_iterator it(text.begin(), text.end(), expression), end; it != end; ++it)
    names.insert(before + (*it)[1].str());
}

Names names_of_program() {
  Names commands, names;
  add_matches(run_program({"help"}).out, "\n  ([a-z]+)  ", "", commands);
  for (const char* kind : {"plan train", "plan serve", "plan schedule"}) commands.insert(kind);
  for (const std::string& command : commands) {
    names.insert(command);
    if (command == "help" || command == "version") continue;
    std::istringstream in(command);
    Words words;
    for (std::string word; in >> word;) words.push_back(word);
    words.emplace_back("--help-all");
    add_matches(run_program(words).out, "\n  \\[?(--[a-z][a-z0-9-]*)", command + " ", names);
  }
  add_matches(source("src/base/env.cc"), "\"([A-Z][A-Z_]*[A-Z])\"", "variable ", names);
  return names;
}

TEST(Frozen, OptionsAndVariables) {
  Names wanted;
  std::istringstream lines(source("tests/apps/frozen_options.txt"));
  for (std::string line; std::getline(lines, line);) {
    if (!line.empty() && line[0] != '#') wanted.insert(line);
  }
  const Names names = names_of_program();
  Names gone, unknown;
  std::ranges::set_difference(wanted, names, std::inserter(gone, gone.end()));
  std::ranges::set_difference(names, wanted, std::inserter(unknown, unknown.end()));
  EXPECT_THAT(gone, IsEmpty()) << "scripts name them";
  EXPECT_THAT(unknown, IsEmpty()) << "new ones get a line in frozen_options.txt";
}

TEST(Frozen, RetiredOptionsAreTakenAndNotNamed) {
  const Names names = names_of_program();
  std::istringstream lines(source("tests/apps/retired_options.txt"));
  size_t count = 0;
  for (std::string line; std::getline(lines, line);) {
    if (line.empty() || line[0] == '#') continue;
    EXPECT_FALSE(names.contains(line)) << line;
    std::istringstream in(line);
    Words words;
    for (std::string word; in >> word;) words.push_back(word);
    words.emplace_back("any");
    words.emplace_back("--no-such-option");
    const std::string told = run_program(words).err;
    EXPECT_THAT(told, ::testing::HasSubstr("--no-such-option"));
    EXPECT_THAT(told, ::testing::Not(::testing::HasSubstr("no option " + words[1]))) << line;
    ++count;
  }
  EXPECT_GT(count, 0u);
}

// The files of src/ that name it.
Names files_with(const std::string& what) {
  Names files;
  const std::string root = std::string(STRATA_SOURCE_DIR) + "/src/";
  for (const auto& entry : std::filesystem::recursive_directory_iterator(root)) {
    const std::string file = entry.path().string().substr(root.size());
    if (!file.ends_with(".cc")) continue;
    if (source("src/" + file).find(what) != std::string::npos) files.insert(file);
  }
  return files;
}

// Trained, scored and counted passes are StagePass's, which the runner of stages makes; sampling
// steps SamplePass's. bench fills a long context without results.
TEST(Frozen, PlacesThatRunPasses) {
  EXPECT_THAT(files_with("decoder_forward("),
              ContainerEq(Names{"apps/bench/context.cc", "engine/pass.cc",
                                "engine/sampling/sample_pass.cc", "model/decoder.cc"}));
  EXPECT_THAT(files_with("decoder_backward("),
              ContainerEq(Names{"engine/pass.cc", "model/decoder.cc"}));
  EXPECT_THAT(files_with("StagePass"),
              ContainerEq(Names{"engine/pass.cc", "engine/pipeline/stage_runner.cc"}));
  EXPECT_THAT(files_with("StageRunner>("), ContainerEq(Names{"engine/pipeline/rank_stages.cc"}));
}

}  // namespace
}  // namespace strata::apps
