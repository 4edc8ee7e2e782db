// SPDX-License-Identifier: Apache-2.0
#include "apps/serve/engine_host.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "apps/serve/memory.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/threads.h"
#include "base/trace.h"
#include "checkpoint/source.h"
#include "data/end_tokens.h"
#include "engine/adapter_state.h"
#include "engine/lora_specs.h"
#include "setup/engine_setup.h"
#include "setup/ranks.h"
#include "setup/stages.h"
#include "setup/text_stack.h"

namespace strata::apps {
namespace {

constexpr double kIdleSeconds = 0.5;   // how late a gap's end may be noticed
constexpr double kTellSeconds = 1.0;   // between what clients are told of one training pass
constexpr double kLookSeconds = 0.02;  // how late a sample may be noticed in a training pass
constexpr int kMicroBatches = 2;       // of a training pass, each stage
constexpr int kFileThreads = 2;        // of an engine: one that is slow holds up one tenant alone

// Reads a model's config alone; passes of a training pass run while others of it wait.
engine::PipelinePlan plan_pipeline(const LoadSpec& spec, const schedule::ParallelLayout& layout) {
  const int stages = layout.pipeline;
  engine::PipelinePlan plan =
      plan_stages(spec, {.stages = stages,
                         .tensor = layout.tensor,
                         .expert = layout.expert,
                         .schedule = "1f1b",
                         .microbatches = stages > 1 ? kMicroBatches * stages : 1});
  plan.any_length = stages > 1;
  return plan;
}

// The whole model.
std::unique_ptr<engine::Stages> load_one_stage(const LoadSpec& spec, int64_t draft_tokens) {
  std::vector<std::unique_ptr<engine::Engine>> whole;
  whole.push_back(load_engine(spec, {.draft_tokens = draft_tokens}));
  const int64_t num_layers = whole[0]->config().num_layers();
  return std::make_unique<engine::Stages>(engine::make_whole_plan(num_layers), std::move(whole));
}

void check_no_drafts_in_stages(const std::string& division, int64_t draft_tokens) {
  if (draft_tokens <= 0) return;
  throw Error(ErrorCode::kUnsupported,
              fmt::format("{} and --speculate mtp: a model in stages makes no drafts; leave one of "
                          "them out",
                          division));
}

std::unique_ptr<engine::Stages> load_stage_of_process(const LoadSpec& spec,
                                                      const HostOptions& options) {
  Comm& processes = *options.processes;
  check_no_drafts_in_stages("--ranks " + options.layout.text(), options.draft_tokens);
  check_layout(options.layout, spec.parsed.config);
  engine::PipelinePlan plan = plan_pipeline(spec, options.layout);
  auto engine = load_stage_of_rank(processes, plan, spec);
  return std::make_unique<engine::Stages>(processes, std::move(plan), std::move(engine));
}

std::unique_ptr<engine::Stages> load_stages(const LoadSpec& spec, const HostOptions& options) {
  if (options.processes != nullptr) return load_stage_of_process(spec, options);
  if (options.stages == 1) return load_one_stage(spec, options.draft_tokens);
  check_no_drafts_in_stages(fmt::format("--stages {}", options.stages), options.draft_tokens);
  engine::PipelinePlan plan = plan_pipeline(spec, {.pipeline = options.stages});
  auto engines = load_all_stages(plan, spec);
  return std::make_unique<engine::Stages>(std::move(plan), std::move(engines));
}

// All but its end tokens and the longest datum.
api::BaseInfo base_info_of(api::BaseId id, const std::string& dir,
                           const model::ModelConfig& config) {
  api::BaseInfo info;
  info.id = id;
  info.dir = dir;
  info.architecture = config.architecture;
  info.vocab_size = config.vocab_size;
  info.max_context = config.context();
  info.model_context = config.max_position_embeddings;
  info.tied_head = config.tie_word_embeddings;
  return info;
}

void warn_of_no_drafts(const std::string& dir) {
  log(LogLevel::kWarning,
      fmt::format("--speculate mtp: {}: no layer of multi-token prediction; its samples are not "
                  "drafted",
                  dir));
}

void warn_of_no_tokenizer(const std::string& dir) {
  log(LogLevel::kWarning, fmt::format("{}: no tokenizer.json: samples end at max_tokens or at "
                                      "stop ids only, and stop texts are refused",
                                      dir));
}

std::vector<api::Result> results_of_failure(const api::Work& work, const std::string& message) {
  const api::Failure failure{api::FaultCategory::kServer, message};
  std::vector<api::Result> results;
  for (const auto& command : work.control) results.push_back({command->request, failure});
  for (const api::DataRange& rows : work.rows) results.push_back({rows.command->request, failure});
  for (const api::SampleRows& rows : work.samples)
    results.push_back({rows.command->request, failure});
  return results;
}

}  // namespace

EngineHost::EngineHost(const std::vector<std::string>& directories, const HostOptions& options)
    : processes_(options.processes) {
  const model::KeepWeights keep = parse_weights(options.weights);
  if (processes_ == nullptr) {
    check_weights_fit(directories, options.memory,
                      options.dtype == "f32" ? model::KeepWeights::kBf16 : keep);
  }
  for (const std::string& dir : directories) load_base(dir, options);
  check_speculate_option(options);
  plan_ = plan_serving(options);
  if (processes_ != nullptr) agree_on_limits();
  expert_rank_ = options.expert_rank;
  engine::AdapterLimits limits = options.adapters;
  limits.max_bytes = plan_.memory.bytes_of(engine::MemoryUse::kAdapters);
  book_ = std::make_unique<engine::AdapterBook>(limits);
  apply_plan_to_models();
  make_runners(options);
  for (const ServedAdapter& adapter : options.served) {
    engines_[adapter.model].runner->load_adapter(adapter.id, adapter.dir,
                                                 options.adapters.max_rank);
  }
}

void EngineHost::check_speculate_option(const HostOptions& options) const {
  const bool has_drafts = std::any_of(engines_.begin(), engines_.end(), [](const Base& base) {
    return base.stages->engine().options().draft_tokens > 0;
  });
  if (options.draft_tokens == 0 || has_drafts) return;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("--speculate mtp: no served model has a layer of multi-token prediction, "
                          "in config.json and as tensors mtp.*, that is known: {}; leave the "
                          "option out",
                          model::kKnownMtp));
}

