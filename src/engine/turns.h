// SPDX-License-Identifier: Apache-2.0
// Turns: how processes that have the stages of served models (engine/stages.h) are kept alike. The
// first one decides what is done next, tells the others, and does it when all have read it; they do
// the same. Before each turn all tell what came of the one before: should two have come to
// different results, the first one throws. So it does with what breaks in on a training pass: the
// others are asked to stop where they are, are told turn by turn what all do there, and then go on.
// Engine thread only.
//   TurnLeader turns(comm);  results = turns.run(runner, work, &breaks);  // the first process
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

  // WorkRunner::run() in all processes.
  std::vector<api::Result> run(WorkRunner& runner, const api::Work& work,
                               const Interruption* breaks);
  // In a break of run(): calls the body, in which the following are for all processes, each where
  // it is in its part of the work. They are asked when the body first has something for them.
  void run_break(FunctionRef<void()> body);

  // WorkRunner::sample() in all processes.
  std::vector<api::Result> sample(WorkRunner& runner, const api::Work& work);
  // WorkRunner::finish_files() in all processes.
  std::vector<api::Result> finish_files(WorkRunner& runner, api::BaseId base);
  // The others return.
  void end();

 private:
  void announce(const api::Turn& turn);
  void note(const std::vector<api::Result>& results);

  Comm& processes_;
  GroupComm comm_, breaking_;
  bool in_break_ = false, others_are_here_ = false;
  api::TurnBook book_;
  int64_t num_turns_ = 0;
  Hash digest_;  // of all results so far
};

// Does what the first process announces, until that ends.
void follow_turns(Comm& processes, FunctionRef<WorkRunner&(api::BaseId)> runner_of);

}  // namespace strata::engine
