// SPDX-License-Identifier: Apache-2.0
// strata train: fine-tunes a model, LoRA or all parameters, on files of data (data/form.h has
// their forms). Writes into --out: the PEFT adapter or the full model, trainer/ (all that --resume
// needs), metrics.jsonl and loss.svg. Killed at any moment, --resume continues from the last save
// to the same bits.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "reward/reward.h"
#include "setup/loss_choice.h"
#include "setup/stages.h"
#include "setup/text_stack.h"
#include "trainer/grpo.h"

namespace strata::apps {

// Answers to prompts, of --loss grpo.
struct RolloutOptions {
  int64_t group_size = 8;  // of a prompt
  int64_t max_tokens = 256;
  double temperature = 1;
  int64_t updates = 1;                 // optimizer steps on the answers of a step
  std::optional<int64_t> sample_rows;  // sampled at once; absent: as many as fit
};

struct TrainOptions : EngineSetup {
  std::vector<std::string> data;  // PATH or PATH:WEIGHT (data/sources.h)
  std::string out;
  std::string adapter;          // PEFT directory to start from; its modules and ranks are kept
  std::string method = "lora";  // or "full"
  int64_t rank = 32;
  double alpha = 32;
  std::string expert_rank = "divided";  // of routed experts: max(1, rank / experts); full: rank
  std::string targets = "all-linear";   // or module names, comma-separated
  std::string memory;                   // bytes of the whole run; chooses what is recomputed
  std::string machine;                  // file of the machine's limits; empty: they are probed
  std::string train_on = "last";        // last, all
  LossChoice loss;
  GrpoLoss grpo = {};
  reward::RewardOptions reward = {};
  RolloutOptions rollouts = {};
  TemplateChoice chat;
  std::string fields = {};  // NAME=FIELD,... of data and eval
  int64_t max_length = 2048;
  std::string overlong = "drop";  // or cut, split: what is longer than max_length
  // Where these are absent they follow the data, the model or the run that is resumed: settings.h.
  std::optional<int64_t> batch_size;        // examples of a step, at most; 0: any number
  std::optional<int64_t> batch_tokens;      // tokens of a step, at most; likewise
  int64_t gradient_accumulation_steps = 1;  // times batch_size
  std::optional<int64_t> epochs;
  std::optional<int64_t> steps;  // > 0: instead of epochs
  std::optional<double> lr;
  std::vector<std::string> sweep;  // several of --lr, as they were typed; then lr is empty
  std::optional<int64_t> warmup_steps;
  std::optional<double> warmup_ratio;  // of the steps; instead of warmup_steps
  int64_t micro_tokens = 2048;
  std::string lr_schedule = "cosine";
  std::string optimizer = "adamw";  // or "muon", for the matrices of --method full
  double muon_momentum = 0.95;
  // The weight of the loss of multi-token prediction: 0.3 for full where the model has its layer, 0
  // for lora.
  std::optional<double> mtp_weight;
  double indexer_loss = 0;      // weight of the loss that trains indexers; 0: off
  double router_bias_rate = 0;  // of --method full: what routers' biases move by; 0: they stay
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-12;
  double weight_decay = 0;
  double clip = 1.0;  // 0: off
  double eval_fraction = 0.05;
  std::vector<std::string> eval;      // files instead of a fraction
  std::optional<int64_t> eval_every;  // steps; absent: ten times in a run
  std::string save_every = "10m";     // or steps; 0: at the end only
  int64_t keep = 0;                   // saves that have folders of their own
  std::optional<bool> keep_best;      // absent: where there is an evaluation
  int64_t early_stop = 0;             // evaluations without a new best one; 0: off
  bool resume = false;
  bool dry_run = false;
  uint64_t seed = 0;
  StageOptions stages;
  std::string cluster;  // file or name of what ranks can do, of --ranks auto; empty: it is measured
  std::vector<std::string> samples;  // prompts to answer at each evaluation
  std::string tensorboard;           // folder of event files; empty: none
  std::string report;                // HTML file of the run's page; empty: none
  std::string config;                // recipe that the options were read from
  std::string save_config;           // file to write one to
  bool verbose = false;              // tables of what the run takes, before it
  bool json = false;                 // a line of JSON on stdout at the end
  std::string trace;                 // file of the timeline; empty: none
};

// The exit code: 0, or that of the signal that stopped it. Throws Error for faults of options,
// files and data, before anything is trained.
int run_train(const TrainOptions& options);

}  // namespace strata::apps
