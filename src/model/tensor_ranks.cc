// SPDX-License-Identifier: Apache-2.0
#include "model/tensor_ranks.h"

#include <algorithm>

#include "base/check.h"
#include "model/pass/pass.h"
#include "ops/elementwise.h"
#include "ops/pack.h"

namespace strata::model {
namespace {

// The pass's tokens among these rows of a matrix, counted from row `base` of it, and their rows in
// the pass.
void list_tokens(const Pass& pass, const AxisPart& part, int64_t base) {
  PassLists& lists = pass.lists;
  lists.dealt_ids.clear();
  lists.dealt_rows.clear();
  for (size_t row = 0; row < pass.tokens.size(); ++row) {
    const int64_t id = pass.tokens[row];
    if (id < part.first || id >= part.end()) continue;
    lists.dealt_ids.push_back(static_cast<int32_t>(id - base));
    lists.dealt_rows.push_back(static_cast<int32_t>(row));
  }
}

// What a message may hold: itself, or a copy in scratch.
TensorView dense(const Pass& pass, TensorView values) {
  if (values.dense()) return values;
  const TensorView copy = pass.take(values.dtype, values.shape);
  ops::copy(pass.backend, values, copy);
  return copy;
}

// values [n, D] to the rows of x that were listed; neighbours of both at once.
void place_rows(const Pass& pass, TensorView values, TensorView x) {
  const std::vector<int32_t>& rows = pass.lists.dealt_rows;
  for (size_t begin = 0, end = 0; begin < rows.size(); begin = end) {
    end = begin + 1;
    while (end < rows.size() && rows[end] == rows[end - 1] + 1) ++end;
    ops::copy(pass.backend,
              values.slice_rows(static_cast<int64_t>(begin), static_cast<int64_t>(end)),
              x.slice_rows(rows[begin], rows[end - 1] + 1));
  }
}

}  // namespace

void TensorRanks::connect(Comm& comm) {
  CHECK(comm.rank() == share_.rank && comm.size() == share_.num_ranks, comm.rank(), share_.rank,
        share_.num_ranks);
  comm_ = &comm;
}

bool TensorRanks::all_say(bool own) const {
  CHECK(comm_ != nullptr);
  const double mine = own ? 1.0 : 0.0;
  std::vector<double> all;
  comm_->all_gather({&mine, 1}, all);
  return std::ranges::all_of(all, [](double each) { return each != 0.0; });
}

bool TensorRanks::hears(int from, int to, const Deal& deal) const {
  const AxisPart part = deal.part_of(share_of(from));
  return from != to && !deal.is_copy(share_of(from)) &&
         !(deal.copied && deal.part_of(share_of(to)) == part);
}

void TensorRanks::send_to_others(TensorView values, const Deal& deal) const {
  CHECK(comm_ != nullptr);
  if (values.shape.num_elements() == 0) return;
  for (int rank = 0; rank < share_.num_ranks; ++rank) {
    if (hears(share_.rank, rank, deal)) comm_->send(rank, kGatherTag, values);
  }
}

int TensorRanks::last_of(const Deal& outputs) const {
  int rank = 0;
  while (outputs.part_of(share_of(rank)).end() < outputs.size) ++rank;
  return rank;
}

// What one rank does of a chain.
class TensorRanks::ChainTurn {
 public:
  ChainTurn(const TensorRanks& ranks, const Pass& pass, const DxChain& chain)
      : ranks_(ranks), pass_(pass), chain_(chain), own_(chain.outputs.chain_of(ranks.share_)) {
    const Shape shape = {chain.num_rows, chain.num_inputs};
    open_ = pass.take(DType::kF32, shape);
    if (chain.is_blocked()) ended_ = pass.take(DType::kF32, shape);
  }

  // Ends with the sums of all outputs on the last rank, as result().
  void run(TensorView dx) const {
    const int64_t step = chain_.rows_at_once > 0 ? chain_.rows_at_once : chain_.num_rows;
    for (int64_t row = 0; row < chain_.num_rows; row += step) {
      const AxisPart rows = {row, std::min(step, chain_.num_rows - row)};
      if (own_.first > 0) {
        exchange(own_.first, rows, /*receives=*/true);
      } else if (chain_.accumulate) {
        ops::copy(pass_.backend, part(dx, rows), part(result(), rows));
      }
      multiply(rows);
      if (own_.end() > 0 && own_.end() < chain_.outputs.size)
        exchange(own_.end(), rows, /*receives=*/false);
    }
  }
  [[nodiscard]] TensorView result() const { return chain_.is_blocked() ? ended_ : open_; }

