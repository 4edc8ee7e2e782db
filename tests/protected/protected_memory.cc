// SPDX-License-Identifier: Apache-2.0
// Another cpu_allocator(), for test programs that link it: its memory can be touched only while a
// HostAccess lives, as if it lay on a device. Who reads or writes a tensor above ops without one
// dies by a fault at that very line.
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <map>
#include <mutex>
#include <vector>

#include "backend/memory.h"
#include "base/check.h"

namespace strata {
namespace {

constexpr int64_t kHugePage = 2 << 20;

// One range of addresses, so that one call opens or shuts all of it. What is released is handed out
// again: opening takes time for every address that was ever in use.
class ProtectedAllocator : public Allocator {
 public:
  ProtectedAllocator() {
    void* map =
        ::mmap(nullptr, kAddresses, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(map != MAP_FAILED);
    const auto address = reinterpret_cast<uintptr_t>(map);
    base_ = reinterpret_cast<char*>((address + kHugePage - 1) / kHugePage * kHugePage);
    end_ = static_cast<char*>(map) + kAddresses;
    next_ = base_;
    ::madvise(base_, static_cast<size_t>(end_ - base_), MADV_HUGEPAGE);
  }

  void* allocate(int64_t bytes) override {
    const std::lock_guard lock(mutex_);
    const int64_t size = size_class(bytes);
    std::vector<char*>& free = free_[size];
    if (!free.empty()) {
      char* data = free.back();
      free.pop_back();
      return data;
    }
    const int64_t step = size >= kHugePage ? kHugePage : kPage;
    char* data = base_ + (next_ - base_ + step - 1) / step * step;
    CHECK(size <= end_ - data, bytes);
    next_ = data + size;
    if (depth_ > 0) protect(PROT_READ | PROT_WRITE);
    return data;
  }

  // The pages go back, so that they are zero again.
  void release(void* data, int64_t bytes) override {
    const std::lock_guard lock(mutex_);
    const int64_t size = size_class(bytes);
    CHECK(::madvise(data, static_cast<size_t>(size), MADV_DONTNEED) == 0);
    free_[size].push_back(static_cast<char*>(data));
  }

  void begin_host_access() override {
    const std::lock_guard lock(mutex_);
    if (depth_++ == 0) protect(PROT_READ | PROT_WRITE);
  }
  void end_host_access() override {
    const std::lock_guard lock(mutex_);
    if (--depth_ == 0) protect(PROT_NONE);
  }

 private:
  static constexpr int64_t kAddresses = int64_t{1} << 40;
  static constexpr int64_t kPage = 4096;

  // Few sizes, so that most are found again: four between a power of two and the next.
  static int64_t size_class(int64_t bytes) {
    const auto power = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(bytes)));
    const int64_t step = std::max(kPage, power / 4);
    return (bytes + step - 1) / step * step;
  }

  void protect(int how) {
    if (next_ == base_) return;
    CHECK(::mprotect(base_, static_cast<size_t>(next_ - base_), how) == 0);
  }

  std::mutex mutex_;
  std::map<int64_t, std::vector<char*>> free_;  // by size
  char* base_ = nullptr;
  char* next_ = nullptr;
  char* end_ = nullptr;
  int64_t depth_ = 0;
};

}  // namespace

Allocator& cpu_allocator() {
  static ProtectedAllocator allocator;
  return allocator;
}

}  // namespace strata
