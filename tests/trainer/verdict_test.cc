// SPDX-License-Identifier: Apache-2.0
// What strata train says of a run that goes wrong: before its first step and at its end.
#include "trainer/verdict.h"

#include <gmock/gmock.h>

#include <cmath>

#include "tests/trainer/train_fixture.h"

namespace strata::apps {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

LossCourse evaluated(double before, double after) {
  return {
      .before = before, .after = after, .is_evaluated = true, .num_steps = 100, .vocab_size = 4096};
}

std::vector<report::MetricsRecord> rewarded(int equal, int others) {
  std::vector<report::MetricsRecord> records = {{.step = 0, .numbers = {{"eval_reward", 0.5}}}};
  for (int i = 0; i < equal + others; ++i)
    records.push_back(
        {.step = i + 1,
         .numbers = {{"reward", 0.25}, {"frac_reward_zero_std", i < equal ? 1.0 : 0.9}}});
  return records;
}

TEST(Verdict, OfRewardsIsOfStepsThatTaughtNothing) {
  EXPECT_THAT(reward_verdict_text(rewarded(5, 5)),
              HasSubstr("in 5 of 10 steps all answers to each prompt had the same reward (0.25 in "
                        "the mean)"));
  EXPECT_EQ(reward_verdict_text(rewarded(5, 6)), "");
  EXPECT_EQ(reward_verdict_text(rewarded(4, 0)), "") << "a few steps say nothing";
  EXPECT_EQ(reward_verdict_text({}), "");
}

TEST(Verdict, IsOfHowTheLossWent) {
  EXPECT_EQ(judge(evaluated(5.0569, 0.75)), Verdict::kFine);
  EXPECT_EQ(judge(evaluated(5.0569, 5.06)), Verdict::kStandsStill);
  EXPECT_EQ(judge(evaluated(5.0569, 5.07)), Verdict::kFine) << "as noisy as an evaluation is";
  EXPECT_EQ(judge(evaluated(5.0569, 5.5121)), Verdict::kRose);
  EXPECT_EQ(judge(evaluated(5.0569, 8.3178)), Verdict::kDiverged);
  EXPECT_EQ(judge(evaluated(5.0569, NAN)), Verdict::kRose);
  LossCourse again = evaluated(5.0, 1.2);
  again.lowest = 1.0;
  EXPECT_EQ(judge(again), Verdict::kOverfits);
  again.lowest = 1.15;
  EXPECT_EQ(judge(again), Verdict::kFine);
  // A few steps learn little, and nobody evaluates: the losses of two batches say nothing.
  LossCourse few = evaluated(5.0, 5.0);
  few.num_steps = 10;
  EXPECT_EQ(judge(few), Verdict::kFine);
  few.is_evaluated = false;
  few.after = 6.0;
  EXPECT_EQ(judge(few), Verdict::kFine);
  few.num_steps = 20;
  EXPECT_EQ(judge(few), Verdict::kRose);
}

TEST(Verdict, SaysWhatToChange) {
  EXPECT_EQ(verdict_text(evaluated(5.0, 1.0), 1e-3), "");
  EXPECT_EQ(verdict_text(evaluated(5.0569, 5.5121), 0.03),
            "the evaluation loss rose from 5.0569 to 5.5121: the model is worse than before; lower "
            "--lr (now 0.03)");
  EXPECT_THAT(verdict_text(evaluated(5.0569, 8.3178), 1000),
              AllOf(HasSubstr("the run diverged"), HasSubstr("lower --lr (now 1000)")));
  EXPECT_THAT(verdict_text(evaluated(5.0, 5.0), 1e-9), HasSubstr("raise --lr (now 1e-09)"));
}

class TrainVerdictTest : public TrainTest {
 protected:
  // What it says on stderr.
  [[nodiscard]] static std::string said(const TrainOptions& o) {
    testing::internal::CaptureStderr();
    EXPECT_EQ(run_train(o), 0);
    return testing::internal::GetCapturedStderr();
  }
};

TEST_F(TrainVerdictTest, ARateThatRuinsTheModelIsNamedBeforeAndAfter) {
  TrainOptions good = options("good");
  ASSERT_EQ(run_train(good), 0);
  TrainOptions o = options("out");
  o.adapter = good.out;  // which has something to lose
  o.rank = TrainOptions().rank;
  o.lr = 1e3;
  const std::string text = said(o);
  EXPECT_THAT(text, HasSubstr("--lr 1000: a step moves each value by about this much"));
  EXPECT_THAT(text, HasSubstr("lower --lr (now 1000)"));
  const std::string of_good = said(options("again"));
  EXPECT_THAT(of_good, AllOf(Not(HasSubstr("--lr 0.01:")), Not(HasSubstr("lower --lr"))));
}

TEST_F(TrainVerdictTest, ALossThatStandsStillIsNamed) {
  TrainOptions o = options("out");
  o.lr = 1e-12;
  EXPECT_THAT(said(o), HasSubstr("the evaluation loss stands still"));
}

TEST_F(TrainVerdictTest, AnEvaluationOnWhatIsTrainedIsNamed) {
  TrainOptions o = options("out");
  o.eval = o.data;
  EXPECT_THAT(said(o), HasSubstr("--eval: 40 of its 40 examples are trained on too"));
  std::ofstream(root_ + "/other.jsonl")
      << R"({"prompt": "What is 3 plus 1?", "completion": " 4."})" << "\n"
      << R"({"prompt": "What is 300 plus 1?", "completion": " 301."})" << "\n";
  o = options("some");
  o.eval = {root_ + "/other.jsonl"};
  EXPECT_THAT(said(o), HasSubstr("--eval: 1 of its 2 examples are trained on too"));
  o = options("split");
  EXPECT_THAT(said(o), Not(HasSubstr("are trained on too")));
}

TEST_F(TrainVerdictTest, NoStepsMeanAllAndADryRunMeansNone) {
  TrainOptions o = options("out");
  o.steps = 0;
  o.epochs = 1;
  EXPECT_THAT(said(o), HasSubstr("--steps 0 means those of --epochs 1, which are"));
  o = options("dry");
  o.dry_run = true;
  const std::string text = said(o);
  EXPECT_THAT(text, AllOf(HasSubstr("38 examples and 2 to evaluate on; steps 30"),
                          HasSubstr("dry run: nothing was trained")));
  EXPECT_FALSE(fs::exists(o.out));
  // Of a run that goes on it says where, and changes nothing of it.
  TrainOptions saved = options("saved");
  saved.steps = 10;
  ASSERT_EQ(run_train(saved), 0);
  const std::string before = content(saved.out + "/metrics.jsonl");
  saved.resume = saved.dry_run = true;
  EXPECT_THAT(said(saved), HasSubstr("resuming after 10"));
  EXPECT_EQ(content(saved.out + "/metrics.jsonl"), before);
  // What is wrong is found as in a run.
  o.max_length = 2;
  EXPECT_NE(fault(o), "no error");
}

TEST_F(TrainVerdictTest, MoreThreadsThanCoresAreNamed) {
  TrainOptions o = options("out");
  o.dry_run = true;
  o.threads = 500;
  EXPECT_THAT(said(o), HasSubstr("--threads 500: this process may use "));
}

// Three lines by default; the tables for whoever asks, or divides the memory.
TEST_F(TrainVerdictTest, SaysThreeLinesBeforeARunAndTablesWhereTheyAreAskedFor) {
  TrainOptions o = options("out");
  o.dry_run = true;
  const std::string brief = said(o);
  EXPECT_EQ(std::count(brief.begin(), brief.end(), '\n'), 4) << brief;
  EXPECT_THAT(brief, AllOf(HasSubstr("model  qwen3, "), HasSubstr("learning rate 0.01"),
                           HasSubstr("data   38 examples"), HasSubstr("takes  ")));
  EXPECT_THAT(brief, Not(HasSubstr("a pass of")));
  o.verbose = true;
  EXPECT_THAT(said(o), AllOf(HasSubstr("a pass of"), HasSubstr("decision")));
  o.verbose = false;
  o.memory = "1GiB";
  EXPECT_THAT(said(o), HasSubstr("a pass of"));
}

}  // namespace
}  // namespace strata::apps
