// SPDX-License-Identifier: Apache-2.0
// Files in memory as an Allocator gives it (backend/memory.h).
#pragma once
#include <cstdint>

namespace strata {

// The first `bytes` of a file, open to read and write, as memory that is aligned to a page, and to
// 2 MiB when it is that large; `flags` are mmap's: MAP_SHARED or MAP_PRIVATE. Null with errno. Goes
// with munmap. Any thread.
void* map_aligned(int descriptor, int64_t bytes, int flags);

}  // namespace strata
