// SPDX-License-Identifier: Apache-2.0
// strata train --loss grpo: what is rewarded is learned, and bits do not depend on passes, stages,
// memory, workers or how long rewards take, nor on what stopped the run, whatever the reward does.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include "tests/trainer/train_fixture.h"

namespace strata::apps {
namespace {

using ::testing::HasSubstr;

// A number of the line, written without a process for each.
constexpr const char* kByLength = "while read -r line; do echo $((${#line} % 7)); done";

class TrainRewards : public TrainTest {
 protected:
  void SetUp() override {
    TrainTest::SetUp();
    std::ofstream data(root_ + "/prompts.jsonl");
    for (int i = 0; i < 20; ++i)
      data << R"({"prompt": "What is )" << i << R"( plus 1?", "answer": )" << i + 1 << "}\n";
  }
  [[nodiscard]] TrainOptions reward_options(const std::string& out,
                                            const std::string& reward = kByLength) const {
    TrainOptions o = options(out);
    o.data = {root_ + "/prompts.jsonl"};
    o.loss.loss = "grpo";
    o.reward.reward = reward;
    o.rollouts.group_size = 4;
    o.rollouts.max_tokens = 6;
    o.batch_tokens.reset();
    o.batch_size = 3;
    o.steps = 10;
    o.save_every = "3";
    o.eval_fraction = 0.2;
    return o;
  }
  // Of the records that have it.
  [[nodiscard]] std::vector<double> metric(const std::string& out, const char* name) const {
    std::vector<double> values;
    for (const auto& record : report::read_metrics(root_ + "/" + out + "/metrics.jsonl")) {
      if (const double value = record.number(name); value == value) values.push_back(value);
    }
    return values;
  }
  void expect_same_runs(const std::string& a, const std::string& b) const {
    expect_same_files(
        a, b, {"adapter_model.safetensors", "trainer/optimizer.safetensors", "rollouts.jsonl"});
    for (const char* name : {"reward", "eval_reward", "loss"})
      EXPECT_EQ(metric(a, name), metric(b, name)) << name;
  }
  // Writes a command that is a file, and returns what runs it.
  [[nodiscard]] std::string script(const std::string& text) const {
    std::ofstream(root_ + "/reward.sh") << text << "\n";
    return "sh " + root_ + "/reward.sh";
  }
};

TEST_F(TrainRewards, WhatIsRewardedIsLearned) {
  for (const char* const type : {"dapo", "grpo", "dr_grpo", "cispo"}) {
    SCOPED_TRACE(type);
    TrainOptions o = reward_options(type, "regex:e");
    o.model = std::string(STRATA_SOURCE_DIR) + "/models/tiny-qwen3";
    o.grpo.type = type;
    o.steps = 20;
    o.lr = 3e-3;
    o.rollouts.group_size = 8;
    ASSERT_EQ(run_train(o), 0);
    const std::vector<double> rewards = metric(type, "reward");
    ASSERT_EQ(rewards.size(), 20u);
    EXPECT_LT(rewards.front(), 0.6);
    EXPECT_GT(rewards.back(), 0.95);
    EXPECT_GT(metric(type, "eval_reward").back(), metric(type, "eval_reward").front());
  }
  EXPECT_THAT(content(root_ + "/dapo/README.md"), HasSubstr("evaluation reward after"));
  EXPECT_THAT(content(root_ + "/dapo/loss.svg"), HasSubstr("mean reward"));
}

// A command whose line is no number leaves an answer out; of none there is no mean.
TEST_F(TrainRewards, NoAnswerWithARewardIsSaidSo) {
  TrainOptions o = reward_options("none", script("while read -r line; do echo nan; done"));
  o.steps = 2;
  o.batch_size = 2;
  o.rollouts.group_size = 2;
  o.eval_fraction = 0.0;
  testing::internal::CaptureStderr();
  ASSERT_EQ(run_train(o), 0);
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_THAT(text, HasSubstr("reward none"));
  EXPECT_THAT(text, Not(HasSubstr("nan,")));
  EXPECT_THAT(text, Not(HasSubstr("nan +-")));
}

// The first evaluation is the best, and two more end the run; what it learned from said nothing.
TEST_F(TrainRewards, EndsEarlyWhereRewardsStandStill) {
  TrainOptions o = reward_options("still", "regex:never so");
  o.steps = 20;
  o.eval_every = 3;
  o.early_stop = 2;
  testing::internal::CaptureStderr();
  ASSERT_EQ(run_train(o), 0);
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_THAT(text, HasSubstr("stopped early at step 9 of 20: no new highest evaluation reward in "
                              "2 evaluations"));
  EXPECT_THAT(text, HasSubstr("in 9 of 9 steps all answers to each prompt had the same reward (0"));
  EXPECT_EQ(metric("still", "reward").size(), 9u);
}

// What was sampled is what is trained, to the bit, at any temperature.
TEST_F(TrainRewards, TheFirstRatiosAreOne) {
  for (const double temperature : {0.5, 1.0, 1.7}) {
    for (const char* const dtype : {"f32", "bf16"}) {
      SCOPED_TRACE(fmt::format("{} {}", temperature, dtype));
      TrainOptions o = reward_options(fmt::format("t{}{}", temperature, dtype));
      o.rollouts.temperature = temperature;
      o.rollouts.updates = 2;
      o.dtype = dtype;
      o.steps = 4;
      ASSERT_EQ(run_train(o), 0);
      const std::string out = fs::path(o.out).filename();
      EXPECT_EQ(metric(out, "ratio/min"), std::vector<double>(4, 1.0));
      EXPECT_EQ(metric(out, "ratio/max"), std::vector<double>(4, 1.0));
    }
  }
}

TEST_F(TrainRewards, PassesMemoryWorkersAndStagesChangeNoBit) {
  TrainOptions one = reward_options("one");
  one.model = deep_model();
  one.dtype = "bf16";
  one.steps = 5;
  ASSERT_EQ(run_train(one), 0);
  int number = 0;
  const auto expect_same = [&](auto change) {
    TrainOptions other = one;
    const std::string out = "other" + std::to_string(++number);
    SCOPED_TRACE(out);
    other.out = root_ + "/" + out;
    change(other);
    ASSERT_EQ(run_train(other), 0);
    expect_same_runs("one", out);
  };
  for (const int64_t tokens : {16, 64, 4096})
    expect_same([&](TrainOptions& o) { o.micro_tokens = tokens; });
  for (const int64_t rows : {4, 5, 12})
    expect_same([&](TrainOptions& o) { o.rollouts.sample_rows = rows; });
  expect_same([](TrainOptions& o) { o.memory = "64MiB"; });
  expect_same(
      [](TrainOptions& o) { o.stages = {.stages = 2, .schedule = "1f1b", .microbatches = 3}; });
}

// A step may then read pieces of prompts and sample nothing.
TEST_F(TrainRewards, PromptsMayBeLongerThanAPass) {
  std::ofstream data(root_ + "/prompts.jsonl");
  for (int i = 0; i < 8; ++i) {
    data << R"({"prompt": "Of all that there is to be asked, what is one and one and one and )" << i
         << R"( and one and one and one?"})" << "\n";
  }
  data.close();
  TrainOptions whole = reward_options("whole");
  whole.steps = 2;
  whole.micro_tokens = 4096;
  const TrainOptions pieces = run_and_move(whole, "pieces");
  TrainOptions other = pieces;
  other.micro_tokens = 16;
  other.rollouts.sample_rows = 4;
  ASSERT_EQ(run_train(other), 0);
  expect_same_runs("whole", "pieces");
}

