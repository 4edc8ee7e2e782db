// SPDX-License-Identifier: Apache-2.0
// ExpertShare: one of so many expert ranks, which divide the experts of each layer among
// themselves and have all else alike: expert e of E is on rank floor(e ranks / E). Plain values.
// Any thread.
#pragma once
#include <cstdint>

#include "model/weights/tensor_share.h"

namespace strata::model {

struct ExpertShare {
  int rank = 0;
  int num_ranks = 1;
  [[nodiscard]] bool is_divided() const { return num_ranks > 1; }
  // Those that a rank has of so many experts: neighbours. No rank has more than the first.
  [[nodiscard]] AxisPart experts_of(int64_t num_experts, int of_rank) const {
    const auto first_of = [&](int64_t rank) {
      return (rank * num_experts + num_ranks - 1) / num_ranks;
    };
    const int64_t first = first_of(of_rank);
    return {first, first_of(int64_t{of_rank} + 1) - first};
  }
  [[nodiscard]] int rank_of(int64_t expert, int64_t num_experts) const {
    return static_cast<int>(expert * num_ranks / num_experts);
  }
  [[nodiscard]] AxisPart own_experts(int64_t num_experts) const {
    return experts_of(num_experts, rank);
  }
};

}  // namespace strata::model
