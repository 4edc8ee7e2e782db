// SPDX-License-Identifier: Apache-2.0
// Cuts normalized text into the pieces that the model sees one by one.
#pragma once
#include <span>

#include "text/tokenizer/aligned_text.h"
#include "text/tokenizer/spec.h"

namespace strata::text {

// Bytes [begin, end) of Pieces::text.
struct Piece {
  size_t begin = 0;
  size_t end = 0;
};

struct Pieces {
  AlignedText text;
  std::vector<Piece> pieces;  // in order, not empty
  bool at_start = false;      // the text begins at byte 0 of the input
};

void pre_tokenize(std::span<const PreTokenizerStep> steps, Pieces& pieces);

}  // namespace strata::text
