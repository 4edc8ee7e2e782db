// SPDX-License-Identifier: Apache-2.0
// Rows of options that several commands have, for the tables that apps/options.h declares.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/option_table.h"
#include "setup/stages.h"
#include "setup/text_stack.h"

namespace strata::apps {

constexpr int64_t kMost = int64_t{1} << 40;
constexpr double kHuge = 1e30;
constexpr const char* kMachineGroup = "Machine and output";
constexpr const char* kModelHelp =
    "Hugging Face directory, GGUF file, or ORG/NAME of the hub that is in its cache (strata pull "
    "gets it)";
constexpr const char* kOffloadHelp =
    "folder on a disk for what --recompute offloads [TMPDIR, else /tmp]";
constexpr const char* kMemoryOffloadHelp =
    "folder on a disk for what --memory does not hold (activations wherever that costs less; "
    "frozen weights, and masters and moments of --method full, where nothing else fits) and "
    "--recompute offloads [TMPDIR, else /tmp; there "
    "activations take up to a fifth of the memory besides --memory, more where nothing else fits]";

OptionRow& add_dtype_option(OptionTable& t, std::string& field,
                            const std::vector<std::string>& choices = {"auto", "bf16", "f32"},
                            const std::string& help = "auto, bf16 or f32");
void add_threads_option(OptionTable& t, int& field);
// --context of what is sampled.
void add_context_option(OptionTable& t, int64_t& field);
void add_strict_option(OptionTable& t, bool& field);
// Both, and --device.
void add_run_options(OptionTable& t, int& threads, std::string& device, bool& strict_config);
void add_micro_tokens_option(OptionTable& t, int64_t& field);
OptionRow& add_train_on_option(OptionTable& t, std::string& field);
// --chat-template and --vars.
void add_template_options(OptionTable& t, TemplateChoice& field,
                          const std::string& help_of_both = "");
// --data, which is required.
OptionRow& add_data_option(OptionTable& t, std::vector<std::string>& field);
// --fields of what --data and --eval name.
OptionRow& add_fields_option(OptionTable& t, std::string& field);
// --weights of files in few bits.
OptionRow& add_weights_option(OptionTable& t, std::string& field);
OptionRow& add_load_in_4bit_option(OptionTable& t, bool& field);

// What trains.
OptionRow& add_optimizer_option(OptionTable& t, std::string& field);
OptionRow& add_method_option(OptionTable& t, std::string& field);
OptionRow& add_rank_option(OptionTable& t, int64_t& field);
OptionRow& add_expert_rank_option(OptionTable& t, std::string& field);
OptionRow& add_targets_option(OptionTable& t, std::string& field);

void add_draft_option(OptionTable& t, int64_t& field);
void add_memory_option(OptionTable& t, std::string& field, const std::string& help);
void add_recompute_option(OptionTable& t, std::string& field);
void add_machine_option(OptionTable& t, std::string& field);
void add_trace_option(OptionTable& t, std::string& field);
void add_forwarding_delay_option(OptionTable& t, int& field);

void add_num_stages_option(OptionTable& t, StageOptions& o);
// How stages divide a model and what they recompute; returns the row of their schedule.
OptionRow& add_division_options(OptionTable& t, StageOptions& o);
// --ranks and --shard-weights, in the group of the stages.
void add_ranks_options(OptionTable& t, StageOptions& o);
// All of ranks that are threads or processes. Returns the row of the schedule.
OptionRow& add_stage_options(OptionTable& t, StageOptions& o);

// Throws Error for a value out of its row's range.
template <typename Options>
void check_options(Options options) {
  option_table_of(options).check();
}

}  // namespace strata::apps
