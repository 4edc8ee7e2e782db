// SPDX-License-Identifier: Apache-2.0
// The engine's side of Scheduler: making one turn of work, and noting what came of it.
#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "scheduler/scheduler.h"

namespace strata::scheduler {

bool Scheduler::rows_ready(const Model& model) {
  if (!model.live || model.ending || model.loading) return false;
  const CommandPtr head = model.queue.ready();
  return head != nullptr && std::holds_alternative<api::ForwardBackward>(head->op);
}

api::Work Scheduler::next(std::span<const api::Capacity> engines, double now) {
  const MutexLock lock(mutex_);
  changed_ = false;
  for (size_t i = 0; i < engines.size(); ++i) {
    const size_t index = (next_engine_ + i) % engines.size();
    api::Work work = make_turn(engines[index], now);
    if (work.empty()) continue;
    next_engine_ = index + 1;
    return work;
  }
  return {};
}

api::Work Scheduler::make_turn(const api::Capacity& engine, double now) {
  Side& side = sides_[engine.base];
  api::Work work;
  work.base = engine.base;
  add_sampling_work(engine, side, work);
  work.cancel.insert(work.cancel.end(), side.abandoned.begin(), side.abandoned.end());
  side.abandoned.clear();
  const std::vector<Models::iterator> file_work = start_controls(work, now);
  start_file_work(file_work, engine, side, work, now);
  const bool any_training = any_training_rows(engine);
  if (!work.decode || (!any_training && file_work.empty())) side.both_busy = false;
  if (any_training && choose_training(engine, side, work))
    add_training_rows(engine, side, work, now);
  return work;
}

api::Work Scheduler::next_samples(const api::Capacity& engine) {
  const MutexLock lock(mutex_);
  api::Work work;
  work.base = engine.base;
  add_sampling_work(engine, sides_[engine.base], work);
  return work;
}

void Scheduler::add_sampling_work(const api::Capacity& engine, Side& side, api::Work& work) {
  work.cancel = std::exchange(side.cancelled, {});
  work.release = std::exchange(side.released, {});
  add_sample_rows(engine, side, work);
  work.decode = engine.running_samples > engine.waiting_samples || !work.samples.empty() ||
                !work.resume.empty();
}

void Scheduler::pop(Model& model, double now) {
  model.queue.pop(now);
  model.next_datum = 0;
}

// The control operation that is next of this model, or null.
CommandPtr Scheduler::next_control(const Model& model) const {
  if (model.create != nullptr) return model.create;
  if (model.loading) return nullptr;
  if (model.ending) {
    if (model.creating) return nullptr;
    return model.last_saves.empty() ? model.unload : model.last_saves.front();
  }
  return model.live && !rows_ready(model) ? model.queue.ready() : nullptr;
}

// Takes it. True when the model is no more.
bool Scheduler::start_control(const api::ModelId& id, Model& model, api::Work& work, double now) {
  const CommandPtr command = next_control(model);
  if (command == model.create) {
    creating_[command->request] = id;
    model.creating = true;
    model.create = nullptr;
  } else if (!model.ending) {
    model.loading = is_load(*command);
    if (model.loading) loading_[command->request] = id;
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

// One of each model; those that need files are left to start_file_work().
std::vector<Scheduler::Models::iterator> Scheduler::start_controls(api::Work& work, double now) {
  std::vector<Models::iterator> file_work;
  for (auto at = models_.begin(); at != models_.end();) {
    const auto here = at++;
    if (here->second.base != work.base) continue;
    const CommandPtr command = next_control(here->second);
    if (command == nullptr) continue;
    if (is_file_work(*command)) {
      file_work.push_back(here);
    } else if (start_control(here->first, here->second, work, now)) {
      models_.erase(here);
    }
  }
  return file_work;
}

// Those of `models` whose file the engine has a place for now: their tenants share it.
std::vector<Scheduler::Models::iterator> Scheduler::activate_file_work_that_fits(
    const std::vector<Models::iterator>& models, const api::Capacity& engine, Side& side) const {
  std::vector<Models::iterator> fitting;
  std::vector<api::TenantId> tenants;
  for (const Models::iterator at : models) {
    const int64_t places = is_save(*next_control(at->second)) ? engine.saves : engine.loads;
    if (places == 0) continue;
    fitting.push_back(at);
    tenants.push_back(at->second.tenant);
  }
  side.file_share.set_active(tenants);
  return fitting;
}

// One of all models, of the tenant that had the fewest, and only when training may run: a thousand
// loads in line hold up nobody else.
void Scheduler::start_file_work(const std::vector<Models::iterator>& models,
                                const api::Capacity& engine, Side& side, api::Work& work,
                                double now) {
  const std::vector<Models::iterator> fitting = activate_file_work_that_fits(models, engine, side);
  if (fitting.empty() || !choose_training(engine, side, work)) return;
  const auto chosen = *std::min_element(
      fitting.begin(), fitting.end(), [&](Models::iterator a, Models::iterator b) {
        return side.file_share.used(a->second.tenant) < side.file_share.used(b->second.tenant);
      });
  side.file_share.charge(chosen->second.tenant, 1.0);
  start_control(chosen->first, chosen->second, work, now);
}

// Pages for a request's next row. A request of several rows keeps its prompt's pages until the last
// has ended, so it begins only if, with everything else ended, each of those that have begun could
// still have its largest row: else two of them could wait for each other for ever.
int64_t Scheduler::pages_to_begin(const api::Capacity& engine, const Begun& begun,
                                  const SampleEntry& entry) {
  const auto& sample = std::get<api::Sample>(entry.command->op);
  const int64_t cost = engine.cache.to_join(sample, entry.next_row).pages;
  // A single row ends by itself, and one of a request that has begun was counted when it began.
  if (entry.next_row > 0 || sample.num_samples == 1) return cost;
  const int64_t held = begun.held + engine.cache.of_prompt(sample);
  const int64_t largest = std::max(begun.largest, engine.cache.to_join(sample, 1).pages);
  return held + largest > engine.total_pages ? engine.total_pages + 1 : cost;
}

Scheduler::Begun Scheduler::pages_of_begun(const api::Capacity& engine, const Side& side) const {
  Begun out;
  for (const api::RequestId& request : side.begun) {
    const auto& sample = std::get<api::Sample>(samples_.at(request).command->op);
    out.held += engine.cache.of_prompt(sample);
    out.largest = std::max(out.largest, engine.cache.to_join(sample, 1).pages);
  }
  return out;
}

// A tenant's row that is aside comes before that of its next request.
std::vector<Scheduler::NextRow> Scheduler::candidate_rows(const api::TenantId& tenant,
                                                          const api::Capacity& engine,
                                                          const Side& side, const BudgetLeft& left,
                                                          const Begun& begun) const {
  std::vector<NextRow> rows;
  const api::SampleShare share = left.of(tenant);
  if (share.preempted_rows > 0 && !left.resumed.contains(tenant)) {
    rows.push_back({.tenant = tenant,
                    .resumes = true,
                    .begun = true,
                    .pages = share.pages_to_resume,
                    .pages_to_begin = share.pages_to_resume,
                    .states = share.states_to_resume});
  }
  const auto queue = side.samples.find(tenant);
  if (queue == side.samples.end()) return rows;
  const SampleEntry& entry = samples_.at(queue->second.front());
  const auto& sample = std::get<api::Sample>(entry.command->op);
  const api::PageNeed need = engine.cache.to_join(sample, entry.next_row);
  rows.push_back({.tenant = tenant,
                  .begun = entry.next_row > 0,
                  .pages = need.pages,
                  .pages_to_begin = pages_to_begin(engine, begun, entry),
                  .states = need.states});
  return rows;
}

// The row of the tenant that used least, if it fits. What does not fit waits for its space; until
// it comes, only who holds less passes by, or takes space from who holds more.
std::optional<Scheduler::NextRow> Scheduler::choose_row_while_running(
    const api::Capacity& engine, const Side& side, const BudgetLeft& left,
    const LeastUsedFirst& order) const {
  const Begun begun = pages_of_begun(engine, side);
  int64_t most_pages = INT64_MAX;  // that one who passes by may hold
  for (const auto& [used, tenant] : order) {
    std::vector<NextRow> rows = candidate_rows(tenant, engine, side, left, begun);
    const int64_t held = left.of(tenant).pages;
    if (!rows.empty()) {
      NextRow& first = rows.front();
      const bool fits = left.has(first);
      if (fits && held + first.pages <= most_pages) return first;
      if (!fits) first.takes_from = left.tenant_to_take_from(first);
      if (!first.takes_from.empty()) return first;
    }
    most_pages = std::min(most_pages, held);
  }
  return std::nullopt;
}

// The first row that fits, of whomever; and if none does, one that never will is handed to the
// engine, which says so: of a request that has begun before another.
std::optional<Scheduler::NextRow> Scheduler::choose_row_while_idle(
    const api::Capacity& engine, const Side& side, const BudgetLeft& left,
    const LeastUsedFirst& order) const {
  const Begun begun = pages_of_begun(engine, side);
  std::optional<NextRow> last_resort;
  for (const auto& [used, tenant] : order) {
    for (const NextRow& row : candidate_rows(tenant, engine, side, left, begun)) {
      if (left.has(row)) return row;
      if (!last_resort || (row.begun && !last_resort->begun)) last_resort = row;
    }
  }
  return last_resort;
}

// Its pages, but those of a request's first row that the engine knows.
void Scheduler::charge_row(const api::Capacity& engine, const NextRow& row,
                           const SampleEntry& entry, Side& side) {
  const auto& sample = std::get<api::Sample>(entry.command->op);
  const bool may_know = engine.known != nullptr && entry.next_row == 1;
  const int64_t known =
      may_know ? engine.known->count_reusable_pages(row.tenant, sample, engine.cache) : 0;
  side.sampling_share.charge(row.tenant, static_cast<double>(row.pages - known));
}

void Scheduler::hand_out_row(const api::Capacity& engine, const NextRow& row, Side& side,
                             api::Work& work) {
  if (row.resumes) {
    work.resume.push_back({row.tenant, row.takes_from});
    return;
  }
  SampleEntry& entry = samples_.at(side.samples.find(row.tenant)->second.front());
  const auto& sample = std::get<api::Sample>(entry.command->op);
  entry.waits.release_all();
  take_next_row(entry, row.takes_from, work.samples);
  charge_row(engine, row, entry, side);
  if (entry.next_row < sample.num_samples) {
    side.begun.insert(entry.command->request);
    return;
  }
  side.begun.erase(entry.command->request);
  leave_queue(entry, side);
}

// Behind the rows of the same request, unless it takes from somebody.
void Scheduler::take_next_row(SampleEntry& entry, const api::TenantId& takes_from,
                              std::vector<api::SampleRows>& rows) {
  const bool goes_on = !rows.empty() && rows.back().command == entry.command && takes_from.empty();
  if (!goes_on) rows.push_back({entry.command, entry.next_row, entry.next_row, takes_from});
  rows.back().last = ++entry.next_row;
}

// That have rows to begin or to run on, in order.
std::vector<api::TenantId> Scheduler::tenants_with_rows(const Side& side, const BudgetLeft& left) {
  std::vector<api::TenantId> tenants;
  for (const auto& [tenant, queue] : side.samples) tenants.push_back(tenant);
  for (const auto& [tenant, share] : left.shares) {
    if (share.preempted_rows > 0 && !side.samples.contains(tenant)) tenants.push_back(tenant);
  }
  std::sort(tenants.begin(), tenants.end());
  return tenants;
}

void Scheduler::add_sample_rows(const api::Capacity& engine, Side& side, api::Work& work) {
  BudgetLeft left(engine);
  const std::vector<api::TenantId> tenants = tenants_with_rows(side, left);
  side.sampling_share.set_active(tenants);
  // Nobody is looked at while the engine is full, however many wait.
  if (engine.running_samples > 0 && left.is_full()) return;
  LeastUsedFirst order;
  for (const auto& tenant : tenants) order.emplace(side.sampling_share.used(tenant), tenant);
  while (true) {
    const bool idle = engine.running_samples == 0 && work.samples.empty() && work.resume.empty();
    if (!idle && left.is_full()) return;
    const std::optional<NextRow> row = idle ? choose_row_while_idle(engine, side, left, order)
                                            : choose_row_while_running(engine, side, left, order);
    if (!row) return;
    const bool fits = left.has(*row);
    left.deduct(*row);
    order.erase({side.sampling_share.used(row->tenant), row->tenant});
    hand_out_row(engine, *row, side, work);
    if (side.samples.contains(row->tenant) || left.of(row->tenant).preempted_rows > 0)
      order.emplace(side.sampling_share.used(row->tenant), row->tenant);
    if (!fits) return;  // only the engine knows how much space it will make for it
  }
}

bool Scheduler::any_training_rows(const api::Capacity& engine) const {
  return std::any_of(models_.begin(), models_.end(), [&](const auto& entry) {
    return entry.second.base == engine.base && rows_ready(entry.second);
  });
}

// While both training and sampling have work, the one that has used less time goes: a step of
// sampling in every turn, a training pass or a file in those where training is not ahead.
bool Scheduler::choose_training(const api::Capacity& engine, Side& side, const api::Work& work) {
  if (!work.decode) return true;
  if (!side.both_busy) {
    side.both_busy = true;
    side.train_mark = engine.train_seconds;
    side.sample_mark = engine.sample_seconds;
  }
  return engine.train_seconds - side.train_mark <= engine.sample_seconds - side.sample_mark;
}

void Scheduler::take_next_datum(Model& model, std::vector<api::DataRange>& rows, double now) {
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

std::vector<Scheduler::Models::iterator> Scheduler::activate_ready_models(
    const api::Capacity& engine, Side& side) {
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
  return ready;
}

int64_t Scheduler::next_datum_tokens(const Model& model) {
  const auto& data = std::get<api::ForwardBackward>(model.queue.ready()->op).data;
  return data.empty() ? 0 : datum_tokens(data[model.next_datum]);
}

// Among the models whose next datum fits behind so many tokens of a pass; anything fits an empty
// one.
std::list<Scheduler::ReadyModel>::iterator Scheduler::least_used(std::list<ReadyModel>& models,
                                                                 int64_t tokens,
                                                                 int64_t pass_tokens) {
  auto best = models.end();
  for (auto one = models.begin(); one != models.end(); ++one) {
    if (tokens > 0 && tokens + one->cost > pass_tokens) continue;
    if (best != models.end() &&
        std::tie(best->tenant_used, best->used) <= std::tie(one->tenant_used, one->used)) {
      continue;
    }
    best = one;
  }
  return best;
}

std::list<Scheduler::ReadyModel> Scheduler::collect_ready_models(
    const api::Capacity& engine, Side& side, std::map<api::TenantId, double>& used_by_tenant) {
  std::list<ReadyModel> ready;
  for (const Models::iterator at : activate_ready_models(engine, side)) {
    double& used = used_by_tenant[at->second.tenant];
    used = side.training_share.used(at->second.tenant);
    ready.push_back({at, used, side.model_share.used(at->first), next_datum_tokens(at->second)});
  }
  return ready;
}

// To the model and its tenant, in both of whose meters `trained` then is.
void Scheduler::charge_datum(ReadyModel& trained, Side& side,
                             std::map<api::TenantId, double>& used_by_tenant) {
  const auto& [id, model] = *trained.at;
  const auto cost = static_cast<double>(trained.cost);
  side.training_share.charge(model.tenant, cost);
  side.model_share.charge(id, cost);
  used_by_tenant[model.tenant] += cost;
  trained.used += cost;
}

void Scheduler::add_training_rows(const api::Capacity& engine, Side& side, api::Work& work,
                                  double now) {
  std::map<api::ModelId, std::vector<api::DataRange>> taken;  // rows of a model stand together
  std::map<api::TenantId, double> used_by_tenant;
  std::list<ReadyModel> ready = collect_ready_models(engine, side, used_by_tenant);
  int64_t tokens = 0;
  while (true) {
    const auto best = least_used(ready, tokens, engine.pass_tokens);
    if (best == ready.end()) break;
    auto& [id, model] = *best->at;
    tokens += best->cost;
    take_next_datum(model, taken[id], now);
    charge_datum(*best, side, used_by_tenant);
    if (rows_ready(model)) {
      best->cost = next_datum_tokens(model);
    } else {
      ready.erase(best);
    }
  }
  for (auto& [id, rows] : taken) {
    for (api::DataRange& row : rows) work.rows.push_back(std::move(row));
  }
}

void Scheduler::finish_create(const api::ModelId& id, const api::Outcome& outcome, double now) {
  const auto found = models_.find(id);
  CHECK(found != models_.end(), id.text);
  Model& model = found->second;
  model.creating = false;
  const auto* failure = std::get_if<api::Failure>(&outcome);
  if (failure == nullptr) {
    model.live = true;
    return;
  }
  const std::string reason = fmt::format("model {} was not created: {}", id.text, failure->message);
  end_model(model, failure->category, reason, Saves::kRefused, now);
  refuse_last_saves(model, failure->category, reason);
  if (model.unload != nullptr) answer(model.unload->request, api::Done{});
  models_.erase(found);
}

std::vector<api::Result> Scheduler::complete(std::vector<api::Result> results, double now) {
  const MutexLock lock(mutex_);
  for (api::Result& result : results) {
    apply_result(result, now);
    answer(result.request, std::move(result.outcome));
  }
  return std::exchange(answers_, {});
}

// What an engine's answer changes of models and samples.
void Scheduler::apply_result(const api::Result& result, double now) {
  if (const auto created = creating_.find(result.request); created != creating_.end()) {
    const api::ModelId id = std::move(created->second);
    creating_.erase(created);
    finish_create(id, result.outcome, now);
  }
  if (const auto loaded = loading_.find(result.request); loaded != loading_.end()) {
    models_.at(loaded->second).loading = false;
    loading_.erase(loaded);
  }
  if (const auto begun = begun_.find(result.request); begun != begun_.end()) {
    pop(models_.at(begun->second), now);  // it failed: the rest of its data is not run
    begun_.erase(begun);
  }
  forget_ended_sample(result.request);
}

// With the rows of it that are left to hand out.
void Scheduler::forget_ended_sample(const api::RequestId& request) {
  const auto sample = samples_.find(request);
  if (sample == samples_.end()) return;
  const api::Command& command = *sample->second.command;
  Side& side = sides_[command.base];
  const bool rows_left = sample->second.next_row < std::get<api::Sample>(command.op).num_samples;
  if (rows_left && side.samples.contains(command.tenant)) drop_sample(request);
  samples_.erase(request);
}

}  // namespace strata::scheduler