engine::RunPlan EngineHost::plan_serving(const HostOptions& options) const {
  planner::ServeRun run = {.models = {},
                           .memory = options.memory,
                           .max_rank = options.adapters.max_rank,
                           .max_sample_rows = options.max_sample_rows,
                           .requests = options.requests,
                           .expert_rank = options.expert_rank};
  for (const Base& base : engines_) {
    planner::ServedModel& model = run.models.emplace_back();
    engine::Stages& stages = *base.stages;
    for (size_t i = 0; i < stages.size(); ++i) model.stages.push_back(&stages.engine(i));
    model.num_dealing = stages.plan().num_dealing();
    if (stages.plan().has_flights()) model.plan = &stages.plan();
    if (processes_ != nullptr)
      model.first_stage = processes_->rank() / stages.plan().num_pipelines();
  }
  return planner::plan_run(run);
}

void EngineHost::apply_plan_to_models() {
  auto planned = plan_.stages.begin();
  for (size_t i = 0; i < engines_.size(); ++i) {
    bases_[i].longest_datum = plan_.server.longest_data[i];
    engine::Stages& stages = *engines_[i].stages;
    for (size_t stage = 0; stage < stages.size(); ++stage, ++planned) {
      stages.engine(stage).set_limits(plan_.pass.pass_tokens, plan_.server.max_pages[i],
                                      plan_.server.max_states[i], planned->pass_bytes);
    }
  }
}

void EngineHost::make_runners(const HostOptions& options) {
  for (size_t i = 0; i < engines_.size(); ++i) {
    Base& base = engines_[i];
    base.runner = std::make_unique<engine::WorkRunner>(
        *base.stages, base.tokenizer ? &*base.tokenizer : nullptr, *book_,
        engine::RunnerOptions{
            .base = bases_[i].id,
            .max_sample_rows = options.max_sample_rows,
            .snapshot_bytes = plan_.memory.bytes_of(engine::MemoryUse::kSamplerWeights) /
                              static_cast<int64_t>(engines_.size()),
            .expert_rank = options.expert_rank,
            .prefix_cache = options.prefix_cache});
  }
}

EngineHost::~EngineHost() { stop(); }

