// SPDX-License-Identifier: Apache-2.0
#include "apps/data_options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdint>
#include <optional>
#include <set>

#include "apps/options.h"
#include "apps/train/cadence.h"
#include "base/error.h"

namespace strata::apps {
namespace {

constexpr int64_t kMost = int64_t{1} << 40;
constexpr double kHuge = 1e30;

double parse_rate(const std::string& text) {
  std::optional<double> value;
  OptionTable one;
  one.number("lr", value, {0, kHuge, "0 or more"}, "").set(text);
  return *value;
}

// A learning rate, or several with commas.
void set_rates(TrainOptions& o, const std::string& text) {
  const std::vector<std::string> parts = split_commas(text);
  if (parts.size() < 2) {
    o.lr = parse_rate(text);
    return;
  }
  std::set<double> seen;
  for (const std::string& part : parts) {
    if (seen.insert(parse_rate(part)).second) continue;
    throw Error(ErrorCode::kInvalidArgument, fmt::format("--lr: got {} twice", part));
  }
  o.sweep = parts;
}

}  // namespace

OptionRow& add_dtype_option(OptionTable& t, std::string& field,
                            const std::vector<std::string>& choices, const std::string& help) {
  return t.choice("dtype", field, choices, help);
}

void add_threads_option(OptionTable& t, int& field) {
  t.integer("threads", field, {0, 4096, "0 (all cores) to 4096"}, "0: all cores");
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
            "tokens of a pass, at most; saves memory");
}

OptionRow& add_train_on_option(OptionTable& t, std::string& field) {
  return t.choice("train-on", field, {"last", "all"}, "of messages: last or all assistant turns");
}

OptionRow& add_weights_option(OptionTable& t, std::string& field) {
  return t.choice("weights", field, {"auto", "narrow", "bf16"},
                  "of files in 4 or 8 bits: auto keeps them so in memory where it can, bf16 "
                  "dequantises them, to the same results; narrow: an error where none can be kept");
}

OptionRow& add_learning_rate_option(OptionTable& t, TrainOptions& o) {
  TrainOptions* at = &o;
  return t.add({.name = "lr",
                .unit = "FLOAT",
                .help =
                    "peak learning rate [lora: 5e-4, of models wider than 1024 2e-4, times "
                    "sqrt(B / 8) with B < 8 examples a step; full: 1e-5]; 1e-4,3e-4,1e-3 trains "
                    "an adapter with each",
                .set = [at](const std::string& text) { set_rates(*at, text); },
                .text =
                    [at] {
                      if (at->lr) return fmt::format("{}", *at->lr);
                      return at->sweep.empty() ? std::string("default")
                                               : fmt::format("{}", fmt::join(at->sweep, ","));
                    },
                .check =
                    [at] {
                      if (at->lr) parse_rate(fmt::format("{}", *at->lr));
                    }});
}

OptionRow& add_data_option(OptionTable& t, std::vector<std::string>& field) {
  return t
      .texts("data", field,
             "JSONL: {\"prompt\",\"completion\"}, {\"text\"} or {\"messages\"} a line; or Alpaca, "
             "ShareGPT, a JSON array, CSV, .gz, .zst, a folder, - for stdin (docs/data.md); may be "
             "repeated, FILE:2 is seen twice as often")
      .required();
}

void add_recipe_file_options(OptionTable& t, TrainOptions& o) {
  t.text("config", o.config,
         "TOML file of options, which the command line overrides (docs/train.md)");
  t.text("save-config", o.save_config, "TOML file to write: these options, for --config");
}

void add_evaluation_options(OptionTable& t, TrainOptions& o) {
  t.group("Evaluation and saving");
  t.texts("eval", o.eval, "evaluation examples, which are not trained on; forms as of --data")
      .results(ResultsBy::kFile);
  t.number("eval-fraction", o.eval_fraction, {0, 0.9, "0 to 0.9"},
           "else: share of --data to evaluate on and not to train on")
      .results();
  t.integer("eval-every", o.eval_every, {1, kMost, "1 or more"},
            "steps between evaluations [ten evaluations in a run]");
  t.text("save-every", o.save_every, "steps (100) or time (30s, 10m, 2h); 0: at the end only")
      .check = [&o] { parse_save_every(o.save_every); };
  t.integer("keep", o.keep, {0, kMost, "0 or more"},
            "newest saves that stay as folders of adapter or model in --out, step-100; 0: the "
            "newest, in --out itself");
  t.flag("keep-best", o.keep_best, "keep what has the lowest evaluation loss, in best/ of --out");
  t.integer("early-stop", o.early_stop, {0, kMost, "0 (off) or more"},
            "end after so many evaluations without a new lowest loss; 0: off");
  t.texts("sample", o.samples,
          "prompt to answer at each evaluation, greedily, into samples.jsonl of --out; may be "
          "repeated");
  t.text("tensorboard", o.tensorboard, "folder of event files for TensorBoard");
  t.flag("resume", o.resume, "continue from the last save in --out, as Ctrl-C makes one");
}

OptionTable option_table_of(DataOptions& o) {
  OptionTable t;
  add_data_option(t, o.data).or_bare();
  t.text("model", o.model, "Hugging Face directory, GGUF file, or ORG/NAME of the hub").required();
  add_train_on_option(t, o.train_on);
  t.integer("max-length", o.max_length, {2, kMost, "2 or more"},
            "longer examples are listed, as strata train would drop them");
  t.integer("show", o.show, {0, 1000, "0 to 1000"}, "examples to show");
  t.flag("json", o.json, "one line of JSON");
  return t;
}

OptionTable option_table_of(EvalOptions& o) {
  OptionTable t;
  t.group("Model and data");
  t.text("model", o.model,
         "Hugging Face directory, GGUF file, or ORG/NAME of the hub; an adapter's base where none "
         "is named")
      .required_without("adapter")
      .or_bare();
  t.texts("adapter", o.adapters, "PEFT LoRA directory; may be repeated");
  add_data_option(t, o.data).help = "as of strata train, without weights; may be repeated";
  add_train_on_option(t, o.train_on);
  t.integer("max-length", o.max_length, {2, kMost, "2 or more"}, "tokens of an example, at most");
  t.choice("overlong", o.overlong, {"drop", "cut", "split"}, "of longer examples");
  t.group("Machine and output");
  add_micro_tokens_option(t, o.micro_tokens);
  add_dtype_option(t, o.dtype);
  add_weights_option(t, o.weights);
  add_run_options(t, o.threads, o.device, o.strict_config);
  t.flag("json", o.json, "one line of JSON");
  return t;
}

}  // namespace strata::apps
