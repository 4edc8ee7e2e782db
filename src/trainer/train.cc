// SPDX-License-Identifier: Apache-2.0
#include "trainer/train.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <optional>

#include "backend/thread_comm.h"
#include "base/cores.h"
#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "base/stop.h"
#include "base/trace.h"
#include "planner/limits.h"
#include "planner/plan_text.h"
#include "report/format.h"
#include "report/table.h"
#include "report/trace_file.h"
#include "setup/adapter_texts.h"
#include "setup/model_identity.h"
#include "setup/ranks.h"
#include "setup/sent_text.h"
#include "setup/weight_group.h"
#include "setup/weights_text.h"
#include "trainer/job.h"
#include "trainer/loop.h"
#include "trainer/options.h"
#include "trainer/recipe.h"
#include "trainer/sampler.h"
#include "trainer/settings.h"
#include "trainer/shared_data.h"
#include "trainer/start.h"
#include "trainer/state.h"
#include "trainer/sweep.h"

namespace strata::apps {
namespace {

// Buffers are not counted.
int64_t num_parameters_of_all_stages(const model::ModelWeights& weights) {
  int64_t count = 0;
  for (const model::Parameter& parameter : weights.table()) {
    if (!parameter.buffer) count += parameter.shape.num_elements();
  }
  return count;
}

// "96, 3 epochs, 8 examples each, resuming after 40".
std::string steps_text(const TrainJob& job) {
  const TrainSettings& s = job.settings();
  std::string text = std::to_string(job.num_steps());
  if (s.steps == 0) text += fmt::format(", {} epoch{}", s.epochs, s.epochs == 1 ? "" : "s");
  if (s.batch_size > 0) {
    text += fmt::format(", {} example{} each", s.batch_size, s.batch_size == 1 ? "" : "s");
  }
  if (s.batch_tokens > 0) text += fmt::format(", at most {} tokens each", s.batch_tokens);
  if (job.steps_done() > 0) text += fmt::format(", resuming after {}", job.steps_done());
  return text;
}

// Of a sweep all of them.
std::string rates_text(const TrainSettings& settings) {
  const std::vector<std::string>& sweep = settings.options.sweep;
  return sweep.empty() ? fmt::format("{:g}", settings.lr)
                       : fmt::format("{}", fmt::join(sweep, ", "));
}

// Those that were given, else those of this rank now, in so much memory.
engine::MachineLimits get_or_probe_limits(TrainJob& job, int64_t most_bytes) {
  if (job.spec().limits) return *job.spec().limits;
  engine::Engine& engine = job.engine();
  engine::MachineLimits limits =
      planner::probe_limits(engine.backend(), engine.model().weights->compute_dtype(), most_bytes);
  limits.flops *= job.stages().num_ranks();
  limits.f32_flops *= job.stages().num_ranks();
  return limits;
}

// Of processes, which have links between them.
std::string sent_text(TrainJob& job) {
  if (job.options().stages.ranks.empty()) return {};
  return sent_table(fmt::format("step {} sends", std::min(job.steps_done() + 1, job.num_steps())),
                    job.plan_sent_of_next_step());
}

std::string dataset_text(const data::Dataset& d) {
  return fmt::format("{} examples, {} tokens, {} trained", d.examples.size(),
                     report::format_count(static_cast<double>(d.num_tokens)),
                     report::format_count(static_cast<double>(d.num_trained)));
}

std::string model_text(const engine::Engine& engine) {
  const model::ModelWeights& weights = *engine.model().weights;
  return fmt::format(
      "{}, {} parameters, {}", engine.config().family,
      report::format_count(static_cast<double>(num_parameters_of_all_stages(weights))),
      weights.compute_dtype() == DType::kBF16 ? "bf16" : "f32");
}

// What runs: the model, what trains, the data and the steps.
void add_run_rows(TrainJob& job, report::Table& table) {
  engine::Engine& engine = job.engine();
  table.add_row({"model", model_text(engine)});
  add_quantised_weights_row(*engine.model().weights, engine.model().checkpoint.get(), table);
  table.add_row({"trains", fmt::format("{}, {} parameters", job.options().method,
                                       report::format_count(
                                           static_cast<double>(job.num_trained_parameters())))});
  table.add_row({"data", dataset_text(job.train_data())});
  if (!job.eval_data().examples.empty())
    table.add_row({"evaluation", dataset_text(job.eval_data())});
  table.add_row({"steps", steps_text(job)});
  table.add_row(
      {"learning rate", fmt::format("{}, {}, warmup steps {}", rates_text(job.settings()),
                                    job.options().lr_schedule, job.settings().warmup_steps)});
}

Predicted predict_memory_and_time(const engine::RunPlan& plan, const engine::MachineLimits& limits,
                                  int data_ranks) {
  Predicted predicted = {.step_seconds = step_seconds(plan, limits)};
  for (const int64_t bytes : plan.bytes_of_ranks())
    predicted.memory.insert(predicted.memory.end(), static_cast<size_t>(data_ranks), bytes);
  return predicted;
}

}  // namespace

std::optional<Predicted> print_plan_and_predict(TrainJob& job, const engine::RunPlan& plan) {
  if (!job.is_first_rank()) return {};
  report::Table table({{""}, {""}});
  add_run_rows(job, table);
  const std::string cores =
      usable_cores() < shared_cores() ? ", this one's on cores " + usable_core_list() : "";
  // Before the pass takes its memory: the probe borrows that much.
  const engine::MachineLimits limits = get_or_probe_limits(job, plan.stages.front().pass_bytes);
  if (job.stages().data > 1) table.add_row({"data", data_ranks_text(job.stages())});
  planner::add_plan_rows(plan, limits, offload_folder(job.options().offload), table);
  table.add_row({"machine", planner::machine_text(plan, job.engine().backend()) + cores});
  fmt::print(stderr, "{}{}{}", table.text(), planner::parts_text(plan), sent_text(job));
  return predict_memory_and_time(plan, limits, job.stages().data);
}

std::string compute_job_fingerprint(TrainJob& job) {
  if (!job.is_first_rank()) return {};  // which read the data
  return compute_train_fingerprint(job.settings(), job.spec().texts,
                                   {.train = job.train_data().files, .eval = job.eval_data().files},
                                   std::string(job.engine().backend().arithmetic()));
}

void warn_of_few_steps(const TrainJob& job) {
  const std::string few = few_steps_warning(job.settings(), job.num_steps());
  if (!few.empty()) log(LogLevel::kWarning, few);
}

void make_folder_and_load_state_or_clear_logs(TrainJob& job, const std::string& fingerprint,
                                              bool resumes) {
  const std::string& out = job.settings().out;
  // Now that nothing is wrong with what was asked.
  if (job.is_first_rank()) make_folders(out);
  if (resumes) return load_train_state(job, fingerprint);
  if (!job.is_first_rank()) return;
  remove_file(metrics_path(out));  // of a run that never saved
  remove_file(out + "/samples.jsonl");
}

namespace {

[[noreturn]] void refuse_to_replace_run(const std::string& out) {
  throw Error(
      ErrorCode::kInvalidArgument,
      fmt::format(
          "--out: {} holds a run already; continue it with --resume, or choose another folder",
          out));
}

void check_has_no_model(const std::string& out) {
  for (const char* kept : {"config.json", "adapter_config.json"}) {
    if (!file_exists(out + "/" + kept)) continue;
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("--out: {} holds a model or an adapter ({}), which training would "
                            "write over; choose another folder",
                            out, kept));
  }
}

}  // namespace

