// SPDX-License-Identifier: Apache-2.0
#include "tests/deferred/deferred.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "backend/memory.h"
#include "backend/scratch_release.h"
#include "base/check.h"

namespace strata {
namespace deferred {
namespace {

std::atomic<Fault> g_fault = Fault::kNone;
thread_local bool t_at_once = false;

using Copies = std::vector<std::unique_ptr<std::max_align_t[]>>;

// Of the op that this thread is about to ask for; they end with its work.
thread_local Copies t_copies;

class Queue {
 public:
  void push(std::function<void()> work) {
    const std::lock_guard lock(mutex_);
    work_.push_back({std::move(work), std::exchange(t_copies, {})});
    ++num_late_;
    if (work_.size() > kMost) wanted_ = true;
    changed_.notify_all();
  }

  void wait() {
    std::unique_lock lock(mutex_);
    wanted_ = !work_.empty();
    changed_.notify_all();
    changed_.wait(lock, [this] { return work_.empty() && !busy_; });
    if (fault_ != nullptr) std::rethrow_exception(std::exchange(fault_, nullptr));
  }

  int64_t num_late() const { return num_late_; }

 private:
  static constexpr size_t kMost = 1 << 14;  // then it begins by itself

  struct Work {
    std::function<void()> run;
    Copies copies;
  };

  void run() {
    const AtOnce scope;
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return wanted_ && !work_.empty(); });
      while (!work_.empty()) {
        const Work work = std::move(work_.front());
        work_.pop_front();
        busy_ = true;
        lock.unlock();
        run_one(work.run);
        lock.lock();
        busy_ = false;
      }
      wanted_ = false;
      changed_.notify_all();
    }
  }
  void run_one(const std::function<void()>& work) {
    try {
      work();
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (fault_ == nullptr) fault_ = std::current_exception();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Work> work_;
  std::exception_ptr fault_;
  bool wanted_ = false;
  bool busy_ = false;
  std::atomic<int64_t> num_late_ = 0;
  std::thread thread_{[this] { run(); }};
};

// Never ends: other static objects may still give memory back.
Queue& queue() {
  static Queue* const queue = new Queue;
  return *queue;
}

}  // namespace

AtOnce::AtOnce() { t_at_once = true; }
AtOnce::~AtOnce() { t_at_once = false; }
bool at_once() { return t_at_once; }
void plant(Fault fault) { g_fault = fault; }
bool planted(Fault fault) { return g_fault == fault; }
void wait() {
  if (!t_at_once) queue().wait();
}
int64_t num_late() { return queue().num_late(); }
const void* keep(const void* list, int64_t bytes) {
  const size_t size = static_cast<size_t>(bytes);
  auto copy = std::make_unique<std::max_align_t[]>((size + sizeof(std::max_align_t) - 1) /
                                                   sizeof(std::max_align_t));
  std::memcpy(copy.get(), list, size);
  return t_copies.emplace_back(std::move(copy)).get();
}
void later(std::function<void()> work) {
  if (t_at_once) return work();
  queue().push(std::move(work));
}

}  // namespace deferred

namespace {

// The host's own memory, in whose use the host waits for the queue.
class DeferredAllocator : public Allocator {
 public:
  void* allocate(int64_t bytes) override {
    const size_t alignment = bytes >= kHugePage ? kHugePage : 64;
    const size_t size = (static_cast<size_t>(bytes) + alignment - 1) / alignment * alignment;
    void* data = std::aligned_alloc(alignment, std::max<size_t>(size, alignment));
    CHECK(data != nullptr, bytes);
    std::memset(data, 0, size);
    return data;
  }
  void release(void* data, int64_t /*bytes*/) override {
    deferred::wait();
    std::free(data);
  }
  void begin_host_access() override {
    if (deferred::planted(deferred::Fault::kAccessUnawaited)) return;
    deferred::wait();
  }

 private:
  static constexpr int64_t kHugePage = 2 << 20;
};

}  // namespace

Allocator& cpu_allocator() {
  static auto* const allocator = new DeferredAllocator;
  return *allocator;
}

void scratch_released(void* data, int64_t bytes) {
  if (deferred::at_once()) return;
  deferred::later([=] { std::memset(data, 0xff, static_cast<size_t>(bytes)); });
}

}  // namespace strata
