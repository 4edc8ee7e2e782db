// SPDX-License-Identifier: Apache-2.0
// Scheduler: from commands in the order clients send them to turns of work for the engines. Knows
// order and batching and nothing of tensors.
//
// Training: each model runs in the order of its numbers (ModelQueue). An operation other than
// forward and forward_backward is a barrier: it starts when all before it are done, and nothing
// after it starts earlier. A turn holds, for each model, the barrier that stands first in line (but
// one save or load of all models together), and then one pass of rows: data of forward and
// forward_backward of any models, adapters and losses, up to the pass's token budget. A large
// command takes several turns, cut between data. A load's answer may come turns later, since
// another thread reads its files: until then its model waits, and nobody else does.
// Sampling: rows join the running batch while it has space for them; nothing orders them. Where it
// has none, a tenant that holds less takes space from one that holds more, as long as that leaves
// the other no worse off: rows of that one are set aside and run on later, to the same result.
// Fairness: tenants share the pass by tokens and the KV pages by pages, of which those that the
// engine knows and need not read are not counted; training and sampling share
// the engine by time. Two that are always busy differ by at most one item; the first item of a pass
// may exceed its budget, so that no size starves.
//
// Each accepted command is answered exactly once, by what complete() returns: the engine's result,
// or a failure of the scheduler's own if it never ran. One lock; the server's threads submit, the
// engine thread turns:
//   scheduler.wait(1.0);
//   work = scheduler.next({engine.capacity()}, now);
//   futures.post(scheduler.complete(engine.run(work), now));
#pragma once
#include <algorithm>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "api/admission.h"
#include "api/result.h"
#include "api/work.h"
#include "base/account.h"
#include "base/mutex.h"
#include "scheduler/model_queue.h"

namespace strata::scheduler {

// FairShare: who comes next when several share one resource. Each has a meter of what it used; the
// lowest goes first, ties by name. One who returns after idling starts at the lowest meter of those
// who are active, so nobody saves up credit and nobody is charged for the past. While two are
// active all the time, what they got differs by at most one item. Plain data, no lock.
template <typename Key>
class FairShare {
 public:
  // Who has something to do now; the others leave.
  template <typename Keys>
  void set_active(const Keys& keys) {
    const auto is_same = [](const Key& key, const auto& entry) { return key == entry.first; };
    if (std::equal(keys.begin(), keys.end(), used_.begin(), used_.end(), is_same)) return;
    std::map<Key, double> next;
    std::optional<double> lowest;
    for (const Key& key : keys) {
      const auto found = used_.find(key);
      if (found == used_.end()) continue;
      next[key] = found->second;
      lowest = lowest ? std::min(*lowest, found->second) : found->second;
    }
    for (const Key& key : keys) next.emplace(key, lowest.value_or(0.0));
    used_ = std::move(next);
  }
  void charge(const Key& key, double cost) { used_[key] += cost; }
  // Active ones only.
  [[nodiscard]] double used(const Key& key) const { return used_.at(key); }

 private:
  std::map<Key, double> used_;
};

struct SchedulerOptions {
  double gap_timeout = 600.0;            // seconds
  Accounts accounts = {};                // of commands until they are gone, and of samples
  size_t max_queued_operations = 16384;  // of one model, not begun
};

struct SchedulerStats {
  int64_t models = 0;
  int64_t queued_training = 0;  // operations not started
  int64_t held_training = 0;    // of these, behind a missing number
  int64_t queued_samples = 0;   // requests not begun
  int64_t running_samples = 0;  // requests begun and not answered
  int64_t queued_bytes = 0;     // of these, and of what is running
};

class Scheduler {
 public:
  explicit Scheduler(const SchedulerOptions& options) : options_(options) {}

