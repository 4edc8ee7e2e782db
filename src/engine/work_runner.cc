// SPDX-License-Identifier: Apache-2.0
#include "engine/work_runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <iterator>

#include "api/context.h"
#include "base/error.h"
#include "base/log.h"
#include "engine/lora_specs.h"
#include "model/adapter/base_numbers.h"

namespace strata::engine {
namespace {

constexpr int64_t kUnlimitedPages = int64_t{1} << 40;
constexpr size_t kMostLoads = 2;  // at once

void check_finite(std::span<const float> values, size_t datum, std::string_view name) {
  for (size_t i = 0; i < values.size(); ++i) {
    if (std::isfinite(values[i])) continue;
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("data[{}].{}[{}]: got {}, want a finite number", datum, name, i, values[i]));
  }
}

void check_max_rank(const model::LoraAdapter& adapter, const std::string& dir, int64_t max_rank) {
  for (const model::LoraModule& module : adapter.modules()) {
    if (module.spec.rank <= max_rank) continue;
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("--adapter: {}: {} has rank {}, and --max-rank is {}; raise it", dir,
                            module.path, module.spec.rank, max_rank));
  }
}

std::vector<std::unique_ptr<PrefixCache>> make_prefix_caches(Stages& stages, bool wanted) {
  std::vector<std::unique_ptr<PrefixCache>> prefixes;
  for (size_t i = 0; wanted && i < stages.size(); ++i) {
    Engine& engine = stages.engine(i);
    if (engine.options().draft_tokens > 0) break;
    prefixes.push_back(std::make_unique<PrefixCache>(engine.cache_layout(), engine.kv_pool(),
                                                     engine.state_pool()));
  }
  return prefixes;
}

}  // namespace

WorkRunner::WorkRunner(Stages& stages, const text::Tokenizer* tokenizer, AdapterBook& book,
                       const RunnerOptions& options)
    : stages_(stages),
      engine_(stages.engine()),
      book_(book),
      options_(options),
      copies_(model::base_fingerprint_metadata(engine_.model())),
      files_(stages, copies_.metadata()),
      snapshots_(stages, files_, options.snapshot_bytes),
      tokenizer_(tokenizer),
      prefixes_(make_prefix_caches(stages, options.prefix_cache)),
      loop_(stages, prefixes_),
      preemption_(engine_, loop_, options.max_sample_rows) {}

void WorkRunner::load_adapter(const api::SnapshotId& id, const std::string& dir, int64_t max_rank) {
  const StagedAdapter adapter = snapshots_.load(id, dir);
  kept_.push_back(adapter);
  check_max_rank(*adapter[0], dir, max_rank);
  if (snapshots_.num_bytes() <= options_.snapshot_bytes) return;
  throw Error(ErrorCode::kResourceExhausted,
              fmt::format("--adapter: {}: adapters take {} bytes and sampler weights may have {}; "
                          "raise --memory",
                          dir, snapshots_.num_bytes(), options_.snapshot_bytes));
}

api::Capacity WorkRunner::capacity() const {
  const KvPool& pool = engine_.kv_pool();
  const int64_t pages = pool.max_pages() > 0 ? pool.max_pages() : kUnlimitedPages;
  return {.base = options_.base,
          .pass_tokens = stages_.pass_tokens(),
          .sample_rows = preemption_.free_rows(),
          .free_pages = std::max<int64_t>(0, pages - preemption_.reserved_pages()),
          .cache = pool.need(),
          .known = prefixes_.empty() ? nullptr : &prefixes_[0]->known(),
          .total_pages = pages,
          .free_states = preemption_.free_states(),
          .running_samples = loop_.num_running(),
          .waiting_samples = loop_.num_waiting(),
          .shares = preemption_.shares(),
          .saves = may_copy() ? 1 : 0,
          .loads = may_load() ? 1 : 0,
          .train_seconds = train_seconds_,
          .sample_seconds = sample_seconds_};
}

std::vector<api::Result> WorkRunner::run(const api::Work& work, const Interruption* breaks) {
  results_.clear();
  for (const api::RequestId& request : work.cancel) partial_.erase(request);
  if (!work.cancel.empty() || !work.release.empty()) drop_withdrawn(work);
  timed(train_seconds_, [&] {
    for (const auto& command : work.control) run_control(*command);
  });
  // Before the pass, whose breaks let others join.
  timed(sample_seconds_, [&] {
    if (!work.samples.empty() || !work.resume.empty()) admit_rows(work, results_);
  });
  if (!work.rows.empty()) train(work.rows, breaks);
  if (work.decode) step_samples(results_);
  return std::move(results_);
}

