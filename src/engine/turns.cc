// SPDX-License-Identifier: Apache-2.0
#include "engine/turns.h"

#include <fmt/format.h>

#include <exception>
#include <iterator>
#include <string>
#include <utility>
#include <variant>

#include "base/check.h"
#include "base/error.h"
#include "base/hash.h"

namespace strata::engine {
namespace {

// Between the tags of ranks that deal passes out and those of tensor and expert ranks, where there
// are no divided weights (engine/pipeline/rank_stages.cc).
constexpr int64_t kFirstTag = 3 << 17;
constexpr int64_t kTurnTag = 0, kReadTag = 1, kGoTag = 2;

GroupComm turn_comm(Comm& processes) {
  if (processes.end_of_tags() <= kFirstTag + kGoTag) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("ranks: {} tags of messages are needed, and MPI's transport has {}",
                            kFirstTag + kGoTag + 1, processes.end_of_tags()));
  }
  return {processes, {.size = processes.size(), .first_tag = kFirstTag}};
}

// What a process has come to, told with what it reads next.
struct Read {
  int64_t turn = 0;
  uint64_t digest = 0;
};

void mix_results(const std::vector<api::Result>& results, Hash& digest) {
  for (const api::Result& result : results) {
    digest.mix_bytes(result.request.text.data(), result.request.text.size());
    digest.mix(result.outcome.index());
    const auto* sampled = std::get_if<api::SampleOutput>(&result.outcome);
    if (sampled == nullptr) continue;
    for (const api::SampledSequence& sequence : sampled->sequences)
      digest.mix_values(sequence.tokens);
  }
}

api::FileNews news_of(const FileJob& job) {
  api::FileNews news = {.what = static_cast<uint8_t>(job.what), .name = job.name};
  if (job.fault == nullptr) return news;
  news.failed = true;
  try {
    std::rethrow_exception(job.fault);
  } catch (const Error& error) {
    news.code = static_cast<int32_t>(error.code);
    news.fault = error.what();
  } catch (const std::exception& error) {
    news.code = static_cast<int32_t>(ErrorCode::kIo);
    news.fault = error.what();
  }
  return news;
}

FileJob take_job(WorkRunner& runner, const api::FileNews& news) {
  FileJob job = runner.files().take_waiting(static_cast<FileJob::What>(news.what), news.name);
  if (news.failed)
    job.fault = std::make_exception_ptr(Error(static_cast<ErrorCode>(news.code), news.fault));
  return job;
}

}  // namespace

TurnLeader::TurnLeader(Comm& processes)
    : processes_(processes),
      comm_(turn_comm(processes)),
      breaking_(turn_comm(processes.breaking())) {
  CHECK(comm_.rank() == 0, comm_.rank());
}

void TurnLeader::announce(const api::Turn& turn) {
  if (in_break_ && !std::exchange(others_are_here_, true)) processes_.ask_for_break();
  GroupComm& comm = in_break_ ? breaking_ : comm_;
  const std::string bytes = book_.to_bytes(turn);
  const auto size = std::ssize(bytes);
  ++num_turns_;
  for (int other = 1; other < comm.size(); ++other) {
    comm.send_bytes(other, kTurnTag, &size, sizeof(size));
    comm.send_bytes(other, kTurnTag, bytes.data(), size);
  }
  for (int other = 1; other < comm.size(); ++other) {
    Read read;
    comm.receive_bytes(other, kReadTag, &read, sizeof(read));
    if (read.turn == num_turns_ && read.digest == digest_.value()) continue;
    throw Error(ErrorCode::kIo, fmt::format("turn {}: ranks 0 and {} have come to different "
                                            "results, a fault of Strata: all end",
                                            num_turns_ - 1, other));
  }
  for (int other = 1; other < comm.size(); ++other)
    comm.send_bytes(other, kGoTag, &num_turns_, sizeof(num_turns_));
}

void TurnLeader::note(const std::vector<api::Result>& results) {
  book_.forget_ended(results);
  mix_results(results, digest_);
}

std::vector<api::Result> TurnLeader::run(WorkRunner& runner, const api::Work& work,
                                         const Interruption* breaks) {
  announce({.base = work.base, .work = work, .step_tokens = runner.step_tokens()});
  std::vector<api::Result> results = runner.run(work, breaks);
  note(results);
  return results;
}

