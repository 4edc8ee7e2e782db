// The engine's side of Scheduler: making one turn of work, and noting what came of it.
#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "scheduler/cost.h"
#include "scheduler/scheduler.h"

namespace strata::scheduler {

bool Scheduler::rows_ready(const Model& model) {
  if (!model.live || model.ending) return false;
  const CommandPtr head = model.queue.ready();
  return head != nullptr && std::holds_alternative<api::ForwardBackward>(head->op);
}

api::Work Scheduler::next(std::span<const api::Capacity> engines, double now) {
  const std::lock_guard lock(mutex_);
  changed_ = false;
  for (size_t i = 0; i < engines.size(); ++i) {
    const size_t index = (next_engine_ + i) % engines.size();
    const api::Capacity& engine = engines[index];
    Side& side = sides_[engine.base];
    api::Work work;
    work.base = engine.base;
    work.cancel = std::exchange(side.cancelled, {});
    work.release = std::exchange(side.released, {});
    take_samples(engine, side, work);
    work.decode = engine.running_samples > 0 || !work.samples.empty();
    const bool any_files = take_control(engine, side, work, now);
    const bool any_training = any_rows(engine);
    if (!work.decode || (!any_training && !any_files)) side.both_busy = false;
    if (any_training && training_may_run(engine, side, work)) take_rows(engine, side, work, now);
    if (work.empty()) continue;
    next_engine_ = index + 1;
    return work;
  }
  return {};
}

void Scheduler::pop(Model& model, double now) {
  forget_bytes(model.queue.ready());
  model.queue.pop(now);
  model.next_datum = 0;
}

// What needs a file: the engine copies whole adapters for it, or reads them.
bool Scheduler::is_file_work(const api::Command& command) {
  if (const auto* create = std::get_if<api::CreateModel>(&command.op))
    return !create->load_dir.empty();
  return std::holds_alternative<api::SaveState>(command.op) ||
         std::holds_alternative<api::SaveForSampler>(command.op) ||
         std::holds_alternative<api::LoadState>(command.op);
}

// The control operation that is next of this model, or null.
CommandPtr Scheduler::next_control(const Model& model) const {
  if (model.create != nullptr) return model.create;
  if (model.ending) {
    if (creating_.contains(model.created_by)) return nullptr;
    return model.last_saves.empty() ? model.unload : model.last_saves.front();
  }
  return model.live && !rows_ready(model) ? model.queue.ready() : nullptr;
}

// Takes it. True when the model is no more.
bool Scheduler::start_control(const api::ModelId& id, Model& model, api::Work& work, double now) {
  const CommandPtr command = next_control(model);
  if (command == model.create) {
    creating_[command->request] = id;
    model.create = nullptr;
  } else if (!model.ending) {
    pop(model, now);
  } else if (!model.last_saves.empty()) {
    model.last_saves.pop_front();
  } else if (!model.live) {
    answer(command->request, api::Done{});
    return true;
  }
  work.control.push_back(command);
  return command == model.unload;
}

// One operation of each model; but of those that need files only one, of the tenant that had the
// fewest, and only when training may run: a thousand loads in line hold up nobody else. Whether
// there were any of these.
bool Scheduler::take_control(const api::Capacity& engine, Side& side, api::Work& work, double now) {
  std::vector<Models::iterator> with_files;
  bool any_files = false;
  std::vector<api::TenantId> tenants;
  for (auto at = models_.begin(); at != models_.end();) {
    const auto here = at++;
    if (here->second.base != work.base) continue;
    const CommandPtr command = next_control(here->second);
    if (command == nullptr) continue;
    if (is_file_work(*command)) {
      any_files = true;
      if (engine.saves == 0 && is_save(*command)) continue;
      with_files.push_back(here);
      tenants.push_back(here->second.tenant);
    } else if (start_control(here->first, here->second, work, now)) {
      models_.erase(here);
    }
  }
  side.file_share.set_active(tenants);
  if (with_files.empty() || !training_may_run(engine, side, work)) return any_files;
  const auto chosen = *std::min_element(
      with_files.begin(), with_files.end(), [&](Models::iterator a, Models::iterator b) {
        return side.file_share.used(a->second.tenant) < side.file_share.used(b->second.tenant);
      });
  side.file_share.charge(chosen->second.tenant, 1.0);
  start_control(chosen->first, chosen->second, work, now);
  return any_files;
}

// Pages for a request's next row. A request of several rows keeps its prompt's pages until the last
// has ended, so it begins only if, with everything else ended, each of those that have begun could
// still have its largest row: else two of them could wait for each other for ever.
int64_t Scheduler::pages_to_begin(const api::Capacity& engine, const Side& side,
                                  const SampleEntry& entry) const {
  const auto& sample = std::get<api::Sample>(entry.command->op);
  const int64_t cost = sample_pages(sample, entry.next_row, engine.page_size);
  if (entry.next_row > 0 || sample.num_samples == 1) return cost;
  int64_t held = prompt_pages(sample, engine.page_size);
  int64_t largest = sample_pages(sample, 1, engine.page_size);
  for (const auto& [tenant, queue] : side.samples) {
    const SampleEntry& other = samples_.at(queue.front());
    if (other.next_row == 0) continue;
    const auto& begun = std::get<api::Sample>(other.command->op);
    held += prompt_pages(begun, engine.page_size);
    largest = std::max(largest, sample_pages(begun, 1, engine.page_size));
  }
  return held + largest > engine.total_pages ? engine.total_pages + 1 : cost;
}

// The tenant whose next row is to run: the one that used least, if its row fits. While something
// runs, what does not fit waits for its pages. While nothing does, any that fits goes; and if none
// does, one that never will is handed to the engine, which says so.
Scheduler::SampleQueues::iterator Scheduler::next_sample(const api::Capacity& engine, Side& side,
                                                         int64_t pages, bool must_take) {
  std::vector<SampleQueues::iterator> order;
  for (auto at = side.samples.begin(); at != side.samples.end(); ++at) order.push_back(at);
  std::stable_sort(order.begin(), order.end(), [&](const auto& a, const auto& b) {
    return side.sampling_share.used(a->first) < side.sampling_share.used(b->first);
  });
  auto last_resort = side.samples.end();
  for (const auto& at : order) {
    const SampleEntry& entry = samples_.at(at->second.front());
    if (pages_to_begin(engine, side, entry) <= pages) return at;
    if (!must_take) break;
    const bool is_better =
        last_resort == side.samples.end() ||
        (entry.next_row > 0 && samples_.at(last_resort->second.front()).next_row == 0);
    if (is_better) last_resort = at;
  }
  return must_take ? last_resort : side.samples.end();
}

void Scheduler::take_samples(const api::Capacity& engine, Side& side, api::Work& work) {
  std::vector<api::TenantId> tenants;
  for (const auto& [tenant, queue] : side.samples) tenants.push_back(tenant);
  side.sampling_share.set_active(tenants);
  int64_t rows = engine.sample_rows;
  int64_t pages = engine.free_pages;
  while (rows > 0 && !side.samples.empty()) {
    const bool must_take = engine.running_samples == 0 && work.samples.empty();
    const auto chosen = next_sample(engine, side, pages, must_take);
    if (chosen == side.samples.end()) return;
    SampleEntry& entry = samples_.at(chosen->second.front());
    const auto& sample = std::get<api::Sample>(entry.command->op);
    const int64_t cost = sample_pages(sample, entry.next_row, engine.page_size);
    pages -= cost;
    --rows;
    if (entry.next_row == 0) queued_samples_.give(chosen->first.text, 1);
    if (work.samples.empty() || work.samples.back().command != entry.command) {
      work.samples.push_back({entry.command, entry.next_row, entry.next_row});
    }
    work.samples.back().last = ++entry.next_row;
    side.sampling_share.charge(chosen->first, static_cast<double>(cost));
    if (entry.next_row < sample.num_samples) continue;
    chosen->second.pop_front();
    if (chosen->second.empty()) side.samples.erase(chosen);
  }
}

bool Scheduler::any_rows(const api::Capacity& engine) const {
  return std::any_of(models_.begin(), models_.end(), [&](const auto& entry) {
    return entry.second.base == engine.base && rows_ready(entry.second);
  });
}

// While both training and sampling have work, the one that has used less time goes: a step of
// sampling in every turn, a training pass or a file in those where training is not ahead.
bool Scheduler::training_may_run(const api::Capacity& engine, Side& side, const api::Work& work) {
  if (!work.decode) return true;
  if (!side.both_busy) {
    side.both_busy = true;
    side.train_mark = engine.train_seconds;
    side.sample_mark = engine.sample_seconds;
  }
  return engine.train_seconds - side.train_mark <= engine.sample_seconds - side.sample_mark;
}

void Scheduler::take_datum(Model& model, std::vector<api::TrainRows>& rows, double now) {
  const CommandPtr head = model.queue.ready();
  const size_t count = std::get<api::ForwardBackward>(head->op).data.size();
  if (rows.empty() || rows.back().command != head)
    rows.push_back({head, model.next_datum, model.next_datum});
  if (model.next_datum < count) ++model.next_datum;
  rows.back().last = model.next_datum;
  if (model.next_datum < count) {
    begun_[head->request] = head->model;
    return;
  }
  begun_.erase(head->request);
  pop(model, now);
}

void Scheduler::take_rows(const api::Capacity& engine, Side& side, api::Work& work, double now) {
  std::vector<Models::iterator> ready;
  std::vector<api::TenantId> tenants;
  std::vector<api::ModelId> ids;
  for (auto at = models_.begin(); at != models_.end(); ++at) {
    if (at->second.base != engine.base || !rows_ready(at->second)) continue;
    ready.push_back(at);
    tenants.push_back(at->second.tenant);
    ids.push_back(at->first);
  }
  side.training_share.set_active(tenants);
  side.model_share.set_active(ids);
  std::map<api::ModelId, std::vector<api::TrainRows>> taken;  // rows of a model stand together
  int64_t used = 0;
  while (!ready.empty()) {
    // The one that used least, of those whose next datum fits; anything fits an empty pass.
    auto best = ready.end();
    int64_t best_cost = 0;
    const auto meter = [&](Models::iterator m) {
      return std::tuple(side.training_share.used(m->second.tenant),
                        side.model_share.used(m->first));
    };
    for (auto at = ready.begin(); at != ready.end(); ++at) {
      const Model& model = (*at)->second;
      const auto& data = std::get<api::ForwardBackward>(model.queue.ready()->op).data;
      const int64_t cost = data.empty() ? 0 : datum_tokens(data[model.next_datum]);
      if (used > 0 && used + cost > engine.pass_tokens) continue;
      if (best != ready.end() && meter(*best) <= meter(*at)) continue;
      best = at;
      best_cost = cost;
    }
    if (best == ready.end()) break;
    const Models::iterator chosen = *best;
    take_datum(chosen->second, taken[chosen->first], now);
    used += best_cost;
    side.training_share.charge(chosen->second.tenant, static_cast<double>(best_cost));
    side.model_share.charge(chosen->first, static_cast<double>(best_cost));
    if (!rows_ready(chosen->second)) ready.erase(best);
  }
  for (auto& [id, rows] : taken) {
    for (api::TrainRows& row : rows) work.rows.push_back(std::move(row));
  }
}

void Scheduler::finish_create(const api::ModelId& id, const api::Outcome& outcome, double now) {
  const auto found = models_.find(id);
  CHECK(found != models_.end(), id.text);
  Model& model = found->second;
  const auto* failure = std::get_if<api::Failure>(&outcome);
  if (failure == nullptr) {
    model.live = true;
    return;
  }
  const std::string reason = fmt::format("model {} was not created: {}", id.text, failure->message);
  end_model(model, failure->category, reason, false, now);
  for (const CommandPtr& save : std::exchange(model.last_saves, {}))
    refuse(save, failure->category, reason);
  if (model.unload != nullptr) answer(model.unload->request, api::Done{});
  models_.erase(found);
}

std::vector<api::Result> Scheduler::complete(std::vector<api::Result> results, double now) {
  const std::lock_guard lock(mutex_);
  for (api::Result& result : results) {
    if (const auto created = creating_.find(result.request); created != creating_.end()) {
      const api::ModelId id = std::move(created->second);
      creating_.erase(created);
      finish_create(id, result.outcome, now);
    }
    if (const auto begun = begun_.find(result.request); begun != begun_.end()) {
      pop(models_.at(begun->second), now);  // it failed: the rest of its data is not run
      begun_.erase(begun);
    }
    if (const auto sample = samples_.find(result.request); sample != samples_.end()) {
      const api::Command& command = *sample->second.command;
      const auto& samples = sides_[command.base].samples;
      const bool rows_left =
          sample->second.next_row < std::get<api::Sample>(command.op).num_samples;
      if (rows_left && samples.contains(command.tenant)) drop_sample(result.request);
      samples_.erase(result.request);
    }
    answer(result.request, std::move(result.outcome));
  }
  return std::exchange(answers_, {});
}

}  // namespace strata::scheduler
