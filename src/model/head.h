// SPDX-License-Identifier: Apache-2.0
// The language-model head on chosen rows: logits = map(x W^T plus the adapters' lm_head term),
// where the config's map scales or caps them (Granite, Gemma 2). C rows, D model width, V
// vocabulary. All logits of a batch never exist at once: callers walk the rows in chunks
// (RowChunks). Engine thread only.
#pragma once
#include "model/linear.h"

namespace strata::model {

// The head's adapter target in this pass.
[[nodiscard]] inline int head_target(const Pass& pass) { return pass.is_mtp ? kMtpHead : kHead; }

// Writes logits [C, V] f32 from x [C, D]; h [C, R] receives the adapter term's inner product, or is
// empty.
void head_forward(Pass& pass, const RowGroups& rows, TensorView x, TensorView h, TensorView logits);

// Where the base weight's gradient goes, or empty: [V, D], of a tensor rank its rows alone.
TensorView head_gradient(const Pass& pass);
// The first of them.
[[nodiscard]] int64_t first_output_of_head(const Pass& pass);
// d_logits [C, V] of the compute type: of the product, before the map (ops::log_softmax_backward
// gives it so). Writes d_x [C, D] f32, and accumulates the gradients of
// adapters and, unless empty, d_weight.
void head_backward(Pass& pass, const RowGroups& rows, TensorView x, TensorView h,
                   TensorView d_logits, TensorView d_x, TensorView d_weight);

// Rows a chunk holds at most: enough for products to run at full speed, few enough for [C, V] f32
// to stay small.
constexpr int64_t kHeadChunk = 256;

// Walks selected rows of a flat batch in chunks of at most kHeadChunk. A chunk ends inside a
// sequence only behind a multiple of 32 of its selected rows, so that the groups of a bf16 weight
// gradient are the same in every split of sequences into passes.
class RowChunks {
 public:
  // Selects the rows r of the pass with selected[r].
  void select_rows(const Pass& pass, std::span<const uint8_t> selected);
  // The next chunk: its row indices and groups; empty at the end.
  std::span<const int32_t> next_chunk();
  [[nodiscard]] const RowGroups& groups() const { return groups_; }

 private:
  struct Piece {
    int64_t end;  // in rows_
    LoraAdapter* adapter;
  };
  std::vector<int32_t> rows_;
  std::vector<Piece> pieces_;  // one for each sequence with a selected row
  size_t piece_ = 0;
  int64_t position_ = 0;
  int64_t piece_begin_ = 0;
  RowGroups groups_;
};

}  // namespace strata::model
