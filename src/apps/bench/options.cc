// SPDX-License-Identifier: Apache-2.0
#include "apps/options.h"

#include "apps/bench/inputs.h"
#include "apps/bench/works.h"
#include "setup/shared_options.h"

namespace strata::apps {

OptionTable option_table_of(BenchOptions& o) {
  OptionTable t;
  t.group("Work");
  t.text("work", o.work,
         bench_work_names() +
             "; or cluster: what a rank does and what joins two, for "
             "strata plan train --cluster")
      .required()
      .positional();
  t.text("model", o.model,
         "Hugging Face directory, GGUF file, or ORG/NAME in the hub's cache; default: Qwen3-0.6B's "
         "shape with random weights")
      .in("MODEL");
  add_dtype_option(t, o.dtype, {"f32", "bf16", "auto"}, "f32, bf16 or auto");
  t.text(
      "weights", o.weights,
      "of --model: auto, narrow or bf16, as in train; of random weights: bf16, or a form of 4 to "
      "8 bits: " +
          narrow_form_names());
  t.choice("method", o.method, {"lora", "full"},
           "of a training work: an adapter or all parameters");
  t.group("Memory");
  t.text("recompute", o.recompute, "of a training work, in place of its own; as in train");
  add_memory_option(
      t, o.memory,
      "of a training work, as 2GiB: the fastest passes that fit, weights in memory; the "
      "probes of limits take 256 MiB besides it");
  t.text("offload", o.offload, kOffloadHelp).in("DIR");
  OptionRow& schedule = add_stage_options(t, o.stages);
  schedule.also("schedule");
  t.group(kMachineGroup);
  add_threads_option(t, o.threads);
  t.integer("repeat", o.repeat, {1, 1000, "1 to 1000"}, "timed repetitions; the median counts");
  t.integer("context", o.context, {0, kMost, "0 (off) or more"},
            "of a decoding work: also a step behind so many tokens, which are made up, over one "
            "behind 1,024");
  t.flag("json", o.json, "print one JSON object");
  add_trace_option(t, o.trace);
  t.text("out", o.out, "of cluster: TOML file to write").in("FILE");
  t.mark_common({"work", "model", "dtype", "method", "recompute", "memory", "stages", "threads",
                 "repeat", "json"});
  return t;
}

}  // namespace strata::apps
