// SPDX-License-Identifier: Apache-2.0
#include "apps/options.h"

#include <string>
#include <string_view>
#include <vector>

#include "base/ascii.h"
#include "setup/config_source.h"
#include "setup/shared_options.h"

namespace strata::apps {
namespace {

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
  t.text("schedule-out", o.schedule_out, "CSV file to write").in("FILE");
  t.flag("with-transfers", o.with_transfers, "write sends and receives as well");
  t.group(kMachineGroup);
  add_trace_option(t, o.trace);
}

OptionTable all_plan_options(PlanOptions& o) {
  OptionTable t;
  t.group("Model and run");
  t.text(
       "model", o.model,
       "Hugging Face directory, GGUF file, ORG/NAME in the hub's cache or config.json, of which no "
       "weights are read, or " +
           config_examples_text())
      .in("MODEL")
      .or_bare();
  t.text("tokens", o.tokens, "B sequences of T tokens are an optimizer step [8x512]").in("BxT");
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
  add_context_option(t, o.context);
  t.integer("max-rank", o.max_rank, {1, 65536, "1 or more"}, "of serve: largest LoRA rank");
  t.choice("speculate", o.speculate, {"none", "mtp"},
           "of serve: mtp: with drafts of multi-token prediction");
  add_draft_option(t, o.draft_tokens);
  t.group("Memory");
  add_recompute_option(t, o.recompute);
  t.text("offload", o.offload, kMemoryOffloadHelp).in("DIR");
  add_dtype_option(t, o.dtype);
  add_weights_option(t, o.weights);
  add_load_in_4bit_option(t, o.load_in_4bit);
  t.group(kMachineGroup);
  add_run_options(t, o.threads, o.device, o.strict_config);
  t.text("svg", o.svg, "file to draw: time of a step over memory, for all budgets").in("FILE");
  add_machine_option(t, o.machine);
  t.text("save-machine", o.save_machine, "file to write the probed limits to, for --machine")
      .in("FILE");
  t.text("cluster", o.cluster,
         "of train with --ranks or --search: TOML file of what a rank does in a second and of the "
         "links between ranks, or a machine's name such as dgx-h100, on which a step is simulated "
         "(docs/cluster.md)")
      .in("FILE|NAME");
  t.integer("search", o.search, {0, 65536, "2 to 65536"},
            "of train with --cluster: the division among so many ranks with the fastest step");
  add_schedule_options(t, o.schedule);
  add_division_options(t, o.stages);  // of train in stages
  add_ranks_options(t, o.stages);     // and of train as processes
  t.group(kMachineGroup);
  t.flag("json", o.json, "one line of JSON");
  t.mark_common({"model", "tokens", "memory", "method", "rank", "recompute", "dtype", "svg",
                 "schedule", "stages", "json"});
  return t;
}

}  // namespace

OptionTable option_table_of(PlanOptions& o, const PlanMode& mode) {
  OptionTable table = all_plan_options(o);
  const std::vector<std::string> read = split_commas(mode.options);
  table.keep_only(std::vector<std::string_view>(read.begin(), read.end()));
  for (const std::string& name : split_commas(mode.required)) table.mark_required(name);
  return table;
}

}  // namespace strata::apps
