// SPDX-License-Identifier: Apache-2.0
// What ranks that have the same stage, of whose parameters each owns some rows
// (train/ownership.h), tell each other around an optimizer step. All make the same calls. Engine
// thread only.
#pragma once
#include <span>

#include "backend/comm.h"
#include "engine/engine.h"
#include "engine/pipeline/owner_group.h"
#include "engine/pipeline/plan.h"

namespace strata::engine {

// Who owns any stage's parameters, as its ranks have divided them, those of a tensor rank among
// themselves; `engine` has a stage of the model.
train::Ownership ownership_of(const PipelinePlan& plan, int stage, int tensor, Engine& engine);

// Adds to `sums`, of the table's size, what this rank's own rows make of the norm: those of a
// parameter whose rows have several owners are added up in their order behind what `before` has of
// it, and are the last one's.
void add_own_squares(Comm& data, Engine& engine, std::span<const double> before,
                     std::span<double> sums);

// The pieces of what an owner has, of experts that ranks divide or of all else, in the order in
// which it is exchanged, as products read it.
std::vector<train::RowPiece> pieces_of(const model::ModelWeights& weights,
                                       const train::Ownership& ownership, int owner,
                                       bool of_divided_experts);
// Whether a rank is sent an owner's piece: of weights that ranks divide only those that keep some
// of it are.
[[nodiscard]] bool is_sent(const model::ModelWeights& weights, const train::RowPiece& piece,
                           const train::Share& to);
// What an owner's step has made of a piece, as products read it.
void read_piece(Engine& engine, const train::RowPiece& piece, TensorView rows);

// Ranks that divide the weights write them anew between these, while none asks for any; nothing
// where they do not.
void begin_to_rewrite(Comm& data, model::ModelWeights& weights);
void end_to_rewrite(Comm& data, model::ModelWeights& weights);

// Every rank gets what the owners' steps have made of the rows that it keeps, group by group; those
// of the first one are all that have the stage.
void exchange_parameters(std::span<const OwnerGroup> groups, Engine& engine);

}  // namespace strata::engine
