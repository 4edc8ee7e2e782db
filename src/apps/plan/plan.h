// SPDX-License-Identifier: Apache-2.0
// strata plan: what a run will take, before there is one: of training the activations and what is
// decided for each, peak memory and time a step; of serving what a memory holds; of a pipeline its
// schedule. Reads a model's config alone, and runs nothing but short probes of the machine. Each
// mode is a row in plan.cc, and a subcommand with the options that it reads.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "apps/plan/plan_schedule.h"
#include "setup/engine_setup.h"
#include "setup/stages.h"

namespace strata::apps {

struct PlanOptions : EngineSetup {
  std::string tokens;               // of a step, "4x512"; empty: 8x512
  std::string memory;               // bytes of the whole run
  std::string method = "lora";      // or "full"
  std::string optimizer = "adamw";  // or "muon"
  int64_t rank = 32;
  std::string expert_rank = "divided";
  std::string targets = "all-linear";
  int64_t micro_tokens = 2048;
  int64_t max_rank = 128;          // of serve
  std::string speculate = "none";  // of serve: or "mtp"
  int64_t draft_tokens = 1;        // of serve, where it speculates
  bool with_mtp = false;           // of train, with multi-token prediction
  bool with_indexer_loss = false;  // of train, with the loss that trains indexers
  std::string svg;                 // a file
  std::string machine;             // a file of limits; empty: they are probed
  std::string save_machine;        // a file for those that are probed
  std::string cluster;  // of train with ranks: a file of what they are and what joins them
  int search = 0;       // of train on a cluster: ranks to divide the model among; 0: none
  bool json = false;
  PlanScheduleOptions schedule = {};
  StageOptions stages = {};  // of train; micro-batches, chunks and delay are the schedule's
};

// A mode as a subcommand, `strata plan WORD`.
struct PlanMode {
  std::string_view word;
  const char* help;  // one line
  const char* examples;
  const char* options;  // that it reads, with commas
  const char* required;
  int (*run)(const PlanOptions& options);
};
std::span<const PlanMode> plan_modes();
const PlanMode& find_plan_mode(std::string_view word);  // CHECKs that there is one

// The words behind `strata plan`, with one of a mode in front: training, where none stands there
// and neither --for serve nor --schedule says otherwise. `stages` is another word for training.
std::vector<std::string> with_plan_word(std::span<const std::string> typed);

// Prints the plan on stdout: tables, or with --json one line.
int run_plan(const PlanOptions& options, const PlanMode& mode);

}  // namespace strata::apps
