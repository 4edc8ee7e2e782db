// SPDX-License-Identifier: Apache-2.0
// read_train_data and make_train_job (apps/train/job.h): every check of `strata train` that comes
// before the first step.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <optional>

#include "apps/options.h"
#include "apps/setup/text_stack.h"
#include "apps/train/job.h"
#include "apps/train/plan.h"
#include "apps/train/staged_plan.h"
#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "report/format.h"
#include "report/progress.h"

namespace strata::apps {
namespace {

void check_together(const TrainOptions& o) {
  check_device(o.device);
  check_kept(o.memory, o.recompute, o.offload);
  data::parse_schedule(o.lr_schedule);
  if (o.optimizer == "muon" && o.method != "full") {
    throw Error(ErrorCode::kInvalidArgument,
                "--optimizer muon: steps matrices of all parameters; give --method full with it");
  }
  if (o.router_bias_rate > 0 && o.method != "full") {
    throw Error(ErrorCode::kInvalidArgument,
                "--router-bias-rate: the biases are the base model's, an adapter has no place for "
                "them; give --method full with it");
  }
}

// What a run in stages cannot do yet.
void check_divided(const TrainOptions& o) {
  if (o.indexer_loss > 0) {
    throw Error(ErrorCode::kUnsupported,
                "--indexer-loss and --stages: losses of layers in several stages are not added "
                "up yet; give one");
  }
}

data::Dataset read_file_of_examples(const std::string& path, const char* label,
                                    const TextStack& text, const TrainOptions& options) {
  const auto render = [&](const std::string& messages, const std::string& tools, bool with_prompt) {
    return text.render(
        {.messages = messages, .tools = tools, .add_generation_prompt = with_prompt});
  };
  const data::ExampleContext context{
      .tokenizer = text.tokenizer(),
      .end_tokens = text.end_tokens(),
      .render = render,
      .train_on = options.train_on == "all" ? data::TrainOn::kAll : data::TrainOn::kLast};
  if (!file_exists(path)) {
    throw Error(ErrorCode::kNotFound,
                fmt::format("--{}: {}: no such file; want JSONL, an example a line", label, path));
  }
  std::error_code fault;
  const auto size = std::filesystem::file_size(path, fault);
  report::Progress progress(
      {.label = label, .total = fault ? 0 : static_cast<int64_t>(size), .quiet_seconds = 2});
  data::Dataset dataset = data::read_dataset(path, context, options.max_length, &progress);
  progress.finish();
  if (!dataset.ignored_fields.empty()) {
    log(LogLevel::kWarning, fmt::format("{}: fields that are not used: {}", path,
                                        fmt::join(dataset.ignored_fields, ", ")));
  }
  return dataset;
}

void check_vocabulary(const data::Dataset& dataset, int64_t vocab_size, const std::string& path) {
  for (const data::Example& example : dataset.examples) {
    for (size_t t = 0; t < example.tokens.size(); ++t) {
      const int32_t highest = std::max(example.tokens[t], example.targets[t]);
      if (highest < vocab_size) continue;
      throw Error(
          ErrorCode::kInvalidArgument,
          fmt::format(
              "{}: token id {}, the model's vocabulary has {}; is the tokenizer another model's?",
              path, highest, vocab_size));
    }
  }
}

void check_evaluations(const TrainOptions& o, const data::Dataset& eval) {
  if (!eval.examples.empty()) return;
  const char* name = o.keep_best        ? "--keep-best"
                     : o.early_stop > 0 ? "--early-stop"
                     : o.eval_every     ? "--eval-every"
                                        : nullptr;
  if (name == nullptr) return;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("{}: there are no evaluation examples; give --eval, or --eval-fraction "
                          "above 0",
                          name));
}

model::UseMtp use_mtp(const TrainOptions& options) {
  if (!options.mtp_weight)
    return options.method == "full" ? model::UseMtp::kIfThere : model::UseMtp::kNever;
  return *options.mtp_weight > 0 ? model::UseMtp::kAlways : model::UseMtp::kNever;
}

void check_router_biases(const TrainOptions& options, const model::LoadedModel& model) {
  const std::vector<model::Parameter>& table = model.weights->table();
  if (options.router_bias_rate == 0) return;
  for (const model::Parameter& parameter : table) {
    if (parameter.row != nullptr && parameter.row->balances) return;
  }
  throw Error(ErrorCode::kUnsupported,
              fmt::format("--router-bias-rate: no router of {} ({}) has a bias", model.dir,
                          model.config.architecture));
}

// Indexers are there, and train.
void check_indexers(const TrainOptions& options, const model::LoadedModel& model) {
  if (options.indexer_loss == 0) return;
  const model::LayerTable& layers = model.weights->layers();
  if (layers.num_indexers() == 0) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("--indexer-loss: no layer of {} ({}) has an indexer", model.dir,
                            model.config.architecture));
  }
  if (options.method != "lora") return;
  const auto specs =
      model::adapter_specs(model.config, split_commas(options.targets), options.rank, options.alpha,
                           model::parse_expert_rank(options.expert_rank), with_indexers(options));
  const bool any = std::any_of(specs.begin(), specs.end(), [&](const model::LoraModuleSpec& spec) {
    return layers.targets(spec.layer)[static_cast<size_t>(spec.target)].of_indexer;
  });
  if (any) return;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("--indexer-loss: no module of an indexer trains; --targets: got '{}', "
                          "want all-linear, or q_b_proj, kv_proj, gate_proj or weights_proj among "
                          "them",
                          options.targets));
}