  // Server side, any thread. `now` is now_seconds().
  api::Admission submit(api::Command command, double now);
  // A request with this number was refused before it came here: nobody waits for it.
  void mark_refused(const api::ModelId& model, int64_t seq_id, double now);
  // Ends a session: what has not started fails with `reason` (category user), running samples are
  // cancelled, saves in line are still done, then its models are unloaded.
  void end_session(const api::SessionId& session, std::string_view reason, double now);
  // A sample that has not ended fails with `reason` (category user) and leaves with its rows and
  // pages, waiting or running. False for what is none, or has ended: nothing changes.
  bool cancel(const api::RequestId& request, std::string_view reason);
  // Gives up the gaps whose time is over. `excused` seconds of the time until `now` count for none:
  // the server was frozen, and what is missing may lie in its sockets. Several times a second, by
  // the thread that submits.
  void give_up_overdue_gaps(double now, double excused);
  // The memory of fixed sampler weights may go; running samples keep theirs.
  void release(api::BaseId base, const api::SnapshotId& snapshot);
  // Shutdown: submissions answer kStopping; everything but the saves in line fails (category
  // server). Idle says when the saves are done.
  void begin_shutdown(double now);
  [[nodiscard]] bool idle() const;
  // What the shutdown failed of what had been accepted.
  [[nodiscard]] size_t num_dropped() const;
  [[nodiscard]] SchedulerStats stats() const;

  // Tokens that a datum counts as in a pass.
  [[nodiscard]] static int64_t datum_tokens(const api::Datum& datum);

  // Engine side, one thread. One turn for one of the engines; empty when none has anything to do.
  api::Work next(std::span<const api::Capacity> engines, double now);
  // What of sampling may be done while a turn with training rows is running.
  api::Work next_samples(const api::Capacity& engine);
  // Whether any engine's samples wait to begin or to leave. Any thread.
  [[nodiscard]] bool any_samples_waiting() const;
  // Notes what the engine answered and returns what is to be posted: these, less those of commands
  // that were failed in the meantime, and the failures since the last call (gaps, ended
  // sessions). Call it after every turn, an empty one too.
  std::vector<api::Result> complete(std::vector<api::Result> results, double now);
  // Returns when something has changed since the last next(), or after `seconds`.
  void wait(double seconds);
  // Makes wait() return.
  void wake();

 private:
  struct Model {
    api::TenantId tenant;
    api::SessionId session;
    api::BaseId base = {};
    CommandPtr create;      // until it is handed out
    bool creating = false;  // it was, and is not answered yet
    bool live = false;      // its creation succeeded
    bool loading = false;   // a LoadState was handed out: nothing of it starts before the answer
    bool ending = false;    // nothing new is accepted; after its last saves comes the unload
    std::deque<CommandPtr> last_saves;
    CommandPtr unload;
    size_t next_datum = 0;  // of the command in front, when it has begun
    ModelQueue queue;
  };
  using Models = std::map<api::ModelId, Model>;
  using SampleQueue = std::list<api::RequestId>;
  struct SampleEntry {
    CommandPtr command;
    Charge waits;  // until a row of it is handed out
    int64_t next_row = 0;
    std::optional<SampleQueue::iterator> place = {};  // while rows are left to hand out
  };
  using SampleQueues = std::map<api::TenantId, SampleQueue>;
  struct Side {                             // what belongs to one engine
    SampleQueues samples;                   // rows left to hand out
    std::set<api::RequestId> begun;         // those of which some rows were
    std::vector<api::RequestId> cancelled;  // samples
    std::vector<api::RequestId> abandoned;  // whose data were run in part
    std::vector<api::SnapshotId> released;
    FairShare<api::TenantId> training_share, sampling_share;
    FairShare<api::TenantId> file_share;  // saves and loads
    FairShare<api::ModelId> model_share;
    bool both_busy = false;  // training and sampling; then since these meter readings:
    double train_mark = 0.0, sample_mark = 0.0;
  };

