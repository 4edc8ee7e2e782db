// SPDX-License-Identifier: Apache-2.0
// KvPool: pages of keys and values for sampling, all layers of page_size positions in one page.
// Engine thread only.
#pragma once
#include <cstdint>

#include "api/page_need.h"
#include "engine/slab_pool.h"

namespace strata::engine {

class KvPool : public SlabPool {
 public:
  // max_pages 0: as many as memory holds.
  KvPool(Backend& backend, int64_t page_bytes, int64_t page_size, int64_t max_pages = 0)
      : SlabPool(backend, "kv cache pages", page_bytes, max_pages), pages_{page_size} {}

  [[nodiscard]] int64_t page_size() const { return pages_.page_size; }
  // How samples need its pages.
  [[nodiscard]] const api::CachePages& need() const { return pages_; }
  [[nodiscard]] int64_t pages_for(int64_t positions) const { return pages_.holding(positions); }
  [[nodiscard]] int64_t max_pages() const { return max_slabs(); }
  [[nodiscard]] int64_t page_bytes() const { return slab_bytes(); }
  [[nodiscard]] int64_t num_pages() const { return num_slabs(); }

 private:
  api::CachePages pages_;
};

}  // namespace strata::engine
