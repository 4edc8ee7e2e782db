// SPDX-License-Identifier: Apache-2.0
#include "trainer/options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdint>
#include <optional>
#include <set>

#include "base/ascii.h"
#include "base/error.h"
#include "setup/shared_options.h"
#include "trainer/cadence.h"

namespace strata::apps {
namespace {

constexpr const char* kStepsGroup = "Steps and learning rate";
constexpr double kBelowOne = 1 - 1e-9, kLeastTemperature = 0.01;
constexpr int64_t kMostGroup = 4096, kMostUpdates = 1024;

double parse_learning_rate(const std::string& text) {
  std::optional<double> value;
  OptionTable one;
  one.number("lr", value, {0, kHuge, "0 or more"}, "").set(text);
  return *value;
}

// A learning rate, or several with commas.
void set_learning_rates(TrainOptions& o, const std::string& text) {
  const std::vector<std::string> parts = split_commas(text);
  if (parts.size() < 2) {
    o.lr = parse_learning_rate(text);
    return;
  }
  std::set<double> seen;
  for (const std::string& part : parts) {
    if (seen.insert(parse_learning_rate(part)).second) continue;
    throw Error(ErrorCode::kInvalidArgument, fmt::format("--lr: got {} twice", part));
  }
  o.sweep = parts;
}

std::string learning_rate_text(const TrainOptions& o) {
  if (o.lr) return fmt::format("{}", *o.lr);
  return o.sweep.empty() ? "default" : fmt::format("{}", fmt::join(o.sweep, ","));
}

// --lr: one value, or several with commas for a sweep.
OptionRow& add_learning_rate_option(OptionTable& t, TrainOptions& o) {
  TrainOptions* at = &o;
  return t.add({.name = "lr",
                .unit = "FLOAT",
                .help = "peak learning rate [lora: 5e-4, of models wider than 1024 2e-4, times "
                        "sqrt(B / 8) with B < 8 examples a step; full: 1e-5; a tenth of these with "
                        "--loss dpo and grpo]; 1e-4,3e-4,1e-3 trains an adapter with each",
                .set = [at](const std::string& text) { set_learning_rates(*at, text); },
                .text = [at] { return learning_rate_text(*at); },
                .check =
                    [at] {
                      if (at->lr) parse_learning_rate(fmt::format("{}", *at->lr));
                    }});
}

void add_learning_rate_options(OptionTable& t, TrainOptions& o) {
  t.group(kStepsGroup);
  add_learning_rate_option(t, o).also("learning-rate").results();
  t.text("lr-schedule", o.lr_schedule, "constant, linear or cosine").also("schedule").results();
  t.integer("warmup-steps", o.warmup_steps, {0, kMost, "0 or more"},
            "steps of linear warmup [a twentieth of the steps]")
      .results();
  t.number("warmup-ratio", o.warmup_ratio, {0, 0.5, "0 to 0.5"},
           "share of the steps, in place of --warmup-steps");
}

void add_optimizer_and_loss_options(OptionTable& t, TrainOptions& o) {
  t.group("Optimizer and losses");
  add_loss_option(t, o.loss, WithRewards::kYes).results();
  add_pair_loss_options(t, o.loss);
  t.choice("reference", o.loss.reference, {"precompute", "recompute"},
           "of dpo: what the reference model gives all pairs is computed before the first step, or "
           "in each step by the start's weights, which stay in memory");
  add_optimizer_option(t, o.optimizer).results();
  t.number("muon-momentum", o.muon_momentum, {0, kBelowOne, "0 or more and below 1"}, "Muon")
      .results();
  t.number("mtp-weight", o.mtp_weight, {0, kHuge, "0 (off) or more"},
           "of the loss of multi-token prediction [0.3 with --method full where the model has its "
           "layer, else 0]")
      .results();
  t.number("indexer-loss", o.indexer_loss, {0, kHuge, "0 (off) or more"},
           "weight of a loss that trains DeepSeek-V4's indexers to rank entries as the attention "
           "that they replace; --method lora then adapts them too")
      .results();
  t.number(
       "router-bias-rate", o.router_bias_rate, {0, kHuge, "0 (off) or more"},
       "of --method full: what a router's bias moves by in a step, towards the experts that had "
       "few tokens")
      .results();
  t.number("beta1", o.beta1, {0, kBelowOne, "0 or more and below 1"}, "AdamW").results();
  t.number("beta2", o.beta2, {0, kBelowOne, "0 or more and below 1"}, "AdamW").results();
  t.number("eps", o.eps, {0, kHuge, "0 or more"}, "AdamW").results();
  t.number("weight-decay", o.weight_decay, {0, kHuge, "0 or more"}, "decoupled; AdamW").results();
  t.number("clip", o.clip, {0, kHuge, "0 (off) or more"},
           "largest gradient norm (max_grad_norm); 0: off")
      .results();
}

void add_rollout_options(OptionTable& t, TrainOptions& o) {
  t.group("Rewards");
  reward::add_reward_options(t, o.reward).results();
  t.choice("grpo-loss", o.grpo.type, {"dapo", "grpo", "dr_grpo", "cispo"},
           "of --loss grpo, with TRL's names and formulas (loss_type)")
      .results();
  t.choice("importance", o.grpo.importance, {"token", "sequence"},
           "what --updates above 1 clip: a ratio for each token, or one for an answer "
           "(importance_sampling_level)")
      .results();
  t.integer("group-size", o.rollouts.group_size, {2, kMostGroup, "2 to 4096"},
            "answers to a prompt, which are compared with each other (num_generations)")
      .results();
  t.integer("max-tokens", o.rollouts.max_tokens, {1, kMost, "1 or more"},
            "tokens of an answer, at most (max_completion_length)")
      .results();
  t.number("temperature", o.rollouts.temperature, {kLeastTemperature, kHuge, "0.01 or more"},
           "that answers are sampled at")
      .results();
  t.integer("updates", o.rollouts.updates, {1, kMostUpdates, "1 to 1024"},
            "optimizer steps on the answers of a step (num_iterations)")
      .results();
  t.integer("sample-rows", o.rollouts.sample_rows, {2, kMost, "2 or more"},
            "answers that are sampled at once [those of a step, 64 at most, fewer where --memory "
            "has no space for them]");
}

void add_step_options(OptionTable& t, TrainOptions& o) {
  t.group(kStepsGroup);
  t.integer("epochs", o.epochs, {1, kMost, "1 or more"},
            "passes over the data (num_train_epochs) [3; more over few examples, fewer over many]")
      .results();
  t.integer("steps", o.steps, {0, kMost, "0 (use --epochs) or more"},
            "optimizer steps (max_steps), in place of --epochs")
      .results();
  t.integer("batch-size", o.batch_size, {1, kMost, "1 or more"},
            "examples of an optimizer step (per_device_train_batch_size) [1 to 32: at least 60 "
            "steps where the data allow it; with --loss grpo 8 prompts]")
      .results();
  t.integer("batch-tokens", o.batch_tokens, {1, kMost, "1 or more"},
            "tokens of an optimizer step, at most; with --batch-size whichever is met first [8192; "
            "none with --batch-size]")
      .results();
  t.integer("gradient-accumulation-steps", o.gradient_accumulation_steps, {1, 1 << 20, "1 or more"},
            "an optimizer step has so many times --batch-size examples");
  add_micro_tokens_option(t, o.micro_tokens);
  t.integer("max-length", o.max_length, {2, kMost, "2 or more"},
            "tokens of an example, at most (max_seq_length)")
      .results();
  t.choice("overlong", o.overlong, {"drop", "cut", "split"},
           "of longer examples (truncation): drop, cut (the first --max-length tokens stay) or "
           "split (into "
           "pieces)")
      .results();
  t.seed("seed", o.seed, "of adapter, order and split").results();
}

// --config and --save-config.
void add_recipe_file_options(OptionTable& t, TrainOptions& o) {
  t.text("config", o.config,
         "TOML or YAML file (.yaml) of options, which the command line overrides (docs/train.md)")
      .in("FILE");
  t.text("save-config", o.save_config, "TOML file to write: these options, for --config")
      .in("FILE");
}

OptionRow& add_keep_best_option(OptionTable& t, TrainOptions& o) {
  std::optional<bool>* at = &o.keep_best;
  return t.add({.name = "keep-best",
                .help = "keep what has the lowest evaluation loss, in best/ of --out",
                .kind = OptionKind::kFlag,
                .default_text = "on where there is an evaluation",
                .set = [at](const std::string& text) { *at = text != "off"; },
                .text = [at]() -> std::string { return !*at   ? "default"
                                                       : **at ? "on"
                                                              : "off"; }});
}

// When a run looks at itself, and what it keeps.
void add_evaluation_and_saving_options(OptionTable& t, TrainOptions& o) {
  t.group("Evaluation and saving");
  t.texts("eval", o.eval, "evaluation examples, which are not trained on; forms as of --data")
      .in("FILE")
      .results(ResultsBy::kFile);
  t.number("eval-fraction", o.eval_fraction, {0, 0.9, "0 to 0.9"},
           "else: share of --data to evaluate on and not to train on")
      .results();
  t.integer("eval-every", o.eval_every, {1, kMost, "1 or more"},
            "steps between evaluations (eval_steps) [ten evaluations in a run]");
  t.text("save-every", o.save_every,
         "steps (100; save_steps) or time (30s, 10m, 2h); 0: at the end only")
      .check = [&o] { parse_save_every(o.save_every); };
  t.integer("keep", o.keep, {0, kMost, "0 or more"},
            "newest saves (save_total_limit) that stay as folders of adapter or model in --out, "
            "step-100; 0: the "
            "newest, in --out itself");
  add_keep_best_option(t, o);
  t.integer("early-stop", o.early_stop, {0, kMost, "0 (off) or more"},
            "end after so many evaluations without a new lowest loss, or a new highest reward; 0: "
            "off");
  t.texts("sample", o.samples,
          "prompt to answer at each evaluation, greedily, into samples.jsonl of --out; may be "
          "repeated");
  t.text("tensorboard", o.tensorboard, "folder of event files for TensorBoard").in("DIR");
  t.text("report", o.report,
         "HTML file to write at the end: curves, samples before and after, memory, speed, and how "
         "to go on (docs/train.md)")
      .in("FILE");
  t.flag(
      "resume", o.resume,
      "continue from the last save in --out, as Ctrl-C makes one, with the options of the run but "
      "those that are given now");
  t.flag("dry-run", o.dry_run,
         "read, check and plan everything, say what the run would do and take, and train nothing");
}

}  // namespace

OptionTable option_table_of(TrainOptions& o) {
  OptionTable t;
  t.group("Model and data");
  t.text("model", o.model, std::string(kModelHelp) + "; of --adapter its base where none is named")
      .in("MODEL")
      .required_without("adapter")
      .or_bare()
      .results(ResultsBy::kModel);
  add_data_option(t, o.data).results(ResultsBy::kFile);
  t.text("out", o.out, "folder of the adapter or model, metrics and state").in("DIR").required();
  add_recipe_file_options(t, o);
  t.group("Adapter");
  t.text("adapter", o.adapter,
         "PEFT LoRA directory to start from and train on; its modules and ranks are kept")
      .in("DIR")
      .results(ResultsBy::kModel);
  add_method_option(t, o.method).results();
  add_rank_option(t, o.rank).results();
  t.number("alpha", o.alpha, {-kHuge, kHuge, "a finite number"}, "LoRA alpha (lora_alpha)")
      .results();
  add_expert_rank_option(t, o.expert_rank).results();
  add_targets_option(t, o.targets).results();
  t.group("Model and data");
  add_train_on_option(t, o.train_on).results();
  add_template_options(t, o.chat);
  add_fields_option(t, o.fields).results();
  add_learning_rate_options(t, o);
  add_optimizer_and_loss_options(t, o);
  add_rollout_options(t, o);
  add_step_options(t, o);
  add_evaluation_and_saving_options(t, o);
  t.group("Memory");
  add_dtype_option(t, o.dtype).results();
  add_weights_option(t, o.weights);
  add_load_in_4bit_option(t, o.load_in_4bit).results();
  add_memory_option(t, o.memory,
                    "bytes of the whole run (12GiB): passes and what they keep are chosen so");
  add_recompute_option(t, o.recompute);
  t.text("offload", o.offload, kMemoryOffloadHelp).in("DIR");
  add_stage_options(t, o.stages);
  t.group(kMachineGroup);
  add_run_options(t, o.threads, o.device, o.strict_config);
  add_machine_option(t, o.machine);
  t.text("cluster", o.cluster,
         "of --ranks auto: TOML file of what a rank does in a second and of the links between "
         "ranks, or a machine's name, in place of measuring them now (docs/cluster.md)")
      .in("FILE|NAME");
  t.flag("verbose", o.verbose,
         "before the run tables of what it takes, by activation and decision; also with --memory")
      .also("v");
  t.flag("json", o.json, "a line of JSON on stdout at the end");
  add_trace_option(t, o.trace);
  t.mark_common({"model",      "data",         "out",        "train-on", "loss",
                 "reward",     "method",       "rank",       "alpha",    "targets",
                 "lr",         "config",       "epochs",     "steps",    "batch-size",
                 "max-length", "eval",         "save-every", "resume",   "dry-run",
                 "memory",     "load-in-4bit", "threads",    "verbose",  "json"});
  return t;
}

}  // namespace strata::apps
