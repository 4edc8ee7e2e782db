// SPDX-License-Identifier: Apache-2.0
#include "trainer/train.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <optional>

#include "backend/thread_comm.h"
#include "base/cores.h"
#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "base/say.h"
#include "base/stop.h"
#include "base/trace.h"
#include "planner/limits.h"
#include "planner/plan_text.h"
#include "report/format.h"
#include "report/table.h"
#include "report/trace_file.h"
#include "setup/adapter_texts.h"
#include "setup/ranks.h"
#include "setup/sent_text.h"
#include "setup/weights_text.h"
#include "trainer/division.h"
#include "trainer/job.h"
#include "trainer/loop.h"
#include "trainer/recipe.h"
#include "trainer/sampler.h"
#include "trainer/settings.h"
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

const char* noun_of_examples(const TrainSettings& settings) {
  const LossChoice& loss = settings.options.loss;
  return loss.of_pairs() ? "pair" : loss.of_rewards() ? "prompt" : "example";
}

// "96, 3 epochs, 8 examples each, resuming after 40".
std::string steps_text(const TrainJob& job) {
  const TrainSettings& s = job.settings();
  std::string text = std::to_string(job.num_steps());
  if (s.steps == 0) text += fmt::format(", {} epoch{}", s.epochs, s.epochs == 1 ? "" : "s");
  if (s.batch_size > 0) {
    text += fmt::format(", {} {}{} each", s.batch_size, noun_of_examples(s),
                        s.batch_size == 1 ? "" : "s");
  }
  if (s.batch_tokens > 0) text += fmt::format(", at most {} tokens a step", s.batch_tokens);
  if (job.steps_done() > 0) text += fmt::format(", resuming after {}", job.steps_done());
  return text;
}

// The learning rate; all of a sweep's.
std::string rates_text(const TrainSettings& settings) {
  const std::vector<std::string>& sweep = settings.options.sweep;
  return sweep.empty() ? fmt::format("{:g}", settings.lr)
                       : fmt::format("{}", fmt::join(sweep, ", "));
}

// Those that were given, else those of this rank now, in so much memory.
engine::MachineLimits resolve_limits(TrainJob& job, int64_t most_bytes) {
  if (job.spec().limits) return *job.spec().limits;
  engine::Engine& engine = job.engine();
  engine::MachineLimits limits =
      planner::probe_limits(engine.backend(), engine.model().weights->compute_dtype(), most_bytes);
  limits.flops *= job.stages().num_ranks();
  limits.f32_flops *= job.stages().num_ranks();
  return limits;
}

// What a step sends, where ranks are processes, which have links between them.
std::string sent_text(TrainJob& job) {
  if (job.options().stages.ranks.empty() || !job.plans_sends()) return {};
  return sent_table(fmt::format("step {} sends", std::min(job.steps_done() + 1, job.num_steps())),
                    job.plan_sent_of_next_step());
}

std::string dataset_text(const data::Dataset& d) {
  if (d.records) {
    return fmt::format("{} prompts, {} tokens", d.examples.size(),
                       report::format_count(static_cast<double>(d.num_tokens)));
  }
  return fmt::format("{} {}, {} tokens, {} trained", d.examples.size(),
                     d.examples.has_pairs() ? "pairs" : "examples",
                     report::format_count(static_cast<double>(d.num_tokens)),
                     report::format_count(static_cast<double>(d.num_trained)));
}

// "groups of 8, of 256 tokens at most, at temperature 1; dapo"
std::string rollouts_text(const TrainOptions& o) {
  std::string text = fmt::format("groups of {}, of {} tokens at most, at temperature {:g}; {}",
                                 o.rollouts.group_size, o.rollouts.max_tokens,
                                 o.rollouts.temperature, o.grpo.type);
  if (o.rollouts.updates > 1) text += fmt::format(", {} updates", o.rollouts.updates);
  return text;
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
  if (job.options().loss.of_rewards()) table.add_row({"answers", rollouts_text(job.options())});
  table.add_row(
      {"learning rate", fmt::format("{}, {}, warmup steps {}", rates_text(job.settings()),
                                    job.options().lr_schedule, job.settings().warmup_steps)});
}

