// SPDX-License-Identifier: Apache-2.0
// CpuBackend: the backend of this machine's cores: a CPU path and a thread team. Engine thread
// only.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "backend/backend.h"
#include "base/threads.h"
#include "ops/cpu/cpu_path.h"

namespace strata {
namespace ops::cpu {
struct GroupLists;
}

class CpuBackend final : public Backend {
 public:
  // No threads: all cores that this process may use.
  CpuBackend(CpuPath path, int num_threads, Allocator& allocator = cpu_allocator());
  ~CpuBackend() override;
  // One that counts for such a path and team.
  static CpuBackend counting(CpuPath path, int num_threads) {
    return {path, num_threads, CountingTag{}};
  }

  [[nodiscard]] CpuPath path() const { return path_; }
  [[nodiscard]] ThreadPool& pool() { return pool_; }
  // For ops alone: a backend of one thread and its own scratch, for worker `i` of a region of
  // pool(), where small ops run whole, one next to the other. Made at the first call of
  // make_missing_workers(), which comes first.
  [[nodiscard]] CpuBackend& worker(int i) { return *workers_[static_cast<size_t>(i)]; }
  void make_missing_workers();
  // body(item, worker) for every item, each in one thread. A counting backend counts every item on
  // its first worker: any of them may get any item.
  template <typename Body>
  void run_in_workers(int64_t count, Body body) {
    make_missing_workers();
    if (is_counting()) {
      for (int64_t i = 0; i < count; ++i) body(i, worker(0));
      return;
    }
    pool_.run_each(count, [&](int64_t item, int i) { body(item, worker(i)); });
  }
  // For ops alone: what take() takes of scratch, once for each thread of pool().
  template <typename Take>
  auto* take_workspaces(Take take) {
    using Workspace = decltype(take());
    const int64_t bytes = pool_.num_threads() * static_cast<int64_t>(sizeof(Workspace));
    auto* workspaces = static_cast<Workspace*>(scratch().take(bytes));
    for (int w = 0; w < pool_.num_threads(); ++w) {
      const Workspace taken = take();
      if (!is_counting()) workspaces[w] = taken;
    }
    return workspaces;
  }
  // For ops alone: what grouped products list (ops/cpu/gemm_groups.h).
  [[nodiscard]] ops::cpu::GroupLists& group_lists() { return *group_lists_; }
  // Outputs in a panel of weights on this path (tensor/panel.h).
  [[nodiscard]] int64_t panel_width() const;

  [[nodiscard]] std::string_view arithmetic() const override { return cpu_path_name(path_); }
  [[nodiscard]] int parallelism() const override { return pool_.num_threads(); }
  [[nodiscard]] std::unique_ptr<Backend> sharing() override;
  [[nodiscard]] std::unique_ptr<Backend> counter() const override;
  void run_on_host(int64_t count, FunctionRef<void(int64_t item)> body) override;
  [[nodiscard]] std::unique_ptr<PageQueue> page_queue(const std::string& name,
                                                      FileAllocator& files) const override;
  [[nodiscard]] int num_workers() const override { return static_cast<int>(workers_.size()); }
  [[nodiscard]] int64_t worker_high_water() const override;

 private:
  struct CountingTag {};
  CpuBackend(CpuPath path, int num_threads, CountingTag tag);
  CpuBackend(CpuPath path, ThreadPool& pool, Allocator& allocator);
  void book_workers(int64_t bytes) override;
  void set_breaks(const Interruption* interruption) override;
  void let_in() override { pool_.let_in(); }

  CpuPath path_;
  std::unique_ptr<ThreadPool> own_pool_;  // null: pool_ is another backend's
  ThreadPool& pool_;
  std::optional<ThreadPool::Breaks> breaks_;
  std::vector<std::unique_ptr<CpuBackend>> workers_;
  std::unique_ptr<ops::cpu::GroupLists> group_lists_;
};

// The CPU's part of a backend, which is known to be one.
CpuBackend& as_cpu(Backend& backend);

}  // namespace strata