void TurnLeader::run_break(FunctionRef<void()> body) {
  in_break_ = true;
  body();
  if (others_are_here_) announce({.kind = api::Turn::Kind::kResume});
  in_break_ = others_are_here_ = false;
}

std::vector<api::Result> TurnLeader::sample(WorkRunner& runner, const api::Work& work) {
  announce({.kind = api::Turn::Kind::kSample,
            .base = work.base,
            .work = work,
            .step_tokens = runner.step_tokens()});
  std::vector<api::Result> results = runner.sample(work);
  note(results);
  return results;
}

std::vector<api::Result> TurnLeader::finish_files(WorkRunner& runner, api::BaseId base) {
  std::vector<api::Result> results;
  for (FileJob& job : runner.files().take_done()) {
    announce({.kind = api::Turn::Kind::kFile, .base = base, .file = news_of(job)});
    std::vector<api::Result> of_job = runner.finish_file(std::move(job));
    note(of_job);
    std::move(of_job.begin(), of_job.end(), std::back_inserter(results));
  }
  return results;
}

void TurnLeader::end() { announce({.kind = api::Turn::Kind::kEnd}); }

namespace {

class TurnFollower {
 public:
  TurnFollower(Comm& processes, FunctionRef<WorkRunner&(api::BaseId)> runner_of)
      : processes_(processes),
        comm_(turn_comm(processes)),
        breaking_(turn_comm(processes.breaking())),
        runner_of_(runner_of) {}

  void follow() {
    while (follow_turn(comm_)) {
    }
  }

 private:
  // False: it is the last one.
  bool follow_turn(GroupComm& comm) {
    const api::Turn turn = receive_turn(comm);
    if (turn.kind == api::Turn::Kind::kEnd || turn.kind == api::Turn::Kind::kResume) return false;
    WorkRunner& runner = runner_of_(turn.base);
    const std::vector<api::Result> results = run(runner, turn);
    static_cast<void>(runner.take_events());  // the first process tells them
    book_.forget_ended(results);
    mix_results(results, digest_);
    return true;
  }

  api::Turn receive_turn(GroupComm& comm) {
    int64_t size = 0, go = 0;
    comm.receive_bytes(0, kTurnTag, &size, sizeof(size));
    std::string bytes(static_cast<size_t>(size), '\0');
    comm.receive_bytes(0, kTurnTag, bytes.data(), size);
    const Read read = {.turn = ++num_turns_, .digest = digest_.value()};
    comm.send_bytes(0, kReadTag, &read, sizeof(read));
    comm.receive_bytes(0, kGoTag, &go, sizeof(go));
    CHECK(go == num_turns_, go, num_turns_);
    return book_.from_bytes(bytes);
  }

  std::vector<api::Result> run(WorkRunner& runner, const api::Turn& turn) {
    if (turn.kind == api::Turn::Kind::kFile) return runner.finish_file(take_job(runner, turn.file));
    runner.set_step_tokens(turn.step_tokens);
    if (turn.kind == api::Turn::Kind::kSample) return runner.sample(turn.work);
    const auto is_due = [&] { return processes_.num_breaks_asked() > num_breaks_; };
    const auto take = [&] { follow_break(); };
    const Interruption breaks{.is_due = is_due, .run = take};
    std::vector<api::Result> results = runner.run(turn.work, &breaks);
    if (break_fault_ != nullptr) std::rethrow_exception(break_fault_);
    return results;
  }

  // A pass has no place for what this throws, which ends the process behind it.
  void follow_break() {
    ++num_breaks_;
    try {
      while (follow_turn(breaking_)) {
      }
    } catch (...) {
      break_fault_ = std::current_exception();
    }
  }

  Comm& processes_;
  GroupComm comm_, breaking_;
  FunctionRef<WorkRunner&(api::BaseId)> runner_of_;
  api::TurnBook book_;
  Hash digest_;  // of all results so far
  int64_t num_turns_ = 0, num_breaks_ = 0;
  std::exception_ptr break_fault_;
};

}  // namespace

void follow_turns(Comm& processes, FunctionRef<WorkRunner&(api::BaseId)> runner_of) {
  TurnFollower(processes, runner_of).follow();
}

}  // namespace strata::engine
