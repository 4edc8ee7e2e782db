// SPDX-License-Identifier: Apache-2.0
// Rows of options that several commands have, and those that say what data are, what is swept and
// how weights are kept; tables in apps/options.h.
#pragma once
#include <string>
#include <vector>

#include "apps/train/train.h"
#include "base/option_table.h"

namespace strata::apps {

OptionRow& dtype_row(OptionTable& t, std::string& field,
                     const std::vector<std::string>& choices = {"auto", "bf16", "f32"},
                     const std::string& help = "auto, bf16 or f32");
void threads_row(OptionTable& t, int& field);
void strict_row(OptionTable& t, bool& field);
// Both, and --device.
void run_rows(OptionTable& t, int& threads, std::string& device, bool& strict_config);
void micro_tokens_row(OptionTable& t, int64_t& field);
OptionRow& train_on_row(OptionTable& t, std::string& field);
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
