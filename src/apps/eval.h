// SPDX-License-Identifier: Apache-2.0
// strata eval: loss, perplexity and accuracy of files of data under a model and under adapters of
// it, side by side and by file; of preference pairs their loss, rewards and accuracy, with the base
// as the reference. The loss has the bits of train's evaluation loss.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "setup/engine_setup.h"
#include "setup/loss_choice.h"
#include "setup/text_stack.h"

namespace strata::apps {

struct EvalOptions : EngineSetup {
  std::vector<std::string> adapters;
  std::vector<std::string> data;
  std::string train_on = "last";
  LossChoice loss;
  TemplateChoice chat;
  std::string fields = {};
  int64_t max_length = 2048;
  std::string overlong = "drop";
  int64_t micro_tokens = 2048;
  bool json = false;
};

int run_eval(const EvalOptions& options);

}  // namespace strata::apps
