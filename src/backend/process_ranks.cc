// SPDX-License-Identifier: Apache-2.0
#include "backend/process_ranks.h"

#include <exception>
#include <string>

#include "backend/thread_exchange.h"
#include "base/check.h"
#include "base/trace.h"

namespace strata {
namespace {

class ThreadOfProcess : public Comm {
 public:
  ThreadOfProcess(Comm& processes, Exchange& exchange, const ProcessRanks& ranks, int thread)
      : processes_(processes),
        exchange_(exchange),
        ranks_(ranks),
        thread_(thread),
        rank_(ranks.rank_of(processes.rank(), thread)) {}

  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return processes_.size() * ranks_.threads; }
  // The first threads of all processes first: what is divided among all ranks of a machine comes
  // to each process as it would among processes.
  [[nodiscard]] int rank_here() const override {
    return thread_ * processes_.ranks_here() + processes_.rank_here();
  }
  [[nodiscard]] int ranks_here() const override { return processes_.ranks_here() * ranks_.threads; }

  void send_bytes(int to, int64_t tag, const void* data, int64_t bytes) override {
    const int thread = ranks_.thread_of(to);
    if (is_here(to)) return exchange_.send(thread_, thread, tag, data, bytes);
    processes_.send_bytes(ranks_.process_of(to), tag_between(thread_, thread, tag), data, bytes);
  }
  void receive_bytes(int from, int64_t tag, void* data, int64_t bytes) override {
    if (from == kAnyRank)
      return processes_.receive_bytes(kAnyRank, tag_between(thread_, thread_, tag), data, bytes);
    const int thread = ranks_.thread_of(from);
    if (is_here(from))
      return exchange_.receive(thread, thread_, tag, data, bytes, /*breaks=*/nullptr);
    processes_.receive_bytes(ranks_.process_of(from), tag_between(thread, thread_, tag), data,
                             bytes);
  }
  [[nodiscard]] int64_t end_of_tags() const override {
    return processes_.end_of_tags() / pairs() - 1;
  }

 private:
  // Another thread of this process.
  [[nodiscard]] bool is_here(int rank) const {
    return rank != rank_ && ranks_.process_of(rank) == processes_.rank();
  }
  [[nodiscard]] int64_t pairs() const { return int64_t{ranks_.threads} * ranks_.threads; }
  // Every two threads of two processes have tags of their own, from 0 on; a tag is -1 or more.
  [[nodiscard]] int64_t tag_between(int from, int to, int64_t tag) const {
    return (tag + 1) * pairs() + from * ranks_.threads + to;
  }

  Comm& processes_;
  Exchange& exchange_;
  const ProcessRanks ranks_;
  const int thread_, rank_;
};

void announce_exception(Comm& processes, const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const Error& error) {
    processes.announce_failure(error.code, error.what());
  } catch (const std::exception& error) {
    processes.announce_failure(ErrorCode::kIo, error.what());
  }
}

}  // namespace

void run_ranks(Comm& processes, const ProcessRanks& ranks, FunctionRef<void(Comm& comm)> body) {
  CHECK(ranks.threads >= 1 && processes.size() % ranks.data == 0, ranks.threads, ranks.data);
  if (ranks.threads == 1) return body(processes);
  Exchange exchange;
  run_threads(
      exchange, ranks.threads,
      [&](int thread) {
        ThreadOfProcess comm(processes, exchange, ranks, thread);
        name_thread("rank " + std::to_string(comm.rank()));
        body(comm);
      },
      [&](const std::exception_ptr& failure) { announce_exception(processes, failure); });
}

}  // namespace strata
