// SPDX-License-Identifier: Apache-2.0
#include "model/weights/weight_pages.h"

namespace strata::model {

constexpr int64_t kMostWritten = 64 << 20;

void WeightPages::turn_to(int64_t layer, int64_t next) {
  const int64_t num_layers = std::ssize(pages_) - 1;
  if (layer_ != layer && layer_ >= 0) mover_.let_go(pages_[static_cast<size_t>(layer_)]);
  layer_ = layer;
  // The embedding is done with, or the head.
  const bool first = next > layer ? layer == 0 : layer == num_layers - 1;
  if (first) mover_.let_go(pages_.back());
  if (next >= 0) mover_.read_ahead(pages_[static_cast<size_t>(next)]);
}

void WeightPages::note_written(int64_t bytes) {
  written_ += bytes;
  if (written_ < kMostWritten) return;
  written_ = 0;
  for (const std::vector<PageRange>& ranges : pages_) mover_.let_go(ranges);
}

}  // namespace strata::model
