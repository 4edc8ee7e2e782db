#include "engine/kv_pool.h"

#include <algorithm>

namespace strata::engine {

void* KvPool::take() {
  if (free_.empty()) {
    constexpr int64_t kBlockBytes = 32 << 20;
    const int64_t count = std::max<int64_t>(1, kBlockBytes / page_bytes_);
    blocks_.emplace_back(count * page_bytes_);
    char* base = static_cast<char*>(blocks_.back().data());
    // Last first, so that pages are handed out in address order.
    for (int64_t page = count - 1; page >= 0; --page) free_.push_back(base + page * page_bytes_);
    num_pages_ += count;
  }
  void* page = free_.back();
  free_.pop_back();
  return page;
}

}  // namespace strata::engine
