// SPDX-License-Identifier: Apache-2.0
// The rows that expert ranks have of a round whose passes they run at once. Any thread.
#pragma once
#include <span>

#include "api/batch.h"
#include "model/pass/rows.h"

namespace strata::engine {

class Engine;

// Fills `dealt`: the m-th rank has the sequences [firsts[m], firsts[m + 1]) of the batch, and ranks
// behind them none.
void lay_out_dealt_rows(const Engine& engine, const api::Batch& batch,
                        std::span<const size_t> firsts, int num_ranks, model::DealtRows& dealt);

}  // namespace strata::engine
