// SPDX-License-Identifier: Apache-2.0
// LossPass: from the final hidden states of a pass to logprobs, losses and the gradient of the
// hidden states, in chunks of rows; all logits never exist at once and rows without a weight never
// reach the head, unless all are to be scored. T tokens, D model width, V vocabulary, M targets: a
// row has one target, or (cross_entropy) K of them. Engine thread only; reuses its buffers.
#pragma once
#include <span>
#include <vector>

#include "model/head.h"
#include "model/pass/gradient_turns.h"
#include "train/loss.h"

namespace strata::train {

// What the tokens of a pass are trained on.
struct LossInputs {
  std::span<const int32_t> targets;        // [M]
  std::span<const int64_t> first_targets;  // [T + 1] where each row's targets begin; empty: M = T
  // Weights [M], the others [T]; these may be empty where no loss reads them.
  api::ByLossInput<std::span<const float>> columns = {};
  std::span<const api::Loss> losses;       // one for each sequence of the pass
  std::span<const float> references = {};  // likewise; empty where no loss is of pairs
  bool score_all = false;                  // logprobs also where every weight of the row is zero

  [[nodiscard]] std::span<const float> weights() const { return columns[api::LossInput::kWeights]; }
};

// How the head's gradients are made where other ranks add to them too.
struct HeadTurns {
  model::GradientTurns* turns = nullptr;  // null: nobody else does
  // Those of the base weight are made when all else is, of kApartRows rows at most, whose gradients
  // of logits are kept until then: so that ranks wait for each other's products of a part of the
  // head, and not for all of its work.
  bool apart = false;
};
constexpr int64_t kApartRows = 8 * model::kHeadChunk;

class LossPass {
 public:
  // Writes logprobs and losses [M], zero in rows that are not scored; the loss of a pair stands at
  // the first target of the chosen answer whose weight is not 0. With a non-empty d_hidden [T,
  // D] f32 also the gradient of the summed loss, and accumulates the head's. With non-empty
  // `top_logprobs` [T] also the largest logprob of each row that is scored.
  void compute_losses_and_gradients(model::Pass& pass, const LossInputs& inputs, TensorView hidden,
                                    std::span<float> logprobs, std::span<float> losses,
                                    TensorView d_hidden, std::span<float> top_logprobs = {},
                                    const HeadTurns& head = {});