  // A command and what it holds of its tenant's account as long as anybody has it.
  struct Held {
    api::Command command;
    int64_t num_bytes = 0;
    Charge charge;
  };
  api::Admission submit_sample(CommandPtr command, Held& held) REQUIRES(mutex_);
  api::Admission submit_create(CommandPtr command, Held& held) REQUIRES(mutex_);
  api::Admission submit_unload(CommandPtr command, double now) REQUIRES(mutex_);
  api::Admission submit_sequenced(CommandPtr command, Held& held, double now) REQUIRES(mutex_);
  [[nodiscard]] int64_t bytes_to_leave(const api::Command& command, const Model* model) const
      REQUIRES(mutex_);
  // kAccepted, or why there is no space for the command's bytes: of `model`'s in its order, if any.
  [[nodiscard]] api::Admission admit(Held& held, const Model* model) REQUIRES(mutex_);

  void expect_answer(const api::RequestId& request) REQUIRES(mutex_);
  void answer(const api::RequestId& request, api::Outcome outcome) REQUIRES(mutex_);
  void refuse(const CommandPtr& command, api::FaultCategory category, std::string_view reason)
      REQUIRES(mutex_);
  void give_up_gap(const api::ModelId& id, Model& model, double now) REQUIRES(mutex_);
  void abandon_begun_command(Model& model) REQUIRES(mutex_);
  void refuse_last_saves(Model& model, api::FaultCategory category, std::string_view reason)
      REQUIRES(mutex_);
  enum class Saves { kKept, kRefused };  // those that are in line
  void end_model(Model& model, api::FaultCategory category, std::string_view reason, Saves saves,
                 double now) REQUIRES(mutex_);
  // Ends the samples of the session, or all where it is null.
  void end_samples(const api::SessionId* session, api::FaultCategory category,
                   std::string_view reason) REQUIRES(mutex_);
  static void leave_queue(SampleEntry& entry, Side& side);
  void drop_sample(const api::RequestId& request) REQUIRES(mutex_);
  void apply_result(const api::Result& result, double now) REQUIRES(mutex_);
  void forget_ended_sample(const api::RequestId& request) REQUIRES(mutex_);
  void finish_create(const api::ModelId& id, const api::Outcome& outcome, double now)
      REQUIRES(mutex_);
  void pop(Model& model, double now) REQUIRES(mutex_);

