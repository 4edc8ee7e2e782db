#include "engine/kv_pool.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace strata::engine {

void* KvPool::take() {
  if (free_.empty()) {
    constexpr int64_t kBlockBytes = 32 << 20;
    int64_t count = std::max<int64_t>(1, kBlockBytes / page_bytes_);
    if (max_pages_ > 0) count = std::min(count, max_pages_ - num_pages_);
    if (count <= 0) {
      throw Error(ErrorCode::kResourceExhausted,
                  fmt::format("kv cache: all {} pages are in use", num_pages_));
    }
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

void* KvPool::take_copy(const void* page) {
  void* copy = take();
  std::memcpy(copy, page, static_cast<size_t>(page_bytes_));
  return copy;
}

void KvPool::give_back(void* page) {
  const auto shared = further_owners_.find(page);
  if (shared == further_owners_.end()) {
    free_.push_back(page);
  } else if (--shared->second == 0) {
    further_owners_.erase(shared);
  }
}

}  // namespace strata::engine