 private:
  // The targets of a row, in the flat arrays.
  struct Range {
    size_t begin, end;
  };
  [[nodiscard]] static Range targets_of(const LossInputs& inputs, size_t row);
  static void check_sizes(const model::Pass& pass, const LossInputs& inputs,
                          std::span<const float> logprobs, std::span<const float> losses,
                          std::span<const float> top_logprobs);
  void list_row_sequences(const model::Pass& pass);
  void compute_sequence_values(model::Pass& pass, const LossInputs& inputs, TensorView hidden,
                               std::span<float> logprobs);
  // The loss's inputs of sequence s; `logprobs` [M].
  static SequenceInputs sequence_inputs_of(const model::Pass& pass, const LossInputs& inputs,
                                           size_t s, std::span<const float> logprobs);
  // Computes the values of the pair that begins at sequence s.
  void compute_pair_value(const model::Pass& pass, const LossInputs& inputs, size_t s,
                          std::span<const float> logprobs);
  // Whether the target of the row is among those that a pair's loss is of.
  static bool is_in_pair(const LossInputs& inputs, size_t row);
  static PairSide pair_side_of(const model::Pass& pass, const LossInputs& inputs, size_t s,
                               std::span<const float> logprobs);
  void write_pair_losses(const model::Pass& pass, const LossInputs& inputs,
                         std::span<float> losses) const;
  // Selects the rows that sequence values are made of; returns whether there is any.
  bool select_scored_rows(const LossInputs& inputs);
  void score_selected_rows(model::Pass& pass, const LossInputs& inputs, TensorView hidden,
                           std::span<float> logprobs);
  void select_rows(const LossInputs& inputs);
  // All targets of a chunk, and the first one of each of its rows.
  void list_targets(const LossInputs& inputs, std::span<const int32_t> rows);
  // Logits [C, V] f32 of the rows x [C, D], in scratch, and the logprobs of all their targets. h
  // [C, R], or empty: the adapters' inner product; lse [C, 2] f32 (ops::logsumexp).
  TensorView compute_logits_and_logprobs(model::Pass& pass, const LossInputs& inputs,
                                         std::span<const int32_t> rows, TensorView x, TensorView h,
                                         TensorView lse, std::span<float> logprobs);
  // Those of a chunk's targets.
  void write_logprobs(const LossInputs& inputs, std::span<const int32_t> rows,
                      std::span<float> logprobs) const;
  // x [C, D] and d_logits [C, V], of the compute type, of rows whose head's gradient is made later;
  // empty where it is made at once.
  struct Kept {
    TensorView x, d_logits;
    [[nodiscard]] Kept rows(int64_t first, int64_t end) const {
      return {x.slice_rows(first, end), d_logits.slice_rows(first, end)};
    }
  };
  // In scratch; empty of no rows.
  [[nodiscard]] static Kept take_scratch_for_kept(model::Pass& pass, int64_t num_rows,
                                                  int64_t width);
  // Those that `kept` has space for, of at most so many rows; returns the chunk behind them.
  std::span<const int32_t> run_kept_chunks(model::Pass& pass, const LossInputs& inputs,
                                           TensorView hidden, std::span<float> logprobs,
                                           std::span<float> losses, TensorView d_hidden,
                                           const Kept& kept, int64_t most);
  static void end_head_turns(model::GradientTurns& turns);
  void run_chunks(model::Pass& pass, const LossInputs& inputs, TensorView hidden,
                  std::span<float> logprobs, std::span<float> losses, TensorView d_hidden,
                  const HeadTurns& head);
  void run_chunk(model::Pass& pass, const LossInputs& inputs, std::span<const int32_t> rows,
                 TensorView hidden, std::span<float> logprobs, std::span<float> losses,
                 TensorView d_hidden, const Kept& kept);
  // A chunk that was run, in scratch: its rows, their logits and what these were computed with.
  struct Chunk {
    std::span<const int32_t> rows;
    TensorView x, h, lse, logits;
  };
  // Gradients of logits, in their memory: fp32 in place, bf16 in the first half of each row.
  static TensorView in_place_of(TensorView logits, DType dtype);
  void run_chunk_backward(model::Pass& pass, const LossInputs& inputs, const Chunk& chunk,
                          std::span<const float> logprobs, TensorView d_hidden, const Kept& kept);
  void note_kept_chunk(int64_t num_rows);
  void add_head_gradient_in_turns(model::Pass& pass, const Kept& kept, model::GradientTurns* turns,
                                  bool ends_turns);
  // A part of the head's gradient, of the chunks that are kept.
  void add_head_gradient(model::Pass& pass, const Kept& kept, int64_t part);
  // The targets of a row, into order_.
  void sort_targets_by_token(const LossInputs& inputs, Range range);
  // The sum of the slopes of the token at order_[k]; moves k behind it.
  float next_token_slope(const LossInputs& inputs, size_t& k) const;
  void write_top_logprobs(model::Pass& pass, std::span<const int32_t> rows, TensorView lse);
  // All but what its targets differ in.
  [[nodiscard]] TokenInputs token_inputs_of(const LossInputs& inputs, size_t row) const;
  void compute_row_losses_and_slopes(const LossInputs& inputs, size_t i, size_t row,
                                     std::span<const float> logprobs, std::span<float> losses);
  void scatter_target_gradients(model::Pass& pass, const LossInputs& inputs, const Chunk& chunk,
                                std::span<const float> logprobs, TensorView d_logits);

  model::RowChunks chunks_;
  // How many rows a chunk that is kept has, and which ends of sequences.
  struct KeptChunk {
    int64_t num_rows;
    size_t first_end, num_ends;
  };
  std::vector<KeptChunk> kept_chunks_;
  std::vector<int64_t> kept_ends_;
  std::vector<uint8_t> selected_;
  std::vector<int32_t> row_sequences_;  // [T] the row's sequence
  std::vector<float> sequence_values_;  // of each sequence, where its formula has one
  std::vector<float> pair_losses_;      // of each sequence that begins a pair
  std::vector<int32_t> chunk_targets_;
  // The targets of a chunk: each one's row in it, its token and logprob; then what is written.
  std::vector<int32_t> target_rows_, target_ids_;
  std::vector<float> target_logprobs_, further_values_;
  std::vector<float> chunk_slopes_;   // of each row: the sum over its targets
  std::vector<float> target_slopes_;  // [M]
  std::vector<size_t> order_;
  std::span<float> top_logprobs_;  // of the run
  std::vector<float> lse_;         // of a chunk, for these
};

}  // namespace strata::train
