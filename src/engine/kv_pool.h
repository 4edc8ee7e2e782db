// SPDX-License-Identifier: Apache-2.0
// KvPool: pages of keys and values for sampling, all layers of page_size positions in one page.
// Engine thread only.
#pragma once
#include <cstdint>

#include "engine/slab_pool.h"

namespace strata::engine {

class KvPool : public SlabPool {
 public:
  // max_pages 0: as many as memory holds.
  KvPool(Backend& backend, int64_t page_bytes, int64_t page_size, int64_t max_pages = 0)
      : SlabPool(backend, "kv cache pages", page_bytes, max_pages), page_size_(page_size) {}

  [[nodiscard]] int64_t page_size() const { return page_size_; }
  [[nodiscard]] int64_t pages_for(int64_t positions) const {
    return (positions + page_size_ - 1) / page_size_;
  }
  [[nodiscard]] int64_t max_pages() const { return max_slabs(); }
  [[nodiscard]] int64_t page_bytes() const { return slab_bytes(); }
  [[nodiscard]] int64_t num_pages() const { return num_slabs(); }

 private:
  int64_t page_size_;
};

}  // namespace strata::engine
