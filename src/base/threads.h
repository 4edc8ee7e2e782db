// SPDX-License-Identifier: Apache-2.0
// ThreadPool: a fixed team that runs one parallel region at a time. Workers spin for a short while
// after a region and then sleep, so an idle engine costs nothing and a busy one starts a region in
// about a microsecond. The split of a region is static: worker w of W gets the w-th of W equal
// parts, so the partition depends on nothing but the count and W; no result may depend on W. One
// caller at a time (the engine thread); it takes part as worker 0. Allocates only in the
// constructor.
// Long work may be broken into (Interruption): between its regions, and between the items of
// run_each. What breaks in may use the team, and must leave alone what the work has in hand.
//   pool.run(num_panels, [&](int64_t begin, int64_t end, int worker) { ... });
#pragma once
#include <cstdint>
#include <memory>

#include "base/function_ref.h"

namespace strata {

// Other work that breaks in on what a team does, on the caller's thread while no region runs.
struct Interruption {
  FunctionRef<bool()> is_due;  // asked often
  FunctionRef<void()> run;     // not interrupted itself; throws nothing
};

class ThreadPool {
 public:
  // num_threads >= 1, the caller included; 0 means all cores this process may use.
  explicit ThreadPool(int num_threads = 0);
  // A team that does nothing: regions return at once. For counting what work would take.
  static ThreadPool idle(int num_threads) { return ThreadPool(num_threads, /*is_idle=*/true); }
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  [[nodiscard]] int num_threads() const;

  // Calls body(begin, end, worker) once for each non-empty part of [0, count).
  void run(int64_t count, FunctionRef<void(int64_t, int64_t, int)> body);

  // Items of uneven cost: workers take the next item from a shared counter, one at a time. Which
  // worker runs an item varies, so an item must own all it writes. `worker` indexes per-worker
  // scratch.
  void run_each(int64_t count, FunctionRef<void(int64_t, int)> body);

  // Lets other work in where it is due, as between regions.
  void let_in() {
    if (is_break_due()) take_break();
  }
  // While it lives, the team's work may be broken into.
  class Breaks {
   public:
    Breaks(ThreadPool& pool, const Interruption& interruption);
    ~Breaks();
    Breaks(const Breaks&) = delete;
    Breaks& operator=(const Breaks&) = delete;

   private:
    ThreadPool& pool_;
  };

 private:
  struct State;
  [[nodiscard]] bool is_break_due() const;
  void take_break();
  // run_each() on one thread: takes one item after the other. False when there are no more.
  bool run_items_until_pause(int64_t count, int worker, FunctionRef<void(int64_t, int)> body);
  void run_region(int64_t count, FunctionRef<void(int64_t, int64_t, int)> body);
  ThreadPool(int num_threads, bool is_idle);
  std::unique_ptr<State> state_;
};

}  // namespace strata