void EngineHost::load_base(const std::string& dir, const HostOptions& options) {
  Base base{.texts = open_texts(dir)};
  const LoadSpec spec =
      read_spec({.model = dir,
                 .dtype = options.dtype,
                 .weights = options.weights,
                 .offload = options.offload,
                 .threads = options.threads,
                 .context = options.context,
                 .mtp = options.draft_tokens > 0 ? model::UseMtp::kIfThere : model::UseMtp::kNever},
                base.texts);
  base.stages = load_stages(spec, options);
  if (processes_ != nullptr) base.whole = make_planning_engine(spec);
  const engine::Engine& engine = base.stages->engine();
  if (options.draft_tokens > 0 && engine.options().draft_tokens == 0) warn_of_no_drafts(dir);
  api::BaseInfo info =
      base_info_of(api::BaseId{static_cast<int32_t>(bases_.size())}, dir, engine.config());
  base.tokenizer = find_tokenizer_of_model(base.texts);
  if (base.tokenizer) {
    info.end_tokens = data::load_stop_ids_of_all_configs(base.texts, *base.tokenizer);
  } else {
    warn_of_no_tokenizer(dir);
  }
  bases_.push_back(std::move(info));
  engines_.push_back(std::move(base));
}

int64_t EngineHost::parameter_bytes(api::BaseId base, const api::LoraConfig& lora) const {
  const Base& of = engines_.at(static_cast<size_t>(base));
  const auto specs = engine::lora_specs(of.stages->engine().config(), lora, expert_rank_);
  const auto bytes = [&](bool trains) {
    return of.whole ? engine::adapter_bytes(*of.whole, specs, trains)
                    : of.stages->adapter_bytes(specs, trains);
  };
  // Training adds three blocks of the parameters' size: gradients and two moments.
  return (bytes(true) - bytes(false)) / 3;
}

void EngineHost::start(scheduler::Scheduler& scheduler,
                       std::function<void(std::vector<api::Event>)> post) {
  scheduler_ = &scheduler;
  post_ = std::move(post);
  for (const Base& base : engines_) {
    for (int i = 0; i < kFileThreads; ++i)
      file_threads_.emplace_back([this, &files = base.runner->files()] { run_file_jobs(files); });
  }
  if (processes_ != nullptr) turns_.emplace(*processes_);
  thread_ = std::jthread([this] { turns_ ? run_leading_others() : run_until_stopped(); });
}

int64_t EngineHost::write_saved(const api::RequestId& request) const {
  for (const Base& base : engines_) {
    if (const auto bytes = base.runner->copies().flush_copy(request)) return *bytes;
  }
  return 0;
}

void EngineHost::drop_saved(const api::RequestId& request) const {
  for (const Base& base : engines_) base.runner->copies().drop(request);
}

void EngineHost::stop() {
  stopping_ = true;
  if (scheduler_ != nullptr) scheduler_->wake();
  if (thread_.joinable()) thread_.join();
  for (const Base& base : engines_) base.runner->files().close();
  file_threads_.clear();
}

void EngineHost::run_file_jobs(engine::FileJobs& files) {
  name_thread("files");
  while (files.run_one()) scheduler_->wake();
}

void EngineHost::run_until_stopped() {
  name_thread("engine");
  std::vector<api::Capacity> capacities;
  while (!stopping_) {
    post_file_results();
    capacities.clear();
    for (const Base& base : engines_) capacities.push_back(base.runner->capacity());
    const api::Work work = scheduler_->next(capacities, now_seconds());
    std::vector<api::Result> results;
    if (!work.empty()) results = run_turn(work);
    results = scheduler_->complete(std::move(results), now_seconds());
    const bool idle = work.empty() && results.empty();
    post_events_and_results(std::move(results));
    if (idle) scheduler_->wait(kIdleSeconds);
  }
}

std::vector<api::Result> EngineHost::run_turn(const api::Work& work) {
  const TraceSpan span("turn");
  turn_began_ = now_seconds();
  next_told_ = turn_began_ + kTellSeconds;
  std::vector<api::Result> results = run_with_breaks(work);
  update_counts(work);
  turn_began_ = 0.0;
  return results;
}

void EngineHost::post_file_results() {
  std::vector<api::Result> results;
  for (size_t i = 0; i < engines_.size(); ++i) {
    engine::WorkRunner& runner = *engines_[i].runner;
    std::vector<api::Result> finished =
        turns_ ? turns_->finish_files(runner, bases_[i].id) : runner.finish_files();
    std::move(finished.begin(), finished.end(), std::back_inserter(results));
  }
  if (results.empty()) return;
  update_adapter_counts();  // one that could not be read is gone
  post_events_and_results(scheduler_->complete(std::move(results), now_seconds()));
}

// The events of a request come before its result.
void EngineHost::post_events_and_results(std::vector<api::Result> results) {
  std::vector<api::Event> events;
  for (const Base& base : engines_) {
    std::vector<api::Event> taken = base.runner->take_events();
    std::move(taken.begin(), taken.end(), std::back_inserter(events));
  }
  for (api::Result& result : results) events.emplace_back(std::move(result));
  if (!events.empty()) post_(std::move(events));
}

