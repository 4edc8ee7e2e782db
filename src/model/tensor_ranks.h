// SPDX-License-Identifier: Apache-2.0
// TensorRanks: what joins a pass to the passes of the other tensor ranks, which run the same rows
// with other outputs of each matrix. What the next product sums over is gathered first, so no sum
// is ever divided: each output is the chain of one process. A weight table owns it, and it borrows
// the ranks' Comm. T tokens. Engine thread only.
#pragma once
#include "backend/comm.h"
#include "model/weights/tensor_share.h"
#include "tensor/panel.h"
#include "tensor/view.h"

namespace strata::model {

struct Pass;

class TensorRanks {
 public:
  explicit TensorRanks(const TensorShare& share) : share_(share) {}
  // Before the first pass that runs: these ranks alone, by their numbers.
  void connect(Comm& comm);

  [[nodiscard]] const TensorShare& share() const { return share_; }
  [[nodiscard]] TensorShare share_of(int rank) const { return {rank, share_.num_ranks}; }

  // whole [T, N] becomes what all ranks have of it; own [T, n] are this one's columns, dense. Of
  // copies the first rank's count.
  void gather_columns(const Pass& pass, TensorView own, const Deal& deal, TensorView whole) const;
  // x [T, D] becomes the rows of the pass's tokens in a matrix [N, D]; own [n, D] are this rank's.
  void gather_rows_of_tokens(const Pass& pass, const PanelView& own, const Deal& deal,
                             TensorView x) const;

 private:
  // Whether this rank hears what another one has of a deal.
  [[nodiscard]] bool hears(int from, int to, const Deal& deal) const;
  void send_to_others(TensorView values, const Deal& deal) const;

  const TensorShare share_;
  Comm* comm_ = nullptr;
};

}  // namespace strata::model
