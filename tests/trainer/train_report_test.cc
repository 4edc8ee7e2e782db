// SPDX-License-Identifier: Apache-2.0
// strata train --report: a page of every kind of run, with the whole of a run that was resumed.
#include <gmock/gmock.h>

#include "tests/trainer/train_fixture.h"

namespace strata::apps {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class TrainReport : public TrainTest {
 protected:
  [[nodiscard]] TrainOptions report_options(const std::string& out) const {
    TrainOptions o = options(out);
    o.report = root_ + "/pages/" + out + ".html";
    o.eval_fraction = 0.2;
    o.steps = 12;
    o.save_every = "4";
    return o;
  }
  [[nodiscard]] std::string page(const std::string& out) const {
    return content(root_ + "/pages/" + out + ".html");
  }
};

// As anybody writes prompts; the answer is the model's.
TEST_F(TrainReport, AResumedRunsPageHasTheWholeRun) {
  TrainOptions o = report_options("killed");
  o.samples = {"What is 1 plus </script> 1?"};
  EXPECT_TRUE(kill_after(o, 9));
  EXPECT_FALSE(fs::exists(o.report));
  o.resume = true;
  ASSERT_EQ(run_train(o), 0);
  const std::string html = page("killed");
  EXPECT_THAT(html, HasSubstr("What is 1 plus &lt;/script&gt; 1?"));
  EXPECT_THAT(html, HasSubstr("<tr><th>step 0</th><td class=\"text\">"));
  EXPECT_THAT(html, HasSubstr("<tr><th>step 12</th><td class=\"text\">"));
  EXPECT_THAT(html, HasSubstr("<tr><th>steps</th><td>12 of 12</td></tr>"));
  EXPECT_THAT(html, HasSubstr("<tr><th>steps</th><td>12, of "));
  EXPECT_THAT(html, HasSubstr("nats per token (last step)"));
  EXPECT_THAT(html, HasSubstr("at the peak"));
  EXPECT_THAT(html, HasSubstr("strata chat --model " + model() + " --adapter " + o.out));
  EXPECT_THAT(html, Not(HasSubstr("--resume")));
}

TEST_F(TrainReport, PairsAndRewardsHaveTheirs) {
  std::ofstream(root_ + "/pairs.jsonl") << [] {
    std::string lines;
    for (int i = 0; i < 20; ++i)
      lines += R"({"prompt": "What is )" + std::to_string(i) +
               R"( plus 1?", "chosen": " More.", "rejected": " Less than that."})" + "\n";
    return lines;
  }();
  for (const char* loss : {"dpo", "orpo", "grpo"}) {
    SCOPED_TRACE(loss);
    TrainOptions o = report_options(loss);
    o.loss.loss = loss;
    if (o.loss.of_pairs()) {
      o.data = {root_ + "/pairs.jsonl"};
    } else {
      o.reward.reward = "regex:e";
      o.rollouts.group_size = 4;
      o.rollouts.max_tokens = 6;
      o.batch_tokens.reset();
      o.batch_size = 3;
    }
    ASSERT_EQ(run_train(o), 0);
    EXPECT_THAT(page(loss), HasSubstr(o.loss.of_pairs() ? ">accuracy<" : ">reward<"));
    EXPECT_THAT(page(loss), HasSubstr(">evaluation<"));
    EXPECT_THAT(page(loss), HasSubstr(o.loss.of_pairs() ? "of pairs (evaluation)"
                                                        : "answers without a reward"));
  }
}

TEST_F(TrainReport, APlaceThatCannotBeWrittenIsRefusedAtTheStart) {
  TrainOptions o = report_options("refused");
  o.report = root_;
  EXPECT_THAT(fault(o), HasSubstr("--report " + root_ + ": is a folder; want a file"));
  EXPECT_FALSE(fs::exists(o.out + "/metrics.jsonl"));
  o.report = root_ + "/page.html";
  o.sweep = {"1e-3", "1e-4"};
  EXPECT_THAT(fault(o), HasSubstr("--report and several values of --lr"));
}

}  // namespace
}  // namespace strata::apps
