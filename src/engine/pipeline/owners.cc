// SPDX-License-Identifier: Apache-2.0
#include "engine/pipeline/owners.h"

#include <algorithm>

#include "base/trace.h"
#include "engine/pipeline/gradient_chain.h"
#include "model/weights/weight_shards.h"
#include "ops/elementwise.h"

namespace strata::engine {

train::Ownership ownership_of(const PipelinePlan& plan, int stage, int tensor, Engine& engine) {
  const model::ModelWeights& weights = *engine.model().weights;
  const bool ends = stage + 1 == plan.num_stages();
  const auto is_held = [&](size_t index) {
    const int layer = weights.table()[index].layer;
    if (layer >= 0) return plan.stage_of_layer(layer) == stage;
    return weights.is_before_layers(index) ? stage == 0 : ends;
  };
  return train::divide_parameters(weights, engine.base_trainer().how(), plan.num_dealing(),
                                  {tensor, plan.tensor}, is_held);
}

namespace {

// Who has rows of the parameter behind this rank's, or with step -1 before them.
int neighbouring_owner(const train::Ownership& all, size_t index, int own, int step) {
  int owner = own + step;
  while (all.rows(owner, index).empty()) owner += step;
  return owner;
}

// What this rank's rows of a parameter add to `before`, into `sums` or to who has those behind.
void accumulate_squares(Comm& data, Engine& engine, size_t index, double before,
                        std::span<double> sums) {
  const train::BaseTrainer& trainer = engine.base_trainer();
  const train::Ownership& all = trainer.ownership();
  const double sum = trainer.add_grad_squares(engine.backend(), index, before);
  if (all.rows(data.rank(), index).end() == all.items()[index].rows) {
    sums[index] += sum;
  } else {
    data.send_bytes(neighbouring_owner(all, index, data.rank(), 1), kSumTag, &sum, sizeof(sum));
  }
}

}  // namespace

// What others wait for comes first, and last what waits for others.
void add_own_squares(Comm& data, Engine& engine, std::span<const double> before,
                     std::span<double> sums) {
  const train::Ownership& all = engine.base_trainer().ownership();
  const int own = data.rank();
  const auto is_first = [&](size_t index) { return all.rows(own, index).first == 0; };
  for (const bool divided : {true, false}) {
    for (size_t index = 0; index < sums.size(); ++index) {
      if (all.rows(own, index).empty()) continue;
      if (all.is_divided(own, index) == divided && is_first(index))
        accumulate_squares(data, engine, index, before[index], sums);
    }
  }
  for (size_t index = 0; index < sums.size(); ++index) {
    if (all.rows(own, index).empty() || is_first(index)) continue;
    double sum = 0.0;
    data.receive_bytes(neighbouring_owner(all, index, own, -1), kSumTag, &sum, sizeof(sum));
    accumulate_squares(data, engine, index, sum, sums);
  }
}

std::vector<train::RowPiece> pieces_of(const model::ModelWeights& weights,
                                       const train::Ownership& ownership, int owner,
                                       bool of_divided_experts) {
  std::vector<train::RowPiece> pieces;
  for (size_t index = 0; index < weights.table().size(); ++index) {
    const train::OwnedRows& rows = ownership.rows(owner, index);
    const model::Parameter& parameter = weights.table()[index];
    if (is_of_divided_experts(weights, index) != of_divided_experts) continue;
    if (!parameter.is_matrix()) {
      if (!rows.empty()) pieces.push_back({index, rows, {1, parameter.num_cols()}, DType::kF32});
      continue;
    }
    train::append_row_pieces(index, rows, parameter.num_cols(), weights.compute_dtype(), pieces);
  }
  return pieces;
}

bool is_sent(const model::ModelWeights& weights, const train::RowPiece& piece,
             const train::Share& to) {
  return weights.is_kept_by({to.owner, to.num_owners}, piece.index, piece.rows.first,
                            piece.rows.end());
}

void read_piece(Engine& engine, const train::RowPiece& piece, TensorView rows) {
  model::ModelWeights& weights = *engine.model().weights;
  Backend& backend = engine.backend();
  if (weights.shards() == nullptr)
    return weights.read_rows(backend, piece.index, piece.rows.first, rows);
  const train::BaseTrainer& trainer = engine.base_trainer();
  const int64_t cols = piece.shape[1];
  const int64_t first = piece.rows.first - trainer.own_rows(piece.index).first;
  ops::copy(backend, trainer.master(piece.index).part(first * cols, piece.shape), rows);
}

namespace {

void barrier(Comm& data) {
  std::vector<double> all;
  data.all_gather({}, all);
}

// A piece of this rank's own, to all that keep some of it; it may be one of them.
void distribute_piece(Comm& data, Engine& engine, const train::RowPiece& piece) {
  model::ModelWeights& weights = *engine.model().weights;
  Backend& backend = engine.backend();
  const Scratch::Mark mark(backend.scratch());
  const TensorView rows = backend.scratch().take(piece.dtype, piece.shape);
  read_piece(engine, piece, rows);
  for (int to = 0; to < data.size(); ++to) {
    if (to == data.rank()) continue;
    if (is_sent(weights, piece, {to, data.size()})) {
      data.send(to, kParameterTag, rows);
    } else {
      data.send_bytes(to, kParameterTag, nullptr, 0);
    }
  }
  if (weights.shards() != nullptr && is_sent(weights, piece, {data.rank(), data.size()}))
    weights.write_rows(backend, piece.index, piece.rows.first, rows);
}

void receive_piece(Comm& data, Engine& engine, int from, const train::RowPiece& piece) {
  model::ModelWeights& weights = *engine.model().weights;
  if (!is_sent(weights, piece, {data.rank(), data.size()}))
    return data.receive_bytes(from, kParameterTag, nullptr, 0);
  Backend& backend = engine.backend();
  const Scratch::Mark mark(backend.scratch());
  const TensorView rows = backend.scratch().take(piece.dtype, piece.shape);
  data.receive(from, kParameterTag, rows);
  weights.write_rows(backend, piece.index, piece.rows.first, rows);
}

}  // namespace

void begin_to_rewrite(Comm& data, model::ModelWeights& weights) {
  if (weights.shards() == nullptr) return;
  weights.release_divided_weights();
  weights.shards()->wait_until_idle();
  barrier(data);
}

void end_to_rewrite(Comm& data, model::ModelWeights& weights) {
  if (weights.shards() == nullptr) return;
  weights.shards()->trim();
  barrier(data);
}

namespace {

// No owner is more than a piece ahead of another: who is not sent a piece is told so, and waits.
void exchange_within(const OwnerGroup& group, Engine& engine) {
  Comm& ranks = *group.ranks;
  std::vector<std::vector<train::RowPiece>> pieces;
  size_t most = 0;
  for (int rank = 0; rank < ranks.size(); ++rank) {
    pieces.push_back(pieces_of(*engine.model().weights, engine.base_trainer().ownership(),
                               group.owner_of(rank), group.is_of_experts()));
    most = std::max(most, pieces.back().size());
  }
  for (size_t i = 0; i < most; ++i) {
    const auto& own = pieces[static_cast<size_t>(ranks.rank())];
    if (i < own.size()) distribute_piece(ranks, engine, own[i]);
    for (int from = 0; from < ranks.size(); ++from) {
      const std::vector<train::RowPiece>& theirs = pieces[static_cast<size_t>(from)];
      if (from != ranks.rank() && i < theirs.size()) receive_piece(ranks, engine, from, theirs[i]);
    }
  }
}

}  // namespace

void exchange_parameters(std::span<const OwnerGroup> groups, Engine& engine) {
  const TraceSpan span("exchange parameters");
  model::ModelWeights& weights = *engine.model().weights;
  begin_to_rewrite(*groups.front().ranks, weights);
  for (const OwnerGroup& group : groups) exchange_within(group, engine);
  end_to_rewrite(*groups.front().ranks, weights);
}

}  // namespace strata::engine