bool EngineHost::poll_for_break() {
  const double now = now_seconds();
  if (now < next_look_) return false;
  next_look_ = now + kLookSeconds;
  return now >= next_told_ || scheduler_->any_samples_waiting() ||
         std::any_of(engines_.begin(), engines_.end(),
                     [](const Base& base) { return base.runner->num_running() > 0; });
}

void EngineHost::emit_progress() {
  next_told_ = now_seconds() + kTellSeconds;  // also where telling fails
  for (const Base& base : engines_) base.runner->emit_progress();
  post_events_and_results({});
}

// One of each engine's samples.
void EngineHost::run_sampling_steps() {
  for (const Base& base : engines_) {
    const api::Work work = scheduler_->next_samples(base.runner->capacity());
    if (work.empty()) continue;
    std::vector<api::Result> results =
        turns_ ? turns_->sample(*base.runner, work)
               : run_catching_errors(
                     work, [&](engine::WorkRunner& runner) { return runner.sample(work); });
    results = scheduler_->complete(std::move(results), now_seconds());
    update_counts(work);
    post_events_and_results(std::move(results));
  }
}

void EngineHost::run_break(double begin) {
  if (begin >= next_told_) emit_progress();
  post_file_results();
  run_sampling_steps();
}

// One step of each engine's samples. The pass then goes on for as long as that took.
void EngineHost::take_break() {
  const TraceSpan span("break");
  const double begin = now_seconds();
  try {
    const auto body = [&] { run_break(begin); };
    turns_ ? turns_->run_break(body) : body();
  } catch (const std::exception& error) {  // the pass must go on
    if (turns_) end_all_processes(ErrorCode::kIo, error.what());
    log(LogLevel::kError, fmt::format("engine: sampling in a pass failed: {}", error.what()));
  }
  const double end = now_seconds();
  next_look_ = end + (end - begin);
}

std::vector<api::Result> EngineHost::run_with_breaks(const api::Work& work) {
  const auto is_due = [this] { return poll_for_break(); };
  const auto take = [this] { take_break(); };
  const Interruption breaks{.is_due = is_due, .run = take};
  if (turns_)
    return turns_->run(*engines_.at(static_cast<size_t>(work.base)).runner, work, &breaks);
  return run_catching_errors(work,
                             [&](engine::WorkRunner& runner) { return runner.run(work, &breaks); });
}

// The runner answers faults itself; should one escape, this work's commands fail and the rest goes
// on.
std::vector<api::Result> EngineHost::run_catching_errors(
    const api::Work& work, FunctionRef<std::vector<api::Result>(engine::WorkRunner&)> body) {
  try {
    return body(*engines_[static_cast<size_t>(work.base)].runner);
  } catch (const std::exception& error) {
    log(LogLevel::kError, fmt::format("engine: a turn failed: {}", error.what()));
    return results_of_failure(work, fmt::format("the engine failed: {}", error.what()));
  }
}

server::Dispatch make_dispatch(scheduler::Scheduler& scheduler, const EngineHost& host) {
  return {
      .submit =
          [&scheduler](api::Command command) {
            return scheduler.submit(std::move(command), now_seconds());
          },
      .consume = [&scheduler](
                     const api::ModelId& model,
                     int64_t seq_id) { scheduler.mark_refused(model, seq_id, now_seconds()); },
      .end_session =
          [&scheduler](const api::SessionId& session, const std::string& reason) {
            scheduler.end_session(session, reason, now_seconds());
          },
      .cancel = [&scheduler](
                    const api::RequestId& request,
                    const std::string& reason) { return scheduler.cancel(request, reason); },
      .release = [&scheduler](
                     api::BaseId base,
                     const api::SnapshotId& snapshot) { scheduler.release(base, snapshot); },
      .write_saved = [&host](const api::RequestId& request) { return host.write_saved(request); },
      .drop_saved = [&host](const api::RequestId& request) { host.drop_saved(request); },
      .parameter_bytes =
          [&host](api::BaseId base, const api::LoraConfig& lora) {
            return host.parameter_bytes(base, lora);
          },
      .tick = [&scheduler](double now,
                           double excused) { scheduler.give_up_overdue_gaps(now, excused); },
      .why_engines_wait = [&host] { return host.find_silent_process(); },
  };
}

}  // namespace strata::apps