data::Dataset pick(data::Dataset& from, const std::vector<int64_t>& indices) {
  data::Dataset part;
  for (const int64_t i : indices) {
    data::Example& example = from.examples[static_cast<size_t>(i)];
    part.num_tokens += static_cast<int64_t>(example.tokens.size());
    part.num_trained += example.num_trained;
    part.examples.push_back(std::move(example));
  }
  part.num_lines = static_cast<int64_t>(part.examples.size());
  return part;
}

}  // namespace

TrainData read_train_data(const TrainOptions& options) {
  check_options(options);
  check_together(options);
  const TextStack text(options.model);
  data::Dataset train = read_file_of_examples(options.data, "data", text, options);
  data::Dataset eval;
  if (!options.eval.empty()) {
    eval = read_file_of_examples(options.eval, "eval", text, options);
  } else if (options.eval_fraction > 0) {
    const data::EvalSplit split = data::split_for_eval(static_cast<int64_t>(train.examples.size()),
                                                       options.eval_fraction, options.seed);
    eval = pick(train, split.eval);
    const int64_t too_long = train.num_too_long;
    train = pick(train, split.train);
    train.num_too_long = too_long;
  }
  check_evaluations(options, eval);
  return {.train = std::move(train), .eval = std::move(eval)};
}

TrainRun plan_run(const TrainOptions& options, const TrainData& data) {
  TrainOptions own = options;
  own.mtp = use_mtp(options);
  if (!options.memory.empty()) {  // it chooses what is kept, and has a use for the folder
    own.recompute = "full";
    own.offload.clear();
  }
  TrainRun run = {.stages = plan_stages(own, own.stages)};
  if (run.stages.is_whole()) return run;
  check_divided(options);
  own.mtp = uses_mtp(own) ? model::UseMtp::kAlways : model::UseMtp::kNever;
  run.staged = std::make_shared<const StagedPlan>(plan_staged(own, data.train, data.eval));
  if (run.staged->weights_in_files) check_offload_folder(options.offload);
  run.stages = run.staged->stages;
  return run;
}

std::unique_ptr<TrainJob> make_train_job(Comm& comm, const TrainRun& run,
                                         const TrainOptions& options, const TrainData& data) {
  EngineSetup setup = options;
  setup.mtp = use_mtp(options);
  TrainOptions planned = options;
  planned.mtp = setup.mtp;
  setup.weights_in_files =
      run.staged ? run.staged->weights_in_files : needs_files(planned, data.train, data.eval);
  auto pipeline = make_pipeline(comm, run.stages, setup, {.pass_tokens = options.micro_tokens});
  for (const auto& stage : pipeline->stages()) {
    if (!run.staged) break;
    stage->engine().set_pass(options.micro_tokens, run.staged->choice.recompute);
  }
  const int64_t vocab_size = pipeline->engine().config().vocab_size;
  check_router_biases(options, pipeline->engine().model());
  check_indexers(options, pipeline->engine().model());
  check_vocabulary(data.train, vocab_size, options.data);
  check_vocabulary(data.eval, vocab_size, options.eval.empty() ? options.data : options.eval);
  return std::make_unique<TrainJob>(options, std::move(pipeline), data);
}

}  // namespace strata::apps
