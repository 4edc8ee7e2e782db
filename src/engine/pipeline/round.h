// SPDX-License-Identifier: Apache-2.0
// How a batch is cut into rounds of a table's micro-batches: by lengths and plan. Any thread.
#pragma once
#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "api/batch.h"
#include "engine/pipeline/plan.h"

namespace strata::engine {

// Neighbours of a batch that take gradients, or all do not, as the table runs them at once:
// sequences [firsts[m], firsts[m + 1]) are micro-batch m. Those of a rank are each `num_dealt`-th
// from `dealt` on, which its table numbers from 0. Of neighbouring micro-batches so many run at
// once as a copy of the experts is dealt to ranks (`num_at_once`, which divides num_dealt).
struct Round {
  std::vector<size_t> firsts;
  std::vector<int64_t> first_rows;  // of the flat batch, likewise
  bool backward = false;
  int dealt = 0, num_dealt = 1, num_at_once = 1;
  void clear() {
    firsts.clear();
    first_rows.clear();
  }
  [[nodiscard]] int num_microbatches() const { return static_cast<int>(firsts.size()) - 1; }
  // Micro-batches that have one.
  [[nodiscard]] size_t num_backwards() const {
    return backward ? static_cast<size_t>(num_microbatches()) : 0;
  }
  [[nodiscard]] size_t place_of(int own) const {
    return static_cast<size_t>(dealt + own * num_dealt);
  }
  [[nodiscard]] bool has(int own) const { return dealt + own * num_dealt < num_microbatches(); }
  // Those that run at once with a rank's micro-batch of that number, by their place among all such;
  // and how many of these have a backward.
  [[nodiscard]] size_t place_of_group(int own) const {
    return place_of(own) / static_cast<size_t>(num_at_once);
  }
  [[nodiscard]] size_t num_backward_groups() const {
    const auto at_once = static_cast<size_t>(num_at_once);
    return (num_backwards() + at_once - 1) / at_once;
  }
  // Where they begin, of the ranks that have one in their order, and the last one's end.
  [[nodiscard]] std::span<const size_t> firsts_of_group(int own) const {
    const auto ranks = static_cast<size_t>(num_at_once), first = place_of_group(own) * ranks;
    return std::span(firsts).subspan(first, std::min(ranks + 1, firsts.size() - first));
  }
  // Whether any of their ranks has one.
  [[nodiscard]] bool any_has(int own) const {
    return static_cast<int>(place_of_group(own)) * num_at_once < num_microbatches();
  }
};

// Ranks that deal the micro-batches of a batch out among themselves; 1: each rank has all of them,
// as where large results are wanted.
int num_dealing(const PipelinePlan& plan, const api::Batch& batch);

// A unit is what is not cut: a sequence, or the two of a pair, whose loss is of both. Where the one
// that begins at `first` ends.
size_t end_of_unit(const api::Batch& batch, size_t first);
// Whole units in their order, at least one each, of about as many tokens; as many micro-batches as
// asked for, or as there are units. Of their lengths alone: `firsts`.
std::vector<size_t> cut_lengths(std::span<const int64_t> lengths, int num_microbatches);
// Likewise the passes of a round that ranks deal out, one each, of a whole model: there are as few
// rounds, of which this is the first, as passes of so many tokens allow.
std::vector<size_t> cut_round(std::span<const int64_t> lengths, int num_ranks, int64_t pass_tokens);
// The round behind this one, or from a fresh one the first; false where there is none. Passes have
// at most so many tokens, or one longer unit, where the plan cuts by tokens. Where
// micro-batches are dealt out, each rank has as many as the table, if there are so many.
bool next_round(const PipelinePlan& plan, int64_t pass_tokens, const api::Batch& batch,
                Round& round);

}  // namespace strata::engine
