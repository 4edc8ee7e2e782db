// SPDX-License-Identifier: Apache-2.0
// Offloaded: which pieces of the backend's files hold a pass's activations, by layer, so that what
// is behind the pass leaves the memory and what is ahead of it is there in time. Where nothing is
// offloaded, and where a pass is counted, moving does nothing. Engine thread only.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "backend/page_queue.h"

namespace strata::model {

class Offloaded {
 public:
  void clear() { pieces_.clear(); }
  // From the backend's files.
  TensorView allocate(Backend& backend, int64_t layer, DType type, const Shape& shape,
                      ScratchTag tag);

  // After a layer's forward.
  void write_behind(Backend& backend, int64_t layer);
  // Before its backward.
  void read_ahead(Backend& backend, int64_t layer);
  // After its backward: nobody reads it any more.
  void let_go(Backend& backend, int64_t layer);

 private:
  struct Piece {
    int64_t layer = 0;
    PageRange range;
  };
  void add_piece(int64_t layer, const PageRange& range);
  // Has the queue move the layer's pieces; nothing where there are none, or no queue.
  using Move = void (PageQueue::*)(std::span<const PageRange> ranges);
  void queue_move(Backend& backend, int64_t layer, Move move);

  std::vector<Piece> pieces_;
  std::vector<PageRange> asked_;  // of a layer, while they are asked for
};

}  // namespace strata::model
