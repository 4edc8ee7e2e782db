// SPDX-License-Identifier: Apache-2.0
#include "model/blocks/experts/expert_rows.h"

#include <algorithm>
#include <vector>

#include "model/blocks/experts/row_exchange.h"
#include "model/pass/pass.h"
#include "ops/elementwise.h"

namespace strata::model {
namespace {

// Rows of these experts, with memory for the parts of so many.
ops::GroupedRows group_rows(Pass& pass, std::span<const int64_t> sequence_ends,
                            IndexView<int32_t> token_of_row, IndexView<int64_t> expert_ends,
                            int64_t most_rows) {
  Scratch& scratch = pass.backend.scratch();
  const int64_t most = ops::most_parts(most_rows, expert_ends.size(), std::ssize(sequence_ends));
  const ops::GroupedRows rows = {
      .num_rows = token_of_row.size(),
      .group_ends = expert_ends,
      .part_ends = take_indices<int64_t>(scratch, most, kTemporaryTag),
      .part_sequences = take_indices<int32_t>(scratch, most, kTemporaryTag),
      .sequence_ends = sequence_ends};
  ops::split_groups_by_sequence(pass.backend, token_of_row, rows);
  return rows;
}

// Where the rows of experts end, on the host.
struct DividedEnds {
  std::vector<int64_t> all, own;
};

// Fills `ends`, this rank's counted from its first row; returns which rows of the routing it has.
RowSpan divide_ends(Pass& pass, const ExpertRanks& ranks, const Routing& routing, int64_t most_rows,
                    DividedEnds& ends) {
  const AxisPart experts = ranks.share().own_experts(routing.expert_ends.size());
  ends.all.assign(static_cast<size_t>(routing.expert_ends.size()), most_rows);
  ends.own.assign(static_cast<size_t>(experts.count), most_rows);
  RowSpan rows = {0, most_rows};
  pass.unless_counting([&] {
    ops::to_host(pass.backend, routing.expert_ends, ends.all);
    rows = ranks.rows_of(ranks.share().rank, ends.all);
    const auto first = ends.all.begin() + experts.first;
    std::transform(first, first + experts.count, ends.own.begin(),
                   [&](int64_t end) { return end - rows.first; });
  });
  return rows;
}

// Those of the same sequences on every rank.
ExpertRows rows_of_same_sequences(Pass& pass, const ExpertRanks& ranks, const Routing& routing,
                                  int64_t most) {
  auto& ends = pass.lists.blocks.ensure_lists<DividedEnds>();
  const RowSpan rows = divide_ends(pass, ranks, routing, most, ends);
  const auto own_ends =
      take_indices<int64_t>(pass.backend.scratch(), std::ssize(ends.own), kTemporaryTag);
  ops::from_host(pass.backend, ends.own, own_ends);
  const IndexView<int32_t> tokens(static_cast<int32_t*>(routing.token_of_row.data()) + rows.first,
                                  rows.count());
  return {.groups = group_rows(pass, pass.rows.ends(), tokens, own_ends, most),
          .token_of_row = tokens,
          .weights = routing.row_weights.part(rows.first, {rows.count()}),
          .count = rows.count(),
          .most = most,
          .in_routing = rows,
          .all_ends = ends.all};
}

// Those of the sequences of all ranks.
ExpertRows exchanged_rows(Pass& pass, const MoeConfig& c, const Routing& routing, int64_t most,
                          int64_t tag) {
  Scratch& scratch = pass.backend.scratch();
  auto& exchange = pass.lists.blocks.ensure_lists<RowExchange>();
  exchange.begin(pass, c, routing, tag);
  const int64_t count = exchange.num_rows();
  const auto ends =
      take_indices<int64_t>(scratch, std::ssize(exchange.group_ends()), kTemporaryTag);
  ops::from_host(pass.backend, exchange.group_ends(), ends);
  const IndexView<int32_t> tokens(take_indices<int32_t>(scratch, most, kTemporaryTag).data(),
                                  count);
  ops::from_host(pass.backend, exchange.tokens(), tokens);
  ExpertRows rows = {.groups = group_rows(pass, pass.dealt->rows.ends(), tokens, ends, most),
                     .token_of_row = tokens,
                     .weights = {},
                     .count = count,
                     .most = most,
                     .exchange = &exchange};
  const TensorView weights = rows.take(pass, DType::kF32, 1);
  exchange.send_to_experts(routing.row_weights.reshape({routing.num_rows(), 1}), weights);
  rows.weights = weights.reshape({count});
  return rows;
}

}  // namespace

TensorView ExpertRows::take(const Pass& pass, DType type, int64_t cols) const {
  return pass.take(type, {most, cols}).slice_rows(0, count);
}

TensorView ExpertRows::gather(const Pass& pass, const Routing& routing, TensorView x) const {
  const TensorView y = take(pass, x.dtype, x.cols());
  gather(pass, routing, x, y);
  return y;
}

void ExpertRows::gather(const Pass& pass, const Routing& routing, TensorView x,
                        TensorView y) const {
  if (exchange == nullptr) return ops::gather(pass.backend, x, token_of_row, y);
  const Scratch::Mark mark(pass.backend.scratch());
  const TensorView leaving = pass.take(x.dtype, {routing.num_rows(), x.cols()});
  ops::gather(pass.backend, x, routing.token_of_row, leaving);
  exchange->send_to_experts(leaving, y);
}

TensorView ExpertRows::take_part(const Pass& pass, TensorView values) const {
  if (exchange != nullptr) return take(pass, values.dtype, values.cols());
  return values.slice_rows(in_routing.first, in_routing.end);
}

void ExpertRows::bring_home(const Pass& pass, TensorView part, TensorView values,
                            int64_t tag) const {
  if (exchange != nullptr) return exchange->send_home(part, values);
  if (const ExpertRanks* ranks = pass.weights.expert_ranks())
    ranks->gather_rows(pass, all_ends, values, tag);
}

ops::GroupedRows group_rows_by_expert(Pass& pass, const Routing& routing) {
  return group_rows(pass, pass.rows.ends(), routing.token_of_row, routing.expert_ends,
                    routing.num_rows());
}

Turn turn_with_experts(const Pass& pass, const BlockContext& context) {
  return {pass.expert_turns, pass.is_mtp ? kMtpPart : context.layer};
}

int64_t most_expert_rows(const Pass& pass, const MoeConfig& c) {
  const int64_t tokens =
      pass.dealt != nullptr ? pass.dealt->rows.num_rows_total() : pass.num_tokens();
  return tokens * std::min(c.top_k, pass.weights.own_experts(c.num_experts).count);
}

ExpertRows own_expert_rows(Pass& pass, const BlockContext& context, const Routing& routing,
                           int64_t tag) {
  const auto& c = context.as<MoeConfig>();
  const int64_t most = most_expert_rows(pass, c);
  if (pass.dealt != nullptr) return exchanged_rows(pass, c, routing, most, tag);
  if (const ExpertRanks* const ranks = pass.weights.expert_ranks())
    return rows_of_same_sequences(pass, *ranks, routing, most);
  return {.groups = group_rows_by_expert(pass, routing),
          .token_of_row = routing.token_of_row,
          .weights = routing.row_weights,
          .count = routing.num_rows(),
          .most = most,
          .in_routing = {0, routing.num_rows()}};
}

}  // namespace strata::model
