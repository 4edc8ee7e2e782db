// SPDX-License-Identifier: Apache-2.0
// The options of strata generate and chat.
#include "apps/options.h"

#include <cstdint>
#include <string>

#include "base/error.h"
#include "setup/shared_options.h"

namespace strata::apps {
namespace {

void add_generation_options(OptionTable& t, GenerationOptions& o) {
  t.group("Model and prompt");
  t.text("model", o.model, std::string(kModelHelp) + "; a LoRA adapter's stands for its base too")
      .in("MODEL")
      .required_without("adapter")
      .or_bare();
  t.text("adapter", o.adapter, "PEFT LoRA directory; alone it stands for its base too").in("DIR");
  t.group("Answers");
  t.integer("max-tokens", o.max_tokens, {1, INT64_MAX, "1 or more"}, "of an answer, at most");
  add_context_option(t, o.context);
  add_sampling_rows(t, o.sampling);
  t.seed("seed", o.seed, "drawn and printed when absent, but for greedy");
  t.retired("seed-rule", "answers draw as a server's do for a request with that seed");
  t.texts("stop", o.stop, "a text that ends the answer; may be repeated");
  t.text("json-schema", o.json_schema, "answers are JSON that fits the JSON schema of this file")
      .in("FILE");
  t.group(kMachineGroup);
  t.choice("speculate", o.speculate, {"none", "mtp"},
           "mtp: drafts of multi-token prediction; no other token is chosen for it");
  add_draft_option(t, o.draft_tokens);
  add_dtype_option(t, o.dtype);
  add_weights_option(t, o.weights);
  add_run_options(t, o.threads, o.device, o.strict_config);
}

// Refuses an empty one, as of a script's variable that is not set: chat would wait for stdin.
void set_question(ChatOptions& o, const std::string& text) {
  if (text.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                "--prompt: the text is empty; without --prompt it is a conversation");
  }
  o.prompt = text;
}

}  // namespace

OptionTable option_table_of(GenerateOptions& o) {
  OptionTable t;
  t.group("Model and prompt");
  t.text("prompt", o.prompt, "text to continue; -, or none and a pipe: that of stdin").set =
      [&o](const std::string& text) {
        o.prompt = text;
        o.has_prompt = true;
      };
  add_template_options(t, o.generation.chat, "; the prompt is then a user's turn");
  add_generation_options(t, o.generation);
  t.flag("echo", o.echo, "print the prompt too");
  t.flag("json", o.json, "one line of JSON at the end instead of a stream");
  t.group("Pipeline stages");
  add_num_stages_option(t, o.generation.division);
  t.text("ranks", o.generation.division.ranks,
         "pipeline=P,tensor=T or pipeline=P,expert=E (or one of them), under mpirun -n with their "
         "product (or srun): a process for each rank, with its layers, its part of every matrix, "
         "or its experts (docs/cluster.md)");
  t.mark_common({"prompt", "model", "adapter", "max-tokens", "temperature", "top-k", "top-p",
                 "seed", "stop", "threads", "json"});
  return t;
}

OptionTable option_table_of(ChatOptions& o) {
  OptionTable t;
  t.group("Model and prompt");
  t.text("prompt", o.prompt, "one question; absent: a line of stdin a turn, and /help").set =
      [&o](const std::string& text) { set_question(o, text); };
  t.text("system", o.system, "a system turn before all");
  add_template_options(t, o.generation.chat);
  add_generation_options(t, o.generation);
  t.mark_common({"prompt", "system", "model", "adapter", "max-tokens", "temperature", "top-k",
                 "top-p", "seed", "stop", "threads"});
  return t;
}

}  // namespace strata::apps
