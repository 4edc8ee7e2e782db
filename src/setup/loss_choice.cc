// SPDX-License-Identifier: Apache-2.0
#include "setup/loss_choice.h"

#include <fmt/format.h>

#include "base/error.h"
#include "setup/shared_options.h"

namespace strata::apps {
namespace {

constexpr double kLeastBeta = 1e-9, kMostSmoothing = 0.5 - 1e-9;

[[noreturn]] void fail(const std::string& what) { throw Error(ErrorCode::kInvalidArgument, what); }

}  // namespace

OptionRow& add_loss_option(OptionTable& t, LossChoice& choice, WithRewards with_rewards) {
  if (with_rewards == WithRewards::kYes) {
    return t.choice("loss", choice.loss, {"cross_entropy", "dpo", "orpo", "grpo"},
                    "cross_entropy of answers, dpo or orpo of preference pairs "
                    "(docs/preferences.md), or grpo of sampled answers with rewards "
                    "(docs/rewards.md)");
  }
  return t.choice("loss", choice.loss, {"cross_entropy", "dpo", "orpo"},
                  "cross_entropy of answers, or dpo or orpo of preference pairs "
                  "(docs/preferences.md)");
}

void add_pair_loss_options(OptionTable& t, LossChoice& choice) {
  t.choice("loss-type", choice.type, {"sigmoid", "sigmoid_norm", "robust", "hinge", "ipo"},
           "of dpo, with TRL's names and formulas")
      .results();
  t.number("beta", choice.beta, {kLeastBeta, kHuge, "above 0"},
           "of dpo: how much a step away from the reference model costs; of orpo: what the odds "
           "of both answers weigh next to the chosen one's loss")
      .results();
  t.number("label-smoothing", choice.label_smoothing, {0, kMostSmoothing, "0 or more, below 0.5"},
           "of dpo's robust: share of pairs whose answers were taken for each other")
      .results();
}

void check_loss_choice(const LossChoice& choice, const std::string& overlong) {
  const LossChoice defaults;
  if (!choice.of_pairs()) {
    const char* name = choice.type != defaults.type                         ? "--loss-type"
                       : choice.beta != defaults.beta                       ? "--beta"
                       : choice.label_smoothing != defaults.label_smoothing ? "--label-smoothing"
                                                                            : nullptr;
    if (name != nullptr)
      fail(fmt::format("{}: is of preference pairs; give --loss dpo with it", name));
    return;
  }
  if (choice.loss == "orpo" && choice.type != defaults.type)
    fail("--loss-type: is of --loss dpo; orpo has one loss, leave it out");
  if (choice.loss == "orpo" && choice.label_smoothing > 0)
    fail("--label-smoothing: is of --loss dpo; leave it out with orpo");
  if (choice.label_smoothing > 0 && choice.type != "robust") {
    fail(fmt::format("--label-smoothing: --loss-type {} does not read it; want robust with it",
                     choice.type));
  }
  if (overlong == "split") {
    fail(
        "--overlong split: a piece of an answer is no answer that one can prefer; want drop or cut "
        "with --loss " +
        choice.loss);
  }
}

std::string loss_of_pairs_text(const LossChoice& choice) {
  std::string text = fmt::format("{}{}, beta {:g}", choice.loss,
                                 choice.loss == "dpo" ? " " + choice.type : "", choice.beta);
  if (choice.label_smoothing > 0)
    text += fmt::format(", label smoothing {:g}", choice.label_smoothing);
  return text;
}

}  // namespace strata::apps
