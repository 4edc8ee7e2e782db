// SPDX-License-Identifier: Apache-2.0
// The options of strata merge and convert.
#include "apps/options.h"

#include "setup/shared_options.h"

namespace strata::apps {
namespace {

constexpr const char* kExportedHelp =
    "Hugging Face directory, GGUF file, or ORG/NAME in the hub's cache; or an adapter, which is "
    "then merged into its base";
constexpr const char* kReportHelp = "JSON file with what rounding changed in every tensor";

}  // namespace

OptionTable option_table_of(MergeOptions& o) {
  OptionTable t;
  t.text("model", o.model, kExportedHelp).in("MODEL").required().or_bare();
  t.texts(
       "adapter", o.adapters,
       "PEFT directory or archive of a server's checkpoint, or DIR:WEIGHT for a part of its change "
       "(0.5: half); may be given several times, their changes add up")
      .in("DIR");
  t.text("out", o.out, "folder to write: safetensors in the model's own types, config, tokenizer")
      .in("DIR")
      .required();
  t.text("report", o.report, kReportHelp).in("FILE");
  t.flag("verbose", o.verbose, "list the tensors that rounding changed most").also("v");
  add_threads_option(t, o.threads);
  return t;
}

OptionTable option_table_of(ConvertOptions& o) {
  OptionTable t;
  t.text("model", o.model, kExportedHelp).in("MODEL").required().or_bare();
  t.texts(
       "adapter", o.adapters,
       "PEFT directory or archive of a server's checkpoint, or DIR:WEIGHT, to merge; may be given "
       "several times")
      .in("DIR");
  t.choice("to", o.to, {"safetensors", "gguf", "gguf-lora"},
           "a Hugging Face directory, a file of llama.cpp, or its file of an adapter alone");
  t.choice(
      "type", o.type,
      {"keep", "bf16", "f16", "f32", "q8_0", "q6_k", "q5_k_m", "q4_k_m", "q4_0", "mxfp4", "nf4"},
      "of the weights; keep: as they are (of weights in few bits bf16); q8_0 to mxfp4 are "
      "GGUF's, mxfp4 also that of gpt-oss' experts in safetensors; nf4 is bitsandbytes'");
  t.choice("layout", o.layout, {"layers", "stacked"},
           "of safetensors: a tensor for each layer, or one for all layers of a kind");
  t.text("shard-size", o.shard_size, "bytes of a safetensors file at most").in("SIZE");
  t.text("out", o.out, "folder to write, or GGUF file").in("PATH").required();
  t.text("modelfile", o.modelfile,
         "a file to write for ollama, with --to gguf: template, sampling, end tokens")
      .in("FILE");
  t.text("report", o.report, kReportHelp).in("FILE");
  t.flag("verbose", o.verbose, "list the tensors that rounding changed most").also("v");
  t.text("data", o.data, "a file as strata train reads it: prints the perplexity before and after")
      .in("FILE");
  add_threads_option(t, o.threads);
  return t;
}

}  // namespace strata::apps
