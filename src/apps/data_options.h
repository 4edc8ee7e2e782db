// SPDX-License-Identifier: Apache-2.0
// Rows of options that say what data are, what is swept and how weights are kept; tables in
// apps/options.h.
#pragma once
#include <string>
#include <vector>

#include "apps/train/train.h"
#include "base/option_table.h"

namespace strata::apps {

// --data, which is required.
OptionRow& data_row(OptionTable& t, std::vector<std::string>& field);
// --config and --save-config.
void recipe_file_rows(OptionTable& t, TrainOptions& o);
// When a run looks at itself, and what it keeps.
void evaluation_rows(OptionTable& t, TrainOptions& o);
// --weights of files in few bits.
OptionRow& weights_row(OptionTable& t, std::string& field);
// --lr: one value, or several with commas for a sweep.
OptionRow& learning_rate_row(OptionTable& t, TrainOptions& o);

}  // namespace strata::apps
