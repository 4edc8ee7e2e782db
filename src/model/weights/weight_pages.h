// SPDX-License-Identifier: Apache-2.0
// WeightPages: of weights that lie in files (backend/file_memory.h), the pages of the layer at hand
// and of the next one are in memory, in whichever direction a pass walks; the others leave it.
// Engine thread only; a thread of its own moves them.
#pragma once
#include <cstdint>
#include <utility>
#include <vector>

#include "backend/file_memory.h"

namespace strata::model {

class WeightPages {
 public:
  // Of each layer; the last are those outside the layers: embedding, final norm, head.
  explicit WeightPages(std::vector<std::vector<PageRange>> pages) : pages_(std::move(pages)) {}

  void turn_to(int64_t layer, int64_t next);
  // While weights are written, so that they do not fill the memory.
  void note_written(int64_t bytes);

 private:
  std::vector<std::vector<PageRange>> pages_;
  int64_t layer_ = -1;  // at hand; -1: none yet
  int64_t written_ = 0;
  PageMover mover_{"weights' files"};
};

}  // namespace strata::model
