// SPDX-License-Identifier: Apache-2.0
// Ranks that are killed or stopped in the midst of strata train: all end, and any division goes on
// with what was saved, to the files of one process.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cstdlib>
#include <fstream>
#include <iterator>

#include "tests/ranks/ranks_fixture.h"

namespace strata::apps {
namespace {

using testing::HasSubstr;

// A run whose rank is killed or stopped once it has logged some steps, and what it printed.
class RunningRanks {
 public:
  RunningRanks(const std::string& command, const TrainOptions& o) : o_(o) {
    pid_ = ::fork();
    if (pid_ != 0) return;
    const int file = ::open(printed().c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    ::dup2(file, STDOUT_FILENO);
    ::dup2(file, STDERR_FILENO);
    const std::string line = "exec " + command;
    ::execl("/bin/sh", "sh", "-c", line.c_str(), nullptr);
    ::_exit(127);
  }
  // To the rank, once so many lines of metrics are there.
  void signal_after(int64_t lines, int rank, int signal) const {
    while (count_lines() < lines) {
      ASSERT_FALSE(has_ended()) << content(printed());
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    const pid_t pid = pid_of(rank);
    ASSERT_GT(pid, 0);
    ASSERT_EQ(::kill(pid, signal), 0);
  }
  [[nodiscard]] Ended wait() const {
    int status = 0;
    ::waitpid(pid_, &status, 0);
    return {WIFEXITED(status) ? WEXITSTATUS(status) : 128, content(printed())};
  }

 private:
  [[nodiscard]] std::string printed() const { return o_.out + ".printed"; }
  [[nodiscard]] bool has_ended() const {
    siginfo_t info = {};
    return ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
           info.si_pid != 0;
  }
  [[nodiscard]] int64_t count_lines() const {
    std::ifstream file(o_.out + "/metrics.jsonl");
    return std::count(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>(), '\n');
  }
  // Of mpirun's children the one whose environment says so.
  [[nodiscard]] pid_t pid_of(int rank) const {
    const std::string wanted = fmt::format("OMPI_COMM_WORLD_RANK={}", rank) + '\0';
    for (const auto& entry : fs::directory_iterator("/proc")) {
      const pid_t pid = std::atoi(entry.path().filename().c_str());
      std::ifstream stat(entry.path() / "stat"), environment(entry.path() / "environ");
      std::string id, name, state;
      pid_t parent = 0;
      if (pid == 0 || !(stat >> id >> name >> state >> parent) || parent != pid_) continue;
      const std::string all{std::istreambuf_iterator<char>(environment), {}};
      if (all.find(wanted) != std::string::npos) return pid;
    }
    return -1;
  }

  TrainOptions o_;
  pid_t pid_ = -1;
};

// A rank that is killed in the midst of a run ends it, and is named.
void kill_and_expect_its_name(const RunningRanks& ranks, int killed, int64_t lines = 15) {
  ranks.signal_after(lines, killed, SIGKILL);
  const Ended ended = ranks.wait();
  EXPECT_NE(ended.code, 0);
  EXPECT_THAT(ended.text, HasSubstr(fmt::format("rank {} with PID", killed)));
}

// A run is one run, whoever continues it: after a rank was killed by as many, by another number, or
// by one process.
TEST_F(RanksTest, AKilledRankEndsAllAndAnyNumberContinues) {
  TrainOptions one = options("one");
  one.model = deep_model();
  ASSERT_EQ(run_train(one), 0);
  const StageOptions stages = {.schedule = "1f1b", .microbatches = 2};
  for (const int killed : {1, 0}) {
    const std::string name = fmt::format("killed{}", killed);
    SCOPED_TRACE(name);
    TrainOptions o = divided(one, name, stages, 2);
    kill_and_expect_its_name(RunningRanks(start_of(2, o), o), killed);
    o.resume = true;
    if (killed == 0) {
      o.stages = {};
      EXPECT_EQ(run_train(o), 0);
    } else {
      o = divided(o, name, {.schedule = "gpipe", .microbatches = 3}, 3);
      const Ended resumed = run_ranks(3, o);
      EXPECT_EQ(resumed.code, 0) << resumed.text;
    }
    expect_the_files_of(one, name, "adapter_model.safetensors");
  }
}

TEST_F(RanksTest, AKilledDataRankEndsAllAndAnyDivisionContinues) {
  TrainOptions one = options("one");
  one.model = deep_model();
  ASSERT_EQ(run_train(one), 0);
  for (const int killed : {1, 0}) {
    if (killed == 0 && !runs_all()) continue;
    const std::string name = fmt::format("killed{}", killed);
    SCOPED_TRACE(name);
    TrainOptions o = dealt(one, name, "data=2");
    kill_and_expect_its_name(RunningRanks(start_of(2, o), o), killed);
    o.resume = true;
    o.stages.ranks = killed == 1 ? "pipeline=2" : "data=3";
    const Ended resumed = run_ranks(killed == 1 ? 2 : 3, o);
    EXPECT_EQ(resumed.code, 0) << resumed.text;
    expect_the_files_of(one, name, "adapter_model.safetensors");
  }
}

// What owners have of all parameters goes to where another division wants it.
TEST_F(RanksTest, AnyDivisionContinuesWhatDataRanksOwned) {
  TrainOptions one = options("one");
  one.model = deep_model();
  one.method = "full";
  ASSERT_EQ(run_train(one), 0);
  TrainOptions o = dealt(one, "killed", "data=3");
  kill_and_expect_its_name(RunningRanks(start_of(3, o), o), 2);
  o.resume = true;
  // Of each process two ranks, with owners of both stages.
  o.stages = {.stages = 2, .ranks = "data=2", .schedule = "1f1b", .microbatches = 2};
  kill_and_expect_its_name(RunningRanks(start_of(2, o), o), 1, 30);
  o.stages = {};
  EXPECT_EQ(run_train(o), 0);
  expect_the_files_of(one, "killed", "model.safetensors");
}

// Also where they divide the weights, and a rank is killed or stopped while others ask it for its
// part.
TEST_F(RanksTest, AnyDivisionContinuesWhatRanksOfDividedWeightsLeft) {
  TrainOptions one = options("one");
  one.model = deep_model();
  one.method = "full";
  ASSERT_EQ(run_train(one), 0);
  TrainOptions o = dealt(one, "killed", "data=2", {.shard_weights = true});
  kill_and_expect_its_name(RunningRanks(start_of(2, o), o), 1);
  o.resume = true;
  if (runs_all()) {
    const RunningRanks ranks(start_of(2, o), o);
    ranks.signal_after(30, 0, SIGSTOP);
    const Ended ended = ranks.wait();
    EXPECT_EQ(ended.code, 1);
    EXPECT_THAT(ended.text, HasSubstr("strata: rank 0 ("));
    EXPECT_THAT(ended.text, HasSubstr("has been silent for 10 s"));
  }
  o.stages.ranks = "data=3";
  const Ended resumed = run_ranks(3, o);
  EXPECT_EQ(resumed.code, 0) << resumed.text;
  expect_the_files_of(one, "killed", "model.safetensors");
}

// What tensor ranks had, also of each matrix's rows those that another one has copies of.
TEST_F(RanksTest, AnyDivisionContinuesWhatTensorRanksHad) {
  TrainOptions one = options("one");
  one.model = deep_model();
  one.method = "full";
  ASSERT_EQ(run_train(one), 0);
  TrainOptions o = dealt(one, "killed", "tensor=2");
  kill_and_expect_its_name(RunningRanks(start_of(2, o), o), 1);
  o.resume = true;
  o.stages.ranks = "tensor=2,data=2";
  kill_and_expect_its_name(RunningRanks(start_of(4, o), o), 3, 30);
  o.stages = {};
  EXPECT_EQ(run_train(o), 0);
  expect_the_files_of(one, "killed", "model.safetensors");
}

// What each expert rank had goes to where another division wants it.
TEST_F(RanksTest, AnyDivisionContinuesWhatExpertRanksHad) {
  TrainOptions one = options("one");
  one.model = make_v4_model(/*mtp=*/true);
  one.method = "full";
  ASSERT_EQ(run_train(one), 0);
  TrainOptions o = dealt(one, "killed", "expert=2");
  kill_and_expect_its_name(RunningRanks(start_of(2, o), o), 1);
  o.resume = true;
  o.stages.ranks = "data=2,expert=2";
  kill_and_expect_its_name(RunningRanks(start_of(4, o), o), 3, 30);
  o.stages.ranks = "expert=4";
  const Ended resumed = run_ranks(4, o);
  EXPECT_EQ(resumed.code, 0) << resumed.text;
  expect_the_files_of(one, "killed", "model.safetensors");
}

// Of all parameters, whose state is far more than what is sent at once; and by as many.
TEST_F(RanksTest, AStoppedRankIsNamed) {
  TrainOptions one = options("one");
  one.model = deep_model();
  one.method = "full";
  ASSERT_EQ(run_train(one), 0);
  for (const int stopped : {1, 0, 2}) {
    if (stopped != 1 && !runs_all()) continue;
    const std::string name = fmt::format("stopped{}", stopped);
    SCOPED_TRACE(name);
    TrainOptions o = divided(one, name, {.schedule = "1f1b", .microbatches = 2}, 3);
    const RunningRanks ranks(start_of(3, o), o);
    ranks.signal_after(15, stopped, SIGSTOP);
    const Ended ended = ranks.wait();
    EXPECT_EQ(ended.code, 1);
    EXPECT_THAT(ended.text, HasSubstr(fmt::format("strata: rank {} (", stopped)));
    EXPECT_THAT(ended.text, HasSubstr("has been silent for 10 s"));
    o.resume = true;
    const Ended resumed = run_ranks(3, o);
    EXPECT_EQ(resumed.code, 0) << resumed.text;
    expect_the_files_of(one, name, "model.safetensors");
  }
}

}  // namespace
}  // namespace strata::apps
