// SPDX-License-Identifier: Apache-2.0
#include "backend/rank_threads.h"

#include <array>
#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "backend/thread_comm.h"
#include "backend/thread_exchange.h"
#include "base/check.h"
#include "base/mutex.h"
#include "base/trace.h"

namespace strata {
namespace {

enum Level : uint8_t { kWork, kBreak };

// What was asked for.
struct Job {
  const FunctionRef<void(int rank)>* body = nullptr;
  Level messages = kWork;  // whose it sends and receives
  uint64_t number = 0;
  int left = 0;  // ranks that have not ended it
};

}  // namespace

struct RankThreads::State {
  struct Rank {
    std::function<bool()> is_due;
    std::function<void()> take;
    std::unique_ptr<Interruption> breaks;
    std::unique_ptr<ThreadComm> comms[2];  // by level
    std::array<uint64_t, 2> seen = {};     // the last job
    bool in_break = false;                 // of its own thread, or of rank 0's where it waits
  };

  explicit State(int num_ranks) : ranks(static_cast<size_t>(num_ranks)) {
    CHECK(num_ranks >= 1, num_ranks);
    for (int rank = 0; rank < num_ranks; ++rank) set_up_rank(rank);
    for (int rank = 1; rank < num_ranks; ++rank)
      threads.emplace_back([this, rank] { follow_rank_0(rank); });
  }
  ~State() {
    {
      const MutexLock lock(mutex);
      stopping = true;
    }
    asked.notify_all();
    threads.clear();
  }

  [[nodiscard]] Rank& at(int rank) { return ranks[static_cast<size_t>(rank)]; }
  [[nodiscard]] int num_others() const { return static_cast<int>(ranks.size()) - 1; }

  void set_up_rank(int rank) {
    Rank& of = at(rank);
    of.is_due = [this, rank, &of] {
      if (of.in_break) return false;
      return rank == 0 ? asked_breaks->is_due() : meeting.load(std::memory_order_acquire);
    };
    of.take = [this, rank] { rank == 0 ? run_break() : serve_break(rank); };
    of.breaks = std::make_unique<Interruption>(Interruption{of.is_due, of.take});
    for (const Level level : {kWork, kBreak})
      of.comms[level] = std::make_unique<ThreadComm>(exchanges[level], rank, num_others() + 1);
  }

  void run_rank_body(Level messages, int rank, FunctionRef<void(int rank)> body) {
    try {
      body(rank);
    } catch (...) {
      exchanges[messages].announce_failure(std::current_exception());
    }
  }

  // Rank 0's.
  void run_job_on_all_ranks(Level messages, FunctionRef<void(int rank)> body) {
    const Level level = at(0).in_break ? kBreak : kWork;
    CHECK(level <= messages && !is_running[level], level, messages);  // one at a time
    is_running[level] = true;
    post_job(level, messages, body);
    run_rank_body(messages, 0, body);
    wait_for_others_to_end(level);
    is_running[level] = false;
    if (const std::exception_ptr failure = exchanges[messages].recover_from_failure())
      std::rethrow_exception(failure);
  }

  void post_job(Level level, Level messages, const FunctionRef<void(int rank)>& body) {
    {
      const MutexLock lock(mutex);
      jobs[level] = {.body = &body,
                     .messages = messages,
                     .number = jobs[level].number + 1,
                     .left = num_others()};
    }
    asked.notify_all();
  }

  void wait_for_others_to_end(Level level) {
    const MutexLock lock(mutex);
    while (jobs[level].left > 0) answered.wait(mutex);
  }

  // Runs, on another rank, the job that is there if it is new. Returns whether it was.
  bool serve_new_job(Level level, int rank) {
    Job job;
    {
      const MutexLock lock(mutex);
      job = jobs[level];
      if (std::exchange(at(rank).seen[level], job.number) == job.number) return false;
    }
    run_rank_body(job.messages, rank, *job.body);
    const MutexLock lock(mutex);
    if (--jobs[level].left == 0) answered.notify_all();
    return true;
  }

