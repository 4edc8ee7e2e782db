// SPDX-License-Identifier: Apache-2.0
#include "model/tensor_ranks.h"

#include "base/check.h"
#include "model/pass/pass.h"
#include "ops/elementwise.h"
#include "ops/pack.h"

namespace strata::model {
namespace {

constexpr int64_t kTag = 0;  // all ranks gather in the same order

// The pass's tokens among these rows of a matrix, counted from the first of them, and their rows in
// the pass.
void list_tokens(const Pass& pass, const AxisPart& part) {
  PassLists& lists = pass.lists;
  lists.dealt_ids.clear();
  lists.dealt_rows.clear();
  for (size_t row = 0; row < pass.tokens.size(); ++row) {
    const int64_t id = pass.tokens[row] - part.first;
    if (id < 0 || id >= part.count) continue;
    lists.dealt_ids.push_back(static_cast<int32_t>(id));
    lists.dealt_rows.push_back(static_cast<int32_t>(row));
  }
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

bool TensorRanks::hears(int from, int to, const Deal& deal) const {
  const AxisPart part = deal.part_of(share_of(from));
  const bool is_copy = deal.copied && from > 0 && deal.part_of(share_of(from - 1)) == part;
  return from != to && !is_copy && !(deal.copied && deal.part_of(share_of(to)) == part);
}

void TensorRanks::send_to_others(TensorView values, const Deal& deal) const {
  CHECK(comm_ != nullptr);
  if (values.shape.num_elements() == 0) return;
  for (int rank = 0; rank < share_.num_ranks; ++rank) {
    if (hears(share_.rank, rank, deal)) comm_->send(rank, kTag, values);
  }
}

void TensorRanks::gather_columns(const Pass& pass, TensorView own, const Deal& deal,
                                 TensorView whole) const {
  const AxisPart here = deal.part_of(share_);
  CHECK(own.cols() == here.count && whole.cols() == deal.size && own.rows() == whole.rows(),
        own.cols(), here.count, whole.cols(), deal.size);
  ops::copy(pass.backend, own, whole.slice_cols(here.first, here.end()));
  pass.unless_counting([&] { send_to_others(own, deal); });
  for (int rank = 0; rank < share_.num_ranks; ++rank) {
    const AxisPart part = deal.part_of(share_of(rank));
    if (!hears(rank, share_.rank, deal) || part.count == 0) continue;
    const Scratch::Mark mark(pass.backend.scratch());
    const TensorView theirs = pass.take(own.dtype, {own.rows(), part.count});
    pass.unless_counting([&] { comm_->receive(rank, kTag, theirs); });
    ops::copy(pass.backend, theirs, whole.slice_cols(part.first, part.end()));
  }
}

void TensorRanks::gather_rows_of_tokens(const Pass& pass, const PanelView& own, const Deal& deal,
                                        TensorView x) const {
  const Scratch::Mark mark(pass.backend.scratch());
  const TensorView values = pass.take(x.dtype, {x.rows(), x.cols()});
  pass.unless_counting([&] {
    list_tokens(pass, deal.part_of(share_));
    const TensorView here = values.slice_rows(0, std::ssize(pass.lists.dealt_rows));
    if (here.rows() > 0) ops::gather_rows(pass.backend, own, pass.lists.dealt_ids, here);
    place_rows(pass, here, x);
    send_to_others(here, deal);
    for (int rank = 0; rank < share_.num_ranks; ++rank) {
      if (rank == share_.rank) continue;
      list_tokens(pass, deal.part_of(share_of(rank)));
      const TensorView theirs = values.slice_rows(0, std::ssize(pass.lists.dealt_rows));
      if (theirs.rows() == 0) continue;
      comm_->receive(rank, kTag, theirs);
      place_rows(pass, theirs, x);
    }
  });
}

}  // namespace strata::model
