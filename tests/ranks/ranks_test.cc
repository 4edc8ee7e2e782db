// SPDX-License-Identifier: Apache-2.0
// strata train over ranks: processes under mpirun, more than the machine has cores, give the files
// of one process. STRATA_RANKS=all (make ranks) runs every division, else a few.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <fstream>

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

// What a model cannot be divided by, and an optimizer.
TEST_F(RanksTest, SayWhichRowDoesNotDivide) {
  TrainOptions of_four_heads = options("out");
  of_four_heads.model = std::string(STRATA_SOURCE_DIR) + "/tests/golden/llama2/model";
  of_four_heads.stages.ranks = "tensor=2";
  of_four_heads.method = "full";
  of_four_heads.optimizer = "muon";
  EXPECT_THAT(run_ranks(2, of_four_heads).text,
              HasSubstr("--ranks tensor=2: Muon steps whole matrices, of which a tensor rank has "
                        "some rows; give --optimizer adamw"));
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