void WorkRunner::train(const std::vector<api::DataRange>& rows, const Interruption* breaks) {
  const double sampled_before = sample_seconds_;
  timed(train_seconds_, [&] { run_rows(rows, breaks); });
  train_seconds_ -= sample_seconds_ - sampled_before;
}

void WorkRunner::fail(const api::RequestId& request, api::FaultCategory category,
                      const std::string& what) {
  partial_.erase(request);
  results_.push_back({request, api::Failure{category, what}});
}

api::AdapterSlot WorkRunner::slot_of(const api::ModelId& model) const {
  const auto found = models_.find(model);
  if (found == models_.end())
    throw Error(ErrorCode::kNotFound, fmt::format("model {}: it is not loaded", model.text));
  return found->second;
}

api::Failure WorkRunner::failure_of(const std::exception& fault) {
  if (const auto* error = dynamic_cast<const Error*>(&fault))
    return {api::category_of(error->code), error->what()};
  if (dynamic_cast<const std::bad_alloc*>(&fault) != nullptr)
    return {api::FaultCategory::kServer, "the server is out of memory"};
  return {api::FaultCategory::kServer, fault.what()};
}

void WorkRunner::run_control(const api::Command& command) {
  try {
    if (auto outcome = execute(command)) results_.push_back({command.request, std::move(*outcome)});
  } catch (const std::exception& error) {
    const api::Failure failure = failure_of(error);
    fail(command.request, failure.category, failure.message);
  }
}

std::optional<api::Outcome> WorkRunner::execute(const api::Command& command) {
  if (std::holds_alternative<api::CreateModel>(command.op)) return create_model(command);
  if (std::holds_alternative<api::UnloadModel>(command.op)) return unload_model(command);
  const api::AdapterSlot slot = slot_of(command.model);
  if (const auto* step = std::get_if<api::OptimStep>(&command.op))
    return stages_.step(slot, step->adamw);
  if (const auto* save = std::get_if<api::SaveState>(&command.op)) {
    return hold_for_writing(command, stages_.copy_training_state(slot),
                            {api::SavedAs::kState, save->dir}, save->base_model_name);
  }
  if (const auto* save = std::get_if<api::SaveForSampler>(&command.op))
    return save_for_sampler(command, *save);
  const auto* load = std::get_if<api::LoadState>(&command.op);
  CHECK(load != nullptr, command.op.index());
  begin_load(command, load->dir, load->optimizer);
  return std::nullopt;
}

// The scheduler starts nothing of the model before the answer.
void WorkRunner::begin_load(const api::Command& command, const std::string& dir, bool optimizer) {
  const api::AdapterSlot slot = slot_of(command.model);
  loads_[command.request] = {.model = command.model,
                             .creates = std::holds_alternative<api::CreateModel>(command.op),
                             .num_bytes = stages_.state_bytes(slot, optimizer)};
  files_.ask({.what = FileJob::What::kReadState,
              .tenant = command.tenant,
              .name = command.request.text,
              .dir = dir,
              .specs = specs_of(engine_.adapter(slot)),
              .optimizer = optimizer});
}

// Its adapter takes no part in the pass that this may come in the midst of.
api::Outcome WorkRunner::finish_load(const FileJob& job) {
  const auto found = loads_.find(api::RequestId{job.name});
  CHECK(found != loads_.end(), job.name);
  const Load load = std::move(found->second);
  loads_.erase(found);
  const api::AdapterSlot slot = slot_of(load.model);
  try {
    if (job.fault != nullptr) std::rethrow_exception(job.fault);
    stages_.restore(job.states, slot);
    return api::Done{};
  } catch (const std::exception& error) {
    if (load.creates) remove_model(load.model);
    return failure_of(error);
  }
}

// Nobody waits for it, so that a fault is told to nobody: the weights stay where they are.
void WorkRunner::finish_write(FileJob job) {
  const std::string name = job.name;
  try {
    snapshots_.finish_write(std::move(job));
  } catch (const std::exception& error) {
    log(LogLevel::kError, fmt::format("sampler weights {}: {}", name, error.what()));
  }
}

std::vector<api::Result> WorkRunner::finish_files() {
  std::vector<api::Result> results;
  for (FileJob& job : files_.take_done()) {
    std::vector<api::Result> of_job = finish_file(std::move(job));
    std::move(of_job.begin(), of_job.end(), std::back_inserter(results));
  }
  return results;
}

std::vector<api::Result> WorkRunner::finish_file(FileJob job) {
  std::vector<api::Result> results;
  if (stages_.has_other_processes()) share_read_file(job);
  switch (job.what) {
    case FileJob::What::kReadWeights:
      finish_snapshot_read(std::move(job), results);
      break;
    case FileJob::What::kReadState:
      results.push_back({api::RequestId{job.name}, finish_load(job)});
      break;
    case FileJob::What::kWriteWeights:
      finish_write(std::move(job));
      break;
    case FileJob::What::kRemove:
      break;
  }
  return results;
}

