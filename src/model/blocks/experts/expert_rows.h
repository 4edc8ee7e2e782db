// SPDX-License-Identifier: Apache-2.0
// ExpertRows: how the rows of a layer's routed tokens, sorted by expert and then by token, divide:
// groups of one expert, and inside them runs of one adapter and the ends of sequences, which keep
// sums over tokens independent of how sequences are packed. Experts without rows do not occur.
// Reused from layer to layer and pass to pass: the memory stays. Engine thread only.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "ops/gemm_groups.h"
#include "tensor/index.h"

namespace strata::model {

class LoraAdapter;
struct PassSequence;

// Rows [begin, end) of one expert, or of one adapter within it; sequence ends count from `begin`.
struct ExpertSegment {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t expert = 0;
  LoraAdapter* adapter = nullptr;  // null: the base model, or a whole expert
  int64_t first_end = 0;
  int64_t num_ends = 0;
};

class ExpertRows {
 public:
  // expert_ends: end row of each expert; tokens: the token of each row, ascending in an expert.
  // Both are copied to the host: 8 bytes an expert and 4 a row.
  void build(Backend& backend, IndexView<int64_t> expert_ends, IndexView<int32_t> tokens,
             std::span<const PassSequence> sequences);
  // Where no routing is known (counting): every token goes to the first top_k experts, the most
  // rows that an expert may have.
  void build_fullest(int64_t top_k, int64_t num_experts, int64_t num_tokens,
                     std::span<const PassSequence> sequences);

  [[nodiscard]] std::span<const ExpertSegment> experts() const { return experts_; }
  [[nodiscard]] std::span<const ExpertSegment> runs() const { return runs_; }
  [[nodiscard]] std::span<const int64_t> ends_of_expert(const ExpertSegment& run) const {
    return ends_of(expert_ends_, run);
  }
  [[nodiscard]] std::span<const int64_t> ends_of_run(const ExpertSegment& run) const {
    return ends_of(run_ends_, run);
  }

  // Lists for products, reused.
  std::vector<ops::GemmGroup> groups;
  std::vector<ops::LowRankSegment> low_rank;
  std::vector<ops::SegmentProduct> products;
  ops::GemmGroupsLists group_lists;

 private:
  void divide(std::span<const int64_t> expert_ends, std::span<const int32_t> tokens,
              std::span<const PassSequence> sequences);
  static std::span<const int64_t> ends_of(const std::vector<int64_t>& ends,
                                          const ExpertSegment& run) {
    return std::span(ends).subspan(static_cast<size_t>(run.first_end),
                                   static_cast<size_t>(run.num_ends));
  }

  std::vector<ExpertSegment> experts_, runs_;
  std::vector<int64_t> expert_ends_, run_ends_;
  std::vector<int64_t> host_ends_;
  std::vector<int32_t> host_tokens_;
};

}  // namespace strata::model
