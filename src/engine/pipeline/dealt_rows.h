// SPDX-License-Identifier: Apache-2.0
// The rows that expert ranks have of a round whose passes they run at once. Any thread.
#pragma once
#include <span>

#include "api/batch.h"
#include "engine/pass.h"
#include "engine/pipeline/round.h"
#include "model/pass/rows.h"

namespace strata::engine {

// The pass of the micro-batch at a place of the round; behind the last one that of an expert rank
// which runs its experts for others: of no sequence, with gradients as these have. Borrows `rows`.
PassWork collate_place_of_round(Engine& engine, const api::Batch& batch, const Round& round,
                                size_t place, MicroBatch& rows);

// Fills `dealt`: the m-th rank has the sequences [firsts[m], firsts[m + 1]) of the batch, and ranks
// behind them none.
void lay_out_dealt_rows(const Engine& engine, const api::Batch& batch,
                        std::span<const size_t> firsts, int num_ranks, model::DealtRows& dealt);

}  // namespace strata::engine
