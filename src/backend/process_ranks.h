// SPDX-License-Identifier: Apache-2.0
// Ranks of which each process has several, as its threads: neighbours in a pipeline. What threads
// of a process tell each other stays in it; the rest goes from process to process.
#pragma once
#include "backend/comm.h"
#include "base/function_ref.h"

namespace strata {

// How many ranks a process has; and how many processes, one behind the other, have the same ones of
// a pipeline (data ranks), between whose ranks' numbers all others' lie.
struct ProcessRanks {
  int threads = 1;
  int data = 1;

  // A rank's process, and which of its threads it is; the first one does what is done once in a
  // process.
  [[nodiscard]] int process_of(int rank) const {
    return rank / data / threads * data + rank % data;
  }
  [[nodiscard]] int thread_of(int rank) const { return rank / data % threads; }
  [[nodiscard]] int rank_of(int process, int thread) const {
    return (process / data * threads + thread) * data + process % data;
  }
};

// Calls body for each rank of this process, in threads of their own; where it has one, in the
// caller's with `processes` itself. Where one throws, those that wait for it stop, in every
// process, and its exception is thrown here. A receive from kAnyRank hears of ranks that are the
// same thread of their processes, and of itself.
void run_ranks(Comm& processes, const ProcessRanks& ranks, FunctionRef<void(Comm& comm)> body);

}  // namespace strata
