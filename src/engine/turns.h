// SPDX-License-Identifier: Apache-2.0
// Turns: how processes that have the stages of served models (engine/stages.h) are kept alike. The
// first one decides what is done next, tells the others, and does it when all have read it; they do
// the same. Before each turn all tell what came of the one before: should two have come to
// different results, the first one throws. Engine thread only.
//   TurnLeader turns(comm);  results = turns.run(runner, work, breaks);   // the first process
//   follow_turns(comm, [&](api::BaseId base) -> WorkRunner& {...});       // the others
#pragma once
#include <cstdint>
#include <vector>

#include "api/turn.h"
#include "backend/comm.h"
#include "backend/group_comm.h"
#include "base/function_ref.h"
#include "base/hash.h"
#include "engine/work_runner.h"

namespace strata::engine {

class TurnLeader {
 public:
  // Borrows the processes' Comm.
  explicit TurnLeader(Comm& processes);
  TurnLeader(const TurnLeader&) = delete;
  TurnLeader& operator=(const TurnLeader&) = delete;

  // WorkRunner::run() in all processes. `breaks` are this one's, and change nothing.
  std::vector<api::Result> run(WorkRunner& runner, const api::Work& work,
                               const Interruption* breaks);
  // WorkRunner::finish_files() in all processes.
  std::vector<api::Result> finish_files(WorkRunner& runner, api::BaseId base);
  // The others return.
  void end();

 private:
  void announce(const api::Turn& turn);
  void note(const std::vector<api::Result>& results);

  GroupComm comm_;
  api::TurnBook book_;
  int64_t num_turns_ = 0;
  Hash digest_;  // of all results so far
};

// Does what the first process announces, until that ends.
void follow_turns(Comm& processes, FunctionRef<WorkRunner&(api::BaseId)> runner_of);

}  // namespace strata::engine
