// SPDX-License-Identifier: Apache-2.0
#include "model/pass/offloaded.h"

#include "backend/offload_space.h"

namespace strata::model {

// Pages are moved whole: what is behind one another is one piece.
void Offloaded::add_piece(int64_t layer, const PageRange& range) {
  if (!pieces_.empty() && pieces_.back().layer == layer) {
    PageRange& last = pieces_.back().range;
    if (static_cast<std::byte*>(last.data) + last.bytes == range.data) {
      last.bytes += range.bytes;
      return;
    }
  }
  pieces_.push_back({layer, range});
}

TensorView Offloaded::allocate(Backend& backend, int64_t layer, DType type, const Shape& shape,
                               ScratchTag tag) {
  const TensorView view = backend.file_scratch().take(type, shape, tag);
  add_piece(layer, {view.data, Arena::aligned(view.num_bytes())});
  return view;
}

void Offloaded::queue_move(Backend& backend, int64_t layer, Move move) {
  asked_.clear();
  for (const Piece& piece : pieces_) {
    if (piece.layer == layer) asked_.push_back(piece.range);
  }
  if (asked_.empty() || backend.offload() == nullptr) return;
  (backend.offload()->queue().*move)(asked_);
}

void Offloaded::write_behind(Backend& backend, int64_t layer) {
  queue_move(backend, layer, &PageQueue::write_behind);
}

void Offloaded::read_ahead(Backend& backend, int64_t layer) {
  queue_move(backend, layer, &PageQueue::read_ahead);
}

void Offloaded::let_go(Backend& backend, int64_t layer) {
  queue_move(backend, layer, &PageQueue::let_go);
}

}  // namespace strata::model
