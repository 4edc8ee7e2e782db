// SPDX-License-Identifier: Apache-2.0
// strata train --loss dpo and orpo: pairs are learned, and their losses, rewards and bits do not
// depend on passes, stages, memory or on what stopped the run.
#include <gmock/gmock.h>

#include "tests/trainer/train_fixture.h"

namespace strata::apps {
namespace {

using ::testing::HasSubstr;

class TrainPairs : public TrainTest {
 protected:
  void SetUp() override {
    TrainTest::SetUp();
    std::ofstream data(root_ + "/pairs.jsonl");
    for (int i = 0; i < 40; ++i) {
      data << R"({"prompt": "What is )" << i << R"( plus 1?", "chosen": " )" << i + 1
           << R"(.", "rejected": " Ask somebody else, not me )" << i << "\"}\n";
    }
  }
  [[nodiscard]] TrainOptions pair_options(const std::string& out) const {
    TrainOptions o = options(out);
    o.data = {root_ + "/pairs.jsonl"};
    o.loss.loss = "dpo";
    o.eval_fraction = 0.25;
    o.batch_tokens = 200;
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
  void expect_same_bits(TrainOptions one);
  void expect_same_runs(const std::string& a, const std::string& b) const {
    expect_same_files(a, b,
                      {"adapter_model.safetensors", "trainer/optimizer.safetensors",
                       "trainer/state.json", "metrics.jsonl"});
  }
};

TEST_F(TrainPairs, WhatWasChosenIsLearned) {
  for (const char* const type : {"sigmoid", "sigmoid_norm", "robust", "hinge", "ipo"}) {
    SCOPED_TRACE(type);
    TrainOptions o = pair_options(type);
    o.loss.type = type;
    if (o.loss.type == "robust") o.loss.label_smoothing = 0.1;
    ASSERT_EQ(run_train(o), 0);
    const std::vector<double> accuracy = metric(type, "eval_rewards/accuracies");
    const std::vector<double> margin = metric(type, "eval_rewards/margins");
    EXPECT_EQ(accuracy.front(), 0.5);
    EXPECT_EQ(margin.front(), 0.0);
    EXPECT_GT(accuracy.back(), 0.8);
    EXPECT_GT(margin.back(), 0.0);
    EXPECT_LT(metric(type, "eval_loss").back(), metric(type, "eval_loss").front());
    EXPECT_EQ(metric(type, "rewards/chosen").size(), 30u);
  }
  EXPECT_NEAR(metric("sigmoid", "eval_loss").front(), std::log(2.0), 1e-7);
  EXPECT_THAT(content(root_ + "/sigmoid/README.md"), HasSubstr("accuracy of pairs before"));
}

// Without a reference: nothing is computed before the first step, and the start is no tie.
TEST_F(TrainPairs, OrpoLearnsWhatWasChosenAndItsWords) {
  TrainOptions o = pair_options("orpo");
  o.loss.loss = "orpo";
  ASSERT_EQ(run_train(o), 0);
  EXPECT_FALSE(fs::exists(o.out + "/references.bin"));
  EXPECT_GT(metric("orpo", "eval_rewards/accuracies").back(), 0.8);
  EXPECT_LT(metric("orpo", "eval_loss").back(), metric("orpo", "eval_loss").front());
  EXPECT_LT(metric("orpo", "eval_nll_loss").back(), metric("orpo", "eval_nll_loss").front());
  const double beta = o.loss.beta;
  EXPECT_NEAR(metric("orpo", "loss").front(),
              metric("orpo", "nll_loss").front() - beta * metric("orpo", "log_odds_ratio").front(),
              1e-6);
  const std::string card = content(root_ + "/orpo/README.md");
  EXPECT_THAT(card, HasSubstr("| beta | 0.1 |"));
  EXPECT_THAT(card, ::testing::Not(HasSubstr("loss-type")));
}

// What the log says of one run is not what the passes are: pairs of 30 tokens lie in passes of 40,
// 64 and all. The log has times, so that its numbers are compared one by one.
TEST_F(TrainPairs, PassesAndStagesChangeNoBit) { expect_same_bits(pair_options("one")); }

TEST_F(TrainPairs, PassesAndStagesChangeNoBitOfOrpo) {
  TrainOptions orpo = pair_options("one");
  orpo.loss.loss = "orpo";
  expect_same_bits(orpo);
}

void TrainPairs::expect_same_bits(TrainOptions one) {
  one.model = deep_model();
  one.steps = 6;
  one.dtype = "bf16";
  ASSERT_EQ(run_train(one), 0);
  const auto expect_same_as_one = [&](const std::string& other) {
    expect_same_files("one", other, {"adapter_model.safetensors", "trainer/optimizer.safetensors"});
    for (const char* name :
         {"rewards/chosen", "rewards/rejected", "eval_rewards/margins", "nll_loss"})
      EXPECT_EQ(metric("one", name), metric(other, name)) << name;
  };
  for (const int64_t micro_tokens : {16, 64, 4096}) {
    SCOPED_TRACE(micro_tokens);
    TrainOptions other = one;
    other.out = root_ + "/passes" + std::to_string(micro_tokens);
    other.micro_tokens = micro_tokens;
    ASSERT_EQ(run_train(other), 0);
    expect_same_files("one", "passes" + std::to_string(micro_tokens),
                      {"adapter_model.safetensors", "trainer/optimizer.safetensors"});
  }
  TrainOptions staged = one;
  staged.out = root_ + "/staged";
  staged.stages = {.stages = 2, .schedule = "1f1b", .microbatches = 3};
  ASSERT_EQ(run_train(staged), 0);
  expect_same_as_one("staged");
}

TEST_F(TrainPairs, AKilledRunResumesToTheSameBits) {
  ASSERT_EQ(run_train(pair_options("straight")), 0);
  int kills = 0;
  for (const int64_t lines : {1, 9, 20, 31}) kills += kill_after(pair_options("killed"), lines);
  EXPECT_GE(kills, 1);
  TrainOptions last = pair_options("killed");
  last.resume = true;
  ASSERT_EQ(run_train(last), 0);
  expect_same_files("straight", "killed",
                    {"adapter_model.safetensors", "README.md", "trainer/optimizer.safetensors",
                     "trainer/state.json"});
  EXPECT_EQ(metric("straight", "rewards/margins"), metric("killed", "rewards/margins"));
}

// The reference is what trains as it begins: of --method full and of --adapter it is gone by then.
TEST_F(TrainPairs, ReferencesAreKept) {
  TrainOptions full = pair_options("full");
  full.method = "full";
  full.lr = 1e-3;
  full.steps = 8;
  const TrainOptions straight = run_and_move(full, "full-again");
  EXPECT_TRUE(kill_after(straight, 8));
  TrainOptions again = straight;
  again.resume = true;
  ASSERT_EQ(run_train(again), 0);
  expect_same_files("full", "full-again", {"model.safetensors", "trainer/optimizer.safetensors"});
  EXPECT_EQ(metric("full", "eval_rewards/accuracies").front(), 0.5);

  TrainOptions first = pair_options("first");
  first.steps = 3;
  ASSERT_EQ(run_train(first), 0);
  TrainOptions onwards = pair_options("onwards");
  onwards.rank = TrainOptions().rank;
  onwards.adapter = root_ + "/first";
  EXPECT_TRUE(kill_after(onwards, 25));
  EXPECT_EQ(metric("onwards", "eval_rewards/margins").front(), 0.0);
  fs::remove(onwards.out + "/references.bin");
  onwards.resume = true;
  EXPECT_THAT(fault(onwards), HasSubstr("that model is trained by now; was the file removed?"));
  onwards.loss.reference = "recompute";
  ASSERT_EQ(run_train(onwards), 0);
}

// In each step or before the first one, from a fresh adapter and from one that has learned.
TEST_F(TrainPairs, RecomputedReferencesChangeNoBit) {
  const auto expect_same = [&](const TrainOptions& kept, const std::string& out) {
    ASSERT_EQ(run_train(kept), 0);
    TrainOptions recomputed = kept;
    recomputed.out = root_ + "/" + out;
    recomputed.loss.reference = "recompute";
    EXPECT_TRUE(kill_after(recomputed, 9));
    recomputed.resume = true;
    ASSERT_EQ(run_train(recomputed), 0);
    EXPECT_FALSE(fs::exists(recomputed.out + "/references.bin"));
    const std::string of_kept = fs::path(kept.out).filename();
    expect_same_files(of_kept, out, {"adapter_model.safetensors", "trainer/optimizer.safetensors"});
    for (const char* name : {"rewards/chosen", "eval_rewards/margins", "eval_loss"})
      EXPECT_EQ(metric(of_kept, name), metric(out, name)) << name;
  };
  TrainOptions fresh = pair_options("fresh");
  fresh.steps = 12;
  expect_same(fresh, "fresh-recomputed");
  TrainOptions onwards = fresh;
  onwards.out = root_ + "/onwards";
  onwards.rank = TrainOptions().rank;
  onwards.adapter = fresh.out;
  expect_same(onwards, "onwards-recomputed");
}

TEST_F(TrainPairs, WhatDoesNotGoTogetherIsRefused) {
  const auto fault_with = [&](auto change) {
    TrainOptions o = pair_options("refused");
    change(o);
    return fault(o);
  };
  EXPECT_THAT(fault_with([](TrainOptions& o) { o.loss.loss = "kto"; }),
              HasSubstr("--loss: got 'kto', want cross_entropy, dpo, orpo or grpo"));
  EXPECT_THAT(fault_with([](TrainOptions& o) { o.loss = {.loss = "orpo", .type = "ipo"}; }),
              HasSubstr("--loss-type: is of --loss dpo; orpo has one loss"));
  EXPECT_THAT(
      fault_with([](TrainOptions& o) { o.loss = {.loss = "orpo", .label_smoothing = 0.1}; }),
      HasSubstr("--label-smoothing: is of --loss dpo"));
  EXPECT_THAT(fault_with([](TrainOptions& o) { o.loss = {.beta = 0.2}; }),
              HasSubstr("--beta: is of preference pairs; give --loss dpo"));
  EXPECT_THAT(fault_with([](TrainOptions& o) { o.loss.label_smoothing = 0.1; }),
              HasSubstr("--label-smoothing: --loss-type sigmoid does not read it"));
  EXPECT_THAT(fault_with([](TrainOptions& o) {
                o.loss.reference = "recompute";
                o.method = "full";
              }),
              HasSubstr("--reference recompute: with --method full the start's weights are what"));
  EXPECT_THAT(
      fault_with([](TrainOptions& o) { o.loss = {.loss = "orpo", .reference = "recompute"}; }),
      HasSubstr("--reference recompute: is of --loss dpo"));
  EXPECT_THAT(fault_with([](TrainOptions& o) { o.loss.label_smoothing = 0.5; }),
              HasSubstr("--label-smoothing: got 0.5, want 0 or more, below 0.5"));
  EXPECT_THAT(fault_with([](TrainOptions& o) { o.loss.beta = 0; }),
              HasSubstr("--beta: got 0, want above 0"));
  EXPECT_THAT(fault_with([](TrainOptions& o) { o.overlong = "split"; }),
              HasSubstr("--overlong split:"));
  EXPECT_THAT(fault_with([](TrainOptions& o) { o.mtp_weight = 0.1; }),
              HasSubstr("--mtp-weight and --loss dpo: not together yet"));
  EXPECT_THAT(fault_with([](TrainOptions& o) { o.sweep = {"1e-3", "1e-4"}; }),
              HasSubstr("several values of --lr and --loss dpo"));
  EXPECT_THAT(fault_with([&](TrainOptions& o) { o.data = {root_ + "/data.jsonl"}; }),
              HasSubstr("no preference pair"));
  TrainOptions other = pair_options("begun");
  other.steps = 1;
  ASSERT_EQ(run_train(other), 0);
  other.resume = true;
  other.loss.beta = 0.2;
  EXPECT_THAT(fault(other), HasSubstr("beta: was \"0.1\", now \"0.2\""));
}

}  // namespace
}  // namespace strata::apps
