// SPDX-License-Identifier: Apache-2.0
#include "engine/pipeline/tied_embedding.h"

#include <vector>

#include "base/trace.h"
#include "engine/pipeline/owners.h"
#include "engine/pipeline/rank_stages.h"
#include "ops/elementwise.h"

namespace strata::engine {
namespace {

// Gradients of an adapter's module of no layer; none where the stage is another rank's.
template <typename Body>
void for_each_gradient_of(StageRunner* stage, api::AdapterSlot slot, int target, Body body) {
  if (stage == nullptr) return;
  const model::LoraModule& module = *stage->engine().adapter(slot).find_module(-1, target);
  for (const TensorView& gradient : {module.d_a, module.d_b}) body(gradient);
}

// `values`: of the rows from `first_row` on, flat.
TensorView slice_piece(TensorView values, int64_t first_row, int64_t cols,
                       const train::RowPiece& piece) {
  return values.part((piece.rows.first - first_row) * cols, piece.shape);
}

// What a reader keeps of these rows of the embedding, piece by piece.
std::vector<train::RowPiece> pieces_kept_by(const train::Share& reader,
                                            const model::ModelWeights& weights,
                                            const train::OwnedRows& rows) {
  const size_t index = weights.embedding_index();
  std::vector<train::RowPiece> pieces;
  train::append_row_pieces(index, rows, weights.table()[index].num_cols(), weights.compute_dtype(),
                           pieces);
  std::erase_if(pieces,
                [&](const train::RowPiece& piece) { return !is_sent(weights, piece, reader); });
  return pieces;
}

}  // namespace

// The last stage reads the embedding for multi-token prediction. Each end gets what the other one
// has accumulated, so that both add them in one order.
void TiedEmbedding::swap_adapter_gradients(api::AdapterSlot slot) {
  const int last_stage = here_.plan().num_stages() - 1;
  const bool is_shared = here_.engine().config().use_mtp &&
                         here_.engine().adapter(slot).find_module(-1, model::kEmbedding) != nullptr;
  if (!is_shared || last_stage == 0) return;
  StageRunner* const first = here_.find(0);
  StageRunner* const last = here_.find(last_stage);
  const int64_t tag = here_.plan().gather_tag() + kSwapTag;
  const auto send_to = [&](int stage) {
    return [&, stage](const TensorView& view) {
      here_.pipeline().send(here_.rank_of(stage), tag, view);
    };
  };
  const auto receive_from = [&](int stage) {
    return [&, stage](const TensorView& view) {
      here_.pipeline().receive(here_.rank_of(stage), tag, view);
    };
  };
  for_each_gradient_of(first, slot, model::kEmbedding, send_to(last_stage));
  for_each_gradient_of(last, slot, model::kMtpEmbedding, send_to(0));
  for_each_gradient_of(last, slot, model::kEmbedding, receive_from(0));
  for_each_gradient_of(first, slot, model::kMtpEmbedding, receive_from(last_stage));
}

// What the last stage has accumulated of the embedding is the first one's, whose owners add it up
// in the order of one stage.
void TiedEmbedding::reduce_gradients() {
  const int last_stage = here_.plan().num_stages() - 1;
  const int num_uses = last_stage == 0 ? 0 : train::num_borrowed_uses(here_.engine().config());
  if (num_uses == 0) return;
  const model::ModelWeights& weights = *here_.engine().model().weights;
  const size_t index = weights.embedding_index();
  const train::Ownership borrowed =
      train::divide_borrowed_embedding(weights, here_.plan().num_dealing(), weights.tensor_share());
  for (int use = 0; use < num_uses; ++use) {
    for (int owner = 0; owner < here_.plan().num_dealing(); ++owner) {
      for (int from = 0; from < here_.plan().num_dealing(); ++from)
        reduce_rows(use, borrowed.rows(from, index), from, owner);
    }
  }
}

// `resting`: the rows of which data rank `from` of the last stage has the sum; added to what
// `owner` has of the first one's.
void TiedEmbedding::reduce_rows(int use, const train::OwnedRows& resting, int from, int owner) {
  const int last_stage = here_.plan().num_stages() - 1;
  const model::ModelWeights& weights = *here_.engine().model().weights;
  const size_t index = weights.embedding_index();
  const int64_t cols = weights.table()[index].num_cols();
  Backend& backend = here_.engine().backend();
  const train::OwnedRows& owned = here_.ownership_of_stage(0).rows(owner, index);
  std::vector<train::RowPiece> pieces;
  train::append_row_pieces(index, resting.shared_with(owned), cols, DType::kF32, pieces);
  here_.transfer_pieces(
      here_.owner_of(last_stage, from, here_.tensor_rank()),
      here_.owner_of(0, owner, here_.tensor_rank()), here_.plan().gather_tag() + kBorrowedTag,
      pieces.size(),
      [&](size_t i) {
        const auto uses = here_.find(last_stage)->engine().base_trainer().second_uses();
        return slice_piece(uses[static_cast<size_t>(use)].own, resting.first, cols, pieces[i]);
      },
      [&](size_t i) { return backend.scratch().take(DType::kF32, pieces[i].shape); },
      [&](size_t i, TensorView rows) {
        const TensorView sum = here_.find(0)->engine().base_trainer().gradient(index);
        ops::add_into(backend, rows, slice_piece(sum, owned.first, cols, pieces[i]));
      });
}

// What steps have made of the embedding goes to each rank that reads it at the end.
void TiedEmbedding::send_to_last_stage() {
  const int last_stage = here_.plan().num_stages() - 1;
  if (last_stage == 0 || train::num_borrowed_uses(here_.engine().config()) == 0) return;
  const TraceSpan span("lend embedding");
  StageRunner* last = here_.find(last_stage);
  if (last != nullptr && here_.dealing() != nullptr)
    begin_to_rewrite(*here_.dealing(), *last->engine().model().weights);
  for (int owner = 0; owner < here_.plan().num_dealing(); ++owner) {
    for (int to = 0; to < here_.plan().num_dealing(); ++to) send_rows(owner, to);
  }
  if (last != nullptr && here_.dealing() != nullptr)
    end_to_rewrite(*here_.dealing(), *last->engine().model().weights);
}

// Those of the first stage's `owner`, to data rank `to` of the last stage.
void TiedEmbedding::send_rows(int owner, int to) {
  const int last_stage = here_.plan().num_stages() - 1;
  const model::ModelWeights& weights = *here_.engine().model().weights;
  const size_t index = weights.embedding_index();
  Backend& backend = here_.engine().backend();
  const std::vector<train::RowPiece> pieces = pieces_kept_by(
      {to, here_.plan().num_dealing()}, weights, here_.ownership_of_stage(0).rows(owner, index));
  const auto take = [&](size_t i) {
    return backend.scratch().take(pieces[i].dtype, pieces[i].shape);
  };
  here_.transfer_pieces(
      here_.owner_of(0, owner, here_.tensor_rank()),
      here_.owner_of(last_stage, to, here_.tensor_rank()), here_.plan().gather_tag() + kLentTag,
      pieces.size(),
      [&](size_t i) {
        const TensorView rows = take(i);
        read_piece(here_.find(0)->engine(), pieces[i], rows);
        return rows;
      },
      take,
      [&](size_t i, TensorView rows) {
        const model::LoadedModel& last = here_.find(last_stage)->engine().model();
        last.weights->write_rows(backend, index, pieces[i].rows.first, rows);
      });
}

}  // namespace strata::engine
