// SPDX-License-Identifier: Apache-2.0
// Ranks as threads of one process: run_ranks() starts them, each with a ThreadComm of its own,
// which is its end of an Exchange, and waits for all.
#pragma once
#include <exception>
#include <optional>
#include <string>

#include "backend/comm.h"
#include "backend/thread_exchange.h"
#include "base/function_ref.h"

namespace strata {

class ThreadComm : public Comm {
 public:
  // `breaking`, if not null: its Comm of what breaks in.
  ThreadComm(Exchange& exchange, int rank, int size, Comm* breaking = nullptr)
      : exchange_(exchange), rank_(rank), size_(size), breaking_(breaking) {}
  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return size_; }
  void send_bytes(int to, int64_t tag, const void* data, int64_t bytes) override {
    exchange_.send(rank_, to, tag, data, bytes);
  }
  void receive_bytes(int from, int64_t tag, void* data, int64_t bytes) override {
    exchange_.receive(from, rank_, tag, data, bytes, breaks_);
  }
  void announce_failure(ErrorCode code, const std::string& what) override {
    exchange_.announce_failure(std::make_exception_ptr(Error(code, what)));
    if (breaking_ != nullptr) breaking_->announce_failure(code, what);
  }
  std::optional<RankFailure> settle(const std::optional<RankFailure>& own) override {
    return exchange_.settle(size_, own, rank_ == 0 ? nullptr : breaks_);
  }
  [[nodiscard]] Comm& breaking() override {
    return breaking_ == nullptr ? Comm::breaking() : *breaking_;
  }
  void set_breaks(const Interruption* breaks) override { breaks_ = breaks; }
  void ask_for_break() override { exchange_.ask_for_break(); }
  [[nodiscard]] int64_t num_breaks_asked() const override { return exchange_.num_breaks_asked(); }

 private:
  Exchange& exchange_;
  const int rank_, size_;
  Comm* const breaking_;
  const Interruption* breaks_ = nullptr;
};

// Calls body once for every rank, each in a thread of its own ("rank 0", ... in a timeline); a rank
// that is alone is the caller's thread. Where one throws, the others are stopped at their next
// receive, and that first exception is thrown here.
void run_ranks(int num_ranks, FunctionRef<void(Comm& comm)> body);

}  // namespace strata