// What the first process has read, as it is where one has all stages.
void WorkRunner::share_read_file(FileJob& job) {
  if (job.fault != nullptr) return;
  try {
    if (job.what == FileJob::What::kReadWeights) job.parts = stages_.scatter(job.whole);
    if (job.what == FileJob::What::kReadState)
      job.states = stages_.scatter(job.whole, job.specs, job.optimizer);
  } catch (...) {
    job.fault = std::current_exception();
  }
  job.whole = {};
}

std::optional<api::Outcome> WorkRunner::create_model(const api::Command& command) {
  const auto& create = std::get<api::CreateModel>(command.op);
  // The rank comes first: a huge one must not be multiplied.
  book_.check_rank(create.lora.rank);
  const std::vector<model::LoraModuleSpec> specs =
      lora_specs(engine_.config(), create.lora, options_.expert_rank);
  AdapterBook::Place place;
  stages_.run_in_all_processes(
      [&] { place = book_.reserve_place(command, stages_.adapter_bytes(specs, true)); });
  models_[command.model] = stages_.create_training_adapter(specs, create.lora.seed);
  book_.add(command.model, std::move(place));
  if (create.load_dir.empty()) return api::Done{};
  begin_load(command, create.load_dir, create.load_optimizer);
  return std::nullopt;
}

api::Outcome WorkRunner::unload_model(const api::Command& command) {
  remove_model(command.model);
  return api::Done{};
}

void WorkRunner::remove_model(const api::ModelId& model) {
  stages_.clear_adapter(slot_of(model));
  models_.erase(model);
  book_.remove(model);
}

api::Outcome WorkRunner::save_for_sampler(const api::Command& command,
                                          const api::SaveForSampler& save) {
  const StagedAdapter weights = stages_.copy_adapter(slot_of(command.model));
  if (!save.snapshot.empty() && !save.for_export)
    snapshots_.put(save.snapshot, weights, save.dir, save.ephemeral);
  if (save.ephemeral) return api::Saved{};
  const auto as = save.for_export ? api::SavedAs::kExport : api::SavedAs::kState;
  return hold_for_writing(command, {.weights = stages_.merge_parts(weights)}, {as, save.dir},
                          save.base_model_name);
}

// The first process has the whole, and writes it.
api::Saved WorkRunner::hold_for_writing(const api::Command& command, AdapterCopy copy,
                                        api::Saved as, const std::string& base_model_name) {
  if (!stages_.is_first_process()) return as;
  return copies_.add_pending_write(command.request, std::move(copy), std::move(as),
                                   base_model_name);
}

// What copies that wait for the disk, and states that are being read, leave of the share of sampler
// weights, which they take memory from.
int64_t WorkRunner::free_for_copies() const {
  int64_t bytes = options_.snapshot_bytes - snapshots_.num_bytes() - copies_.num_bytes();
  for (const auto& [request, load] : loads_) bytes -= load.num_bytes;
  return bytes;
}

// One copy may always be made, but while sampler weights are more than they may be.
bool WorkRunner::may_copy() const {
  if (snapshots_.awaits_writes()) return false;
  return copies_.num_bytes() == 0 || copies_.largest() <= free_for_copies();
}

// One state may always be read, another where there is memory for one as large.
bool WorkRunner::may_load() const {
  if (loads_.empty()) return true;
  return loads_.size() < kMostLoads && loads_.begin()->second.num_bytes <= free_for_copies();
}

api::Sequence WorkRunner::to_sequence(const api::Command& command, size_t index) const {
  const auto& work = std::get<api::ForwardBackward>(command.op);
  return {.datum = &work.data[index],
          .slot = slot_of(command.model),
          .loss = work.loss,
          .gradients = !work.forward_only};
}

// Everything is looked at before the first datum runs, so that a fault leaves no gradient.
void WorkRunner::check_data(const api::Command& command) const {
  const auto& work = std::get<api::ForwardBackward>(command.op);
  if (work.data.empty())
    throw Error(ErrorCode::kInvalidArgument, "data: got none, want at least one datum");
  const model::ModelConfig& config = engine_.config();
  const int64_t context = config.context();
  for (size_t i = 0; i < work.data.size(); ++i) {
    const api::Datum& datum = work.data[i];
    if (const auto fault = api::find_context_fault(std::ssize(datum.tokens), context))
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("data[{}]: {}{}", i, *fault,
                              api::context_note(context, config.max_position_embeddings)));
    engine_.check(to_sequence(command, i), fmt::format("data[{}]", i), true);
    for (const api::LossInputRow& input : api::kLossInputs)
      check_finite(datum.inputs[input.id], i, input.name);
  }
}

