// SPDX-License-Identifier: Apache-2.0
// RowExchange: takes rows of tokens to the ranks of their experts, and what came of them back,
// where expert ranks run passes of their own sequences (Pass::dealt). An expert reads its rows by
// (rank, token), which is the order of one pass that has all of these sequences; results go back
// singly. All ranks make the same calls in the same order, also with no rows at all. T tokens of
// this rank, K experts of each, E experts, n rows of this rank's experts. Engine thread only;
// reused from layer to layer.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "model/blocks/experts/moe.h"
#include "model/blocks/experts/routing.h"
#include "model/pass/pass.h"

namespace strata::model {

class RowExchange {
 public:
  // Tells each rank which rows its experts have of this rank's tokens, and hears it. In a count
  // every rank has as many as its experts may have. Borrows the pass until the next call; what
  // follows has this tag.
  void begin(Pass& pass, const MoeConfig& config, const Routing& routing, int64_t tag);

  [[nodiscard]] int64_t num_rows() const { return std::ssize(tokens_); }
  // Where the rows of each of this rank's experts end; and each row's token among all ranks'.
  [[nodiscard]] std::span<const int64_t> group_ends() const { return group_ends_; }
  [[nodiscard]] std::span<const int32_t> tokens() const { return tokens_; }

  // y [n, N] becomes the rows of this rank's experts, of x [T * K, N] in each rank's routing order.
  void send_to_experts(TensorView x, TensorView y) const;
  // The contrary: x [T * K, N] becomes what the ranks of its rows' experts have in y.
  void send_home(TensorView y, TensorView x) const;

 private:
  struct Span {
    int64_t first = 0, count = 0;
  };
  [[nodiscard]] int rank() const;
  [[nodiscard]] int num_ranks() const;
  [[nodiscard]] int64_t num_experts_of(int rank) const;
  // The most rows that a rank's experts may have of another one's tokens.
  [[nodiscard]] int64_t most_rows(int of_experts, int of_tokens) const;
  void exchange_counts(const Routing& routing);
  void exchange_tokens(const Routing& routing);
  void sort_by_expert();
  void fill_for_count();
  // Rows of a rank's experts in this rank's routing; and of a rank's tokens as they arrive here.
  [[nodiscard]] Span leaving(int to) const { return leaving_[static_cast<size_t>(to)]; }
  [[nodiscard]] Span arriving(int from) const { return arriving_[static_cast<size_t>(from)]; }
  [[nodiscard]] TensorView take_arrivals(TensorView like) const;
  void exchange_rows(TensorView x, std::span<const Span> out, TensorView y,
                     std::span<const Span> in) const;
  void count_sent(int64_t bytes_of_row_out, int64_t bytes_of_row_back) const;

  Pass* pass_ = nullptr;
  int64_t top_k_ = 0, num_experts_ = 0, tag_ = 0;
  std::vector<int64_t> ends_;             // [E] of this rank's routing
  std::vector<int64_t> counts_;           // by rank and expert of this rank: rows that arrive
  std::vector<int64_t> own_counts_;       // of one rank's experts, on their way
  std::vector<Span> leaving_, arriving_;  // by rank
  std::vector<int32_t> own_tokens_, arrived_tokens_;
  std::vector<int32_t> tokens_;                               // by expert, rank and token
  std::vector<int32_t> place_of_arrival_, arrival_of_place_;  // arrivals are by rank and expert
  std::vector<int64_t> group_ends_;
};

}  // namespace strata::model
