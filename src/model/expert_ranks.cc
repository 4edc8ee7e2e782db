// SPDX-License-Identifier: Apache-2.0
#include "model/expert_ranks.h"

#include <algorithm>

#include "base/check.h"
#include "model/pass/pass.h"

namespace strata::model {

void ExpertRanks::connect(Comm& comm) {
  CHECK(comm.rank() == share_.rank && comm.size() == share_.num_ranks, comm.rank(), share_.rank,
        share_.num_ranks);
  comm_ = &comm;
}

Comm& ExpertRanks::comm() const {
  CHECK(comm_ != nullptr, share_.rank);
  return *comm_;
}

bool ExpertRanks::all_say(bool own) const {
  const double mine = own ? 1.0 : 0.0;
  std::vector<double> all;
  comm().all_gather({&mine, 1}, all);
  return std::ranges::all_of(all, [](double each) { return each != 0.0; });
}

void ExpertRanks::count_sent(int rank, int64_t tag, int64_t bytes) const {
  ExpertBytes& sent = counted_[static_cast<size_t>(rank)];
  (tag == kExpertCountTag ? sent.counts
   : tag == kExpertRowTag ? sent.rows
                          : sent.row_gradients) += bytes;
}

void ExpertRanks::count_wait(int64_t tag) const {
  ++(tag == kExpertRowTag ? waits_.rows : waits_.row_gradients);
}

RowSpan ExpertRanks::rows_of(int rank, std::span<const int64_t> expert_ends) const {
  const AxisPart experts = share_.experts_of(std::ssize(expert_ends), rank);
  const auto row_after = [&](int64_t num_experts) {
    return num_experts == 0 ? 0 : expert_ends[static_cast<size_t>(num_experts - 1)];
  };
  return {row_after(experts.first), row_after(experts.end())};
}

void ExpertRanks::gather_rows(const Pass& pass, std::span<const int64_t> expert_ends,
                              TensorView values, int64_t tag) const {
  pass.unless_counting([&] {
    CHECK(comm_ != nullptr && values.rows() == expert_ends.back(), values.rows());
    const auto part_of = [&](int rank) {
      const RowSpan rows = rows_of(rank, expert_ends);
      return values.slice_rows(rows.first, rows.end);
    };
    const TensorView own = part_of(share_.rank);
    for (int rank = 0; rank < share_.num_ranks; ++rank) {
      if (rank != share_.rank && own.rows() > 0) comm_->send(rank, tag, own);
    }
    for (int rank = 0; rank < share_.num_ranks; ++rank) {
      const TensorView theirs = part_of(rank);
      if (rank != share_.rank && theirs.rows() > 0) comm_->receive(rank, tag, theirs);
    }
  });
}

}  // namespace strata::model