// Another command is another run; this one is told how to dawdle behind its back.
TEST_F(TrainRewards, WorkersAndDelaysChangeNoBit) {
  const std::string pauses = root_ + "/pauses";
  const std::string command = script("while read -r line; do n=$((${#line} % 7)); if [ -e " +
                                     pauses + " ]; then sleep 0.0$n; fi; echo $n; done");
  TrainOptions one = reward_options("one", command);
  one.steps = 4;
  ASSERT_EQ(run_train(one), 0);
  std::ofstream(pauses) << "yes";
  for (const int64_t workers : {1, 2, 7}) {
    TrainOptions other = one;
    const std::string out = "workers" + std::to_string(workers);
    SCOPED_TRACE(out);
    other.out = root_ + "/" + out;
    other.reward.workers = workers;
    ASSERT_EQ(run_train(other), 0);
    expect_same_runs("one", out);
    expect_same_files("one", out, {"trainer/state.json"});
  }
}

TEST_F(TrainRewards, AKilledRunResumesToTheSameBits) {
  TrainOptions straight = reward_options("straight");
  straight.rollouts.updates = 2;
  ASSERT_EQ(run_train(straight), 0);
  TrainOptions last = straight;
  last.out = root_ + "/killed";
  int kills = 0;
  for (const int64_t lines : {1, 3, 5, 6, 8, 9, 11, 13, 15, 17})
    kills += kill_after(last, lines) ? 1 : 0;
  EXPECT_GE(kills, 5);
  last.resume = true;
  ASSERT_EQ(run_train(last), 0);
  expect_same_runs("straight", "killed");
  expect_same_files("straight", "killed", {"trainer/state.json", "README.md"});
}

