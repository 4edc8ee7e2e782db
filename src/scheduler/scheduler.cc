// SPDX-License-Identifier: Apache-2.0
// The server's side: what comes in and what ends early. Turns are in turn.cc.
#include "scheduler/scheduler.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/clock.h"

namespace strata::scheduler {
namespace {

constexpr int64_t kPartOfOne = 4;       // of all queued bytes, for one command
constexpr int64_t kBookkeeping = 1024;  // its places in queues and maps, its future and number

int64_t bytes_of(const api::Datum& datum) {
  size_t values = datum.tokens.size() + datum.targets.size();
  for (const std::vector<float>& column : datum.inputs.values) values += column.size();
  return static_cast<int64_t>(sizeof(api::Datum) + 4 * values);
}

// Bytes of a sample's lists, and of what else is kept of it.
int64_t bytes_of(const api::Sample& sample) {
  // Twice: a record of it has the prompt as well. Targets have an id, and a place or two here and
  // with who answers.
  const size_t values = 2 * sample.prompt.size() + 5 * sample.prompt_targets.ids.size() +
                        2 * sample.prompt_targets.first.size() + sample.stop.size() +
                        2 * sample.logit_bias.size();
  auto bytes = static_cast<int64_t>(4 * values);
  for (const std::string& text : sample.stop_texts)
    bytes += static_cast<int64_t>(sizeof text + text.capacity());
  return bytes;
}

// Until it is answered, nearly.
int64_t bytes_of(const api::Command& command) {
  auto bytes = static_cast<int64_t>(sizeof(api::Command)) + kBookkeeping;
  if (const auto* work = std::get_if<api::ForwardBackward>(&command.op)) {
    for (const api::Datum& datum : work->data) bytes += bytes_of(datum);
  }
  if (const auto* sample = std::get_if<api::Sample>(&command.op)) bytes += bytes_of(*sample);
  return bytes;
}

}  // namespace

bool Scheduler::is_save(const api::Command& command) {
  return std::holds_alternative<api::SaveState>(command.op) ||
         std::holds_alternative<api::SaveForSampler>(command.op);
}

bool Scheduler::is_load(const api::Command& command) {
  if (const auto* create = std::get_if<api::CreateModel>(&command.op))
    return !create->load_dir.empty();
  return std::holds_alternative<api::LoadState>(command.op);
}

// What needs a file: the engine copies whole adapters for it, or has them read.
bool Scheduler::is_file_work(const api::Command& command) {
  return is_save(command) || is_load(command);
}

int64_t Scheduler::datum_tokens(const api::Datum& datum) {
  return std::max<int64_t>(1, std::ssize(datum.tokens));
}

void Scheduler::expect_answer(const api::RequestId& request) {
  CHECK(unanswered_.insert(request).second, "a request id was used twice", request.text);
}

void Scheduler::note_change() {
  changed_ = true;
  condition_.notify_all();
}

api::Admission Scheduler::submit(api::Command command, double now) {
  const int64_t bytes = bytes_of(command);
  Charge charge = options_.accounts.open(command.tenant.text);
  const auto held = std::make_shared<Held>(Held{std::move(command), bytes, std::move(charge)});
  const CommandPtr shared(held, &held->command);
  const MutexLock lock(mutex_);
  if (stopping_) return api::Admission::kStopping;
  auto out = api::Admission::kAccepted;
  if (std::holds_alternative<api::Sample>(shared->op)) {
    out = submit_sample(shared, *held);
  } else if (std::holds_alternative<api::CreateModel>(shared->op)) {
    out = submit_create(shared, *held);
  } else if (std::holds_alternative<api::UnloadModel>(shared->op)) {
    out = submit_unload(shared, now);
  } else {
    out = submit_sequenced(shared, *held, now);
  }
  if (out == api::Admission::kAccepted) note_change();
  return out;
}

// So that everything can always go on, what comes leaves space behind it: what may be put off, for
// what may not; what waits for a missing number, for that one, which is taken to the last byte.
int64_t Scheduler::bytes_to_leave(const api::Command& command, const Model* model) const {
  const SharedLimit& limit = options_.accounts.of(Use::kQueue);
  const int64_t of_one = limit.limit() / kPartOfOne;
  const bool is_late = command.may_be_put_off();
  const int64_t spare = is_late ? limit.own_part() / 8 : 0;
  if (model == nullptr) return spare;
  if (command.seq_id == model->queue.next()) return 0;
  if (command.seq_id <= model->queue.missing()) return spare;
  return std::max(spare, is_late ? of_one : of_one / 2);
}

api::Admission Scheduler::admit(Held& held, const Model* model) {
  const int64_t of_one = held.charge.limit(Use::kQueue).limit() / kPartOfOne;
  if (held.num_bytes > of_one) return api::Admission::kTooLarge;
  const bool fits =
      held.charge.hold(Use::kQueue, held.num_bytes, bytes_to_leave(held.command, model));
  return fits ? api::Admission::kAccepted : api::Admission::kFull;
}

api::Admission Scheduler::submit_sample(CommandPtr command, Held& held) {
  if (const auto full = admit(held, nullptr); full != api::Admission::kAccepted) return full;
  Charge waits = held.charge.another();
  if (!waits.hold(Use::kSample, 1)) return api::Admission::kFull;
  expect_answer(command->request);
  SampleQueue& queue = sides_[command->base].samples[command->tenant];
  queue.push_back(command->request);
  samples_[command->request] = {
      .command = command, .waits = std::move(waits), .place = std::prev(queue.end())};
  return api::Admission::kAccepted;
}

api::Admission Scheduler::submit_create(CommandPtr command, Held& held) {
  if (models_.contains(command->model)) return api::Admission::kGivenUp;
  if (const auto full = admit(held, nullptr); full != api::Admission::kAccepted) return full;
  Model& model = models_[command->model];
  model.tenant = command->tenant;
  model.session = command->session;
  model.base = command->base;
  model.create = command;
  expect_answer(command->request);
  return api::Admission::kAccepted;
}

api::Admission Scheduler::submit_unload(CommandPtr command, double now) {
  const auto found = models_.find(command->model);
  if (found == models_.end() || found->second.ending) return api::Admission::kUnknownModel;
  expect_answer(command->request);
  found->second.unload = command;
  end_model(found->second, api::FaultCategory::kUser,
            fmt::format("model {} was unloaded", command->model.text), Saves::kRefused, now);
  return api::Admission::kAccepted;
}

api::Admission Scheduler::submit_sequenced(CommandPtr command, Held& held, double now) {
  const auto found = models_.find(command->model);
  if (found == models_.end() || found->second.ending) return api::Admission::kUnknownModel;
  Model& model = found->second;
  CHECK(command->seq_id >= 1, command->seq_id);
  if (!model.queue.awaits(command->seq_id)) return api::Admission::kGivenUp;
  // What everything else waits for is let in, or a full queue would never drain.
  const bool may_wait = command->seq_id != model.queue.next();
  if (may_wait && model.queue.num_waiting() >= options_.max_queued_operations)
    return api::Admission::kFull;
  if (const auto full = admit(held, &model); full != api::Admission::kAccepted) return full;
  model.queue.add(command, now);
  expect_answer(command->request);
  return api::Admission::kAccepted;
}

void Scheduler::mark_refused(const api::ModelId& id, int64_t seq_id, double now) {
  const MutexLock lock(mutex_);
  const auto found = models_.find(id);
  if (found == models_.end()) return;
  found->second.queue.mark_refused(seq_id, now);
  note_change();
}

void Scheduler::answer(const api::RequestId& request, api::Outcome outcome) {
  if (unanswered_.erase(request) == 1) answers_.push_back({request, std::move(outcome)});
  note_change();
}

void Scheduler::refuse(const CommandPtr& command, api::FaultCategory category,
                       std::string_view reason) {
  answer(command->request, api::Failure{category, std::string(reason)});
}

void Scheduler::drop_sample(const api::RequestId& request) {
  const auto found = samples_.find(request);
  const api::Command& command = *found->second.command;
  Side& side = sides_[command.base];
  if (found->second.next_row > 0) side.cancelled.push_back(request);
  side.begun.erase(request);
  if (found->second.place) leave_queue(found->second, side);
  samples_.erase(found);
}

void Scheduler::leave_queue(SampleEntry& entry, Side& side) {
  const auto queue = side.samples.find(entry.command->tenant);
  queue->second.erase(*entry.place);
  entry.place.reset();
  if (queue->second.empty()) side.samples.erase(queue);
}

bool Scheduler::cancel(const api::RequestId& request, std::string_view reason) {
  const MutexLock lock(mutex_);
  if (!samples_.contains(request)) return false;
  drop_sample(request);
  answer(request, api::Failure{api::FaultCategory::kUser, std::string(reason)});
  return true;
}

void Scheduler::end_samples(const api::SessionId* session, api::FaultCategory category,
                            std::string_view reason) {
  std::vector<api::RequestId> ended;
  for (const auto& [request, entry] : samples_) {
    if (session == nullptr || entry.command->session == *session) ended.push_back(request);
  }
  for (const api::RequestId& request : ended) {
    drop_sample(request);
    answer(request, api::Failure{category, std::string(reason)});
  }
}

// The command in front, some of whose data were handed out: the engine drops what it has of it.
void Scheduler::abandon_begun_command(Model& model) {
  const api::RequestId& request = model.queue.ready()->request;
  begun_.erase(request);
  sides_[model.base].abandoned.push_back(request);
  model.next_datum = 0;
}

void Scheduler::end_model(Model& model, api::FaultCategory category, std::string_view reason,
                          Saves saves, double now) {
  model.ending = true;
  size_t in_line = model.queue.num_ready();
  if (model.next_datum > 0) abandon_begun_command(model);
  for (const CommandPtr& command : model.queue.take_all(now)) {
    const bool is_in_line = in_line > 0 && in_line-- > 0;
    if (saves == Saves::kKept && is_save(*command) && is_in_line) {
      model.last_saves.push_back(command);
    } else {
      refuse(command, category, reason);
    }
  }
  if (model.create != nullptr) {  // never began: nothing to save or unload
    refuse_last_saves(model, category, reason);
    refuse(std::exchange(model.create, nullptr), category, reason);
  }
}

void Scheduler::refuse_last_saves(Model& model, api::FaultCategory category,
                                  std::string_view reason) {
  for (const CommandPtr& save : std::exchange(model.last_saves, {})) refuse(save, category, reason);
}

// That nobody waits for.
CommandPtr Scheduler::make_unload(const api::ModelId& id, const Model& model) {
  return std::make_shared<const api::Command>(api::Command{.request = {},
                                                           .tenant = model.tenant,
                                                           .session = model.session,
                                                           .model = id,
                                                           .base = model.base,
                                                           .op = api::UnloadModel{}});
}

void Scheduler::end_session(const api::SessionId& session, std::string_view reason, double now) {
  const MutexLock lock(mutex_);
  for (auto& [id, model] : models_) {
    if (model.session != session || model.ending) continue;
    end_model(model, api::FaultCategory::kUser, reason, Saves::kKept, now);
    model.unload = make_unload(id, model);
  }
  end_samples(&session, api::FaultCategory::kUser, reason);
  note_change();
}

void Scheduler::give_up_overdue_gaps(double now, double excused) {
  const MutexLock lock(mutex_);
  note_change();  // an engine may have written a save and take another
  for (auto& [id, model] : models_) {
    model.queue.excuse(excused);
    const std::optional<double> since = model.queue.gap_since();
    if (since && now - *since >= options_.gap_timeout) give_up_gap(id, model, now);
  }
}

void Scheduler::give_up_gap(const api::ModelId& id, Model& model, double now) {
  const int64_t missing = model.queue.next();
  for (const CommandPtr& command : model.queue.give_up_gap(now)) {
    refuse(command, api::FaultCategory::kServer,
           fmt::format("model {}: seq_id {} did not arrive within {} s, so {} cannot run in order",
                       id.text, missing, options_.gap_timeout, command->seq_id));
  }
}

void Scheduler::release(api::BaseId base, const api::SnapshotId& snapshot) {
  const MutexLock lock(mutex_);
  sides_[base].released.push_back(snapshot);
  note_change();
}

void Scheduler::begin_shutdown(double now) {
  const MutexLock lock(mutex_);
  stopping_ = true;
  const size_t accepted = unanswered_.size();
  const std::string_view reason = "the server is shutting down";
  for (auto& [id, model] : models_) {
    if (!model.ending) end_model(model, api::FaultCategory::kServer, reason, Saves::kKept, now);
  }
  end_samples(/*session=*/nullptr, api::FaultCategory::kServer, reason);
  num_dropped_ = accepted - unanswered_.size();
  note_change();
}

size_t Scheduler::num_dropped() const {
  const MutexLock lock(mutex_);
  return num_dropped_;
}

bool Scheduler::any_samples_waiting() const {
  const MutexLock lock(mutex_);
  return std::any_of(sides_.begin(), sides_.end(), [](const auto& side) {
    return !side.second.samples.empty() || !side.second.cancelled.empty();
  });
}

bool Scheduler::idle() const {
  const MutexLock lock(mutex_);
  return unanswered_.empty() && answers_.empty();
}

SchedulerStats Scheduler::stats() const {
  const MutexLock lock(mutex_);
  SchedulerStats out;
  out.models = static_cast<int64_t>(models_.size());
  for (const auto& [id, model] : models_) {
    const auto waiting = static_cast<int64_t>(model.queue.num_waiting());
    out.queued_training += waiting;
    if (model.queue.has_gap()) out.held_training += waiting;
  }
  out.queued_samples = options_.accounts.of(Use::kSample).used();
  out.running_samples = static_cast<int64_t>(samples_.size()) - out.queued_samples;
  out.queued_bytes = options_.accounts.of(Use::kQueue).used();
  return out;
}

void Scheduler::wait(double seconds) {
  const double end = now_seconds() + seconds;
  const MutexLock lock(mutex_);
  while (!changed_ && condition_.wait_until(mutex_, end)) {
  }
}

void Scheduler::wake() {
  const MutexLock lock(mutex_);
  note_change();
}

}  // namespace strata::scheduler
