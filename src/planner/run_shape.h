// SPDX-License-Identifier: Apache-2.0
// RunShape: what is trained, as far as memory and time depend on it: of a run of `strata train`, or
// of one that is only planned. Plain values. Any thread.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/plan/cost.h"
#include "engine/plan/memory_plan.h"

namespace strata::planner {

// Bytes that a run may take.
struct Budget {
  int64_t bytes = 0;
  std::string text = {};  // as it was asked for
};

// The most tokens of a pass at a limit of so many.
struct LongestPass {
  int64_t limit = 0;
  int64_t trained = 0;
  int64_t evaluated = 0;
  // Of stages, where the limit is a number of micro-batches: of each one.
  std::vector<int64_t> of_microbatches = {};
};

// Of activations that --memory has in files wherever that costs less.
struct FileSpace {
  int64_t most = 0;            // on the disk
  int64_t memory = INT64_MAX;  // of which the system keeps files, besides what is planned
  [[nodiscard]] bool holds(int64_t file_bytes, int64_t planned) const;
};

// What is trained, as far as memory and time depend on it.
struct RunShape {
  engine::PlanShape pass = {};        // of any pass, but its tokens
  std::vector<int64_t> lengths = {};  // of the sequences, in tokens
  int64_t longest = 0;                // of these and of what evaluates
  int64_t step_tokens = 0;            // of an optimizer step, on average
  int64_t largest_step = 0;           // tokens of the largest one, where the batches are known
  // By limit, where the batches are known; else passes may be as long as their limit.
  std::vector<LongestPass> longest_passes = {};
  // Bytes of activations that may lie in files wherever that costs less; where nothing else fits,
  // any number.
  FileSpace file_space = {};
  engine::Price price = {};  // that plans weigh work by
};

constexpr int64_t kLeastPassTokens = 256;  // shorter passes are bound by memory

// The tokens of a pass that trains, at a limit of so many.
int64_t pass_tokens(const RunShape& shape, int64_t micro_tokens);
// Lengths of sequences that run one after the other, cut at every limit that may be tried.
void add_passes(RunShape& shape, std::span<const int64_t> lengths, bool trained,
                int64_t micro_tokens);

// Batches of so many sequences as there are lengths, cut into each number that may be tried for
// each of so many ranks that deal them out.
void add_micro_batches(RunShape& shape, const std::vector<int64_t>& lengths, bool trained,
                       int microbatches, int data = 1);

// Limits of a pass that are worth trying: the given one, and halves of it.
std::vector<int64_t> pass_limits(const RunShape& shape, int64_t micro_tokens);

}  // namespace strata::planner
