// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <sys/mman.h>

#include "backend/memory.h"
#include "base/error.h"

namespace strata {
namespace {

constexpr int64_t kHugePage = 2 << 20;

class CpuAllocator : public Allocator {
 public:
  // mmap gives zeroed pages that cost nothing until they are touched.
  void* allocate(int64_t bytes) override {
    const int64_t slack = bytes >= kHugePage ? kHugePage : 0;
    void* map = ::mmap(nullptr, static_cast<size_t>(bytes + slack), PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED) {
      throw Error(ErrorCode::kResourceExhausted,
                  fmt::format("memory: {} bytes could not be had", bytes));
    }
    if (slack == 0) return map;
    const auto address = reinterpret_cast<uintptr_t>(map);
    const uintptr_t start = (address + kHugePage - 1) / kHugePage * kHugePage;
    if (start > address) ::munmap(map, start - address);
    const uintptr_t end = start + static_cast<uintptr_t>(bytes);
    const uintptr_t page_end = (end + 4095) / 4096 * 4096;
    const uintptr_t map_end = address + static_cast<uintptr_t>(bytes + slack);
    // The last page too, which the map has begun.
    if (map_end > page_end) ::munmap(reinterpret_cast<void*>(page_end), map_end - page_end);
    map = reinterpret_cast<void*>(start);
    ::madvise(map, static_cast<size_t>(bytes), MADV_HUGEPAGE);
    return map;
  }

  void release(void* data, int64_t bytes) override { ::munmap(data, static_cast<size_t>(bytes)); }
};

}  // namespace

Allocator& cpu_allocator() {
  static CpuAllocator allocator;
  return allocator;
}

}  // namespace strata
