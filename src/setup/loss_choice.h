// SPDX-License-Identifier: Apache-2.0
// --loss and what it takes, as train, eval and data have them. Plain values.
#pragma once
#include <string>

#include "base/option_table.h"

namespace strata::apps {

struct LossChoice {
  // Or dpo, orpo: examples are preference pairs; or grpo: they are prompts, and answers get
  // rewards.
  std::string loss = "cross_entropy";
  std::string type = "sigmoid";  // of dpo
  double beta = 0.1;             // of pairs
  double label_smoothing = 0;    // of dpo's robust
  // When what the reference model gives is computed: before the first step, or in each step by the
  // start's weights, which stay in memory (recompute). No result depends on it.
  std::string reference = "precompute";

  [[nodiscard]] bool of_pairs() const { return loss == "dpo" || loss == "orpo"; }
  // Whether pairs are compared with what a reference model gives them.
  [[nodiscard]] bool has_reference() const { return loss == "dpo"; }
  [[nodiscard]] bool recomputes_reference() const {
    return has_reference() && reference == "recompute";
  }
  [[nodiscard]] bool of_rewards() const { return loss == "grpo"; }
};

// --loss; of a command that computes it with the options of pairs. Only train has rewards.
enum class WithRewards : uint8_t { kNo, kYes };
OptionRow& add_loss_option(OptionTable& t, LossChoice& choice,
                           WithRewards with_rewards = WithRewards::kNo);
void add_pair_loss_options(OptionTable& t, LossChoice& choice);

// Throws Error for an option of pairs without them, and for one that the loss's type does not read.
void check_loss_choice(const LossChoice& choice, const std::string& overlong);

// "dpo sigmoid, beta 0.1"; "orpo, beta 0.1"
std::string loss_of_pairs_text(const LossChoice& choice);

}  // namespace strata::apps
