// SPDX-License-Identifier: Apache-2.0
#include "planner/run_shape.h"

#include <algorithm>
#include <numeric>

#include "engine/pipeline/round.h"

namespace strata::planner {
namespace {

constexpr int kMostMicrobatches = 65536;

// The longest pass under every limit that may be tried (pass_limits_to_try).
std::vector<LongestPass>& ensure_longest_passes(RunShape& shape) {
  if (!shape.longest_passes.empty()) return shape.longest_passes;
  shape.longest_passes.push_back({.limit = shape.micro_tokens});
  for (int64_t limit = shape.micro_tokens / 2; limit >= kLeastPassTokens; limit /= 2)
    shape.longest_passes.push_back({.limit = limit});
  return shape.longest_passes;
}

// Lengths of sequences that run one after the other.
void raise_longest_pass(RunShape& shape, std::span<const int64_t> lengths, bool trained) {
  for (LongestPass& longest : ensure_longest_passes(shape)) {
    int64_t& most = trained ? longest.trained : longest.evaluated;
    int64_t tokens = 0;
    for (const int64_t length : lengths) {
      if (tokens > 0 && tokens + length > longest.limit) tokens = 0;
      tokens += length;
      most = std::max(most, tokens);
    }
  }
}

// A step whose passes ranks deal out among themselves, at one limit.
void raise_longest_of_rounds(LongestPass& longest, int num_ranks,
                             std::span<const int64_t> lengths) {
  for (size_t first = 0; first < lengths.size();) {
    const std::span<const int64_t> left = lengths.subspan(first);
    const std::vector<size_t> firsts = engine::cut_round(left, num_ranks, longest.limit);
    for (size_t m = 0; m + 1 < firsts.size(); ++m) {
      const auto tokens =
          std::accumulate(left.data() + firsts[m], left.data() + firsts[m + 1], int64_t{0});
      longest.trained = std::max(longest.trained, tokens);
    }
    longest.several_rounds = longest.several_rounds || first > 0;
    first += firsts.back();
  }
}

void raise_longest_micro_batch(LongestPass& longest, int num_ranks,
                               const std::vector<int64_t>& lengths, bool trained) {
  int64_t& most = trained ? longest.trained : longest.evaluated;
  const std::vector<size_t> firsts =
      engine::cut_lengths(lengths, static_cast<int>(longest.limit) * num_ranks);
  const auto ranks = static_cast<size_t>(num_ranks);
  std::vector<int64_t>& each = longest.of_microbatches;
  each.resize(std::max(each.size(), (firsts.size() + ranks - 2) / ranks));
  for (size_t m = 0; m + 1 < firsts.size(); ++m) {
    const int64_t tokens =
        std::accumulate(lengths.data() + firsts[m], lengths.data() + firsts[m + 1], int64_t{0});
    most = std::max(most, tokens);
    each[m / ranks] = std::max(each[m / ranks], tokens);
  }
}

// The longest pass under every number of micro-batches that may be tried, from the one asked for.
std::vector<LongestPass>& ensure_micro_batch_numbers(RunShape& shape, int asked) {
  if (!shape.longest_passes.empty()) return shape.longest_passes;
  for (int number = asked; number <= kMostMicrobatches; number *= 2)
    shape.longest_passes.push_back({.limit = number});
  return shape.longest_passes;
}

// Batches of so many sequences as there are lengths, cut into each number that may be tried for
// each of the ranks that deal them out.
void raise_longest_micro_batches(RunShape& shape, const engine::PipelinePlan& told,
                                 const std::vector<int64_t>& lengths, bool trained) {
  for (LongestPass& longest : ensure_micro_batch_numbers(shape, told.table.num_microbatches))
    raise_longest_micro_batch(longest, told.num_dealing(), lengths, trained);
}

// Neighbours of at most so many tokens together, or one that is longer.
std::vector<std::vector<int64_t>> cut_by_tokens(std::span<const int64_t> lengths, int64_t most) {
  std::vector<std::vector<int64_t>> cut;
  int64_t tokens = 0;
  for (const int64_t length : lengths) {
    if (cut.empty() || (tokens > 0 && tokens + length > most)) {
      cut.emplace_back();
      tokens = 0;
    }
    cut.back().push_back(length);
    tokens += length;
  }
  return cut;
}

}  // namespace

bool FileSpace::holds(int64_t file_bytes, int64_t planned) const {
  // Who has changed more of files than a fifth of the memory waits until it is written
  // (vm.dirty_ratio of https://docs.kernel.org/admin-guide/sysctl/vm.html).
  constexpr int64_t kChangedShare = 5;
  if (file_bytes == 0) return true;
  const bool is_kept = memory == INT64_MAX || file_bytes <= (memory - planned) / kChangedShare;
  return file_bytes <= most && is_kept;
}

const LongestPass* find_longest(const RunShape& shape, int64_t micro_tokens) {
  const auto found = std::ranges::find(shape.longest_passes, micro_tokens, &LongestPass::limit);
  return found == shape.longest_passes.end() ? nullptr : &*found;
}

int64_t pass_tokens(const RunShape& shape, int64_t micro_tokens) {
  const LongestPass* longest = find_longest(shape, micro_tokens);
  if (longest != nullptr && longest->trained > 0) return longest->trained;
  return std::max(shape.longest, std::min(micro_tokens, shape.step_tokens));
}

engine::PlanShape training_pass_shape(const RunShape& shape, int64_t micro_tokens) {
  engine::PlanShape pass = shape.pass;
  pass.pass_tokens = pass_tokens(shape, micro_tokens);
  const LongestPass* longest = find_longest(shape, micro_tokens);
  if (longest != nullptr && longest->trained > 0) pass.several_rounds = longest->several_rounds;
  return pass;
}

std::vector<int64_t> pass_limits_to_try(const RunShape& shape) {
  std::vector<int64_t> limits = {shape.micro_tokens};
  while (limits.back() / 2 >= kLeastPassTokens &&
         pass_tokens(shape, limits.back()) <= limits.back())
    limits.push_back(limits.back() / 2);
  return limits;
}

void add_step_to_longest_passes(RunShape& shape, const Division& division,
                                const std::vector<std::vector<int64_t>>& passes) {
  const int num_dealing = division.told.num_dealing();
  if (division.is_whole() && num_dealing == 1) {
    for (const std::vector<int64_t>& pass : passes)
      raise_longest_pass(shape, pass, /*trained=*/true);
    return;
  }
  std::vector<int64_t> all;
  for (const std::vector<int64_t>& pass : passes) all.insert(all.end(), pass.begin(), pass.end());
  if (!division.is_whole())
    return raise_longest_micro_batches(shape, division.told, all, /*trained=*/true);
  for (LongestPass& longest : ensure_longest_passes(shape))
    raise_longest_of_rounds(longest, num_dealing, all);
}

void add_evaluation_to_longest_passes(RunShape& shape, const Division& division,
                                      std::span<const int64_t> lengths) {
  if (division.is_whole()) return raise_longest_pass(shape, lengths, /*trained=*/false);
  for (const std::vector<int64_t>& batch : cut_by_tokens(lengths, shape.micro_tokens))
    raise_longest_micro_batches(shape, division.told, batch, /*trained=*/false);
}

}  // namespace strata::planner
