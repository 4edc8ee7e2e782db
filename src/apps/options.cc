// SPDX-License-Identifier: Apache-2.0
#include "apps/options.h"

#include "setup/config_source.h"
#include "setup/shared_options.h"

namespace strata::apps {

OptionTable option_table_of(DataOptions& o) {
  OptionTable t;
  add_data_option(t, o.data).or_bare();
  t.text("model", o.model, "Hugging Face directory, GGUF file, or ORG/NAME of the hub")
      .in("MODEL")
      .required();
  add_train_on_option(t, o.train_on);
  add_loss_option(t, o.loss);
  reward::add_reward_options(t, o.reward).help =
      "of prompts: what it makes of those that are shown, with the completions that they have";
  add_template_options(t, o.chat);
  add_fields_option(t, o.fields);
  t.integer("max-length", o.max_length, {2, kMost, "2 or more"},
            "longer examples are listed, as strata train would drop them");
  t.integer("show", o.show, {0, 1000, "0 to 1000"}, "examples to show");
  t.integer("diff", o.diff, {0, kMost, "0 (none) or more"},
            "line to show as a server renders it before each answer, next to what is trained");
  t.flag("json", o.json, "one line of JSON");
  return t;
}

OptionTable option_table_of(EvalOptions& o) {
  OptionTable t;
  t.group("Model and data");
  t.text("model", o.model,
         "Hugging Face directory, GGUF file, or ORG/NAME of the hub; an adapter's base where none "
         "is named")
      .in("MODEL")
      .required_without("adapter")
      .or_bare();
  t.texts("adapter", o.adapters, "PEFT LoRA directory; may be repeated").in("DIR");
  add_data_option(t, o.data).help = "as of strata train, without weights; may be repeated";
  add_train_on_option(t, o.train_on);
  add_loss_option(t, o.loss);
  add_pair_loss_options(t, o.loss);
  add_template_options(t, o.chat);
  add_fields_option(t, o.fields);
  t.integer("max-length", o.max_length, {2, kMost, "2 or more"}, "tokens of an example, at most");
  t.choice("overlong", o.overlong, {"drop", "cut", "split"}, "of longer examples");
  t.group(kMachineGroup);
  add_micro_tokens_option(t, o.micro_tokens);
  add_dtype_option(t, o.dtype);
  add_weights_option(t, o.weights);
  add_run_options(t, o.threads, o.device, o.strict_config);
  t.flag("json", o.json, "one line of JSON");
  return t;
}

OptionTable option_table_of(InspectOptions& o) {
  OptionTable t;
  t.text("model", o.model,
         "directory of a model or of a LoRA adapter, GGUF file, or ORG/NAME of the hub")
      .in("MODEL")
      .required()
      .or_bare();
  t.flag("tensors", o.tensors, "list every tensor");
  add_strict_option(t, o.strict_config);
  t.flag("json", o.json, "one line of JSON");
  return t;
}

OptionTable option_table_of(PullOptions& o) {
  OptionTable t;
  t.text("name", o.name, "ORG/NAME on the Hugging Face hub").in("").required().positional();
  t.flag("dataset", o.dataset,
         "a data set; its files of Parquet become JSONL, by Python's pyarrow");
  t.text("out", o.out, "of --dataset: folder to write JSONL to").by_default("NAME");
  return t;
}

OptionTable option_table_of(InitOptions& o) {
  OptionTable t;
  t.text("config", o.config,
         "model directory, GGUF file, ORG/NAME in the hub's cache, config.json, or " +
             config_examples_text())
      .in("MODEL")
      .required();
  t.text("out", o.out, "folder to write").in("DIR").required();
  add_dtype_option(t, o.dtype, {"auto", "bf16", "f32"}, "auto (as configured), bf16 or f32");
  t.seed("seed", o.seed, "");
  t.flag("mtp", o.mtp, "with a layer of multi-token prediction (DeepSeek-V4, Qwen3.5, Qwen3-Next)");
  add_threads_option(t, o.threads);
  return t;
}

OptionTable option_table_of(TokenizeOptions& o) {
  OptionTable t;
  t.text("tokenizer", o.tokenizer, "model directory, GGUF file or tokenizer.json")
      .in("MODEL")
      .required();
  t.text("in", o.in, "JSONL file to read").in("FILE").required();
  t.text("out", o.out, "JSONL file to write").in("FILE").required();
  return t;
}

OptionTable option_table_of(KeygenOptions& o) {
  OptionTable t;
  t.flag("hash", o.hash, "print the key's hash for the file of keys, and the key itself to stderr");
  return t;
}

OptionTable option_table_of(BackupOptions& o) {
  OptionTable t;
  t.text("data", o.data, "state folder of strata serve").in("DIR").also("state").required();
  t.text("out", o.out, "file to write; it holds the folder's secret").in("FILE").required();
  t.text("archive-key", o.archive_key, "FILE of 32 bytes or more: authenticate the backup with it")
      .in("FILE");
  return t;
}

OptionTable option_table_of(RestoreOptions& o) {
  OptionTable t;
  t.text("in", o.in, "file of strata backup").in("FILE").required();
  t.text("data", o.data, "state folder to make; not there, or empty")
      .in("DIR")
      .also("state")
      .required();
  t.text("archive-key", o.archive_key, "FILE: refuse a backup that was not made with this key")
      .in("FILE");
  return t;
}

OptionTable option_table_of(CheckOptions& o) {
  OptionTable t;
  t.text("data", o.data, "state folder of strata serve").in("DIR").also("state");
  t.text("in", o.in, "file of strata backup, instead of --data").in("FILE");
  t.text("archive-key", o.archive_key, "FILE: the key of that backup").in("FILE");
  return t;
}

}  // namespace strata::apps