bool decide_to_resume(const std::string& out, bool resume) {
  const bool found = has_train_state(out);
  if (found && !resume) refuse_to_replace_run(out);
  // A run that was killed in its first save has begun its metrics.
  const bool begun = resume && file_exists(metrics_path(out));
  if (!found && !begun) check_has_no_model(out);
  if (resume && !found) {
    fmt::print(stderr, "--resume: no saved state in {}; training starts at step 1\n", out);
  }
  return found;
}

// What reading the tokenizer, the data and the model, and planning, have left behind.
void return_free_memory() {
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

namespace {

// One rank of each process listens.
void listen_for_stop_signals(TrainJob& job, std::optional<StopSignals>& signals) {
  const StageOptions& stages = job.settings().stages;
  const bool is_process =
      !stages.ranks.empty() && process_ranks(stages).thread_of(job.pipeline().comm().rank()) == 0;
  if (job.is_first_rank()) {
    signals.emplace("saving after this step; again: ends at once");
  } else if (is_process) {
    signals.emplace("");  // mpirun passes them on to all; the first rank says what comes of it
  }
}

// False where a signal stopped it.
bool train_on_rank(TrainJob& job, const engine::RunPlan& plan, bool resumes) {
  const TrainOptions& options = job.options();
  const std::string fingerprint = compute_job_fingerprint(job);
  if (job.is_first_rank() && !resumes) warn_of_few_steps(job);
  make_folder_and_load_state_or_clear_logs(job, fingerprint, resumes);
  const std::optional<Predicted> predicted = print_plan_and_predict(job, plan);
  return_free_memory();
  std::optional<TrainSampler> sampler;
  if (!options.samples.empty())
    sampler.emplace(texts_with_adapter(job.spec().texts, options.adapter, options.chat),
                    options.chat, options.samples);
  TrainLoop loop(job, fingerprint, predicted, sampler ? &*sampler : nullptr);
  // Before this there is nothing to save.
  std::optional<StopSignals> signals;
  listen_for_stop_signals(job, signals);
  if (!loop.run()) return false;
  if (job.is_first_rank()) loop.print_summary();
  return true;
}

// What ranks that are processes cannot do yet.
void check_rank_options(const TrainOptions& o) {
  check_memory_of_ranks(o.memory, o.offload);
  if (o.sweep.empty()) return;
  throw Error(ErrorCode::kUnsupported,
              "--ranks and several values of --lr: give one, or leave out --ranks");
}

// Which a plan weighs work by, as the first rank's --machine has them.
void broadcast_limits(Comm& comm, std::optional<engine::MachineLimits>& limits) {
  bool is_known = limits.has_value();
  broadcast(comm, is_known);
  if (!is_known) return;
  if (!limits) limits.emplace();
  for (double* limit : {&limits->flops, &limits->f32_flops, &limits->bytes, &limits->file_bytes})
    broadcast(comm, *limit);
  broadcast(comm, limits->source);
}

// And an adapter to start from, and a schedule in a file.
RankFacts collect_facts_of_run(const LoadSpec& spec, TrainOptions options) {
  RankFacts facts = collect_rank_facts(spec, option_table_of(options));
  facts.emplace_back("--adapter (hash)",
                     options.adapter.empty() ? "none" : hash_adapter_or_model(options.adapter));
  add_schedule_hash(options.stages, facts);
  return facts;
}

// What the first rank reads.
struct InputsOfRun {
  TrainData data;
  bool resumes = false;
  std::string recorded;  // options, of the run that goes on
};

// Collective.
InputsOfRun read_and_broadcast_inputs(Comm& comm, const TrainOptions& options,
                                      const LoadSpec& spec) {
  InputsOfRun inputs;
  if (comm.rank() == 0) {
    inputs.resumes = decide_to_resume(options.out, options.resume);
    inputs.data = read_train_data(options, spec);
    if (inputs.resumes) inputs.recorded = read_recorded_options(options.out);
  }
  broadcast(comm, inputs.resumes);
  broadcast(comm, inputs.recorded);
  broadcast_data(comm, inputs.data);
  return inputs;
}

// Before any data are read.
void check_division(const LoadSpec& spec, const StageOptions& stages) {
  static_cast<void>(plan_division(spec.parsed.config, stages, spec));
}

// As one of ranks that are processes.
int train_as_rank(Comm& comm, const schedule::ParallelLayout& layout, const TrainOptions& given) {
  StageOptions stages = stages_with_layout(given.stages, layout);
  check_rank_options(given);
  const bool is_first = comm.rank() == 0;
  TrainOptions options = given;
  if (!is_first) options.machine.clear();
  LoadSpec spec = read_train_spec(options);
  check_layout(layout, spec.parsed.config);
  check_ranks_alike(comm, collect_facts_of_run(spec, options));
  broadcast_limits(comm, spec.limits);
  check_division(spec, stages);
  report::TraceFile trace(is_first ? options.trace : "");
  if (is_first && !options.save_config.empty()) save_recipe(options);
  const InputsOfRun inputs = read_and_broadcast_inputs(comm, options, spec);
  const TrainData& data = inputs.data;
  TrainSettings settings = resolve_settings(options, spec, data, inputs.recorded);
  if (settings.options.method != "full") choose_weight_sharers(comm, stages);
  settings.stages = stages;
  const TrainRun run =
      check_and_plan_train_run(spec, settings, data, comm.ranks_here() * stages.ranks_each);
  std::atomic<bool> stopped = false;
  run_ranks(comm, process_ranks(stages), [&](Comm& rank) {
    const std::unique_ptr<TrainJob> job = load_train_job(rank, run, settings, data);
    if (!train_on_rank(*job, run.plan, inputs.resumes)) stopped = true;
  });
  trace.finish();
  return stopped ? StopSignals::exit_code() : 0;
}

}  // namespace

int run_train(const TrainOptions& options) {
  name_thread("main");
  if (!options.stages.ranks.empty()) {
    return run_as_rank(options.stages, [&](Comm& comm, const schedule::ParallelLayout& layout) {
      return train_as_rank(comm, layout, options);
    });
  }
  check_started_alone();
  report::TraceFile trace(options.trace);
  if (!options.save_config.empty()) save_recipe(options);
  if (!options.sweep.empty()) {
    const int code = run_sweep(options);
    trace.finish();
    return code;
  }
  const bool found = decide_to_resume(options.out, options.resume);
  const LoadSpec spec = read_train_spec(options);
  const TrainData data = read_train_data(options, spec);
  const TrainSettings settings =
      resolve_settings(options, spec, data, found ? read_recorded_options(options.out) : "");
  const TrainRun run = check_and_plan_train_run(spec, settings, data);
  int code = 0;
  run_ranks(run.plan.pipeline.num_ranks(), [&](Comm& comm) {
    const std::unique_ptr<TrainJob> job = load_train_job(comm, run, settings, data);
    const bool ended = train_on_rank(*job, run.plan, found);
    if (!ended && comm.rank() == 0) code = StopSignals::exit_code();
  });
  trace.finish();
  return code;
}

}  // namespace strata::apps
