// SPDX-License-Identifier: Apache-2.0
// Exchange: messages between ranks that are threads of one process (backend/thread_comm.h is one
// rank's end of it). Messages are copied into buffers of the channel, which it uses again, so that
// a warm step allocates nothing. Any thread.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "backend/comm.h"
#include "base/function_ref.h"
#include "base/mutex.h"
#include "base/threads.h"

namespace strata {

class Exchange {
 public:
  void send(int from, int to, int64_t tag, const void* data, int64_t bytes);
  // `breaks`, if not null: asked while it waits, and run where due.
  void receive(int from, int to, int64_t tag, void* data, int64_t bytes,
               const Interruption* breaks);
  // Who waits looks whether a break is due.
  void wake();

  // The first counts, since those that it stops fail after it; who waits hears of it. Whether this
  // is the first.
  bool announce_failure(std::exception_ptr failure);
  [[nodiscard]] std::exception_ptr failure();
  // Nothing is on its way any more, and nobody has failed; who had, or null. While no rank sends or
  // receives.
  std::exception_ptr recover_from_failure();
  // Comm::settle() of so many ranks, which are all that there are. `breaks` as receive() has them.
  std::optional<RankFailure> settle(int num_ranks, const std::optional<RankFailure>& own,
                                    const Interruption* breaks = nullptr);
  // Comm's.
  void ask_for_break();
  [[nodiscard]] int64_t num_breaks_asked() const { return num_breaks_asked_; }

 private:
  // Messages of one sender, receiver and tag: a ring of buffers.
  class Channel {
   public:
    void push(const void* data, int64_t bytes);
    void pop(void* data, int64_t bytes);
    [[nodiscard]] bool empty() const { return count_ == 0; }
    void clear() { count_ = 0; }

   private:
    using Buffer = std::vector<std::byte>;
    void add_place();
    static void resize_to_the_byte(Buffer& buffer, size_t bytes);
    std::vector<Buffer> buffers_;
    size_t first_ = 0, count_ = 0;
  };
  // Nothing is on its way any more.
  void clear_channels() REQUIRES(mutex_);
  // From that rank, or any; null where there is no message.
  Channel* find_channel_with_message(int from, int to, int64_t tag) REQUIRES(mutex_);
  [[nodiscard]] bool try_receive(int from, int to, int64_t tag, void* data, int64_t bytes,
                                 const Interruption* breaks);
  // Waits for news. False: a break is due.
  [[nodiscard]] bool try_wait(const Interruption* breaks) REQUIRES(mutex_);
  // One more has come; how often all had before.
  uint64_t begin_settling(int num_ranks, const std::optional<RankFailure>& own);
  [[nodiscard]] bool try_settle(uint64_t before, const Interruption* breaks);

  Mutex mutex_;
  CondVar arrived_;
  std::map<std::tuple<int, int, int64_t>, Channel> channels_ GUARDED_BY(mutex_);
  std::exception_ptr failure_ GUARDED_BY(mutex_);
  int num_settling_ GUARDED_BY(mutex_) = 0;
  uint64_t num_settled_ GUARDED_BY(mutex_) = 0;  // times that all have come
  std::atomic<int64_t> num_breaks_asked_ = 0;
  // Failures of the work that is under way, and of what was settled last.
  std::optional<RankFailure> work_failure_ GUARDED_BY(mutex_), settled_failure_ GUARDED_BY(mutex_);
};

// Calls body for each of so many threads, in threads of their own, and waits for all. The first one
// that fails, or that the system refuses, stops those that wait in the exchange; `tell` hears of it
// meanwhile, and it is thrown here.
void run_threads(Exchange& exchange, int count, FunctionRef<void(int thread)> body,
                 FunctionRef<void(const std::exception_ptr& failure)> tell);

}  // namespace strata