 private:
  static TensorView part(TensorView sums, const AxisPart& rows) {
    return sums.slice_rows(rows.first, rows.end());
  }
  void exchange(int64_t border, const AxisPart& rows, bool receives) const {
    pass_.unless_counting([&] {
      for (const bool ended : {true, false}) {
        if (!(ended ? chain_.has_ended_before(border) : chain_.is_open_before(border))) continue;
        const TensorView sums = part(ended ? ended_ : open_, rows);
        if (receives) {
          ranks_.comm_->receive(ranks_.share_.rank - 1, kSumTag, sums);
        } else {
          ranks_.comm_->send(ranks_.share_.rank + 1, kSumTag, sums);
        }
      }
    });
  }

  void multiply(const AxisPart& rows) const {
    const int64_t size = chain_.outputs.size;
    const int64_t at_once = chain_.is_blocked() ? chain_.outputs_at_once : size;
    for (int64_t output = own_.first; output < own_.end();) {
      const int64_t begin = output - output % at_once, chain_end = std::min(begin + at_once, size);
      const int64_t end = std::min(own_.end(), chain_end);
      chain_.multiply(rows, {output, end - output}, chain_.is_open_before(output),
                      part(open_, rows));
      if (chain_.is_blocked() && end == chain_end) end_chain(rows, chain_.has_ended_before(begin));
      output = end;
    }
  }

  void end_chain(const AxisPart& rows, bool adds) const {
    if (adds) {
      ops::add_into(pass_.backend, part(open_, rows), part(ended_, rows));
    } else {
      ops::copy(pass_.backend, part(open_, rows), part(ended_, rows));
    }
  }

