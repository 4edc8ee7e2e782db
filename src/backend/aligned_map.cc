// SPDX-License-Identifier: Apache-2.0
#include "backend/aligned_map.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstddef>

namespace strata {

void* map_aligned(int descriptor, int64_t bytes, int flags) {
  constexpr uintptr_t kHugePage = 2 << 20;
  constexpr uintptr_t kPage = 4096;
  const auto size = static_cast<size_t>(bytes);
  const size_t slack = size >= kHugePage ? kHugePage : 0;
  void* mapped = ::mmap(nullptr, size + slack, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  const auto begin = reinterpret_cast<uintptr_t>(mapped);
  const uintptr_t start = slack == 0 ? begin : (begin + kHugePage - 1) / kHugePage * kHugePage;
  const uintptr_t end = (start + size + kPage - 1) / kPage * kPage;
  const uintptr_t mapped_end = (begin + size + slack + kPage - 1) / kPage * kPage;
  if (start > begin) ::munmap(mapped, start - begin);
  if (mapped_end > end) ::munmap(reinterpret_cast<void*>(end), mapped_end - end);
  void* data = ::mmap(reinterpret_cast<void*>(start), size, PROT_READ | PROT_WRITE,
                      flags | MAP_FIXED, descriptor, 0);
  if (data != MAP_FAILED) return data;
  const int error = errno;
  ::munmap(reinterpret_cast<void*>(start), end - start);
  errno = error;
  return nullptr;
}

}  // namespace strata
