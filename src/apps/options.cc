// SPDX-License-Identifier: Apache-2.0
#include "apps/options.h"

#include <fmt/format.h>

#include <cstdint>

#include "apps/bench/inputs.h"
#include "apps/bench/works.h"
#include "apps/data_options.h"
#include "apps/setup/config_source.h"
#include "base/error.h"
#include "server/options/options.h"

namespace strata::apps {
namespace {

constexpr int64_t kMost = int64_t{1} << 40;
constexpr double kHuge = 1e30;
constexpr double kBelowOne = 1 - 1e-9;

constexpr const char* kRecomputeHelp =
    "of activations, in backward: none, full, minimal, minimal_with_context, "
    "save_dot_with_context_except_mlp, save_dot_except_mlp, save_dot_except_mlpwi, save_qkv_proj, "
    "save_out_proj, qkv_proj_offloaded, minimal_offloaded, or "
    "custom:TAG=keep|offload|recompute,...: "
    "in memory (TAG alone too), in files, or recomputed, as what is not named";
constexpr const char* kOffloadHelp =
    "folder on a disk for what --recompute offloads [TMPDIR, else /tmp]";

constexpr const char* kMemoryOffloadHelp =
    "folder on a disk for what --memory does not hold (activations wherever that costs less; "
    "frozen weights, and masters and moments of --method full, where nothing else fits) and "
    "--recompute offloads [TMPDIR, else /tmp; there "
    "activations take up to a fifth of the memory besides --memory, more where nothing else fits]";

constexpr const char* kStepsGroup = "Steps and learning rate";
constexpr const char* kMachineGroup = "Machine and output";

constexpr const char* kModelHelp =
    "Hugging Face directory, GGUF file, or ORG/NAME of the hub that is in its cache (strata pull "
    "gets it)";

// Rows that several commands have.
OptionRow& add_model_option(OptionTable& t, std::string& field) {
  return t.text("model", field, kModelHelp).required().or_bare();
}
void add_recompute_option(OptionTable& t, std::string& field) {
  t.text("recompute", field, kRecomputeHelp);
}

void add_machine_option(OptionTable& t, std::string& field) {
  t.text("machine", field,
         "file of the machine's limits, in place of probing them now, so that plans of different "
         "times can be compared");
}
void add_trace_option(OptionTable& t, std::string& field) {
  t.text("trace", field, "timeline to write, for ui.perfetto.dev (docs/timeline.md)");
}
void add_forwarding_delay_option(OptionTable& t, int& field) {
  t.integer("forwarding-delay", field, {1, 2, "1 or 2"},
            "circular: 2 sends an output while the next one is computed");
}
void add_schedule_options(OptionTable& t, PlanScheduleOptions& o) {
  t.group("Pipeline stages");
  t.text("schedule", o.schedule,
         "gpipe, circular, 1f1b, interleaved, zb1p, or a CSV file in PyTorch's form: verified, and "
         "its bubbles and live micro-batches (of each chunk) printed");
  t.integer("pipeline", o.pipeline, {0, 1024, "1 to 1024"}, "ranks; stage s is on rank s mod them");
  t.integer("microbatches", o.microbatches, {0, 65536, "1 to 65536"}, "of a step");
  t.integer("chunks", o.chunks, {0, 1024, "1 to 1024"},
            "stages of a rank [1; of a file: as many as it has]");
  add_forwarding_delay_option(t, o.forwarding_delay);
  t.text("schedule-out", o.schedule_out, "CSV file to write");
  t.flag("with-transfers", o.with_transfers, "write sends and receives as well");
  t.group(kMachineGroup);
  add_trace_option(t, o.trace);
}

void add_stages_option(OptionTable& t, StageOptions& o) {
  t.integer("stages", o.stages, {1, 1024, "1 to 1024"},
            "ranks that run the model one behind the other, as threads");
}

// How stages divide a model and what they recompute; returns the row of their schedule.
OptionRow& add_division_options(OptionTable& t, StageOptions& o) {
  t.group("Pipeline stages");
  add_stages_option(t, o);
  OptionRow& schedule = t.text(
      "pipeline-schedule", o.schedule,
      "of the stages: gpipe, circular, 1f1b, interleaved, zb1p, or a CSV file in PyTorch's form");
  t.text("layers-per-stage", o.layers_per_stage,
         "auto (costs are balanced), or a number for each stage, with commas");
  t.choice(
      "leftovers", o.leftovers, {"auto", "before", "after"},
      "before or after: equal stages, with the layers that are left over on the first or last");
  t.choice("recompute-iterations", o.recompute_iterations, {"off", "on"},
           "what --recompute does not keep of a stage is recomputed as one, at once before its "
           "backward; custom without decoder_layer_input keeps a stage's input alone");
  t.choice("recompute-layers", o.recompute_layers, {"off", "on"},
           "of a stage: layer by layer; with both off everything is kept");
  return schedule;
}

// In the group of the stages.
void add_ranks_option(OptionTable& t, StageOptions& o) {
  t.text("ranks", o.ranks,
         "pipeline=P,data=D (or one of them) under mpirun -n P*D (or srun): a process for each "
         "rank, on one machine or several; --stages are threads of each (docs/cluster.md)");
  t.flag("shard-weights", o.shard_weights,
         "of data ranks: each keeps its part of the weights, and has the rest of a layer come from "
         "the others just before it runs");
}

// Of ranks that are threads or processes. Returns the row of the schedule.
OptionRow& add_stage_options(OptionTable& t, StageOptions& o) {
  OptionRow& schedule = add_division_options(t, o);
  t.integer("chunks", o.chunks, {0, 1024, "1 to 1024"},
            "stages of a rank [1; of a file: as many as it has]");
  t.integer("microbatches", o.microbatches, {1, 65536, "1 to 65536"},
            "that stages divide a batch into; with --memory at least");
  add_forwarding_delay_option(t, o.forwarding_delay);
  add_ranks_option(t, o);
  t.choice("bind", o.bind, {"auto", "none"},
           "of ranks that share cores, which mpirun then has not bound: auto gives each its part, "
           "by NUMA node; none leaves them");
  return schedule;
}

OptionRow& add_optimizer_option(OptionTable& t, std::string& field) {
  return t.choice("optimizer", field, {"adamw", "muon"},
                  "adamw; muon: for the matrices of --method full");
}
OptionRow& add_method_option(OptionTable& t, std::string& field) {
  return t.choice("method", field, {"lora", "full"}, "lora or full");
}
OptionRow& add_rank_option(OptionTable& t, int64_t& field) {
  return t.integer("rank", field, {1, 65536, "1 or more"}, "LoRA rank");
}
OptionRow& add_expert_rank_option(OptionTable& t, std::string& field) {
  return t.choice("expert-rank", field, {"divided", "full"},
                  "of routed experts: divided (max(1, rank / experts)) or full");
}
OptionRow& add_targets_option(OptionTable& t, std::string& field) {
  return t.text("targets", field,
                "all-linear, or module names with commas; embed_tokens and lm_head too");
}
void add_memory_option(OptionTable& t, std::string& field, const std::string& help) {
  t.text("memory", field, help).check = [&field] {
    if (!field.empty()) server::parse_memory_size("memory", field);
  };
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
  t.number("clip", o.clip, {0, kHuge, "0 (off) or more"}, "largest gradient norm; 0: off")
      .results();
}

void add_step_options(OptionTable& t, TrainOptions& o) {
  t.group(kStepsGroup);
  t.integer("epochs", o.epochs, {1, kMost, "1 or more"},
            "passes over the data [3; more over few examples, fewer over many]")
      .results();
  t.integer("steps", o.steps, {0, kMost, "0 (use --epochs) or more"},
            "optimizer steps, in place of --epochs")
      .results();
  t.integer("batch-size", o.batch_size, {1, kMost, "1 or more"},
            "examples of an optimizer step [1 to 32: at least 60 steps where the data allow it]")
      .results();
  t.integer("batch-tokens", o.batch_tokens, {1, kMost, "1 or more"},
            "tokens of an optimizer step, at most; with --batch-size whichever is met first [8192; "
            "none with --batch-size]")
      .results();
  t.integer("gradient-accumulation-steps", o.gradient_accumulation_steps, {1, 1 << 20, "1 or more"},
            "an optimizer step has so many times --batch-size examples");
  add_micro_tokens_option(t, o.micro_tokens);
  t.integer("max-length", o.max_length, {2, kMost, "2 or more"}, "tokens of an example, at most")
      .results();
  t.choice("overlong", o.overlong, {"drop", "cut", "split"},
           "of longer examples: drop, cut (the first --max-length tokens stay) or split (into "
           "pieces)")
      .results();
  t.seed("seed", o.seed, "of adapter, order and split").results();
}

// What a step does and how many there are.
void add_recipe_options(OptionTable& t, TrainOptions& o) {
  add_learning_rate_options(t, o);
  add_optimizer_and_loss_options(t, o);
  add_step_options(t, o);
}

void add_draft_option(OptionTable& t, int64_t& field) {
  t.integer("draft-tokens", field, {1, 16, "1 to 16"},
            "with --speculate mtp: tokens that are drafted at once");
}

void add_generation_options(OptionTable& t, GenerationOptions& o) {
  t.group("Model and prompt");
  t.text("model", o.model, std::string(kModelHelp) + "; a LoRA adapter's stands for its base too")
      .required_without("adapter")
      .or_bare();
  t.text("adapter", o.adapter, "PEFT LoRA directory; alone it stands for its base too");
  t.group("Answers");
  t.integer("max-tokens", o.max_tokens, {1, INT64_MAX, "1 or more"}, "of an answer, at most");
  add_sampling_rows(t, o.sampling);
  t.seed("seed", o.seed, "drawn and printed when absent, but for greedy");
  t.choice("seed-rule", o.seed_rule, {"plain", "server"},
           "server: every answer as a server's to a request with that seed");
  t.texts("stop", o.stop, "a text that ends the answer; may be repeated");
  t.group(kMachineGroup);
  t.choice("speculate", o.speculate, {"none", "mtp"},
           "mtp: drafts of multi-token prediction; no other token is chosen for it");
  add_draft_option(t, o.draft_tokens);
  add_dtype_option(t, o.dtype);
  add_weights_option(t, o.weights);
  add_run_options(t, o.threads, o.device, o.strict_config);
}

}  // namespace

OptionTable option_table_of(TrainOptions& o) {
  OptionTable t;
  t.group("Model and data");
  t.text("model", o.model, std::string(kModelHelp) + "; of --adapter its base where none is named")
      .required_without("adapter")
      .or_bare()
      .results(ResultsBy::kModel);
  add_data_option(t, o.data).results(ResultsBy::kFile);
  t.text("out", o.out, "folder of the adapter or model, metrics and state").required();
  add_recipe_file_options(t, o);
  t.group("Adapter");
  t.text("adapter", o.adapter,
         "PEFT LoRA directory to start from and train on; its modules and ranks are kept")
      .results(ResultsBy::kModel);
  add_method_option(t, o.method).results();
  add_rank_option(t, o.rank).results();
  t.number("alpha", o.alpha, {-kHuge, kHuge, "a finite number"}, "LoRA alpha").results();
  add_expert_rank_option(t, o.expert_rank).results();
  add_targets_option(t, o.targets).results();
  t.group("Model and data");
  add_train_on_option(t, o.train_on).results();
  add_recipe_options(t, o);
  add_evaluation_options(t, o);
  t.group("Memory");
  add_dtype_option(t, o.dtype).results();
  add_weights_option(t, o.weights);
  add_memory_option(t, o.memory,
                    "bytes of the whole run (12GiB): passes and what they keep are chosen so");
  add_recompute_option(t, o.recompute);
  t.text("offload", o.offload, kMemoryOffloadHelp);
  add_stage_options(t, o.stages);
  t.group(kMachineGroup);
  add_run_options(t, o.threads, o.device, o.strict_config);
  add_machine_option(t, o.machine);
  t.flag("json", o.json, "a line of JSON on stdout at the end");
  add_trace_option(t, o.trace);
  t.mark_common({"model",      "data",   "out",        "train-on",   "method",
                 "rank",       "alpha",  "targets",    "lr",         "config",
                 "epochs",     "steps",  "batch-size", "max-length", "eval",
                 "save-every", "resume", "memory",     "threads",    "json"});
  return t;
}

OptionTable option_table_of(PlanOptions& o) {
  OptionTable t;
  t.group("Model and run");
  t.text(
       "model", o.model,
       "Hugging Face directory, GGUF file, ORG/NAME in the hub's cache or config.json, of which no "
       "weights are read, or one of: " +
           config_names_text())
      .or_bare();
  t.choice("for", o.purpose, {"train", "serve"}, "train, or serve: what a server's --memory holds");
  t.text("tokens", o.tokens, "BxT: B sequences of T tokens are an optimizer step");
  add_memory_option(
      t, o.memory, "bytes of the whole run (12GiB), as in train; of serve [80 % of the machine's]");
  t.group("Of training");
  add_method_option(t, o.method);
  add_optimizer_option(t, o.optimizer);
  add_rank_option(t, o.rank);
  add_expert_rank_option(t, o.expert_rank);
  add_targets_option(t, o.targets);
  add_micro_tokens_option(t, o.micro_tokens);
  t.flag("mtp", o.with_mtp, "of train: with multi-token prediction, as --mtp-weight has it");
  t.flag("indexer-loss", o.with_indexer_loss, "of train: with a loss that trains indexers");
  t.group("Of serving");
  t.integer("max-rank", o.max_rank, {1, 65536, "1 or more"}, "of serve: largest LoRA rank");
  t.choice("speculate", o.speculate, {"none", "mtp"},
           "of serve: mtp: with drafts of multi-token prediction");
  add_draft_option(t, o.draft_tokens);
  t.group("Memory");
  add_recompute_option(t, o.recompute);
  t.text("offload", o.offload, kMemoryOffloadHelp);
  add_dtype_option(t, o.dtype);
  add_weights_option(t, o.weights);
  t.group(kMachineGroup);
  add_run_options(t, o.threads, o.device, o.strict_config);
  t.text("svg", o.svg, "file to draw: time of a step over memory, for all budgets");
  add_machine_option(t, o.machine);
  t.text("save-machine", o.save_machine, "file to write the probed limits to, for --machine");
  add_schedule_options(t, o.schedule);
  add_division_options(t, o.stages);  // of train in stages
  add_ranks_option(t, o.stages);      // and of train as processes
  t.group(kMachineGroup);
  t.flag("json", o.json, "one line of JSON");
  t.mark_common({"model", "for", "tokens", "memory", "method", "rank", "recompute", "dtype", "svg",
                 "schedule", "stages", "json"});
  return t;
}

OptionTable option_table_of(GenerateOptions& o) {
  OptionTable t;
  t.group("Model and prompt");
  t.text("prompt", o.prompt, "text to continue; -, or none and a pipe: that of stdin").set =
      [&o](const std::string& text) {
        o.prompt = text;
        o.has_prompt = true;
      };
  add_generation_options(t, o.generation);
  t.flag("echo", o.echo, "print the prompt too");
  t.flag("json", o.json, "one line of JSON at the end instead of a stream");
  t.group("Pipeline stages");
  add_stages_option(t, o.generation.division);
  t.mark_common({"prompt", "model", "adapter", "max-tokens", "temperature", "top-k", "top-p",
                 "seed", "stop", "threads", "json"});
  return t;
}

OptionTable option_table_of(ChatOptions& o) {
  OptionTable t;
  t.group("Model and prompt");
  t.text("prompt", o.prompt, "one question; absent: a line of stdin a turn, and /help").set =
      [&o](const std::string& text) {
        // As of a script's variable that is not set: a conversation would wait for stdin.
        if (text.empty()) {
          throw Error(ErrorCode::kInvalidArgument,
                      "--prompt: the text is empty; without --prompt it is a conversation");
        }
        o.prompt = text;
      };
  t.text("system", o.system, "a system turn before all");
  t.text("vars", o.vars, "JSON of variables for the template, like {\"enable_thinking\": false}");
  add_generation_options(t, o.generation);
  t.mark_common({"prompt", "system", "model", "adapter", "max-tokens", "temperature", "top-k",
                 "top-p", "seed", "stop", "threads"});
  return t;
}

OptionTable option_table_of(InspectOptions& o) {
  OptionTable t;
  t.text("model", o.model,
         "directory of a model or of a LoRA adapter, GGUF file, or ORG/NAME of the hub")
      .required()
      .or_bare();
  t.flag("tensors", o.tensors, "list every tensor");
  add_strict_option(t, o.strict_config);
  t.flag("json", o.json, "one line of JSON");
  return t;
}

OptionTable option_table_of(PullOptions& o) {
  OptionTable t;
  t.text("model", o.model, "ORG/NAME on the Hugging Face hub").in("").required().positional();
  return t;
}

OptionTable option_table_of(ProbeOptions& o) {
  OptionTable t;
  t.group("Model and request");
  add_model_option(t, o.model);
  t.texts("adapter", o.adapters, "PEFT LoRA directory; may be repeated, the first is adapter 1");
  t.text("request", o.request, "JSON file: sequences, loss, want, mtp, train, sample").required();
  t.text("out", o.out, "safetensors file to write").required();
  t.text("stats", o.stats,
         "JSON file to write: memory planned and taken; what the training pass kept, offloaded and "
         "recomputed, by tag; each stage");
  add_dtype_option(t, o.dtype, {"f32", "bf16"}, "f32 or bf16");
  t.group("Memory");
  add_weights_option(t, o.weights);
  add_recompute_option(t, o.recompute);
  t.text("offload", o.offload, kOffloadHelp);
  add_stage_options(t, o.stages).also("schedule");
  t.group(kMachineGroup);
  add_run_options(t, o.threads, o.device, o.strict_config);
  t.mark_common({"model", "adapter", "request", "out", "dtype", "recompute", "stages", "threads"});
  return t;
}

OptionTable option_table_of(InitOptions& o) {
  OptionTable t;
  t.text("config", o.config,
         "model directory, GGUF file, ORG/NAME in the hub's cache, config.json, or one of: " +
             config_names_text())
      .required();
  t.text("out", o.out, "folder to write").required();
  add_dtype_option(t, o.dtype, {"auto", "bf16", "f32"}, "auto (as configured), bf16 or f32");
  t.seed("seed", o.seed, "");
  t.flag("mtp", o.mtp, "with a layer of multi-token prediction (DeepSeek-V4)");
  add_threads_option(t, o.threads);
  return t;
}

OptionTable option_table_of(TokenizeOptions& o) {
  OptionTable t;
  t.text("tokenizer", o.tokenizer, "model directory, GGUF file or tokenizer.json").required();
  t.text("in", o.in, "JSONL file to read").required();
  t.text("out", o.out, "JSONL file to write").required();
  return t;
}

OptionTable option_table_of(BenchOptions& o) {
  OptionTable t;
  t.group("Work");
  t.text("work", o.work, bench_work_names()).required().positional();
  t.text("model", o.model,
         "Hugging Face directory, GGUF file, or ORG/NAME in the hub's cache; default: Qwen3-0.6B's "
         "shape with random weights");
  add_dtype_option(t, o.dtype, {"f32", "bf16", "auto"}, "f32, bf16 or auto");
  t.text("weights", o.weights, bench_weights_help());
  t.choice("method", o.method, {"lora", "full"},
           "of a training work: an adapter or all parameters");
  t.group("Memory");
  t.text("recompute", o.recompute, "of a training work, in place of its own; as in train");
  add_memory_option(
      t, o.memory,
      "of a training work, as 2GiB: the fastest passes that fit, weights in memory; the "
      "probes of limits take 256 MiB besides it");
  t.text("offload", o.offload, kOffloadHelp);
  add_stage_options(t, o.stages).also("schedule");
  t.group(kMachineGroup);
  add_threads_option(t, o.threads);
  t.integer("repeat", o.repeat, {1, 1000, "1 to 1000"}, "timed repetitions; the median counts");
  t.integer("context", o.context, {0, kMost, "0 (off) or more"},
            "of a decoding work: also a step behind so many tokens, which are made up, over one "
            "behind 1,024");
  t.flag("json", o.json, "print one JSON object");
  add_trace_option(t, o.trace);
  t.mark_common({"work", "model", "dtype", "method", "recompute", "memory", "stages", "threads",
                 "repeat", "json"});
  return t;
}

OptionTable option_table_of(KeygenOptions& o) {
  OptionTable t;
  t.flag("hash", o.hash, "print the key's hash for the file of keys, and the key itself to stderr");
  return t;
}

}  // namespace strata::apps