Predicted predict_memory_and_time(const engine::RunPlan& plan, const engine::MachineLimits& limits,
                                  int num_pipelines) {
  Predicted predicted = {.step_seconds = step_seconds(plan, limits)};
  for (const int64_t bytes : plan.bytes_of_ranks())
    predicted.memory.insert(predicted.memory.end(), static_cast<size_t>(num_pipelines), bytes);
  return predicted;
}

// Whoever divides a run or its memory decides by the tables.
bool shows_tables(const TrainOptions& o) {
  return o.verbose || !o.memory.empty() || !o.stages.ranks.empty();
}

std::string tables_text(TrainJob& job, const engine::RunPlan& plan,
                        const engine::MachineLimits& limits, const std::string& behind) {
  report::Table table({{""}, {""}});
  add_run_rows(job, table);
  const std::string cores =
      usable_cores() < shared_cores() ? ", this one's on cores " + usable_core_list() : "";
  if (job.stages().data > 1) table.add_row({"data", data_ranks_text(job.stages())});
  if (job.stages().expert > 1) table.add_row({"experts", expert_ranks_text(job.stages())});
  planner::add_plan_rows(plan, limits, offload_folder(job.options().offload), table);
  table.add_row({"machine", planner::machine_text(plan, job.engine().backend()) + cores});
  return table.text() + planner::parts_text(plan) + behind;
}

// Three lines, of what a person decides by.
std::string summary_text(TrainJob& job, const Predicted& predicted) {
  report::Table table({{""}, {""}});
  table.add_row(
      {"model", fmt::format("{}; {} trains {}, learning rate {}", model_text(job.engine()),
                            job.options().method,
                            report::format_count(static_cast<double>(job.num_trained_parameters())),
                            rates_text(job.settings()))});
  const size_t count = job.train_data().examples.size();
  std::string data =
      fmt::format("{} {}{}", count, noun_of_examples(job.settings()), count == 1 ? "" : "s");
  if (!job.eval_data().examples.empty())
    data += fmt::format(" and {} to evaluate on", job.eval_data().examples.size());
  if (job.options().loss.of_pairs()) data += "; " + loss_of_pairs_text(job.options().loss);
  if (job.options().loss.of_rewards()) data += "; " + rollouts_text(job.options());
  table.add_row({"data", fmt::format("{}; steps {}", data, steps_text(job))});
  const int64_t runs = std::max<int64_t>(1, std::ssize(job.options().sweep));
  const double seconds =
      predicted.step_seconds * static_cast<double>(runs * (job.num_steps() - job.steps_done()));
  table.add_row({"takes", fmt::format("{} of memory; {} a step, {} in all (-v: what for)",
                                      report::format_bytes(predicted.memory_in_all()),
                                      report::format_seconds(predicted.step_seconds),
                                      report::format_duration(seconds))});
  return table.text();
}

}  // namespace

std::optional<Predicted> announce_plan(TrainJob& job, const engine::RunPlan& plan) {
  const std::string sent = sent_text(job);
  if (!job.is_first_rank()) return {};
  // Before the pass takes its memory: the probe borrows that much.
  const engine::MachineLimits limits = resolve_limits(job, plan.stages.front().pass_bytes);
  Predicted predicted = predict_memory_and_time(plan, limits, job.stages().num_pipelines());
  say(shows_tables(job.options()) ? tables_text(job, plan, limits, sent)
                                  : summary_text(job, predicted));
  return predicted;
}

namespace {

// So that a run of hours does not fail at its end.
void check_place_of_report(const std::string& path) {
  if (path.empty()) return;
  const std::filesystem::path file(path);
  if (std::filesystem::is_directory(file)) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("--report {}: is a folder; want a file: {}", path,
                            (file / "report.html").string()));
  }
  if (file.has_parent_path()) make_folders(file.parent_path().string());
}

}  // namespace

std::string compute_job_fingerprint(TrainJob& job) {
  if (!job.is_first_rank()) return {};  // which read the data
  return compute_train_fingerprint(job.settings(), job.spec().texts,
                                   {.train = job.train_data().files, .eval = job.eval_data().files},
                                   std::string(job.engine().backend().arithmetic()));
}

