// SPDX-License-Identifier: Apache-2.0
// Cuts normalized text into the pieces that the model sees one by one, each as it is found: of a
// long text there is never a list of them.
#pragma once
#include <span>

#include "base/function_ref.h"
#include "text/tokenizer/aligned_text.h"
#include "text/tokenizer/spec.h"

namespace strata::text {

// Bytes [begin, end) of a text.
struct Piece {
  size_t begin = 0;
  size_t end = 0;
};

// What the pieces are given to, in order, none empty; each is of a text that may end when it
// returns. False: no more are wanted.
using TakePiece = FunctionRef<bool(const AlignedText& text, Piece piece)>;

// Cuts `part` of `text`; `at_start`: it begins at byte 0 of the input. False: `take` was.
bool pre_tokenize(std::span<const PreTokenizerStep> steps, const AlignedText& text, Piece part,
                  bool at_start, TakePiece take);

}  // namespace strata::text
