// SPDX-License-Identifier: Apache-2.0
#include "engine/stages.h"

#include <algorithm>
#include <new>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "engine/adapter_state.h"
#include "engine/rank_adapters.h"

namespace strata::engine {

Stages::Stages(Runner& whole) : plan_(whole.plan()), ranks_(1) {
  CHECK(plan_.num_stages() == 1);
  add_stage({.engine = &whole.engine(), .passes = &whole, .sampler = &whole});
}

Stages::Stages(PipelinePlan plan, std::vector<std::unique_ptr<Engine>> engines)
    : plan_(std::move(plan)), ranks_(plan_.num_ranks()) {
  CHECK(plan_.num_stages() == ranks_.size() && std::ssize(engines) == ranks_.size(),
        plan_.num_stages(), engines.size());
  for (int rank = 0; rank < ranks_.size(); ++rank) {
    std::unique_ptr<Engine>& engine = engines[static_cast<size_t>(rank)];
    auto passes = std::make_unique<Runner>(ranks_.comm(rank), plan_, *engine);
    auto sampler = std::make_unique<Runner>(ranks_.breaking_comm(rank), plan_, *engine);
    add_stage({.own = std::move(engine),
               .own_passes = std::move(passes),
               .own_sampler = std::move(sampler)});
  }
}

Stages::Stages(Comm& comm, PipelinePlan plan, std::unique_ptr<Engine> stage)
    : processes_(&comm), plan_(std::move(plan)), ranks_(1) {
  CHECK(plan_.num_ranks_in_all() == comm.size(), plan_.num_ranks_in_all(), comm.size());
  auto sampler = std::make_unique<Runner>(comm.breaking(), plan_, *stage);
  auto passes = std::make_unique<Runner>(comm, plan_, *stage);
  add_stage({.own = std::move(stage),
             .own_passes = std::move(passes),
             .own_sampler = std::move(sampler)});
}

void Stages::run_in_all_processes(FunctionRef<void()> body) const {
  if (processes_ == nullptr) return body();
  run_settled(bookkeeping_comm(), body);
}

void Stages::run_settled(Comm& processes, FunctionRef<void()> body) const {
  std::optional<RankFailure> own;
  try {
    body();
  } catch (const Error& error) {
    own = {error.code, error.what()};
  } catch (const std::bad_alloc&) {
    own = {ErrorCode::kIo, "the server is out of memory"};
  } catch (const std::exception& error) {
    own = {ErrorCode::kIo, error.what()};
  }
  if (const auto failure = processes.settle(own)) throw Error(failure->code, failure->what);
}

bool Stages::is_so_on_any_process(bool on_this) const {
  if (processes_ == nullptr) return on_this;
  const double own = on_this ? 1.0 : 0.0;
  std::vector<double> all;
  bookkeeping_comm().all_gather({&own, 1}, all);
  return std::ranges::any_of(all, [](double is_so) { return is_so != 0.0; });
}

void Stages::run_sampling(FunctionRef<void(int stage)> body) {
  if (processes_ == nullptr) return ranks_.run_breaking(body);
  // What divides weights is of one runner at a time.
  Stage& stage = stages_[0];
  stage.sampler->connect_weights();
  const std::shared_ptr<void> ends(nullptr, [&](void*) { stage.passes->connect_weights(); });
  run_settled(bookkeeping_comm(), [&] { body(0); });
}

void Stages::add_stage(Stage stage) {
  if (stage.own) {
    stage.engine = stage.own.get();
    stage.passes = stage.own_passes.get();
    if (stage.own_sampler) stage.sampler = stage.own_sampler.get();
  }
  stage.sampling =
      std::make_unique<PassWorkspace>(stage.engine->workspace(), stage.engine->config());
  stages_.push_back(std::move(stage));
}

int64_t Stages::pass_tokens() const {
  return int64_t{plan_.num_dealing()} * plan_.table.num_microbatches *
         engine().options().pass_tokens;
}

api::BatchResult Stages::run(const api::Batch& batch, const Interruption* breaks) {
  if (processes_ != nullptr) return run_in_this_process(batch, breaks);
  api::BatchResult result;
  const auto of_rank = [&](int rank) {
    const Stage& stage = stages_[static_cast<size_t>(rank)];
    std::optional<Backend::Breaks> guard;
    if (const Interruption* own = ranks_.breaks(rank)) guard.emplace(stage.engine->backend(), *own);
    api::BatchResult of_stage = stage.passes->run(batch);
    if (rank == 0) result = std::move(of_stage);
  };
  ranks_.run(of_rank, breaks);
  return result;
}

// Where a break of all processes comes to this one: behind an op, or while it waits for another.
api::BatchResult Stages::run_in_this_process(const api::Batch& batch, const Interruption* breaks) {
  bool in_break = false;
  const auto is_due = [&] { return !in_break && breaks->is_due(); };
  const auto take = [&] {
    in_break = true;
    breaks->run();
    in_break = false;
  };
  const Interruption own{.is_due = is_due, .run = take};
  const std::shared_ptr<void> ends(nullptr, [&](void*) { processes_->set_breaks(nullptr); });
  std::optional<Backend::Breaks> guard;
  if (breaks != nullptr) {
    processes_->set_breaks(&own);
    guard.emplace(engine().backend(), own);
  }
  api::BatchResult result;
  run_settled(*processes_, [&] { result = stages_[0].passes->run(batch); });
  return result;
}

api::StepResult Stages::step(api::AdapterSlot slot, const api::AdamW& adamw) {
  std::vector<api::StepResult> results(size());
  const auto of_rank = [&](int rank) {
    const auto i = static_cast<size_t>(rank);
    results[i] = stages_[i].passes->step(slot, adamw);
  };
  if (processes_ == nullptr) {
    ranks_.run(of_rank);
  } else {
    run_settled(*processes_, [&] { of_rank(0); });
  }
  return results[0];
}

api::AdapterSlot Stages::create_training_adapter(const std::vector<model::LoraModuleSpec>& specs,
                                                 uint64_t seed) {
  api::AdapterSlot slot = {};
  size_t made = 0;
  const auto make = [&] {
    for (; made < size(); ++made) {
      const api::AdapterSlot own = engine(made).create_adapter(specs, seed);
      CHECK(made == 0 || own == slot, made);
      slot = own;
    }
    for_adapter(slot, [](model::LoraAdapter& adapter) { adapter.enable_training(); });
  };
  try {
    run_in_all_processes(make);
  } catch (...) {
    for (size_t i = 0; i < made; ++i) engine(i).clear_adapter(slot);
    throw;
  }
  return slot;
}

void Stages::clear_adapter(api::AdapterSlot slot) {
  for (const Stage& stage : stages_) stage.engine->clear_adapter(slot);
}

AdapterCopy Stages::copy_training_state(api::AdapterSlot slot) {
  if (has_other_processes()) {
    AdapterCopy copy;
    run_in_all_processes([&] {
      model::LoraAdapter& part = engine().adapter(slot);
      part.enable_training();
      copy = gather_adapter(bookkeeping_comm(), engine(), part, /*moments=*/true);
    });
    return copy;
  }
  std::vector<const model::LoraAdapter*> parts;
  for_adapter(slot, [&](model::LoraAdapter& adapter) {
    adapter.enable_training();
    parts.push_back(&adapter);
  });
  if (size() == 1) return engine::copy_state(engine(), *parts[0]);
  return merge_adapter_parts(engine().backend(), engine(), parts, /*moments=*/true);
}

std::shared_ptr<const model::LoraAdapter> Stages::merge_parts(const StagedAdapter& parts) {
  if (has_other_processes()) return gather_weights(*parts[0]);
  if (size() == 1) return parts[0];
  std::vector<const model::LoraAdapter*> borrowed;
  for (const auto& part : parts) borrowed.push_back(part.get());
  return merge_adapter_parts(sampling().backend(), engine(), borrowed, /*moments=*/false).weights;
}

// Elsewhere one without modules stands for it: whoever holds it holds no part of this process.
std::shared_ptr<const model::LoraAdapter> Stages::gather_weights(const model::LoraAdapter& part) {
  AdapterCopy copy;
  run_in_all_processes([&] {
    copy = gather_adapter(bookkeeping_comm(), engine(), part, /*moments=*/false);
    if (!is_first_process()) {
      copy.weights = std::make_shared<model::LoraAdapter>(
          engine().backend(), *engine().model().weights, std::vector<model::LoraModuleSpec>());
    }
  });
  return copy.weights;
}

std::vector<AdapterCopy> Stages::scatter(const AdapterCopy& whole,
                                         const std::vector<model::LoraModuleSpec>& specs,
                                         bool moments) {
  std::vector<AdapterCopy> parts(1);
  run_in_all_processes(
      [&] { parts[0] = scatter_adapter(bookkeeping_comm(), engine(), whole, specs, moments); });
  return parts;
}

StagedAdapter Stages::scatter(const AdapterCopy& whole) {
  StagedAdapter parts;
  run_in_all_processes([&] {
    std::vector<model::LoraModuleSpec> specs;
    if (is_first_process()) specs = specs_of(*whole.weights);
    broadcast_specs(bookkeeping_comm(), specs);
    const AdapterCopy part =
        scatter_adapter(bookkeeping_comm(), engine(), whole, specs, /*moments=*/false);
    parts.push_back(std::const_pointer_cast<model::LoraAdapter>(part.weights));
  });
  return parts;
}

StagedAdapter Stages::copy_adapter(api::AdapterSlot slot) {
  StagedAdapter parts;
  run_in_all_processes([&] {
    for (const Stage& stage : stages_)
      parts.push_back(engine::copy_adapter(*stage.engine, stage.engine->adapter(slot)));
  });
  return parts;
}

void Stages::restore(const std::vector<AdapterCopy>& parts, api::AdapterSlot slot) {
  run_in_all_processes([&] {
    for (size_t i = 0; i < size(); ++i)
      engine::restore(sampling(i).backend(), parts[i], engine(i).adapter(slot));
  });
}

int64_t Stages::adapter_bytes(const std::vector<model::LoraModuleSpec>& specs, bool trains) const {
  int64_t bytes = 0;
  for (const Stage& stage : stages_) bytes += engine::adapter_bytes(*stage.engine, specs, trains);
  return bytes;
}

int64_t Stages::state_bytes(api::AdapterSlot slot, bool moments) {
  int64_t bytes = adapter_bytes(specs_of(engine().adapter(slot)), /*trains=*/false);
  for_adapter(slot, [&](const model::LoraAdapter& part) {
    if (moments) bytes += 2 * part.num_parameters() * dtype_bytes(DType::kF32);
  });
  return bytes;
}

}  // namespace strata::engine
