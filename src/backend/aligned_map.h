// SPDX-License-Identifier: Apache-2.0
// Mappings as an Allocator gives memory (backend/memory.h): aligned.
#pragma once
#include <cstdint>

namespace strata {

// The first `bytes` of a file, to read and write, as memory that is aligned to a page, and to 2 MiB
// when it is that large. `flags` are mmap's, MAP_SHARED or MAP_PRIVATE; with MAP_ANONYMOUS there is
// no file (-1). Null with errno. Goes with munmap. Any thread.
void* map_aligned(int descriptor, int64_t bytes, int flags);

}  // namespace strata
