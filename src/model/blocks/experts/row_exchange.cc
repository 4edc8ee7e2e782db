// SPDX-License-Identifier: Apache-2.0
#include "model/blocks/experts/row_exchange.h"

#include <algorithm>

#include "base/check.h"
#include "model/expert_ranks.h"
#include "ops/elementwise.h"

namespace strata::model {
namespace {

const ExpertRanks& ranks_of(const Pass& pass) { return *pass.weights.expert_ranks(); }

int64_t count_of(std::span<const int64_t> ends, int64_t index) {
  const auto i = static_cast<size_t>(index);
  return ends[i] - (i == 0 ? 0 : ends[i - 1]);
}

template <typename T>
int64_t bytes_of(int64_t count) {
  return count * static_cast<int64_t>(sizeof(T));
}

}  // namespace

int RowExchange::rank() const { return ranks_of(*pass_).share().rank; }
int RowExchange::num_ranks() const { return ranks_of(*pass_).share().num_ranks; }

int64_t RowExchange::num_experts_of(int rank) const {
  return ranks_of(*pass_).share().experts_of(num_experts_, rank).count;
}

int64_t RowExchange::most_rows(int of_experts, int of_tokens) const {
  return pass_->dealt->num_rows(of_tokens) * std::min(top_k_, num_experts_of(of_experts));
}

void RowExchange::begin(Pass& pass, const MoeConfig& config, const Routing& routing, int64_t tag) {
  CHECK(pass.dealt != nullptr &&
        std::ssize(pass.dealt->first_rows) == ranks_of(pass).share().num_ranks + 1);
  pass_ = &pass;
  top_k_ = config.top_k;
  num_experts_ = config.num_experts;
  tag_ = tag;
  pass.backend.if_counting([&] { fill_for_count(); });
  pass.unless_counting([&] {
    exchange_counts(routing);
    exchange_tokens(routing);
    sort_by_expert();
  });
}

// The lists have their sizes, and nobody reads them.
void RowExchange::fill_for_count() {
  int64_t rows = 0;
  for (int from = 0; from < num_ranks(); ++from) rows += most_rows(rank(), from);
  tokens_.assign(static_cast<size_t>(rows), 0);
  place_of_arrival_.assign(tokens_.size(), 0);
  arrival_of_place_.assign(tokens_.size(), 0);
  group_ends_.assign(static_cast<size_t>(num_experts_of(rank())), rows);
  for (int from = 0; from < num_ranks(); ++from) {
    const int64_t of_others = num_experts_ - num_experts_of(from);
    ranks_of(*pass_).count_sent(from, kExpertCountTag, bytes_of<int64_t>(of_others));
  }
  count_sent(bytes_of<int32_t>(1), 0);
}

// The most that each rank may send.
void RowExchange::count_sent(int64_t bytes_of_row_out, int64_t bytes_of_row_back) const {
  ranks_of(*pass_).count_wait(tag_);
  for (int from = 0; from < num_ranks(); ++from) {
    const int64_t of_others = std::min(top_k_, num_experts_ - num_experts_of(from));
    int64_t back = 0;
    for (int to = 0; to < num_ranks(); ++to) back += to == from ? 0 : most_rows(from, to);
    ranks_of(*pass_).count_sent(
        from, tag_,
        pass_->dealt->num_rows(from) * of_others * bytes_of_row_out + back * bytes_of_row_back);
  }
}

void RowExchange::exchange_counts(const Routing& routing) {
  const ExpertRanks& ranks = ranks_of(*pass_);
  ends_.resize(static_cast<size_t>(num_experts_));
  ops::to_host(pass_->backend, routing.expert_ends, ends_);
  const int64_t num_own = num_experts_of(rank());
  counts_.resize(static_cast<size_t>(num_ranks() * num_own));
  leaving_.clear();
  for (int to = 0; to < num_ranks(); ++to) {
    const AxisPart experts = ranks.share().experts_of(num_experts_, to);
    const RowSpan rows = ranks.rows_of(to, ends_);
    leaving_.push_back({rows.first, rows.count()});
    own_counts_.clear();
    for (int64_t e = experts.first; e < experts.end(); ++e)
      own_counts_.push_back(count_of(ends_, e));
    if (to == rank())
      std::ranges::copy(own_counts_, counts_.begin() + to * num_own);
    else
      ranks.comm().send_bytes(to, kExpertCountTag, own_counts_.data(),
                              bytes_of<int64_t>(experts.count));
  }
  for (int from = 0; from < num_ranks(); ++from) {
    if (from == rank()) continue;
    ranks.comm().receive_bytes(from, kExpertCountTag, counts_.data() + from * num_own,
                               bytes_of<int64_t>(num_own));
  }
}

void RowExchange::exchange_tokens(const Routing& routing) {
  Comm& comm = ranks_of(*pass_).comm();
  const int64_t num_own = num_experts_of(rank());
  own_tokens_.resize(static_cast<size_t>(routing.num_rows()));
  ops::to_host(pass_->backend, routing.token_of_row, own_tokens_);
  for (int32_t& token : own_tokens_) token += static_cast<int32_t>(pass_->dealt->first_row(rank()));
  arriving_.clear();
  int64_t next = 0;
  for (int from = 0; from < num_ranks(); ++from) {
    int64_t count = 0;
    for (int64_t e = 0; e < num_own; ++e) count += counts_[static_cast<size_t>(from * num_own + e)];
    arriving_.push_back({next, count});
    next += count;
  }
  arrived_tokens_.resize(static_cast<size_t>(next));
  for (int to = 0; to < num_ranks(); ++to) {
    const auto [first, count] = leaving(to);
    if (to != rank() && count > 0)
      comm.send_bytes(to, tag_, own_tokens_.data() + first, bytes_of<int32_t>(count));
  }
  for (int from = 0; from < num_ranks(); ++from) {
    const auto [first, count] = arriving(from);
    if (from == rank())
      std::copy_n(own_tokens_.begin() + leaving(from).first, count,
                  arrived_tokens_.begin() + first);
    else if (count > 0)
      comm.receive_bytes(from, tag_, arrived_tokens_.data() + first, bytes_of<int32_t>(count));
  }
}

void RowExchange::sort_by_expert() {
  const int64_t num_own = num_experts_of(rank());
  std::vector<int64_t>& next = own_counts_;  // where each rank's rows of the next expert begin
  next.clear();
  for (int from = 0; from < num_ranks(); ++from) next.push_back(arriving(from).first);
  tokens_.clear();
  arrival_of_place_.clear();
  group_ends_.clear();
  place_of_arrival_.resize(arrived_tokens_.size());
  for (int64_t e = 0; e < num_own; ++e) {
    for (int from = 0; from < num_ranks(); ++from) {
      int64_t& arrival = next[static_cast<size_t>(from)];
      const int64_t end = arrival + counts_[static_cast<size_t>(from * num_own + e)];
      for (; arrival < end; ++arrival) {
        place_of_arrival_[static_cast<size_t>(arrival)] = static_cast<int32_t>(tokens_.size());
        arrival_of_place_.push_back(static_cast<int32_t>(arrival));
        tokens_.push_back(arrived_tokens_[static_cast<size_t>(arrival)]);
      }
    }
    group_ends_.push_back(std::ssize(tokens_));
  }
}

// Memory for the most rows that there may be, of which these are.
TensorView RowExchange::take_arrivals(TensorView like) const {
  int64_t most = 0;
  for (int from = 0; from < num_ranks(); ++from) most += most_rows(rank(), from);
  return pass_->take(like.dtype, {most, like.cols()}).slice_rows(0, num_rows());
}

// `out` are rows of x by the rank that gets them, `in` those of y by the rank that gives them.
void RowExchange::exchange_rows(TensorView x, std::span<const Span> out, TensorView y,
                                std::span<const Span> in) const {
  Comm& comm = ranks_of(*pass_).comm();
  const auto part_of = [](TensorView rows, const Span& part) {
    return rows.slice_rows(part.first, part.first + part.count);
  };
  for (int to = 0; to < num_ranks(); ++to) {
    const Span& part = out[static_cast<size_t>(to)];
    if (to != rank() && part.count > 0) comm.send(to, tag_, part_of(x, part));
  }
  for (int from = 0; from < num_ranks(); ++from) {
    const Span& part = in[static_cast<size_t>(from)];
    if (part.count == 0) continue;
    if (from == rank())
      ops::copy(pass_->backend, part_of(x, out[static_cast<size_t>(from)]), part_of(y, part));
    else
      comm.receive(from, tag_, part_of(y, part));
  }
}

void RowExchange::send_to_experts(TensorView x, TensorView y) const {
  const Scratch::Mark mark(pass_->backend.scratch());
  const TensorView arrivals = take_arrivals(x);
  pass_->backend.if_counting([&] { count_sent(x.cols() * dtype_bytes(x.dtype), 0); });
  pass_->unless_counting([&] { exchange_rows(x, leaving_, arrivals, arriving_); });
  ops::gather(pass_->backend, arrivals, std::span<const int32_t>(arrival_of_place_), y);
}

void RowExchange::send_home(TensorView y, TensorView x) const {
  const Scratch::Mark mark(pass_->backend.scratch());
  const TensorView arrivals = take_arrivals(y);
  ops::gather(pass_->backend, y, std::span<const int32_t>(place_of_arrival_), arrivals);
  pass_->backend.if_counting([&] { count_sent(0, y.cols() * dtype_bytes(y.dtype)); });
  pass_->unless_counting([&] { exchange_rows(arrivals, arriving_, x, leaving_); });
}

}  // namespace strata::model
