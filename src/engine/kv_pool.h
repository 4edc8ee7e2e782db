// KvPool: pages of keys and values for sampling, all layers of page_size positions in one page.
// Pages are handed out and given back one at a time; memory grows by blocks of pages on demand up
// to the limit. Engine thread only.
#pragma once
#include <cstdint>
#include <vector>

#include "tensor/arena.h"

namespace strata::engine {

class KvPool {
 public:
  KvPool(int64_t page_bytes, int64_t page_size) : page_bytes_(page_bytes), page_size_(page_size) {}

  [[nodiscard]] int64_t page_size() const { return page_size_; }
  [[nodiscard]] int64_t pages_for(int64_t positions) const {
    return (positions + page_size_ - 1) / page_size_;
  }
  void* take();
  void give_back(void* page) { free_.push_back(page); }
  [[nodiscard]] int64_t num_pages() const { return num_pages_; }
  [[nodiscard]] int64_t num_free() const { return static_cast<int64_t>(free_.size()); }
  [[nodiscard]] int64_t num_bytes() const { return num_pages_ * page_bytes_; }

 private:
  int64_t page_bytes_;
  int64_t page_size_;
  int64_t num_pages_ = 0;
  std::vector<Memory> blocks_;
  std::vector<void*> free_;
};

}  // namespace strata::engine
