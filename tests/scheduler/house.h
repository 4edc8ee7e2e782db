// SPDX-License-Identifier: Apache-2.0
// A scheduler with one fake engine, and commands for it.
#pragma once
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "scheduler/scheduler.h"
#include "tests/scheduler/fake_engine.h"

namespace strata::scheduler {

// A scheduler with one fake engine, and what was posted.
struct House {
  explicit House(SchedulerOptions options = {}) : scheduler(options) {}
  Scheduler scheduler;
  FakeEngine engine;
  double now = 0.0;
  int next_request = 0;
  std::map<std::string, std::vector<api::Outcome>> posted;

  api::Admission submit(api::Command command) {
    if (command.request.empty()) command.request.text = "r" + std::to_string(next_request++);
    return scheduler.submit(std::move(command), now);
  }
  bool turn() {
    const api::Capacity capacity = engine.capacity();
    scheduler.give_up_overdue_gaps(now, 0.0);
    const api::Work work = scheduler.next({&capacity, 1}, now);
    post(scheduler.complete(engine.run(work), now));
    return !work.empty();
  }
  void post(std::vector<api::Result> results) {
    for (api::Result& result : results)
      posted[result.request.text].push_back(std::move(result.outcome));
  }
  int run() {
    int turns = 0;
    while (turn()) ++turns;
    return turns;
  }
  [[nodiscard]] const api::Failure* failure(const std::string& request) {
    return posted[request].empty() ? nullptr : std::get_if<api::Failure>(&posted[request][0]);
  }
};

inline api::Command create(const std::string& model, const std::string& tenant = "t",
                           const std::string& session = "s") {
  return {.request = {"create-" + model},
          .tenant = {tenant},
          .session = {session},
          .model = {model},
          .op = api::CreateModel{}};
}

inline api::Command op(const std::string& model, int64_t seq, api::Operation operation,
                       const std::string& tenant = "t", const std::string& session = "s") {
  return {.request = {model + "-" + std::to_string(seq)},
          .tenant = {tenant},
          .session = {session},
          .model = {model},
          .seq_id = seq,
          .fingerprint = static_cast<uint64_t>(seq),
          .op = std::move(operation)};
}

inline api::ForwardBackward rows(std::vector<size_t> lengths) {
  api::ForwardBackward out;
  for (const size_t length : lengths) {
    out.data.emplace_back();
    out.data.back().tokens.resize(length, 1);
  }
  return out;
}

inline api::Command sample(const std::string& request, int64_t prompt, int64_t max_tokens,
                           int64_t num_samples = 1, const std::string& tenant = "t",
                           const std::string& session = "s") {
  api::Sample out;
  out.prompt.resize(static_cast<size_t>(prompt), 1);
  out.max_tokens = max_tokens;
  out.num_samples = num_samples;
  return {.request = {request}, .tenant = {tenant}, .session = {session}, .op = std::move(out)};
}

}  // namespace strata::scheduler