  const TensorRanks& ranks_;
  const Pass& pass_;
  const DxChain& chain_;
  const AxisPart own_;
  TensorView open_, ended_;
};

void TensorRanks::count_gathered(const Pass& pass, const Deal& deal, int64_t rows,
                                 int64_t row_bytes) const {
  pass.backend.if_counting([&] {
    ++waits_.gathers;
    for (int from = 0; from < share_.num_ranks; ++from) {
      for (int to = 0; to < share_.num_ranks; ++to) {
        if (hears(from, to, deal))
          counted_of(from).gathered += rows * deal.part_of(share_of(from)).count * row_bytes;
      }
    }
  });
}

void TensorRanks::count_gathered_tokens(const Pass& pass, const Deal& deal,
                                        int64_t row_bytes) const {
  pass.backend.if_counting([&] {
    ++waits_.gathers;
    for (int rank = 0; rank < share_.num_ranks; ++rank) {
      const AxisPart part = deal.part_of(share_of(rank));
      const auto count = std::ranges::count_if(
          pass.tokens, [&](int32_t id) { return id >= part.first && id < part.end(); });
      counted_of(rank).gathered += (share_.num_ranks - 1) * count * row_bytes;
    }
  });
}

void TensorRanks::count_summed(const Pass& pass, const DxChain& chain,
                               FunctionRef<int64_t(int rank)> bytes_to) const {
  pass.backend.if_counting([&] {
    ++waits_.sums;
    const int last = last_of(chain.outputs);
    const int64_t bytes = chain.num_rows * chain.num_inputs * dtype_bytes(DType::kF32);
    for (int rank = 0; rank < last; ++rank) {
      const int64_t border = chain.outputs.chain_of(share_of(rank)).end();
      if (border == 0) continue;
      const int num_sums = chain.is_open_before(border) + chain.has_ended_before(border);
      counted_of(rank).summed += num_sums * bytes;
    }
    for (int rank = 0; rank < share_.num_ranks; ++rank) {
      if (rank != last) counted_of(last).summed += bytes_to(rank);
    }
  });
}

void TensorRanks::sum_over_outputs(const Pass& pass, const DxChain& chain, TensorView dx) const {
  if (chain.num_rows == 0) return;
  const Scratch::Mark mark(pass.backend.scratch());
  const int last = last_of(chain.outputs);
  count_summed(pass, chain, [&](int) { return dx.num_bytes(); });
  if (share_.rank <= last) {
    const ChainTurn turn(*this, pass, chain);
    turn.run(dx);
    if (share_.rank == last) ops::copy(pass.backend, turn.result(), dx);
  }
  pass.unless_counting([&] {
    if (share_.rank != last) return comm_->receive(last, kSumTag, dx);
    for (int rank = 0; rank < share_.num_ranks; ++rank) {
      if (rank != last) comm_->send(rank, kSumTag, dx);
    }
  });
}

void TensorRanks::sum_over_outputs_of_inputs(const Pass& pass, const DxChain& chain,
                                             const Deal& inputs, TensorView own_dx) const {
  if (chain.num_rows == 0) return;
  const Scratch::Mark mark(pass.backend.scratch());
  const int last = last_of(chain.outputs);
  CHECK(own_dx.cols() == inputs.part_of(share_).count, own_dx.cols(), inputs.size);
  CHECK(!chain.accumulate);
  count_summed(pass, chain, [&](int rank) {
    return chain.num_rows * inputs.part_of(share_of(rank)).count * dtype_bytes(own_dx.dtype);
  });
  if (share_.rank <= last) {
    const ChainTurn turn(*this, pass, chain);
    turn.run({});
    if (share_.rank == last) {
      send_columns(pass, turn.result(), inputs, own_dx.dtype);
      const AxisPart own = inputs.part_of(share_);
      return ops::copy(pass.backend, turn.result().slice_cols(own.first, own.end()), own_dx);
    }
  }
  pass.unless_counting([&] { comm_->receive(last, kSumTag, own_dx); });
}

void TensorRanks::send_columns(const Pass& pass, TensorView whole, const Deal& deal,
                               DType dtype) const {
  for (int rank = 0; rank < share_.num_ranks; ++rank) {
    if (rank == share_.rank) continue;
    const Scratch::Mark mark(pass.backend.scratch());
    const AxisPart part = deal.part_of(share_of(rank));
    const TensorView columns = pass.take(dtype, {whole.rows(), part.count});
    ops::copy(pass.backend, whole.slice_cols(part.first, part.end()), columns);
    pass.unless_counting([&] { comm_->send(rank, kSumTag, columns); });
  }
}

void TensorRanks::gather_columns(const Pass& pass, TensorView own, const Deal& deal,
                                 TensorView whole) const {
  const AxisPart here = deal.part_of(share_);
  CHECK(own.shape == Shape({whole.rows(), here.count}) && whole.cols() == deal.size, own.cols(),
        here.count, whole.cols(), deal.size);
  count_gathered(pass, deal, whole.rows(), dtype_bytes(own.dtype));
  const Scratch::Mark own_mark(pass.backend.scratch());
  if (here.count > 0) {
    own = dense(pass, own);
    ops::copy(pass.backend, own, whole.slice_cols(here.first, here.end()));
  }
  pass.unless_counting([&] { send_to_others(own, deal); });
  for (int rank = 0; rank < share_.num_ranks; ++rank) {
    const AxisPart part = deal.part_of(share_of(rank));
    if (!hears(rank, share_.rank, deal) || part.count == 0) continue;
    const Scratch::Mark mark(pass.backend.scratch());
    const TensorView theirs = pass.take(own.dtype, {whole.rows(), part.count});
    pass.unless_counting([&] { comm_->receive(rank, kGatherTag, theirs); });
    ops::copy(pass.backend, theirs, whole.slice_cols(part.first, part.end()));
  }
}

TensorView TensorRanks::gather_whole(const Pass& pass, TensorView own, const Deal& deal) const {
  const TensorView whole = pass.take(own.dtype, {own.shape[0], deal.size});
  gather_columns(pass, own, deal, whole);
  return whole;
}

void TensorRanks::gather_rows_of_tokens(const Pass& pass, const PanelView& own, const Deal& deal,
                                        TensorView x) const {
  const Scratch::Mark mark(pass.backend.scratch());
  const TensorView values = pass.take(x.dtype, {x.rows(), x.cols()});
  count_gathered_tokens(pass, deal, x.cols() * dtype_bytes(x.dtype));
  pass.unless_counting([&] {
    const AxisPart part = deal.part_of(share_);
    list_tokens(pass, part, part.end() - own.rows);
    const TensorView here = values.slice_rows(0, std::ssize(pass.lists.dealt_rows));
    if (here.rows() > 0) ops::gather_rows(pass.backend, own, pass.lists.dealt_ids, here);
    place_rows(pass, here, x);
    send_to_others(here, deal);
    for (int rank = 0; rank < share_.num_ranks; ++rank) {
      if (rank == share_.rank) continue;
      const AxisPart part = deal.part_of(share_of(rank));
      list_tokens(pass, part, part.first);
      const TensorView theirs = values.slice_rows(0, std::ssize(pass.lists.dealt_rows));
      if (theirs.rows() == 0) continue;
      comm_->receive(rank, kGatherTag, theirs);
      place_rows(pass, theirs, x);
    }
  });
}

void TensorRanks::add_rows_of_tokens(const Pass& pass, TensorView d, int64_t first,
                                     TensorView d_own) const {
  const Scratch::Mark mark(pass.backend.scratch());
  const TensorView values = pass.take(DType::kF32, {d.rows(), d.cols()});
  pass.unless_counting([&] {
    if (d_own.empty()) return;
    list_tokens(pass, {first, d_own.rows()}, first);
    const TensorView here = values.slice_rows(0, std::ssize(pass.lists.dealt_rows));
    if (here.rows() == 0) return;
    ops::gather(pass.backend, d, pass.lists.dealt_rows, here);
    ops::scatter_add(pass.backend, here, pass.lists.dealt_ids, d_own);
  });
}

}  // namespace strata::model
