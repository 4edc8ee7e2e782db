// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/cpu_backend.h"

#include "backend/page_queue.h"
#include "ops/cpu/gemm_groups.h"
#include "ops/cpu/path_table.h"
#include "ops/cpu/rows.h"
#include "ops/rows.h"

namespace strata {
namespace {

constexpr BackendKind kCpu = {.name = "cpu", .rows = &ops::cpu::kRows};
constexpr BackendKind kCpuCounting = {
    .name = "cpu, counting", .rows = &ops::cpu::kRows, .counts = true};

}  // namespace

CpuBackend::CpuBackend(CpuPath path, int num_threads, Allocator& allocator)
    : Backend(kCpu, allocator),
      path_(path),
      own_pool_(std::make_unique<ThreadPool>(num_threads)),
      pool_(*own_pool_),
      group_lists_(std::make_unique<ops::cpu::GroupLists>()) {}

CpuBackend::CpuBackend(CpuPath path, int num_threads, CountingTag /*tag*/)
    : Backend(kCpuCounting, cpu_allocator()),
      path_(path),
      own_pool_(new ThreadPool(ThreadPool::idle(num_threads))),
      pool_(*own_pool_),
      group_lists_(std::make_unique<ops::cpu::GroupLists>()) {}

CpuBackend::CpuBackend(CpuPath path, ThreadPool& pool, Allocator& allocator)
    : Backend(kCpu, allocator),
      path_(path),
      pool_(pool),
      group_lists_(std::make_unique<ops::cpu::GroupLists>()) {}

CpuBackend::~CpuBackend() = default;

int64_t CpuBackend::panel_width() const { return ops::cpu::path_row(path_).panel_width; }

void CpuBackend::make_missing_workers() {
  while (static_cast<int>(workers_.size()) < pool_.num_threads()) {
    workers_.push_back(is_counting()
                           ? std::unique_ptr<CpuBackend>(new CpuBackend(path_, 1, CountingTag{}))
                           : std::make_unique<CpuBackend>(path_, 1, allocator()));
  }
}

std::unique_ptr<Backend> CpuBackend::sharing() {
  return std::unique_ptr<Backend>(new CpuBackend(path_, pool_, allocator()));
}

std::unique_ptr<Backend> CpuBackend::counter() const {
  return std::unique_ptr<Backend>(new CpuBackend(path_, pool_.num_threads(), CountingTag{}));
}

void CpuBackend::run_on_host(int64_t count, FunctionRef<void(int64_t item)> body) {
  pool_.run_each(count, [&](int64_t item, int) { body(item); });
}

std::unique_ptr<PageQueue> CpuBackend::page_queue(const std::string& name,
                                                  FileAllocator& files) const {
  return rows().pages.queue(name, files);
}

int64_t CpuBackend::worker_high_water() const {
  return workers_.empty() ? 0 : workers_[0]->scratch().high_water();
}

void CpuBackend::book_workers(int64_t bytes) {
  if (bytes > 0) make_missing_workers();
  for (const std::unique_ptr<CpuBackend>& worker : workers_) worker->scratch().book(bytes);
}

void CpuBackend::set_breaks(const Interruption* interruption) {
  breaks_.reset();
  if (interruption != nullptr) breaks_.emplace(pool_, *interruption);
}

CpuBackend& as_cpu(Backend& backend) {
  auto* cpu = dynamic_cast<CpuBackend*>(&backend);
  CHECK(cpu != nullptr, backend.kind().name);
  return *cpu;
}

}  // namespace strata