  // All others come, wait and go on afterwards, also where what breaks in throws.
  void run_break() {
    at(0).in_break = true;
    const std::shared_ptr<void> ends(nullptr, [this](void*) {
      end_meeting();
      at(0).in_break = false;
    });
    begin_meeting();
    wait_until_others_are_there();
    asked_breaks->run();
  }

  void begin_meeting() {
    {
      const MutexLock lock(mutex);
      ++num_meetings;
      num_there = 0;
      meeting.store(true, std::memory_order_release);
    }
    asked.notify_all();
    exchanges[kWork].wake();
  }

  void wait_until_others_are_there() {
    const MutexLock lock(mutex);
    while (num_there < num_others()) answered.wait(mutex);
  }

  void end_meeting() {
    {
      const MutexLock lock(mutex);
      meeting.store(false, std::memory_order_release);
    }
    asked.notify_all();
  }

  // The number of the meeting, or none where it has ended meanwhile.
  std::optional<uint64_t> join_meeting(int rank) {
    const MutexLock lock(mutex);
    if (!meeting) return std::nullopt;
    at(rank).in_break = true;
    if (++num_there == num_others()) answered.notify_all();
    return num_meetings;
  }

  // Leaves the meeting where it has ended, and otherwise waits for news. Whether it left.
  bool try_leave_meeting(int rank, uint64_t number) {
    const MutexLock lock(mutex);
    if (!meeting || num_meetings != number) {
      at(rank).in_break = false;
      return true;
    }
    if (at(rank).seen[kBreak] == jobs[kBreak].number) asked.wait(mutex);
    return false;
  }

  // Until the break ends: what it asks for.
  void serve_break(int rank) {
    const std::optional<uint64_t> number = join_meeting(rank);
    if (!number) return;
    while (serve_new_job(kBreak, rank) || !try_leave_meeting(rank, *number)) {
    }
  }

  void follow_rank_0(int rank) {
    name_thread("rank " + std::to_string(rank));
    while (true) {
      if (meeting) serve_break(rank);
      if (serve_new_job(kWork, rank)) continue;
      const MutexLock lock(mutex);
      if (stopping) return;
      if (!meeting && at(rank).seen[kWork] == jobs[kWork].number) asked.wait(mutex);
    }
  }

  std::array<Exchange, 2> exchanges;  // by level
  std::vector<Rank> ranks;
  const Interruption* asked_breaks = nullptr;  // rank 0's alone
  std::array<bool, 2> is_running = {};         // likewise, by level
  Mutex mutex;
  CondVar asked, answered;
  std::array<Job, 2> jobs GUARDED_BY(mutex);  // by level
  bool stopping GUARDED_BY(mutex) = false;
  std::atomic<bool> meeting = false;  // written under the lock
  uint64_t num_meetings GUARDED_BY(mutex) = 0;
  int num_there GUARDED_BY(mutex) = 0;
  std::vector<std::jthread> threads;
};

RankThreads::RankThreads(int num_ranks) : state_(std::make_unique<State>(num_ranks)) {}
RankThreads::~RankThreads() = default;

int RankThreads::size() const { return static_cast<int>(state_->ranks.size()); }
Comm& RankThreads::comm(int rank) { return *state_->at(rank).comms[kWork]; }
Comm& RankThreads::breaking_comm(int rank) { return *state_->at(rank).comms[kBreak]; }

const Interruption* RankThreads::breaks(int rank) const {
  return state_->asked_breaks == nullptr ? nullptr : state_->at(rank).breaks.get();
}

void RankThreads::run(FunctionRef<void(int rank)> body, const Interruption* breaks) {
  State& state = *state_;
  CHECK(!state.is_running[kWork]);  // no work in the midst of work, but in a break of it
  state.asked_breaks = breaks;
  const std::shared_ptr<void> ends(nullptr, [&](void*) { state.asked_breaks = nullptr; });
  for (State::Rank& rank : state.ranks)
    rank.comms[kWork]->set_breaks(breaks == nullptr ? nullptr : rank.breaks.get());
  state.run_job_on_all_ranks(kWork, body);
}

void RankThreads::run_breaking(FunctionRef<void(int rank)> body) {
  state_->run_job_on_all_ranks(kBreak, body);
}

}  // namespace strata
