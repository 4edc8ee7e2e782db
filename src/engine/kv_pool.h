// SPDX-License-Identifier: Apache-2.0
// Memory of the cache in slabs of one size; and KvPool, whose slabs are pages. Engine thread only.
#pragma once
#include <algorithm>
#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "api/page_need.h"
#include "backend/backend.h"

namespace strata::engine {

// SlabPool: memory in slabs of one size, handed out and given back one at a time; it grows by
// blocks of slabs on demand up to the limit. A slab may have several owners, who read it; it is
// free when the last gives it back. Contents are not cleared.
class SlabPool {
 public:
  // `what` is a static text for errors: "kv cache pages". max_slabs 0: as many as memory holds.
  SlabPool(Backend& backend, std::string_view what, int64_t slab_bytes, int64_t max_slabs = 0)
      : backend_(backend), what_(what), slab_bytes_(slab_bytes), max_slabs_(max_slabs) {}

  // Error{kResourceExhausted} at the limit; who counts slabs beforehand never sees it.
  void* take();
  void* take_copy(const void* slab);
  // One more owner.
  void share(void* slab) { ++further_owners_[slab]; }
  void give_back(void* slab);
  [[nodiscard]] int64_t max_slabs() const { return max_slabs_; }
  // Not below what it holds already.
  void set_max_slabs(int64_t max_slabs) { max_slabs_ = std::max(max_slabs, num_slabs_); }
  [[nodiscard]] int64_t slab_bytes() const { return slab_bytes_; }
  [[nodiscard]] int64_t num_slabs() const { return num_slabs_; }
  // Whether take() would throw.
  [[nodiscard]] bool is_full() const {
    return free_.empty() && max_slabs_ > 0 && num_slabs_ >= max_slabs_;
  }
  [[nodiscard]] int64_t num_free() const { return static_cast<int64_t>(free_.size()); }
  [[nodiscard]] int64_t num_bytes() const { return num_slabs_ * slab_bytes_; }

 private:
  Backend& backend_;
  std::string_view what_;
  int64_t slab_bytes_;
  int64_t max_slabs_;
  int64_t num_slabs_ = 0;
  std::unordered_map<const void*, int64_t> further_owners_;  // of slabs with more than one
  std::vector<Memory> blocks_;
  std::vector<void*> free_;
};

// Pages of keys and values for sampling, all layers of page_size positions in one page.
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