void prepare_output(TrainJob& job, const std::string& fingerprint, bool resumes) {
  const std::string& out = job.settings().out;
  const bool writes = job.is_first_rank() && !job.options().dry_run;
  // Now that nothing is wrong with what was asked.
  if (writes) make_folders(out);
  if (writes) check_place_of_report(job.options().report);
  if (resumes) return load_train_state(job, fingerprint);
  if (!writes) return;
  save_recipe_of_run(options_of_run_alone(job.settings()));
  remove_file(metrics_path(out));  // of a run that never saved
  remove_file(out + "/samples.jsonl");
  // A run that was killed before its first save goes on by its record.
  if (job.options().resume) return;
  remove_file(out + "/rollouts.jsonl");
  remove_file(out + "/reward.log");
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
    signals.emplace(kStopNotice, StopSignals::First::kNoted, StopSignals::Work::kToLose);
  } else if (is_process) {
    // mpirun passes them on to all; the first rank says what comes of it.
    signals.emplace("", StopSignals::First::kNoted, StopSignals::Work::kToLose);
  }
}

// False where a signal stopped it.
bool train_on_rank(TrainJob& job, const TrainRun& run, bool resumes) {
  const engine::RunPlan& plan = run.plan;
  const TrainOptions& options = job.options();
  const std::string fingerprint = compute_job_fingerprint(job);
  prepare_output(job, fingerprint, resumes);
  const std::optional<Predicted> predicted = announce_plan(job, plan);
  if (options.dry_run) return true;
  return_free_memory();
  job.find_references(fingerprint);
  if (options.loss.of_rewards())
    job.prepare_rollouts({.rows = run.sample_rows, .pass_tokens = plan.micro_tokens});
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

// Trains as the only rank, or as this process among those of --ranks.
int train_alone(const RunStart& start, const ProcessGroup* group) {
  const auto& [run, data, jobs] = start;
  const JobStart& only = jobs.front();
  std::atomic<bool> stopped = false;
  const auto train = [&](Comm& rank) {
    const std::unique_ptr<TrainJob> job = load_train_job(rank, run, only.settings, data);
    if (!train_on_rank(*job, run, only.resumes)) stopped = true;
  };
  if (group == nullptr) {
    run_ranks(run.plan.pipeline.num_ranks(), train);
  } else {
    run_ranks(group->comm, process_ranks(only.settings.stages), train);
  }
  return stopped ? StopSignals::exit_code() : 0;
}

int run_training(const TrainOptions& options, const ProcessGroup* group) {
  const bool is_first = group == nullptr || group->comm.rank() == 0;
  report::TraceFile trace(is_first ? options.trace : "");
  const RunStart start = start_run(options, group);
  const int code = options.sweep.empty() ? train_alone(start, group) : run_sweep(start);
  trace.finish();
  if (options.dry_run && is_first) say("dry run: nothing was trained, and nothing is in --out\n");
  return code;
}

}  // namespace

int run_train(const TrainOptions& options) {
  name_thread("main");
  ignore_closed_pipes();
  const bool is_auto = options.stages.ranks == kAutoRanks;
  if (!is_auto && !options.cluster.empty())
    throw Error(ErrorCode::kInvalidArgument, "--cluster: of --ranks auto; leave it out");
  if (options.stages.ranks.empty()) {
    check_started_alone();
    return run_training(options, nullptr);
  }
  if (is_auto) {
    return run_as_rank(started_stages(options), [&](Comm& comm, const schedule::ParallelLayout&) {
      const TrainOptions chosen = choose_division(options, comm);
      const schedule::ParallelLayout layout = schedule::parse_layout(chosen.stages.ranks);
      const ProcessGroup group = {comm, layout};
      return run_training(chosen, &group);
    });
  }
  return run_as_rank(options.stages, [&](Comm& comm, const schedule::ParallelLayout& layout) {
    const ProcessGroup group = {comm, layout};
    return run_training(options, &group);
  });
}

}  // namespace strata::apps