  [[nodiscard]] static CommandPtr make_unload(const api::ModelId& id, const Model& model);
  [[nodiscard]] static bool is_save(const api::Command& command);
  [[nodiscard]] static bool is_load(const api::Command& command);
  [[nodiscard]] static bool is_file_work(const api::Command& command);
  [[nodiscard]] CommandPtr next_control(const Model& model) const REQUIRES(mutex_);
  // Starts the model's next control operation; true when the model is no more.
  bool start_control(const api::ModelId& id, Model& model, api::Work& work, double now)
      REQUIRES(mutex_);
  // The models whose next operation needs a file, which it leaves.
  std::vector<Models::iterator> start_controls(api::Work& work, double now) REQUIRES(mutex_);
  std::vector<Models::iterator> activate_file_work_that_fits(
      const std::vector<Models::iterator>& models, const api::Capacity& engine, Side& side) const
      REQUIRES(mutex_);
  void start_file_work(const std::vector<Models::iterator>& models, const api::Capacity& engine,
                       Side& side, api::Work& work, double now) REQUIRES(mutex_);
  // What requests of several rows need that have begun.
  struct Begun {
    int64_t held = 0;     // pages of their prompts
    int64_t largest = 0;  // pages of a row
  };
  [[nodiscard]] Begun pages_of_begun(const api::Capacity& engine, const Side& side) const
      REQUIRES(mutex_);
  [[nodiscard]] static int64_t pages_to_begin(const api::Capacity& engine, const Begun& begun,
                                              const SampleEntry& entry);
  // A row that may be next: of a tenant's first request, or one that is aside.
  struct NextRow {
    api::TenantId tenant;
    bool resumes = false;
    bool begun = false;          // its request has
    int64_t pages = 0;           // that it may come to hold
    int64_t pages_to_begin = 0;  // that must be free
    int64_t states = 0;          // that it takes
    api::TenantId takes_from = {};
  };
  struct BudgetLeft;
  using LeastUsedFirst = std::set<std::pair<double, api::TenantId>>;
  [[nodiscard]] static std::vector<api::TenantId> tenants_with_rows(const Side& side,
                                                                    const BudgetLeft& left);
  [[nodiscard]] std::vector<NextRow> candidate_rows(const api::TenantId& tenant,
                                                    const api::Capacity& engine, const Side& side,
                                                    const BudgetLeft& left,
                                                    const Begun& begun) const REQUIRES(mutex_);
  [[nodiscard]] std::optional<NextRow> choose_row_while_running(const api::Capacity& engine,
                                                                const Side& side,
                                                                const BudgetLeft& left,
                                                                const LeastUsedFirst& order) const
      REQUIRES(mutex_);
  // While nothing runs.
  [[nodiscard]] std::optional<NextRow> choose_row_while_idle(const api::Capacity& engine,
                                                             const Side& side,
                                                             const BudgetLeft& left,
                                                             const LeastUsedFirst& order) const
      REQUIRES(mutex_);
  static void take_next_row(SampleEntry& entry, const api::TenantId& takes_from,
                            std::vector<api::SampleRows>& rows);
  static void charge_row(const api::Capacity& engine, const NextRow& row, const SampleEntry& entry,
                         Side& side);
  void hand_out_row(const api::Capacity& engine, const NextRow& row, Side& side, api::Work& work)
      REQUIRES(mutex_);
  api::Work make_turn(const api::Capacity& engine, double now) REQUIRES(mutex_);
  void add_sampling_work(const api::Capacity& engine, Side& side, api::Work& work) REQUIRES(mutex_);
  void add_sample_rows(const api::Capacity& engine, Side& side, api::Work& work) REQUIRES(mutex_);
  void add_training_rows(const api::Capacity& engine, Side& side, api::Work& work, double now)
      REQUIRES(mutex_);
  // The models with data to take, which alone share the pass.
  std::vector<Models::iterator> activate_ready_models(const api::Capacity& engine, Side& side)
      REQUIRES(mutex_);
  // A model with data to take, and what is compared of it for each datum, of a thousand models for
  // thousands of data.
  struct ReadyModel {
    Models::iterator at;
    const double& tenant_used;
    double used;
    int64_t cost;  // of its next datum
  };
  // Activates what is ready, with its use; `used_by_tenant` holds what the list refers to.
  std::list<ReadyModel> collect_ready_models(const api::Capacity& engine, Side& side,
                                             std::map<api::TenantId, double>& used_by_tenant)
      REQUIRES(mutex_);
  static void charge_datum(ReadyModel& trained, Side& side,
                           std::map<api::TenantId, double>& used_by_tenant);
  [[nodiscard]] static int64_t next_datum_tokens(const Model& model);
  [[nodiscard]] static std::list<ReadyModel>::iterator least_used(std::list<ReadyModel>& models,
                                                                  int64_t tokens,
                                                                  int64_t pass_tokens);
  void take_next_datum(Model& model, std::vector<api::DataRange>& rows, double now)
      REQUIRES(mutex_);
  [[nodiscard]] bool any_training_rows(const api::Capacity& engine) const REQUIRES(mutex_);
  static bool choose_training(const api::Capacity& engine, Side& side, const api::Work& work);
  [[nodiscard]] static bool rows_ready(const Model& model);
  void note_change() REQUIRES(mutex_);

  const SchedulerOptions options_;

