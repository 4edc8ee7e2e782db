// SPDX-License-Identifier: Apache-2.0
// strata data: what files of data hold as a model's run would read them, without a run: forms,
// counts, lengths, examples with their trained tokens marked, and faults by line. With --diff one
// line as a server renders it next to what is trained (apps/data_diff.h); with --reward what that
// makes of some records (apps/data_rewards.h).
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "reward/reward.h"
#include "setup/loss_choice.h"
#include "setup/text_stack.h"

namespace strata::apps {

struct DataOptions {
  std::vector<std::string> data;
  std::string model;
  std::string train_on = "last";
  LossChoice loss;                    // of which --loss alone is an option here
  reward::RewardOptions reward = {};  // to be tried; its reward may be empty
  TemplateChoice chat = {};
  std::string fields = {};
  int64_t max_length = 2048;
  int64_t show = 3;  // examples
  int64_t diff = 0;  // the line to compare with what a server renders; 0: none
  bool json = false;
};

// 0, or 2 where a record is at fault; they are printed.
int run_data(const DataOptions& options);

}  // namespace strata::apps
