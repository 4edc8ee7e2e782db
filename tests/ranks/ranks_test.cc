// SPDX-License-Identifier: Apache-2.0
// strata train over ranks: processes under mpirun, more than the machine has cores, give the files
// of one process. STRATA_RANKS=all (make ranks) runs every division, else a few.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>

#include "base/cores.h"
#include "tests/ranks/ranks_fixture.h"

namespace strata::apps {
namespace {

using testing::HasSubstr;

struct Division {
  int ranks;  // of a pipeline
  StageOptions stages;
};

TEST_F(RanksTest, ChangeNoBitOfAdapters) {
  TrainOptions one = options("one");
  one.model = deep_model(4);
  one.targets = "all-linear,embed_tokens,lm_head";
  one.steps = 5;
  one.dtype = "bf16";
  ASSERT_EQ(run_train(one), 0);
  std::vector<Division> divisions = {{2, {.schedule = "1f1b", .microbatches = 3}}};
  if (runs_all()) {
    divisions.push_back({2, {.stages = 2, .schedule = "1f1b", .microbatches = 3}});
    divisions.push_back({1, {.stages = 3, .schedule = "zb1p", .microbatches = 3}});
    for (const int ranks : {1, 2, 3}) {
      for (const char* const schedule : {"gpipe", "1f1b", "zb1p"})
        divisions.push_back({ranks, {.schedule = schedule, .microbatches = 4}});
    }
    divisions.push_back({1, {.chunks = 3, .schedule = "circular", .microbatches = 2}});
    divisions.push_back({2, {.microbatches = 1, .leftovers = "before"}});
  }
  for (size_t i = 0; i < divisions.size(); ++i) {
    const std::string name = fmt::format("divided{}", i);
    SCOPED_TRACE(name);
    const Ended ended =
        run_ranks(divisions[i].ranks, divided(one, name, divisions[i].stages, divisions[i].ranks));
    ASSERT_EQ(ended.code, 0) << ended.text;
    expect_the_files_of(one, name, "adapter_model.safetensors");
    // One of them prints.
    const size_t first = ended.text.find("evaluation loss");
    EXPECT_NE(first, std::string::npos);
    EXPECT_EQ(ended.text.find("evaluation loss", first + 1), std::string::npos) << ended.text;
  }
}

TEST_F(RanksTest, ChangeNoBitOfAllParameters) {
  std::vector<Division> divisions = {{3, {.schedule = "zb1p", .microbatches = 3}}};
  if (runs_all()) {
    divisions.push_back({2, {.schedule = "1f1b", .microbatches = 2}});
    divisions.push_back({3, {.schedule = "gpipe", .microbatches = 2}});
  }
  for (const char* const optimizer : {"adamw", "muon"}) {
    if (!runs_all() && optimizer == std::string("adamw")) continue;
    TrainOptions one = options(fmt::format("one-{}", optimizer));
    one.model = deep_model();
    one.method = "full";
    one.optimizer = optimizer;
    one.steps = 4;
    ASSERT_EQ(run_train(one), 0);
    for (size_t i = 0; i < divisions.size(); ++i) {
      const std::string name = fmt::format("divided-{}{}", optimizer, i);
      SCOPED_TRACE(name);
      const Ended ended = run_ranks(divisions[i].ranks,
                                    divided(one, name, divisions[i].stages, divisions[i].ranks));
      ASSERT_EQ(ended.code, 0) << ended.text;
      expect_the_files_of(one, name, "model.safetensors");
    }
  }
}

// DeepSeek-V4 with multi-token prediction: routed experts, hashed routers, streams.
TEST_F(RanksTest, ChangeNoBitOfDeepSeekV4) {
  if (!runs_all()) GTEST_SKIP() << "make ranks";
  for (const char* const method : {"lora", "full"}) {
    TrainOptions one = options(fmt::format("one-{}", method));
    one.model = make_v4_model(/*mtp=*/true);
    one.method = method;
    one.mtp_weight = 0.3;
    one.steps = 3;
    if (one.method == "full") one.router_bias_rate = 0.01;
    ASSERT_EQ(run_train(one), 0);
    const std::string name = fmt::format("divided-{}", method);
    const Ended ended =
        run_ranks(2, divided(one, name, {.schedule = "1f1b", .microbatches = 3}, 2));
    ASSERT_EQ(ended.code, 0) << ended.text;
    expect_the_files_of(one, name,
                        one.method == "full" ? "model.safetensors" : "adapter_model.safetensors");
  }
}

// Ranks that deal micro-batches out among themselves, alone and as pipelines.
TEST_F(RanksTest, OfDataChangeNoBit) {
  struct Case {
    int ranks;
    std::string division, method;
    StageOptions stages = {};
  };
  std::vector<Case> cases = {
      {2, "data=2", "lora"},
      {3, "data=3", "full"},
      {4, "data=2,pipeline=2", "full", {.schedule = "1f1b", .microbatches = 2}},
      {3, "data=3", "lora", {.shard_weights = true}},
      {2, "data=2", "full", {.stages = 2, .schedule = "1f1b", .microbatches = 2}}};
  if (runs_all()) {
    cases.push_back({4,
                     "data=2,pipeline=2",
                     "lora",
                     {.stages = 2, .shard_weights = true, .schedule = "1f1b", .microbatches = 4}});
    cases.push_back({2, "data=2", "full"});
    cases.push_back({3, "data=3", "lora"});
    cases.push_back({4,
                     "data=2,pipeline=2",
                     "lora",
                     {.shard_weights = true, .schedule = "1f1b", .microbatches = 2}});
    cases.push_back({2, "data=2", "full", {.microbatches = 2}});
    cases.push_back({2, "data=2", "full", {.shard_weights = true}});
    cases.push_back({2, "data=2", "muon"});
    cases.push_back({4, "data=2,pipeline=2", "muon", {.schedule = "1f1b", .microbatches = 2}});
    cases.push_back({4, "pipeline=2,data=2", "lora", {.schedule = "zb1p", .microbatches = 2}});
  }
  for (const std::string method : {"lora", "full", "muon"}) {
    if (method == "muon" && !runs_all()) continue;
    TrainOptions one = options("one-" + method);
    one.model = deep_model(4);
    one.method = method == "muon" ? "full" : method;
    if (method == "muon") one.optimizer = method;
    if (method == "lora") one.targets = "all-linear,embed_tokens,lm_head";
    one.steps = 4;
    ASSERT_EQ(run_train(one), 0);
    for (size_t i = 0; i < cases.size(); ++i) {
      if (cases[i].method != method) continue;
      const std::string name = fmt::format("dealt{}", i);
      SCOPED_TRACE(name);
      const Ended ended =
          run_ranks(cases[i].ranks, dealt(one, name, cases[i].division, cases[i].stages));
      ASSERT_EQ(ended.code, 0) << ended.text;
      expect_the_files_of(one, name,
                          method == "lora" ? "adapter_model.safetensors" : "model.safetensors");
      EXPECT_THAT(ended.text, HasSubstr(fmt::format("one of {} ranks', in turn",
                                                    cases[i].division == "data=3" ? 3 : 2)));
    }
  }
}

// Ranks that share a machine's cores divide them where mpirun has not, unless they are told not to.
TEST_F(RanksTest, DivideTheCoresOfAMachine) {
  if (usable_cores() < 2) GTEST_SKIP() << "one core";
  TrainOptions one = options("one");
  one.steps = 2;
  ASSERT_EQ(run_train(one), 0);
  for (const std::string bind : {"auto", "none"}) {
    SCOPED_TRACE(bind);
    const Ended ended = run_ranks(2, dealt(one, bind, "data=2", {.bind = bind}));
    ASSERT_EQ(ended.code, 0) << ended.text;
    expect_the_files_of(one, bind, "adapter_model.safetensors");
    const bool is_bound = ended.text.find("this one's on cores ") != std::string::npos;
    EXPECT_EQ(is_bound, bind == "auto") << ended.text;
  }
}

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
    while (count_lines() < lines) std::this_thread::sleep_for(std::chrono::milliseconds(1));
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

// What each expert rank had goes to where another division wants it.
TEST_F(RanksTest, AnyDivisionContinuesWhatExpertRanksHad) {
  TrainOptions one = options("one");
  one.model = make_v4_model(/*mtp=*/true);
  one.method = "full";
  ASSERT_EQ(run_train(one), 0);
  TrainOptions o = dealt(one, "killed", "expert=2");
  kill_and_expect_its_name(RunningRanks(start_of(2, o), o), 1);
  o.resume = true;
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

TEST_F(RanksTest, SayWhatIsWrongOnce) {
  const TrainOptions one = options("out");
  struct Case {
    int started;
    std::string ranks, said;
    StageOptions stages = {};
    std::string memory = {};
    std::string method = "lora";
  };
  const std::vector<Case> cases = {
      {2, "pipeline=3",
       "--ranks: pipeline=3, data=1, expert=1, tensor=1 are 3 ranks, and 2 have started; start "
       "that "
       "many (mpirun -n 3)"},
      {3, "tensor=3",
       "--ranks tensor=3: layer 0, self_attn.q_proj.weight: 2 heads along its outputs are no "
       "multiple of 3; want a divisor of 2, which every row of the model has"},
      {2, "expert=2", "--ranks expert=2: the model has no experts"},
      {2, "pipelines=2", "which names no kind"},
      {2, "pipeline=2", "--shard-weights: data ranks divide the weights", {.shard_weights = true}},
      {2,
       "data=2",
       "--ranks data=2 and --pipeline-schedule zb1p: ",
       {.schedule = "zb1p", .microbatches = 2},
       {},
       "full"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.said);
    TrainOptions o = one;
    o.stages = c.stages;
    o.stages.ranks = c.ranks;
    o.memory = c.memory;
    o.method = c.method;
    const Ended ended = run_ranks(c.started, o);
    EXPECT_EQ(ended.code, 2);
    const size_t first = ended.text.find(c.said);
    EXPECT_NE(first, std::string::npos) << ended.text;
    EXPECT_EQ(ended.text.find(c.said, first + 1), std::string::npos) << ended.text;
    EXPECT_FALSE(fs::exists(o.out));
  }
  TrainOptions deep = one;
  deep.stages = {.ranks = "pipeline=3"};
  deep.data = {root_ + "/not-there.jsonl"};  // which nobody reads for that
  const Ended too_many = run_ranks(3, deep);
  EXPECT_EQ(too_many.code, 2);
  EXPECT_THAT(too_many.text, HasSubstr("3 stages"));
  const Ended unnamed = run_ranks(2, one);
  EXPECT_EQ(unnamed.code, 2);
  EXPECT_THAT(unnamed.text,
              HasSubstr("mpirun or srun has started 2 of this command; give --ranks pipeline=2"));
  const Ended of_srun = run_shell("SLURM_STEP_NUM_TASKS=2 " + quoted(command_of(one)));
  EXPECT_EQ(of_srun.code, 2);
  EXPECT_THAT(of_srun.text, HasSubstr("mpirun or srun has started 2 of this command"));
  EXPECT_FALSE(fs::exists(one.out));
  TrainOptions alone = one;
  alone.stages.ranks = "pipeline=2";
  const Ended ended = run_shell(quoted(command_of(alone)));
  EXPECT_EQ(ended.code, 2);
  EXPECT_THAT(ended.text, HasSubstr("1 has started; start that many (mpirun -n 2)"));
}

// What a model cannot be divided by, before what no training is divided by yet.
TEST_F(RanksTest, SayWhichRowDoesNotDivide) {
  TrainOptions of_four_heads = options("out");
  of_four_heads.model = std::string(STRATA_SOURCE_DIR) + "/tests/golden/llama2/model";
  of_four_heads.stages.ranks = "tensor=2";
  of_four_heads.method = "full";
  EXPECT_THAT(run_ranks(2, of_four_heads).text,
              HasSubstr("--ranks tensor=2: tensor ranks train adapters alone yet, not all "
                        "parameters; give pipeline=N, data=N or both"));
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{STRATA_BINARY, "probe", "--model", of_four_heads.model,
                                 "--request", root_ + "/not-there.json", "--out", root_ + "/out"},
        {STRATA_BINARY, "bench", "train_s512", "--model", of_four_heads.model}}) {
    const Ended ended =
        run_shell(fmt::format("{}-n 3 {} --ranks tensor=3", kMpirun, quoted(words)));
    EXPECT_EQ(ended.code, 2);
    EXPECT_THAT(ended.text, HasSubstr("--ranks tensor=3: layer 0, self_attn.q_proj.weight: 4 "
                                      "heads along its outputs are no multiple of 3"));
  }
}

// What differs is named, with both ranks and what each has.
TEST_F(RanksTest, MustBeAlike) {
  TrainOptions o = options("out");
  o.model = deep_model();
  o.stages.ranks = "pipeline=2";
  TrainOptions other = o;
  other.clip = 0.5;
  const auto run_both = [&](const TrainOptions& x, const TrainOptions& y, const std::string& env) {
    return run_apart(command_of(x), command_of(y), env);
  };
  Ended ended = run_both(o, other, "");
  EXPECT_EQ(ended.code, 2);
  EXPECT_THAT(ended.text, HasSubstr("--ranks: --clip: rank 0 ("));
  EXPECT_THAT(ended.text, HasSubstr(") has 1, rank 1 ("));
  EXPECT_THAT(ended.text, HasSubstr(") has 0.5; the ranks of a run must be alike"));
  ended = run_both(o, o, "STRATA_CPU_PATH=reference");
  EXPECT_EQ(ended.code, 2);
  EXPECT_THAT(ended.text, HasSubstr("--ranks: CPU path: rank 0 ("));
  EXPECT_THAT(ended.text, HasSubstr(") has reference; "));
  const fs::path rebuilt = fs::path(root_) / "rebuilt";
  fs::create_directory(rebuilt);
  fs::copy(STRATA_BINARY, rebuilt / "strata");
  fs::create_symlink(fs::path(STRATA_BINARY).parent_path() / "libstrata_mpi.so",
                     rebuilt / "libstrata_mpi.so");
  std::ofstream(rebuilt / "strata", std::ios::app) << "another build";
  std::vector<std::string> words = command_of(o);
  words.front() = (rebuilt / "strata").string();
  ended = run_apart(command_of(o), words);
  EXPECT_EQ(ended.code, 2);
  EXPECT_THAT(ended.text, HasSubstr("--ranks: program (hash): rank 0 ("));
  // As one says of itself that another compiler has made.
  const std::string version = run_shell(std::string(STRATA_BINARY) + " version").out;
  const std::string build = version.substr(version.rfind('(') + 1, 8);
  std::string program = content((rebuilt / "strata").string());
  for (size_t at = program.find(build); at != std::string::npos; at = program.find(build, at))
    program.replace(at, build.size(), "Debug!!!");
  std::ofstream(rebuilt / "strata") << program;
  ended = run_apart(command_of(o), words);
  EXPECT_EQ(ended.code, 2);
  EXPECT_THAT(ended.text, HasSubstr("--ranks: build: rank 0 ("));
  EXPECT_THAT(ended.text, HasSubstr("Debug!!!"));
  other = o;
  other.model = root_ + "/elsewhere";
  ASSERT_EQ(run_init({.config = root_ + "/config", .out = other.model, .seed = 2, .threads = 2}),
            0);
  ended = run_both(o, other, "");
  EXPECT_EQ(ended.code, 2);
  EXPECT_THAT(ended.text, HasSubstr("--ranks: base model (hash): rank 0 ("));
  EXPECT_FALSE(fs::exists(o.out));
  // A copy elsewhere is the same, and so is another number of threads; rank 0 alone reads data.
  fs::remove_all(other.model);
  fs::copy(o.model, other.model);
  other.threads = 1;
  other.data = {root_ + "/not-there.jsonl"};
  other.machine = root_ + "/not-there.json";
  ended = run_both(o, other, "");
  EXPECT_EQ(ended.code, 0) << ended.text;
}

}  // namespace
}  // namespace strata::apps
