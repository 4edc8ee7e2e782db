// SPDX-License-Identifier: Apache-2.0
#include "apps/options.h"

#include "setup/shared_options.h"

namespace strata::apps {

OptionTable option_table_of(ProbeOptions& o) {
  OptionTable t;
  t.group("Model and request");
  t.text("model", o.model, kModelHelp).in("MODEL").required().or_bare();
  t.texts("adapter", o.adapters, "PEFT LoRA directory; may be repeated, the first is adapter 1")
      .in("DIR");
  t.text("request", o.request, "JSON file: sequences, loss, want, mtp, train, sample")
      .in("FILE")
      .required();
  t.text("out", o.out, "safetensors file to write").in("FILE").required();
  t.text("stats", o.stats,
         "JSON file to write: memory planned and taken; what the training pass kept, offloaded and "
         "recomputed, by tag; each stage");
  add_dtype_option(t, o.dtype, {"f32", "bf16"}, "f32 or bf16");
  t.group("Memory");
  add_weights_option(t, o.weights);
  add_recompute_option(t, o.recompute);
  t.text("offload", o.offload, kOffloadHelp).in("DIR");
  OptionRow& schedule = add_stage_options(t, o.stages);
  schedule.also("schedule");
  t.group(kMachineGroup);
  add_run_options(t, o.threads, o.device, o.strict_config);
  t.mark_common({"model", "adapter", "request", "out", "dtype", "recompute", "stages", "threads"});
  return t;
}

}  // namespace strata::apps
