// SPDX-License-Identifier: Apache-2.0
#include "engine/pipeline/dealt_rows.h"

#include "base/check.h"
#include "engine/engine.h"

namespace strata::engine {

PassWork collate_place_of_round(Engine& engine, const api::Batch& batch, const Round& round,
                                size_t place, MicroBatch& rows) {
  const size_t end = round.firsts.size() - 1;
  const bool has = place < end;
  const size_t m = has ? place : end;
  PassWork work = rows.collate(engine, batch, round.firsts[m], round.firsts[has ? m + 1 : m]);
  work.first_row = round.first_rows[m];
  if (has || !round.backward) return work;
  const bool of_base = batch.gradients == api::Gradients::kParameters;
  work.adapter_gradients = !of_base;
  work.base_gradients = of_base ? engine.base_trainer().gradients() : nullptr;
  return work;
}

void lay_out_dealt_rows(const Engine& engine, const api::Batch& batch,
                        std::span<const size_t> firsts, int num_ranks, model::DealtRows& dealt) {
  const auto ranks = static_cast<size_t>(num_ranks);
  CHECK(!firsts.empty() && firsts.size() <= ranks + 1, firsts.size(), ranks);
  dealt.clear();
  for (size_t m = 0; m < ranks; ++m) {
    const size_t last = m + 1 < firsts.size() ? firsts[m + 1] : 0;
    for (size_t s = m < firsts.size() ? firsts[m] : 0; s < last; ++s) {
      const api::Sequence& sequence = batch.sequences[s];
      dealt.rows.add_sequence(std::ssize(sequence.datum->tokens),
                              engine.slot_adapter(sequence.slot));
    }
    dealt.end_rank();
  }
}

}  // namespace strata::engine