// The reward is another one at each call. What the record has a run learned from; without its
// state the record makes the same run again.
TEST_F(TrainRewards, AKilledRunOfAnyRewardIsThatOfItsRecord) {
  const std::string command = script("while read -r line; do n=$(date +%N); echo ${n%???}; done");
  int kills = 0;
  for (const int64_t lines : {1, 4, 7, 9, 12, 14, 16, 17, 18, 19})
    kills += kill_after(reward_options("killed", command), lines) ? 1 : 0;
  EXPECT_GE(kills, 1);
  TrainOptions last = reward_options("killed", command);
  last.resume = true;
  ASSERT_EQ(run_train(last), 0);
  TrainOptions again = reward_options("again", command);
  again.resume = true;
  fs::create_directories(again.out);
  fs::copy_file(root_ + "/killed/rollouts.jsonl", again.out + "/rollouts.jsonl");
  ASSERT_EQ(run_train(again), 0);
  expect_same_files(
      "killed", "again",
      {"adapter_model.safetensors", "rollouts.jsonl", "trainer/optimizer.safetensors"});
  EXPECT_EQ(metric("killed", "reward"), metric("again", "reward"));
  // The rewards do differ from call to call.
  TrainOptions other = reward_options("other", command);
  ASSERT_EQ(run_train(other), 0);
  EXPECT_NE(metric("killed", "reward"), metric("other", "reward"));
}

// The record has some answers of a step that a kill has cut short.
TEST_F(TrainRewards, ATornRecordCountsAsFarAsItGoes) {
  const std::string command = script("while read -r line; do n=$(date +%N); echo ${n%???}; done");
  TrainOptions o = reward_options("torn", command);
  o.steps = 3;
  ASSERT_EQ(run_train(o), 0);
  std::string record = content(o.out + "/rollouts.jsonl");
  size_t line = 0;
  for (int i = 0; i < 30; ++i) line = record.find('\n', line) + 1;  // 12 a step
  TrainOptions again = reward_options("again", command);
  again.steps = 3;
  again.resume = true;
  fs::create_directories(again.out);
  std::ofstream(again.out + "/rollouts.jsonl") << record.substr(0, line + 20);
  ASSERT_EQ(run_train(again), 0);
  const std::string made = content(again.out + "/rollouts.jsonl");
  EXPECT_EQ(made.substr(0, line), record.substr(0, line));
  EXPECT_NE(made, record);
  EXPECT_EQ(lines_of(again.out + "/rollouts.jsonl"), 36);
  // A record of another run is not gone on with.
  TrainOptions other = again;
  other.out = root_ + "/other";
  other.seed = 5;
  fs::create_directories(other.out);
  std::ofstream(other.out + "/rollouts.jsonl") << record;
  EXPECT_THAT(fault(other), HasSubstr("step 1, sample 0: the model now gives another answer"));
}

TEST_F(TrainRewards, UpdatesAndAllParametersResumeToo) {
  TrainOptions full = reward_options("full");
  full.method = "full";
  full.lr = 1e-3;
  full.rollouts.updates = 2;
  full.grpo.importance = "sequence";
  const TrainOptions again = run_and_move(full, "full-again");
  EXPECT_TRUE(kill_after(again, 13));
  TrainOptions last = again;
  last.resume = true;
  ASSERT_EQ(run_train(last), 0);
  expect_same_files("full", "full-again", {"model.safetensors", "trainer/optimizer.safetensors"});
  // Two steps with the same answers are no step with twice the gradient.
  TrainOptions once = full;
  once.rollouts.updates = 1;
  once.grpo.importance = "token";
  once.out = root_ + "/once";
  ASSERT_EQ(run_train(once), 0);
  EXPECT_NE(content(root_ + "/full/model.safetensors"), content(root_ + "/once/model.safetensors"));
}

