// SPDX-License-Identifier: Apache-2.0
// RankThreads: ranks as threads of this process that stay, for whoever asks them for one piece of
// work after the other. Rank 0 is the thread that asks, which alone decides what is done and when;
// the others wait for it. Between two pieces of work they touch nothing, so what is theirs may be
// looked at and changed by rank 0. So it may in a break: work that is interrupted on rank 0 is so
// on all, each at a border of its own ops or where it waits for a message, and they stay there
// until the break ends. Work that may break in has messages apart from those of other work.
//   RankThreads ranks(2);
//   ranks.run([&](int rank) { runners[rank]->run(batch); }, &breaks);
#pragma once
#include <memory>

#include "backend/comm.h"
#include "base/function_ref.h"

namespace strata {

struct Interruption;

class RankThreads {
 public:
  explicit RankThreads(int num_ranks);
  ~RankThreads();
  RankThreads(const RankThreads&) = delete;
  RankThreads& operator=(const RankThreads&) = delete;

  [[nodiscard]] int size() const;
  // The Comm of work that run() is given, and of that which run_breaking() is given.
  [[nodiscard]] Comm& comm(int rank);
  [[nodiscard]] Comm& breaking_comm(int rank);

  // Calls body once for every rank, rank 0's here, and waits for all. Where one throws, the others
  // are stopped at their next receive, and that first exception is thrown here; what was on its way
  // is gone then. `breaks`, if not null: what breaks in, asked on this thread.
  void run(FunctionRef<void(int rank)> body, const Interruption* breaks = nullptr);
  // Calls body once for every rank likewise, in a break of run() or outside.
  void run_breaking(FunctionRef<void(int rank)> body);
  // For run()'s body: its breaks, as each rank has them, or null.
  [[nodiscard]] const Interruption* breaks(int rank) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace strata
