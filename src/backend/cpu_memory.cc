// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <sys/mman.h>

#include "backend/aligned_map.h"
#include "backend/memory.h"
#include "base/error.h"

namespace strata {
namespace {

constexpr int64_t kHugePage = 2 << 20;

class CpuAllocator : public Allocator {
 public:
  // mmap gives zeroed pages that cost nothing until they are touched.
  void* allocate(int64_t bytes) override {
    void* map = map_aligned(-1, bytes, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE);
    if (map == nullptr) {
      throw Error(ErrorCode::kResourceExhausted,
                  fmt::format("memory: {} bytes could not be had", bytes));
    }
    if (bytes >= kHugePage) ::madvise(map, static_cast<size_t>(bytes), MADV_HUGEPAGE);
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
