// SPDX-License-Identifier: Apache-2.0
// WeightPages: of weights that lie in files (backend/file_memory.h), the pages of the layer at hand
// and of the next one are in memory, in whichever direction a pass walks; the others leave it.
// Where a pass breaks in on another, those of both stay. Engine thread only; the backend's queue
// moves them.
#pragma once
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "backend/page_queue.h"

namespace strata::model {

// Appends a range; where the last one ends there they become one, as experts are one behind the
// other.
inline void append_range(const PageRange& range, std::vector<PageRange>& ranges) {
  if (!ranges.empty() &&
      static_cast<char*>(ranges.back().data) + ranges.back().bytes == range.data) {
    ranges.back().bytes += range.bytes;
  } else {
    ranges.push_back(range);
  }
}

class WeightPages {
 public:
  // `pages` of each layer; the last are those outside the layers: embedding, final norm, head.
  WeightPages(std::vector<std::vector<PageRange>> pages, std::unique_ptr<PageQueue> queue)
      : pages_(std::move(pages)), has_left_(pages_.size()), queue_(std::move(queue)) {}

  // `pass` tells passes apart of which one breaks in on another.
  void enter_layer(const void* pass, int64_t layer, int64_t next);
  // Before a parameter of a layer is read or written outside a pass; -1: of none.
  void restore_evicted(int64_t layer);
  // While weights are written, so that they do not fill the memory.
  void trim_written(int64_t bytes);

 private:
  struct Place {
    const void* pass = nullptr;
    int64_t layer = -1;  // at hand; -1: none yet
    int64_t next = -1;
  };
  Place& ensure_place(const void* pass);
  void release_layer(int64_t layer);
  void read_ahead(int64_t layer);

  std::vector<std::vector<PageRange>> pages_;
  std::vector<bool> has_left_;
  std::vector<Place> places_;
  int64_t written_ = 0;
  std::unique_ptr<PageQueue> queue_;
};

}  // namespace strata::model