// The rows that take gradients first: the engine lets neighbours share a pass.
void WorkRunner::collect_rows(const std::vector<api::DataRange>& all, api::Batch& batch) {
  under_way_.clear();
  for (const bool forward_only : {false, true}) {
    for (const api::DataRange& rows : all) {
      const auto& work = std::get<api::ForwardBackward>(rows.command->op);
      if (work.forward_only == forward_only && try_add_rows(rows, batch))
        under_way_.push_back(&rows);
    }
  }
}

void WorkRunner::run_rows(const std::vector<api::DataRange>& all, const Interruption* breaks) {
  api::Batch batch = {.gradients = api::Gradients::kAdapters, .checked = true, .score_all = true};
  collect_rows(all, batch);
  if (under_way_.empty()) return;
  try {
    add_all_results(stages_.run(batch, breaks));
    for (const api::Sequence& sequence : batch.sequences)
      trained_tokens_ += std::ssize(sequence.datum->tokens);
  } catch (const std::exception& error) {  // not the fault of any one of them
    for (const api::DataRange* rows : under_way_) abort_batch(*rows->command, error.what());
  }
  under_way_.clear();
}

// Rows that share passes are each as far as all are.
void WorkRunner::emit_progress() {
  const double share = stages_.fraction_done();
  for (const api::DataRange* rows : under_way_) {
    const auto& work = std::get<api::ForwardBackward>(rows->command->op);
    const double done =
        static_cast<double>(rows->first) + share * static_cast<double>(rows->last - rows->first);
    events_.emplace_back(rows->command->request, api::Progress{done, std::ssize(work.data)});
  }
}

// False when the command has failed instead.
bool WorkRunner::try_add_rows(const api::DataRange& rows, api::Batch& batch) {
  const api::Command& command = *rows.command;
  const size_t before = batch.sequences.size();
  try {
    if (rows.first == 0) check_data(command);
    for (size_t i = rows.first; i < rows.last; ++i)
      batch.sequences.push_back(to_sequence(command, i));
    return true;
  } catch (const Error& error) {
    if (rows.first == 0) {
      fail(command.request, api::category_of(error.code), error.what());
    } else {
      abort_batch(command, error.what());
    }
  } catch (const std::exception& error) {
    abort_batch(command, error.what());
  }
  batch.sequences.resize(before);
  return false;
}

// Some of its data may have been added to the model's gradient, so none of that is kept: a step
// must never apply half a batch.
void WorkRunner::abort_batch(const api::Command& command, const std::string& what) {
  const auto model = models_.find(command.model);
  if (std::get<api::ForwardBackward>(command.op).forward_only || model == models_.end())
    return fail(command.request, api::FaultCategory::kServer, what);
  if (engine_.adapters().contains(static_cast<int32_t>(model->second)))
    stages_.for_adapter(model->second, [](model::LoraAdapter& part) { part.drop_gradients(); });
  fail(command.request, api::FaultCategory::kServer,
       fmt::format("{}; the gradient of model {} was dropped: send what came since its last "
                   "optim_step again",
                   what, command.model.text));
}

void WorkRunner::add_all_results(api::BatchResult done) {
  auto next = done.sequences.begin();
  for (const api::DataRange* rows : under_way_) {
    const std::span own(next, rows->last - rows->first);
    report_results(*rows, own);
    next += std::ssize(own);
  }
}

void WorkRunner::report_results(const api::DataRange& rows,
                                std::span<api::SequenceResult> results) {
  const auto& work = std::get<api::ForwardBackward>(rows.command->op);
  Partial& partial = partial_[rows.command->request];
  for (size_t i = 0; i < results.size(); ++i) {
    // One chain in the order of the data, however they are split into turns.
    for (const float loss : results[i].losses) partial.loss += static_cast<double>(loss);
    partial.result.data.push_back({.logprobs = std::move(results[i].logprobs),
                                   .num_targets = work.data[rows.first + i].num_targets});
  }
  if (rows.last < work.data.size()) {
    const auto done = static_cast<double>(rows.last);
    events_.emplace_back(rows.command->request, api::Progress{done, std::ssize(work.data)});
    return;
  }
  finish_forward_backward(*rows.command);
}

void WorkRunner::finish_forward_backward(const api::Command& command) {
  const auto found = partial_.find(command.request);
  Partial& partial = found->second;
  partial.result.metrics["loss:sum"] = partial.loss;
  const auto& work = std::get<api::ForwardBackward>(command.op);
  const std::string_view metric = api::row_of(work.loss.name).metric;
  if (!metric.empty()) partial.result.metrics[std::string(metric)] = 1.0;
  results_.push_back({command.request, std::move(partial.result)});
  partial_.erase(found);
}

}  // namespace strata::engine
