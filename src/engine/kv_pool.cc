// SPDX-License-Identifier: Apache-2.0
#include "engine/kv_pool.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "ops/elementwise.h"

namespace strata::engine {

void* SlabPool::take() {
  if (free_.empty()) {
    constexpr int64_t kBlockBytes = 32 << 20;
    int64_t count = std::max<int64_t>(1, kBlockBytes / slab_bytes_);
    if (max_slabs_ > 0) count = std::min(count, max_slabs_ - num_slabs_);
    if (count <= 0) {
      throw Error(ErrorCode::kResourceExhausted,
                  fmt::format("{}: all {} are in use", what_, num_slabs_));
    }
    blocks_.emplace_back(backend_.allocator(), count * slab_bytes_);
    char* base = static_cast<char*>(blocks_.back().data());
    // Last first, so that slabs are handed out in address order.
    for (int64_t slab = count - 1; slab >= 0; --slab) free_.push_back(base + slab * slab_bytes_);
    num_slabs_ += count;
  }
  void* slab = free_.back();
  free_.pop_back();
  return slab;
}

void* SlabPool::take_copy(const void* slab) {
  void* copy = take();
  ops::copy_bytes(backend_, slab, copy, slab_bytes_);
  return copy;
}

void SlabPool::give_back(void* slab) {
  const auto shared = further_owners_.find(slab);
  if (shared == further_owners_.end()) {
    free_.push_back(slab);
  } else if (--shared->second == 0) {
    further_owners_.erase(shared);
  }
}

}  // namespace strata::engine
