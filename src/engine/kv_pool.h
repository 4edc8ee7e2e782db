// KvPool: pages of keys and values for sampling, all layers of page_size positions in one page.
// Pages are handed out and given back one at a time; memory grows by blocks of pages on demand up
// to the limit. A page may have several owners, who read it; it is free when the last gives it
// back. Engine thread only.
#pragma once
#include <algorithm>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "tensor/arena.h"

namespace strata::engine {

class KvPool {
 public:
  // max_pages 0: as many as memory holds.
  KvPool(int64_t page_bytes, int64_t page_size, int64_t max_pages = 0)
      : page_bytes_(page_bytes), page_size_(page_size), max_pages_(max_pages) {}

  [[nodiscard]] int64_t page_size() const { return page_size_; }
  [[nodiscard]] int64_t pages_for(int64_t positions) const {
    return (positions + page_size_ - 1) / page_size_;
  }
  // Error{kResourceExhausted} at the limit; who counts pages beforehand never sees it.
  void* take();
  void* take_copy(const void* page);
  // One more owner.
  void share(void* page) { ++further_owners_[page]; }
  void give_back(void* page);
  [[nodiscard]] int64_t max_pages() const { return max_pages_; }
  // Not below what it holds already.
  void set_max_pages(int64_t max_pages) { max_pages_ = std::max(max_pages, num_pages_); }
  [[nodiscard]] int64_t page_bytes() const { return page_bytes_; }
  [[nodiscard]] int64_t num_pages() const { return num_pages_; }
  [[nodiscard]] int64_t num_free() const { return static_cast<int64_t>(free_.size()); }
  [[nodiscard]] int64_t num_bytes() const { return num_pages_ * page_bytes_; }

 private:
  int64_t page_bytes_;
  int64_t page_size_;
  int64_t max_pages_;
  int64_t num_pages_ = 0;
  std::unordered_map<const void*, int64_t> further_owners_;  // of pages with more than one
  std::vector<Memory> blocks_;
  std::vector<void*> free_;
};

}  // namespace strata::engine
