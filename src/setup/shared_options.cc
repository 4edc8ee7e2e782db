// SPDX-License-Identifier: Apache-2.0
#include "setup/shared_options.h"

#include "base/option_values.h"

namespace strata::apps {
namespace {

constexpr const char* kRecomputeHelp =
    "of activations, in backward (gradient checkpointing): none, full, minimal, "
    "minimal_with_context, "
    "save_dot_with_context_except_mlp, save_dot_except_mlp, save_dot_except_mlpwi, save_qkv_proj, "
    "save_out_proj, qkv_proj_offloaded, minimal_offloaded, or "
    "custom:TAG=keep|offload|recompute,...: "
    "in memory (TAG alone too), in files, or recomputed, as what is not named";

}  // namespace

OptionRow& add_dtype_option(OptionTable& t, std::string& field,
                            const std::vector<std::string>& choices, const std::string& help) {
  return t.choice("dtype", field, choices, help);
}

void add_threads_option(OptionTable& t, int& field) {
  t.integer("threads", field, {0, 4096, "0 (all cores) to 4096"},
            "0: all cores that the affinity and the CPU quotas of control groups allow");
}

void add_context_option(OptionTable& t, int64_t& field) {
  t.integer("context", field, {0, kMost, "0 (the model's) or more"},
            "positions of a sequence, prompt and answer together, at most [the model's; of models "
            "with short and long RoPE factors those of the short ones, more takes the long ones]");
}

void add_strict_option(OptionTable& t, bool& field) {
  t.flag("strict-config", field, "unknown keys of config.json are errors");
}

void add_run_options(OptionTable& t, int& threads, std::string& device, bool& strict_config) {
  add_threads_option(t, threads);
  t.text("device", device, "cpu");
  add_strict_option(t, strict_config);
}

void add_micro_tokens_option(OptionTable& t, int64_t& field) {
  t.integer("micro-tokens", field, {1, kMost, "1 or more"},
            "tokens of a pass (of a micro-batch), at most; saves memory");
}

OptionRow& add_train_on_option(OptionTable& t, std::string& field) {
  return t.choice("train-on", field, {"last", "all"}, "of messages: last or all assistant turns");
}

void add_template_options(OptionTable& t, TemplateChoice& field, const std::string& help_of_both) {
  t.text("chat-template", field.file,
         "Jinja file to use in place of the model's chat template, or base: not an adapter's own" +
             help_of_both)
      .in("FILE")
      .results(ResultsBy::kFile);
  t.text("vars", field.vars,
         "JSON of variables for the template, like {\"enable_thinking\": false}" + help_of_both)
      .in("JSON")
      .results();
}

OptionRow& add_fields_option(OptionTable& t, std::string& field) {
  return t.text("fields", field, "your names of fields, as in question=prompt,answer=completion")
      .in("NAME=FIELD,...");
}

OptionRow& add_data_option(OptionTable& t, std::vector<std::string>& field) {
  return t
      .texts(
          "data", field,
          "JSONL: {\"prompt\",\"completion\"}, {\"text\"} or {\"messages\"} a line; or Alpaca, "
          "ShareGPT, a JSON array, CSV, .gz, .zst, a folder, ORG/NAME of a data set in the "
          "hub's cache, - for stdin (docs/data.md); may be repeated, FILE:2 is seen twice as often")
      .in("FILE")
      .required();
}

OptionRow& add_weights_option(OptionTable& t, std::string& field) {
  return t.choice("weights", field, {"auto", "narrow", "bf16"},
                  "of files in 4 to 8 bits: auto keeps them so in memory where it can, bf16 "
                  "dequantises them, to the same results; narrow: an error where none can be kept");
}

OptionRow& add_load_in_4bit_option(OptionTable& t, bool& field) {
  return t.flag("load-in-4bit", field,
                "quantise the base's linear layers to nf4 as they are loaded, and train an adapter "
                "over them (QLoRA)");
}

OptionRow& add_optimizer_option(OptionTable& t, std::string& field) {
  return t.choice("optimizer", field, {"adamw", "muon"},
                  "adamw; muon: for the matrices of --method full");
}

OptionRow& add_method_option(OptionTable& t, std::string& field) {
  return t.choice("method", field, {"lora", "full"}, "lora or full");
}

OptionRow& add_rank_option(OptionTable& t, int64_t& field) {
  return t.integer("rank", field, {1, 65536, "1 or more"}, "LoRA rank (r)");
}

OptionRow& add_expert_rank_option(OptionTable& t, std::string& field) {
  return t.choice("expert-rank", field, {"divided", "full"},
                  "of routed experts: divided (max(1, rank / experts)) or full");
}

OptionRow& add_targets_option(OptionTable& t, std::string& field) {
  return t.text(
      "targets", field,
      "all-linear, or module names with commas (target_modules); embed_tokens and lm_head too");
}

void add_draft_option(OptionTable& t, int64_t& field) {
  t.integer("draft-tokens", field, {1, 16, "1 to 16"},
            "with --speculate mtp: tokens that are drafted at once");
}

void add_memory_option(OptionTable& t, std::string& field, const std::string& help) {
  t.text("memory", field, help).in("SIZE").check = [&field] {
    if (!field.empty()) parse_memory_size("memory", field);
  };
}

void add_recompute_option(OptionTable& t, std::string& field) {
  t.text("recompute", field, kRecomputeHelp);
}

void add_machine_option(OptionTable& t, std::string& field) {
  t.text("machine", field,
         "file of the machine's limits, in place of probing them now, so that plans of different "
         "times can be compared")
      .in("FILE");
}

void add_trace_option(OptionTable& t, std::string& field) {
  t.text("trace", field, "timeline to write, for ui.perfetto.dev (docs/timeline.md)").in("FILE");
}

void add_forwarding_delay_option(OptionTable& t, int& field) {
  t.integer("forwarding-delay", field, {1, 2, "1 or 2"},
            "circular: 2 sends an output while the next one is computed");
}

void add_num_stages_option(OptionTable& t, StageOptions& o) {
  t.integer("stages", o.stages, {1, 1024, "1 to 1024"},
            "ranks that run the model one behind the other, as threads");
}

OptionRow& add_division_options(OptionTable& t, StageOptions& o) {
  t.group("Pipeline stages");
  add_num_stages_option(t, o);
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

void add_ranks_options(OptionTable& t, StageOptions& o) {
  t.text(
      "ranks", o.ranks,
      "pipeline=P,data=D,expert=E,tensor=T (or some of them), under mpirun -n with their product "
      "(or srun), of train also auto: a process for each rank, on one machine or several; "
      "--stages are threads of each (docs/cluster.md)");
  t.flag("shard-weights", o.shard_weights,
         "of data ranks and expert ranks: each keeps its part of the weights, and has the rest of "
         "a layer come from the others just before it runs");
}

OptionRow& add_stage_options(OptionTable& t, StageOptions& o) {
  OptionRow& schedule = add_division_options(t, o);
  t.integer("chunks", o.chunks, {0, 1024, "1 to 1024"},
            "stages of a rank [1; of a file: as many as it has]");
  t.integer("microbatches", o.microbatches, {1, 65536, "1 to 65536"},
            "that stages divide a batch into; with --memory at least");
  add_forwarding_delay_option(t, o.forwarding_delay);
  add_ranks_options(t, o);
  t.choice("bind", o.bind, {"auto", "none"},
           "of ranks that share cores, which mpirun then has not bound: auto gives each its part, "
           "by NUMA node; none leaves them");
  return schedule;
}

}  // namespace strata::apps
