// SPDX-License-Identifier: Apache-2.0
// Rows of options that say what data are and what is swept; tables in apps/options.h.
#pragma once
#include <string>
#include <vector>

#include "apps/train/train.h"
#include "base/option_table.h"

namespace strata::apps {

// --data, which is required.
OptionRow& data_row(OptionTable& t, std::vector<std::string>& field);
// --config and --save-config; --sample and --tensorboard.
void recipe_file_rows(OptionTable& t, TrainOptions& o);
void watch_rows(OptionTable& t, TrainOptions& o);
// --lr: one value, or several with commas for a sweep.
OptionRow& learning_rate_row(OptionTable& t, TrainOptions& o);

}  // namespace strata::apps
