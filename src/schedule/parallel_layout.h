// SPDX-License-Identifier: Apache-2.0
// ParallelLayout: into how many parts of each kind the ranks of a run are divided. A plain value.
// Two neighbouring ranks differ in their experts; then in data, then tensors, and last the stage.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace strata::schedule {

struct ParallelLayout {
  int pipeline = 1;
  int data = 1;
  int expert = 1;
  int tensor = 1;

  [[nodiscard]] int64_t num_ranks() const;
  // Which part of each kind a rank has: numbers from 0.
  [[nodiscard]] ParallelLayout place_of(int rank) const;
  // "pipeline=2, data=2, expert=1, tensor=1"
  [[nodiscard]] std::string text() const;
  bool operator==(const ParallelLayout&) const = default;
};

// "pipeline=2,data=2" in any order; a kind that is not named has one part. Error{kInvalidArgument}
// for anything else.
ParallelLayout parse_layout(std::string_view text);
// That there are just so many ranks, else an Error with all numbers.
void check_num_ranks(const ParallelLayout& layout, int num_ranks);

}  // namespace strata::schedule
