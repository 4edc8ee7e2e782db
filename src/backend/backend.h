// Backend: where the math of one engine runs and its tensors live: the CPU path, a thread team, an
// allocator, and scratch for kernels. Ops take it first. Engine thread only.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "backend/arena.h"
#include "backend/offload_room.h"
#include "base/check.h"
#include "base/threads.h"

namespace strata {

// Best first. Equalities of bits hold within one path; between paths there are tolerances.
enum class CpuPath { kAvx512Bf16, kAvx512, kAvx2, kReference };

std::string_view cpu_path_name(CpuPath path);
// What this machine can run.
bool cpu_path_supported(CpuPath path);
// The path in use: STRATA_CPU_PATH if set (an Error if unknown or unsupported), else the best
// supported.
CpuPath choose_cpu_path();

class Backend {
 public:
  Backend(CpuPath path, int num_threads, Allocator& allocator = cpu_allocator())
      : path_(path),
        own_pool_(std::make_unique<ThreadPool>(num_threads)),
        pool_(*own_pool_),
        allocator_(allocator),
        scratch_(allocator) {}
  // One with scratch of its own that borrows the team of `other`: for work that breaks in on what
  // that one does (base/threads.h).
  static std::unique_ptr<Backend> beside(Backend& other) {
    return std::unique_ptr<Backend>(new Backend(other.path_, other.pool_, other.allocator_));
  }
  // One that computes nothing and counts: ops take their memory from a scratch that has none, and
  // return. What a pass will take is what the same code took here.
  static Backend counting(CpuPath path, int num_threads) {
    return Backend(path, num_threads, CountingTag{});
  }
  [[nodiscard]] bool is_counting() const { return is_counting_; }
  [[nodiscard]] CpuPath path() const { return path_; }
  [[nodiscard]] ThreadPool& pool() { return pool_; }
  // Of everything that ops read and write: weights, adapters, caches, scratch.
  [[nodiscard]] Allocator& allocator() const { return allocator_; }
  // Temporary memory of kernels and of a step; use it through Scratch::Mark.
  [[nodiscard]] Scratch& scratch() { return scratch_; }
  // Where a pass keeps what it offloads: a counting backend has such a scratch, others from
  // offload_to() on.
  [[nodiscard]] bool has_files() const { return is_counting_ || offload_ != nullptr; }
  [[nodiscard]] Scratch& file_scratch() {
    CHECK(has_files());
    return is_counting_ ? counted_files_ : offload_->scratch();
  }
  // Null of a counting one, and of one without files.
  [[nodiscard]] OffloadRoom* offload() { return offload_.get(); }
  // Error{kInvalidArgument} where the folder cannot hold memory.
  void offload_to(const std::string& dir) { offload_ = std::make_unique<OffloadRoom>(dir); }
  // For ops alone: a backend of one thread and its own scratch, for worker `i` of a region of
  // pool(), where small ops run whole, one beside the other. Made at the first call of
  // make_workers(), which comes first.
  [[nodiscard]] Backend& worker(int i) { return *workers_[static_cast<size_t>(i)]; }
  [[nodiscard]] int num_workers() const { return static_cast<int>(workers_.size()); }
  void make_workers() {
    while (static_cast<int>(workers_.size()) < pool_.num_threads()) {
      workers_.push_back(is_counting_
                             ? std::unique_ptr<Backend>(new Backend(path_, 1, CountingTag{}))
                             : std::make_unique<Backend>(path_, 1, allocator_));
    }
  }
  // body(item, worker) for every item, each in one thread. A counting backend counts every item on
  // its first worker: any of them may get any item.
  template <typename Body>
  void run_in_workers(int64_t count, Body body) {
    make_workers();
    if (is_counting_) {
      for (int64_t i = 0; i < count; ++i) body(i, worker(0));
      return;
    }
    pool_.run_each(count, [&](int64_t item, int i) { body(item, worker(i)); });
  }
  // Room for what a pass was counted to take, of scratch and of each worker's.
  void book(int64_t bytes, int64_t worker_bytes) {
    scratch_.reserve(bytes);
    if (worker_bytes == 0) return;
    make_workers();
    for (const std::unique_ptr<Backend>& worker : workers_) worker->scratch_.reserve(worker_bytes);
  }
  // Of a counting backend: work that it is asked for; begins anew; and the most that any worker
  // would take.
  void count_flops(double flops) { counted_flops_ += flops; }
  [[nodiscard]] double counted_flops() const { return counted_flops_; }
  void reset_count() {
    counted_flops_ = 0.0;
    scratch_.reserve(0);
    counted_files_.reserve(0);
    for (const std::unique_ptr<Backend>& worker : workers_) worker->scratch_.reserve(0);
  }
  [[nodiscard]] int64_t worker_high_water() const {
    return workers_.empty() ? 0 : workers_[0]->scratch_.high_water();
  }
  // Outputs in a panel of weights on this path (tensor/panel.h).
  [[nodiscard]] int64_t panel_width() const {
    return path_ == CpuPath::kAvx512Bf16 || path_ == CpuPath::kAvx512 ? 64 : 16;
  }

 private:
  struct CountingTag {};
  Backend(CpuPath path, int num_threads, CountingTag)
      : path_(path),
        is_counting_(true),
        own_pool_(new ThreadPool(ThreadPool::idle(num_threads))),
        pool_(*own_pool_),
        allocator_(cpu_allocator()),
        scratch_(Scratch::counting(Scratch::Counted::kPass)) {}
  Backend(CpuPath path, ThreadPool& pool, Allocator& allocator)
      : path_(path), pool_(pool), allocator_(allocator), scratch_(allocator) {}

  CpuPath path_;
  bool is_counting_ = false;
  std::unique_ptr<ThreadPool> own_pool_;  // null: pool_ is another backend's
  ThreadPool& pool_;
  Allocator& allocator_;
  Scratch scratch_;
  Scratch counted_files_ = Scratch::counting(Scratch::Counted::kFiles);
  double counted_flops_ = 0.0;
  std::unique_ptr<OffloadRoom> offload_;
  std::vector<std::unique_ptr<Backend>> workers_;
};

}  // namespace strata