TEST_F(TrainRewards, AnswersWithoutARewardAreLeftOut) {
  const std::string command = script(
      "while read -r line; do n=$((${#line} % 5)); case $n in 3) echo none;; 4) exit 1;; "
      "*) echo $n;; esac; done");
  TrainOptions o = reward_options("omitted", command);
  o.reward.workers = 2;
  ASSERT_EQ(run_train(o), 0);
  int64_t omitted = 0;
  std::ifstream record(o.out + "/rollouts.jsonl");
  for (std::string line; std::getline(record, line);)
    omitted += line.find("\"omitted\":") != std::string::npos ? 1 : 0;
  double counted = 0;
  for (const double count : metric("omitted", "omitted")) counted += count;
  EXPECT_GT(omitted, 0);
  EXPECT_EQ(static_cast<double>(omitted), counted);
  EXPECT_EQ(metric("omitted", "reward").size(), 10u);
}

// A mended command goes on where the other one ended the run.
TEST_F(TrainRewards, ACommandThatRatesNothingEndsTheRunAndLosesNothing) {
  const std::string good = "while read -r line; do echo $((${#line} % 7)); done";
  TrainOptions straight = reward_options("straight", script(good));
  straight.save_every = "0";
  straight.eval_fraction = 0;
  ASSERT_EQ(run_train(straight), 0);
  // 12 answers a step; from the 37th call on there is nothing but complaints.
  TrainOptions o = straight;
  o.out = root_ + "/failing";
  static_cast<void>(script("n=0; while read -r line; do n=$((n + 1)); if [ -e " + root_ +
                           "/broken ] || [ $n -gt 36 ]; then touch " + root_ +
                           "/broken; echo no judge here >&2; exit 9; fi; echo $((${#line} % 7)); "
                           "done"));
  const std::string said = fault(o);
  EXPECT_THAT(said, HasSubstr("10 answers in a row got no number"));
  EXPECT_THAT(said, HasSubstr("exit code 9"));
  EXPECT_THAT(said, HasSubstr("no judge here"));
  EXPECT_EQ(metric("failing", "reward").size(), 3u);
  EXPECT_TRUE(fs::exists(o.out + "/trainer/state.json"));
  // All ranks of stages end and save.
  TrainOptions staged = o;
  staged.out = root_ + "/staged";
  staged.model = deep_model();
  staged.stages = {.stages = 2, .schedule = "1f1b", .microbatches = 2};
  fs::remove(root_ + "/broken");
  EXPECT_THAT(fault(staged), HasSubstr("10 answers in a row got no number"));
  EXPECT_TRUE(fs::exists(staged.out + "/trainer/state.json"));
  static_cast<void>(script(good));
  o.resume = true;
  ASSERT_EQ(run_train(o), 0);
  expect_same_runs("straight", "failing");
}

TEST_F(TrainRewards, WhatDoesNotGoTogetherIsRefused) {
  const auto fault_with = [&](auto change) {
    TrainOptions o = reward_options("refused");
    change(o);
    return fault(o);
  };
  EXPECT_THAT(fault_with([](TrainOptions& o) { o.reward.reward = ""; }),
              HasSubstr("--loss grpo: want --reward with it"));
  EXPECT_THAT(fault_with([](TrainOptions& o) { o.loss.loss = "cross_entropy"; }),
              HasSubstr("--reward: is of answers with rewards; give --loss grpo"));
  EXPECT_THAT(fault_with([](TrainOptions& o) { o.loss.beta = 0.2; }),
              HasSubstr("--beta: is of preference pairs"));
  EXPECT_THAT(fault_with([](TrainOptions& o) { o.reward.reward = "exact:result"; }),
              HasSubstr("no field 'result'"));
  EXPECT_THAT(fault_with([](TrainOptions& o) { o.rollouts.max_tokens = 2048; }),
              HasSubstr("--max-length 2048 is of prompt and answer together"));
  EXPECT_THAT(fault_with([](TrainOptions& o) { o.grpo.importance = "sequence"; }),
              HasSubstr("want --updates above 1"));
  EXPECT_THAT(fault_with([](TrainOptions& o) { o.rollouts.sample_rows = 3; }),
              HasSubstr("want a group at least"));
  EXPECT_THAT(fault_with([](TrainOptions& o) {
                o.sweep = {"1e-3", "1e-4"};
                o.lr.reset();
              }),
              HasSubstr("several values of --lr and --loss grpo: not together yet"));
  EXPECT_THAT(fault_with([](TrainOptions& o) { o.batch_tokens = 100; }),
              HasSubstr("--batch-tokens: with --loss grpo a step has --batch-size prompts"));
  std::ofstream(root_ + "/prompts.jsonl") << R"({"text": "no prompt"})" << "\n";
  EXPECT_THAT(fault_with([](TrainOptions&) {}),
              HasSubstr("prompts.jsonl:1: messages: got nothing, want a prompt"));
}

}  // namespace
}  // namespace strata::apps
