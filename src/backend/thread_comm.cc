// SPDX-License-Identifier: Apache-2.0
#include "backend/thread_comm.h"

#include <cstddef>
#include <cstring>
#include <exception>
#include <map>
#include <string>
#include <thread>
#include <tuple>

#include "base/check.h"
#include "base/error.h"
#include "base/mutex.h"
#include "base/trace.h"

namespace strata {
namespace {

// Messages of one sender, receiver and tag: a ring of buffers.
class Channel {
 public:
  void push(const void* data, int64_t bytes) {
    if (count_ == buffers_.size()) {
      // The oldest stay in front of the new place.
      buffers_.insert(buffers_.begin() + static_cast<std::ptrdiff_t>(first_), Buffer());
      first_ = (first_ + 1) % buffers_.size();
    }
    Buffer& buffer = buffers_[(first_ + count_) % buffers_.size()];
    if (buffer.capacity() < static_cast<size_t>(bytes)) {
      // To the byte, and the old one first: plans count what messages take (Comm).
      Buffer().swap(buffer);
      buffer.reserve(static_cast<size_t>(bytes));
    }
    buffer.resize(static_cast<size_t>(bytes));
    if (bytes > 0) std::memcpy(buffer.data(), data, buffer.size());
    ++count_;
  }
  [[nodiscard]] bool empty() const { return count_ == 0; }
  void pop(void* data, int64_t bytes) {
    const Buffer& buffer = buffers_[first_];
    CHECK(std::ssize(buffer) == bytes, buffer.size(), bytes);
    if (bytes > 0) std::memcpy(data, buffer.data(), buffer.size());
    first_ = (first_ + 1) % buffers_.size();
    --count_;
  }

 private:
  using Buffer = std::vector<std::byte>;
  std::vector<Buffer> buffers_;
  size_t first_ = 0, count_ = 0;
};

// What the ranks share.
class Exchange {
 public:
  void send(int from, int to, int64_t tag, const void* data, int64_t bytes) {
    const MutexLock lock(mutex_);
    channels_[{from, to, tag}].push(data, bytes);
    arrived_.notify_all();
  }

  void receive(int from, int to, int64_t tag, void* data, int64_t bytes) {
    const MutexLock lock(mutex_);
    Channel& channel = channels_[{from, to, tag}];
    while (channel.empty()) {
      if (failure_) throw Error(ErrorCode::kIo, "another rank has failed");
      arrived_.wait(mutex_);
    }
    channel.pop(data, bytes);
  }

  // The first counts: those that it stops fail after it.
  void fail(std::exception_ptr failure) {
    const MutexLock lock(mutex_);
    if (!failure_) failure_ = std::move(failure);
    arrived_.notify_all();
  }

  [[nodiscard]] std::exception_ptr failure() {
    const MutexLock lock(mutex_);
    return failure_;
  }

 private:
  Mutex mutex_;
  CondVar arrived_;
  std::map<std::tuple<int, int, int64_t>, Channel> channels_ GUARDED_BY(mutex_);
  std::exception_ptr failure_ GUARDED_BY(mutex_);
};

class ThreadComm : public Comm {
 public:
  ThreadComm(Exchange& exchange, int rank, int size)
      : exchange_(exchange), rank_(rank), size_(size) {}
  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return size_; }
  void send_bytes(int to, int64_t tag, const void* data, int64_t bytes) override {
    exchange_.send(rank_, to, tag, data, bytes);
  }
  void receive_bytes(int from, int64_t tag, void* data, int64_t bytes) override {
    exchange_.receive(from, rank_, tag, data, bytes);
  }

 private:
  Exchange& exchange_;
  const int rank_, size_;
};

}  // namespace

void run_ranks(int num_ranks, FunctionRef<void(Comm& comm)> body) {
  CHECK(num_ranks >= 1, num_ranks);
  Exchange exchange;
  if (num_ranks == 1) {
    ThreadComm comm(exchange, 0, 1);
    return body(comm);
  }
  const auto run = [&](int rank) {
    name_thread("rank " + std::to_string(rank));
    ThreadComm comm(exchange, rank, num_ranks);
    try {
      body(comm);
    } catch (...) {
      exchange.fail(std::current_exception());
    }
  };
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < num_ranks; ++rank) threads.emplace_back(run, rank);
  }
  if (const std::exception_ptr failure = exchange.failure()) std::rethrow_exception(failure);
}

}  // namespace strata
