// SPDX-License-Identifier: Apache-2.0
#include "engine/pipeline/round.h"

#include <algorithm>
#include <numeric>

namespace strata::engine {

namespace {

// The tokens of sequences [first, end).
int64_t num_tokens(const api::Batch& batch, size_t first, size_t end) {
  int64_t tokens = 0;
  for (size_t s = first; s < end; ++s) tokens += std::ssize(batch.sequences[s].datum->tokens);
  return tokens;
}

// The lengths of the units among sequences [first, end).
std::vector<int64_t> lengths_of_units(const api::Batch& batch, size_t first, size_t end) {
  std::vector<int64_t> lengths;
  for (size_t s = first; s < end; s = end_of_unit(batch, s))
    lengths.push_back(num_tokens(batch, s, end_of_unit(batch, s)));
  return lengths;
}

// From places among units, of which the first begins at sequence `first`, to sequences.
void place_units(const api::Batch& batch, size_t first, std::vector<size_t>& places) {
  size_t unit = 0, sequence = first;
  for (size_t& place : places) {
    for (; unit < place; ++unit) sequence = end_of_unit(batch, sequence);
    place = sequence;
  }
}

// Where the micro-batches of sequences [first, end) begin, of no more units than so many
// micro-batches hold, and the last one's end.
void cut_by_tokens(const api::Batch& batch, int num_microbatches, int64_t pass_tokens, size_t first,
                   size_t end, std::vector<size_t>& firsts) {
  firsts.assign(1, first);
  while (firsts.back() < end && std::ssize(firsts) <= num_microbatches) {
    size_t last = firsts.back();
    int64_t tokens = 0;
    while (last < end) {
      const size_t next = end_of_unit(batch, last);
      tokens += num_tokens(batch, last, next);
      if (tokens > pass_tokens && last > firsts.back()) break;
      last = next;
    }
    firsts.push_back(last);
  }
}

// Micro-batches of fewer tokens would not pay for reading the weights.
constexpr int64_t kLeastTokens = 64;

// Whether all but those of one unit are no longer than a pass.
bool microbatches_fit(std::span<const int64_t> lengths, int64_t pass_tokens,
                      const std::vector<size_t>& firsts) {
  for (size_t m = 0; m + 1 < firsts.size(); ++m) {
    int64_t tokens = 0;
    for (size_t s = firsts[m]; s < firsts[m + 1]; ++s) tokens += lengths[s];
    if (tokens > pass_tokens && firsts[m + 1] > firsts[m] + 1) return false;
  }
  return true;
}

// As many micro-batches as pay, of about as many tokens. False where one would be too long.
bool try_cut_evenly(const api::Batch& batch, int num_microbatches, int64_t pass_tokens,
                    size_t first, size_t end, std::vector<size_t>& firsts) {
  const std::vector<int64_t> lengths = lengths_of_units(batch, first, end);
  const int64_t total = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  if (total > num_microbatches * pass_tokens) return false;
  const int64_t count = std::clamp<int64_t>(total / kLeastTokens, 1, num_microbatches);
  firsts = cut_lengths(lengths, static_cast<int>(count));
  const bool fits = microbatches_fit(lengths, pass_tokens, firsts);
  place_units(batch, first, firsts);
  return fits;
}

// Into the round: those of sequences [first, end), as the plan has them.
void cut_microbatches(const PipelinePlan& plan, int64_t pass_tokens, const api::Batch& batch,
                      size_t first, size_t end, Round& round) {
  const int count = plan.table.num_microbatches * round.num_dealt;
  if (round.num_dealt > 1 && plan.is_whole()) {
    round.firsts = cut_round(lengths_of_units(batch, first, end), round.num_dealt, pass_tokens);
    place_units(batch, first, round.firsts);
  } else if (plan.cuts_by_tokens()) {
    if (count == 1 || !try_cut_evenly(batch, count, pass_tokens, first, end, round.firsts))
      cut_by_tokens(batch, count, pass_tokens, first, end, round.firsts);
  } else {
    round.firsts = cut_lengths(lengths_of_units(batch, first, end), count);
    place_units(batch, first, round.firsts);
  }
}

// Fewer passes hold them in no case: what is longer than one is alone.
int64_t least_passes(std::span<const int64_t> lengths, int64_t pass_tokens) {
  int64_t least = 0, rest = 0;
  for (const int64_t length : lengths) {
    if (length > pass_tokens) {
      ++least;
    } else {
      rest += length;
    }
  }
  return least + rest / pass_tokens + (rest % pass_tokens == 0 ? 0 : 1);
}

// Where rows of micro-batches that begin at `firsts` begin: behind the rows of those before.
void set_first_rows(const api::Batch& batch, size_t first, int64_t rows, Round& round) {
  for (size_t s = first, m = 0; m < round.firsts.size(); ++m) {
    rows += num_tokens(batch, s, round.firsts[m]);
    s = round.firsts[m];
    round.first_rows.push_back(rows);
  }
}

}  // namespace

int num_dealing(const PipelinePlan& plan, const api::Batch& batch) {
  return batch.want_hidden_states || batch.want_logits ? 1 : plan.num_dealing();
}

size_t end_of_unit(const api::Batch& batch, size_t first) {
  return first + (api::row_of(batch.sequences[first].loss.name).of_pairs ? 2 : 1);
}

std::vector<size_t> cut_lengths(std::span<const int64_t> lengths, int num_microbatches) {
  const auto num_sequences = std::ssize(lengths);
  const auto count = std::min<int64_t>(num_microbatches, num_sequences);
  const int64_t total = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  std::vector<size_t> firsts;
  int64_t taken = 0;
  int64_t s = 0;
  for (int64_t m = 0; m < count; ++m) {
    firsts.push_back(static_cast<size_t>(s));
    const int64_t others = count - m - 1;  // each of which wants one, at least
    const int64_t end = total * (m + 1) / count;
    for (bool is_first = true; s < num_sequences - others; is_first = false, ++s) {
      const int64_t tokens = lengths[static_cast<size_t>(s)];
      if (!is_first && others > 0 && taken + tokens / 2 > end) break;
      taken += tokens;
    }
  }
  firsts.push_back(lengths.size());
  return firsts;
}

std::vector<size_t> cut_round(std::span<const int64_t> lengths, int num_ranks,
                              int64_t pass_tokens) {
  const int64_t least = least_passes(lengths, pass_tokens);
  std::vector<size_t> firsts;
  const int64_t rounds = std::max<int64_t>(1, (least + num_ranks - 1) / num_ranks);
  for (int64_t count = rounds * num_ranks;; count += num_ranks) {
    firsts = cut_lengths(lengths, static_cast<int>(count));
    if (count >= std::ssize(lengths) || microbatches_fit(lengths, pass_tokens, firsts)) break;
  }
  if (std::ssize(firsts) > num_ranks + 1) firsts.resize(static_cast<size_t>(num_ranks) + 1);
  return firsts;
}

bool next_round(const PipelinePlan& plan, int64_t pass_tokens, const api::Batch& batch,
                Round& round) {
  const std::vector<api::Sequence>& all = batch.sequences;
  const size_t first = round.firsts.empty() ? 0 : round.firsts.back();
  const int64_t rows = round.firsts.empty() ? 0 : round.first_rows.back();
  if (first == all.size()) return false;
  const bool takes = all[first].gradients;
  size_t end = first + 1;
  while (end < all.size() && all[end].gradients == takes) ++end;
  round.clear();
  round.backward = takes && batch.gradients != api::Gradients::kNone;
  cut_microbatches(plan, pass_tokens, batch, first, end, round);
  set_first_rows(batch, first, rows, round);
  return true;
}

}  // namespace strata::engine