  mutable Mutex mutex_;
  CondVar condition_;
  bool changed_ GUARDED_BY(mutex_) = false;
  bool stopping_ GUARDED_BY(mutex_) = false;
  Models models_ GUARDED_BY(mutex_);
  std::map<api::BaseId, Side> sides_ GUARDED_BY(mutex_);
  std::unordered_map<api::RequestId, SampleEntry> samples_ GUARDED_BY(mutex_);  // until answered
  std::unordered_map<api::RequestId, api::ModelId> creating_
      GUARDED_BY(mutex_);  // handed out, no answer yet
  std::unordered_map<api::RequestId, api::ModelId> loading_ GUARDED_BY(mutex_);  // likewise
  std::unordered_map<api::RequestId, api::ModelId> begun_
      GUARDED_BY(mutex_);  // some of its data handed out
  std::set<api::RequestId> unanswered_ GUARDED_BY(mutex_);
  std::vector<api::Result> answers_ GUARDED_BY(mutex_);
  size_t num_dropped_ GUARDED_BY(mutex_) = 0;
  size_t next_engine_ GUARDED_BY(mutex_) = 0;
};

// What is left of an engine's space while a turn is made, and who has what of it.
struct Scheduler::BudgetLeft {
  int64_t rows = 0;
  int64_t pages = 0;
  int64_t states = 0;
  std::map<api::TenantId, api::SampleShare> shares;
  std::set<api::TenantId> resumed;  // in this turn: the engine says which row is next after it

  explicit BudgetLeft(const api::Capacity& engine)
      : rows(engine.sample_rows), pages(engine.free_pages), states(engine.free_states) {
    for (const api::SampleShare& share : engine.shares) shares[share.tenant] = share;
  }
  [[nodiscard]] api::SampleShare of(const api::TenantId& tenant) const {
    const auto found = shares.find(tenant);
    return found == shares.end() ? api::SampleShare{} : found->second;
  }
  // Nothing can begin or run on, whoever asks.
  [[nodiscard]] bool is_full() const {
    return rows <= 0 && std::none_of(shares.begin(), shares.end(), [](const auto& entry) {
             return entry.second.rows_to_take > 0;
           });
  }
  [[nodiscard]] bool has(const NextRow& row) const {
    return rows > 0 && row.pages_to_begin <= pages && row.states <= states;
  }
  void deduct(const NextRow& row) {
    --rows;
    pages -= row.pages;
    states -= row.states;
    api::SampleShare& share = shares[row.tenant];
    ++share.rows;
    share.pages += row.pages;
    if (row.resumes) resumed.insert(row.tenant);
  }
  // The one who has most of what the row lacks, if it still has as much as the row's tenant after
  // it gave that up. Then none can take it back, and nobody's rows change places for ever.
  [[nodiscard]] api::TenantId tenant_to_take_from(const NextRow& row) const {
    const api::SampleShare own = of(row.tenant);
    const api::SampleShare* richest = nullptr;
    for (const auto& [tenant, share] : shares) {
      // Its row that runs on in this turn is not to be set aside at once.
      if (tenant == row.tenant || resumed.contains(tenant)) continue;
      if (!may_give(share, own, row)) continue;
      const bool more = richest == nullptr || (lacks_pages(row) ? share.pages > richest->pages
                                                                : share.rows > richest->rows);
      if (more) richest = &share;
    }
    return richest == nullptr ? api::TenantId{} : richest->tenant;
  }
  [[nodiscard]] bool lacks_pages(const NextRow& row) const { return row.pages_to_begin > pages; }
  // What the row lacks, to `own`, the share of its tenant.
  [[nodiscard]] bool may_give(const api::SampleShare& share, const api::SampleShare& own,
                              const NextRow& row) const {
    const bool lacks_rows = rows <= 0 || row.states > states;
    const int64_t wanted = row.pages_to_begin;
    // A row that is set aside gives a place and, where there are any, a state.
    if (lacks_rows && (share.rows_to_take == 0 || share.rows - 1 < own.rows + 1)) return false;
    if (row.states > states && share.rows_to_take < row.states - states) return false;
    return !lacks_pages(row) ||
           (pages + share.pages_to_take >= wanted && share.pages - wanted >= own.pages + wanted);
  }
};

}  // namespace strata::scheduler
