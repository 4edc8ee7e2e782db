// SPDX-License-Identifier: Apache-2.0
#include "backend/aligned_map.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstddef>

namespace strata {

namespace {

constexpr uintptr_t kHugePage = 2 << 20;
constexpr uintptr_t kPage = 4096;

uintptr_t round_up(uintptr_t value, uintptr_t unit) { return (value + unit - 1) / unit * unit; }

void unmap(uintptr_t begin, uintptr_t end) {
  if (end > begin) ::munmap(reinterpret_cast<void*>(begin), end - begin);
}

// Addresses where nothing may be read or written yet, aligned as map_aligned says. 0 with errno.
uintptr_t reserve_aligned_addresses(size_t size) {
  const size_t slack = size >= kHugePage ? kHugePage : 0;
  void* mapped = ::mmap(nullptr, size + slack, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return 0;
  const auto begin = reinterpret_cast<uintptr_t>(mapped);
  const uintptr_t start = slack == 0 ? begin : round_up(begin, kHugePage);
  unmap(begin, start);
  unmap(round_up(start + size, kPage), round_up(begin + size + slack, kPage));
  return start;
}

}  // namespace

void* map_aligned(int descriptor, int64_t bytes, int flags) {
  const auto size = static_cast<size_t>(bytes);
  const uintptr_t start = reserve_aligned_addresses(size);
  if (start == 0) return nullptr;
  void* data = ::mmap(reinterpret_cast<void*>(start), size, PROT_READ | PROT_WRITE,
                      flags | MAP_FIXED, descriptor, 0);
  if (data != MAP_FAILED) return data;
  const int error = errno;
  unmap(start, round_up(start + size, kPage));
  errno = error;
  return nullptr;
}

}  // namespace strata
