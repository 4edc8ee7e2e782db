// SPDX-License-Identifier: Apache-2.0
#include "model/head.h"

#include <algorithm>

#include "model/tensor_ranks.h"
#include "ops/log_softmax.h"

namespace strata::model {
namespace {

LinearWeights head_linear(const Pass& pass) {
  LinearWeights linear = {.weight = pass.weights.head(), .bias = {}, .target = head_target(pass)};
  if (pass.weights.tensor_ranks() != nullptr)
    linear.row = &pass.weights.layers().vocabulary_rows().back();
  return linear;
}

// Sums over the rows of a sequence may be cut behind so many of them without a change of bits
// (ops/gemm.h: the groups of gemm_dw, and pairs).
constexpr int64_t kGroupRows = 32;
static_assert(kHeadChunk >= kGroupRows);

// How many rows a chunk takes of a sequence of which `left` are left and `before` gone: inside it a
// chunk ends behind a group of its rows.
int64_t num_rows_to_add(int64_t left, int64_t budget, int64_t before) {
  const int64_t count = std::min(left, budget);
  return count < left ? count - (before + count) % kGroupRows : count;
}

}  // namespace

TensorView head_gradient(const Pass& pass) {
  if (pass.base_gradients == nullptr) return {};
  if (pass.is_mtp) return pass.base_gradients->d_mtp_head;
  const bool tied = pass.weights.head_index() == pass.weights.embedding_index();
  return tied ? pass.base_gradients->d_tied_head
              : pass.base_gradients->d_weight[pass.weights.head_index()];
}

int64_t first_output_of_head(const Pass& pass) {
  const bool is_divided = pass.weights.tensor_ranks() != nullptr;
  return is_divided ? pass.weights.layers().vocabulary_rows().back().first_output : 0;
}

void head_forward(Pass& pass, const RowGroups& rows, TensorView x, TensorView h,
                  TensorView logits) {
  if (const TensorRanks* ranks = pass.weights.tensor_ranks()) {
    const Scratch::Mark mark(pass.backend.scratch());
    const LinearWeights head = head_linear(pass);
    const Deal deal = pass.weights.layers().vocabulary_rows().back().output_deal();
    const TensorView own =
        pass.take(DType::kF32, {logits.rows(), deal.part_of(ranks->share()).count});
    linear_forward(pass, rows, head, x, {}, h, own);
    ranks->gather_columns(pass, own, deal, logits);
  } else {
    linear_forward(pass, rows, head_linear(pass), x, {}, h, logits);
  }
  ops::map_logits(pass.backend, pass.weights.config().logit_map, logits);
}

void head_backward(Pass& pass, const RowGroups& rows, TensorView x, TensorView h,
                   TensorView d_logits, TensorView d_x, TensorView d_weight) {
  linear_backward(pass, rows, head_linear(pass), x, h, d_logits, d_x, false, d_weight);
}

void RowChunks::select_rows(const Pass& pass, std::span<const uint8_t> selected) {
  rows_.clear();
  pieces_.clear();
  piece_ = 0;
  position_ = 0;
  piece_begin_ = 0;
  for (const PassSequence& sequence : pass.sequences) {
    const size_t before = rows_.size();
    for (int64_t row = sequence.begin; row < sequence.end; ++row) {
      if (selected[static_cast<size_t>(row)] != 0) rows_.push_back(static_cast<int32_t>(row));
    }
    if (rows_.size() > before)
      pieces_.push_back({static_cast<int64_t>(rows_.size()), sequence.adapter});
  }
}

std::span<const int32_t> RowChunks::next_chunk() {
  groups_.clear();
  const int64_t begin = position_;
  int64_t budget = kHeadChunk;
  while (budget > 0 && piece_ < pieces_.size()) {
    const Piece& piece = pieces_[piece_];
    const int64_t left = piece.end - position_;
    const int64_t count = num_rows_to_add(left, budget, position_ - piece_begin_);
    if (count == 0) break;
    groups_.add_sequence(count, piece.adapter);
    position_ += count;
    budget -= count;
    if (position_ < piece.end) break;
    piece_begin_ = piece.end;
    ++piece_;
  }
  return std::span(rows_).subspan(static_cast<size_t>(begin),
                                  static_cast<size_t>(position_ - begin));
}

}  // namespace strata::model
