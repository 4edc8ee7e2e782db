// SPDX-License-Identifier: Apache-2.0
// Rows of options that several commands have, and those that say what data are, what is swept and
// how weights are kept; tables in apps/options.h.
#pragma once
#include <string>
#include <vector>

#include "apps/train/train.h"
#include "base/option_table.h"

namespace strata::apps {

OptionRow& add_dtype_option(OptionTable& t, std::string& field,
                            const std::vector<std::string>& choices = {"auto", "bf16", "f32"},
                            const std::string& help = "auto, bf16 or f32");
void add_threads_option(OptionTable& t, int& field);
void add_strict_option(OptionTable& t, bool& field);
// Both, and --device.
void add_run_options(OptionTable& t, int& threads, std::string& device, bool& strict_config);
void add_micro_tokens_option(OptionTable& t, int64_t& field);
OptionRow& add_train_on_option(OptionTable& t, std::string& field);
// --data, which is required.
OptionRow& add_data_option(OptionTable& t, std::vector<std::string>& field);
// --config and --save-config.
void add_recipe_file_options(OptionTable& t, TrainOptions& o);
// When a run looks at itself, and what it keeps.
void add_evaluation_options(OptionTable& t, TrainOptions& o);
// --weights of files in few bits.
OptionRow& add_weights_option(OptionTable& t, std::string& field);
// --lr: one value, or several with commas for a sweep.
OptionRow& add_learning_rate_option(OptionTable& t, TrainOptions& o);

}  // namespace strata::apps
