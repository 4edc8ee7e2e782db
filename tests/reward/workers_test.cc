// SPDX-License-Identifier: Apache-2.0
// Processes that rate answers: many at once, and those that end, hang, and write what they like.
#include "reward/workers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <thread>

#include "base/files.h"

namespace strata::reward {
namespace {

using ::testing::HasSubstr;

// Writes the number that it reads.
constexpr const char* kEcho = "while read -r line; do echo \"$line\"; done";

std::map<size_t, Rated> rate_all(RewardWorkers& workers, const std::vector<std::string>& lines) {
  for (size_t i = 0; i < lines.size(); ++i) workers.submit(i, lines[i]);
  while (!workers.is_idle()) workers.run(10);
  std::map<size_t, Rated> by_id;
  for (const Rated& rated : workers.take_rated())
    EXPECT_TRUE(by_id.emplace(rated.id, rated).second) << rated.id;
  EXPECT_EQ(by_id.size(), lines.size());
  return by_id;
}

std::map<size_t, Rated> rate_all(const WorkerOptions& options,
                                 const std::vector<std::string>& lines) {
  RewardWorkers workers(options);
  return rate_all(workers, lines);
}

// Whether a process is there, once it has had a while to go.
bool stays(pid_t pid) {
  for (int i = 0; i < 200; ++i) {
    if (::kill(pid, 0) != 0) return false;
    std::ifstream status("/proc/" + std::to_string(pid) + "/stat");
    std::string id, name, state;
    status >> id >> name >> state;
    if (state == "Z") return false;  // whoever it belongs to has not looked yet
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return true;
}

TEST(RewardWorkers, EachAnswerGetsItsOwnNumber) {
  std::vector<std::string> lines;
  for (int i = 0; i < 100; ++i) lines.push_back(std::to_string(i * 0.25));
  for (const int64_t count : {1, 2, 7}) {
    SCOPED_TRACE(count);
    // Later lines are sometimes answered first.
    const std::string command =
        "while read -r line; do case \"$line\" in *5000*) sleep 0.01;; esac; echo \"$line\"; done";
    const auto rated = rate_all({.command = command, .count = count}, lines);
    for (size_t i = 0; i < lines.size(); ++i)
      EXPECT_EQ(rated.at(i).value, static_cast<double>(i) * 0.25);
  }
}

TEST(RewardWorkers, ALineMayBeLongerThanAPipe) {
  const auto rated = rate_all({.command = "while read -r line; do echo ${#line}; done"},
                              {std::string(300'000, 'x'), "four"});
  EXPECT_EQ(rated.at(0).value, 300'000.0);
  EXPECT_EQ(rated.at(1).value, 4.0);
}

TEST(RewardWorkers, WhatIsNoNumberIsLeftOut) {
  const std::vector<std::string> lines = {"1",   "nan", "2e3", "inf",   "",     "-0.5",
                                          "1 2", " 7 ", "x",   "1e999", "0x10", "3"};
  const auto rated = rate_all({.command = kEcho}, lines);
  for (const size_t i : {1u, 3u, 4u, 6u, 8u, 9u, 10u}) {
    EXPECT_FALSE(rated.at(i).value) << lines[i];
    EXPECT_THAT(rated.at(i).fault, HasSubstr("it wrote '" + lines[i])) << lines[i];
  }
  EXPECT_EQ(rated.at(0).value, 1.0);
  EXPECT_EQ(rated.at(2).value, 2000.0);
  EXPECT_EQ(rated.at(5).value, -0.5);
  EXPECT_EQ(rated.at(7).value, 7.0);
  EXPECT_EQ(rated.at(11).value, 3.0);
}

// A second line would be taken for the answer to the next one.
TEST(RewardWorkers, ASecondLineIsNoAnswer) {
  const auto rated = rate_all(
      {.command = "while read -r line; do case $line in 2) printf '5\\n6\\n';; *) echo $line;; "
                  "esac; done"},
      {"1", "2", "3", "4"});
  EXPECT_EQ(rated.at(0).value, 1.0);
  EXPECT_FALSE(rated.at(1).value && rated.at(2).value);  // the two lines may come apart
  EXPECT_NE(rated.at(2).value, 6.0);
  EXPECT_EQ(rated.at(3).value, 4.0);
}

TEST(RewardWorkers, OneThatEndsCostsOneAnswer) {
  const std::string command =
      "while read -r line; do case $line in 3) exit 5;; 6) kill -9 $$;; *) echo $line;; esac; done";
  const auto rated =
      rate_all({.command = command, .count = 2}, {"0", "1", "2", "3", "4", "5", "6", "7", "8"});
  for (const size_t i : {0u, 1u, 2u, 4u, 5u, 7u, 8u})
    EXPECT_EQ(rated.at(i).value, static_cast<double>(i));
  EXPECT_EQ(rated.at(3).fault, "it ended with exit code 5");
  EXPECT_EQ(rated.at(6).fault, "signal 9 ended it");
}

// The time is an answer's, and what hangs is ended with all that it started.
TEST(RewardWorkers, OneThatHangsCostsOneAnswer) {
  const std::string path = ::testing::TempDir() + "strata_reward_pid";
  remove_file(path);
  const std::string command = "while read -r line; do case $line in 1) sleep 1000 & echo $! > " +
                              path + "; wait;; *) echo $line;; esac; done";
  const auto rated = rate_all({.command = command, .timeout_seconds = 0.3}, {"0", "1", "2"});
  EXPECT_EQ(rated.at(0).value, 0.0);
  EXPECT_EQ(rated.at(1).fault, "no line in 0.3 s");
  EXPECT_EQ(rated.at(2).value, 2.0);
  EXPECT_FALSE(stays(std::stoi(read_file(path, 100))));
}

TEST(RewardWorkers, TenInARowAreAFault) {
  const std::string log = ::testing::TempDir() + "strata_reward.log";
  remove_file(log);
  RewardWorkers workers({.command = "echo 'no module named judge' >&2; exit 3", .log = log});
  for (size_t i = 0; i < 20; ++i) workers.submit(i, "1");
  try {
    while (!workers.is_idle()) workers.run(10);
    FAIL() << "no fault";
  } catch (const RewardFailed& error) {
    EXPECT_THAT(error.what(), HasSubstr("10 answers in a row got no number"));
    EXPECT_THAT(error.what(), HasSubstr("exit code 3"));
    EXPECT_THAT(error.what(), HasSubstr("no module named judge"));
  }
  EXPECT_EQ(workers.take_rated().size(), 10u);
}

TEST(RewardWorkers, NineInARowAreNone) {
  std::vector<std::string> lines(29, "x");
  lines[9] = lines[19] = "1";
  const auto rated = rate_all({.command = kEcho}, lines);
  EXPECT_EQ(rated.at(9).value, 1.0);
  EXPECT_FALSE(rated.at(28).value);
}

// One that reads to the end of its input ends by itself and may clean up; one that does not is
// killed, with what it started.
TEST(RewardWorkers, NothingIsLeftBehind) {
  const std::string folder = ::testing::TempDir() + "strata_reward_left";
  std::filesystem::remove_all(folder);
  make_folders(folder);
  {
    RewardWorkers workers(
        {.command = "while read -r line; do echo 1; done; echo bye > " + folder + "/said"});
    EXPECT_EQ(rate_all(workers, {"a"}).at(0).value, 1.0);
  }
  EXPECT_EQ(read_file(folder + "/said", 100), "bye\n");
  {
    RewardWorkers workers(
        {.command = "sleep 1000 & echo $! > " + folder + "/pid; read -r line; echo 1; wait"});
    EXPECT_EQ(rate_all(workers, {"a"}).at(0).value, 1.0);
  }
  EXPECT_FALSE(stays(std::stoi(read_file(folder + "/pid", 100))));
}

// Ctrl-C at a terminal goes to the group that is in front, which is ours.
TEST(RewardWorkers, AGroupOfItsOwn) {
  const auto rated = rate_all({.command = "while read -r line; do ps -o pgid= -p $$; done"}, {"1"});
  ASSERT_TRUE(rated.at(0).value);
  EXPECT_NE(*rated.at(0).value, static_cast<double>(::getpgrp()));
}

}  // namespace
}  // namespace strata::reward
