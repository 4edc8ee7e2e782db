// SPDX-License-Identifier: Apache-2.0
// TensorRanks: what joins a pass to the passes of the other tensor ranks, which run the same rows
// with other outputs of each matrix. What the next product sums over is gathered first, so that in
// forward no sum is divided: each output is the chain of one process. An input gradient is a sum
// over all outputs of a matrix: the ranks continue one chain, each from the accumulators of the one
// before, which are those of one process. A weight table owns it, and it borrows the ranks' Comm. T
// tokens, N outputs, K inputs. Engine thread only.
#pragma once
#include <span>
#include <vector>

#include "backend/comm.h"
#include "base/function_ref.h"
#include "model/weights/tensor_share.h"
#include "tensor/panel.h"
#include "tensor/view.h"

namespace strata::model {

struct Pass;

// A product dx [T, K] = dy W whose sums over the outputs of W are chains that ranks continue.
struct DxChain {
  Deal outputs;  // of W
  int64_t num_rows = 0, num_inputs = 0;
  // Outputs of a chain: the sums of each so many are added in ascending order (ops/gemm.h). 0: one
  // chain of all.
  int64_t outputs_at_once = 0;
  // Rows that go on to the next rank while this one multiplies those behind them; 0: all.
  int64_t rows_at_once = 0;
  bool accumulate = false;  // the sums begin with what dx holds, on each rank the same
  // Makes the sums [rows.count, K] f32 of these rows and outputs, with `accumulate` from what is
  // there; behind the last output it continues them with what else the chain has.
  FunctionRef<void(const AxisPart& rows, const AxisPart& outputs, bool accumulate, TensorView sums)>
      multiply;

  // Two sums of a row and input are on their way: that of the chains that have ended, and the one
  // that a border cuts; where all is one chain, the latter alone. Which there are before an output:
  [[nodiscard]] bool is_blocked() const {
    return outputs_at_once > 0 && outputs_at_once < outputs.size;
  }
  [[nodiscard]] bool is_open_before(int64_t output) const {
    return is_blocked() ? output % outputs_at_once != 0 : output > 0 || accumulate;
  }
  [[nodiscard]] bool has_ended_before(int64_t output) const {
    return is_blocked() && (output >= outputs_at_once || accumulate);
  }
};

// Bytes that a tensor rank sends to others.
struct TensorBytes {
  int64_t gathered = 0, summed = 0;  // with kGatherTag, with kSumTag
};

// How often all tensor ranks wait for each other.
struct TensorWaits {
  int64_t gathers = 0, sums = 0;
};

class TensorRanks {
 public:
  // Tags of messages: values that are gathered, and sums of input gradients on their way.
  static constexpr int64_t kGatherTag = 0, kSumTag = 1;
  // Rows of a linear's chain that are on their way at once: enough for a product, few enough that
  // every rank soon has some.
  static constexpr int64_t kChainRows = 128;

  explicit TensorRanks(const TensorShare& share) : share_(share) { reset_count(); }
  // Before the first pass that runs: these ranks alone, by their numbers.
  void connect(Comm& comm);

  [[nodiscard]] const TensorShare& share() const { return share_; }
  [[nodiscard]] TensorShare share_of(int rank) const { return {rank, share_.num_ranks}; }

  // Whether all of them say so.
  [[nodiscard]] bool all_say(bool own) const;

  // What each of them sends in passes that a counting backend has run, which send nothing.
  [[nodiscard]] std::span<const TensorBytes> counted() const { return counted_; }
  [[nodiscard]] const TensorWaits& counted_waits() const { return waits_; }
  void reset_count() {
    counted_.assign(static_cast<size_t>(share_.num_ranks), {});
    waits_ = {};
  }

  // whole [T, N] becomes what all ranks have of it; own [T, n] are this one's columns. Of copies
  // the first rank's count.
  void gather_columns(const Pass& pass, TensorView own, const Deal& deal, TensorView whole) const;
  // Returns what gather_columns() makes, [T, N] in scratch.
  [[nodiscard]] TensorView gather_whole(const Pass& pass, TensorView own, const Deal& deal) const;
  // dx [T, K], dense, of f32 or, without accumulate, of the compute type, becomes what the chain
  // gives, on every rank.
  void sum_over_outputs(const Pass& pass, const DxChain& chain, TensorView dx) const;
  // The same of a matrix whose inputs ranks have dealt: own_dx [T, k] becomes this one's columns.
  // Never accumulates.
  void sum_over_outputs_of_inputs(const Pass& pass, const DxChain& chain, const Deal& inputs,
                                  TensorView own_dx) const;
  // x [T, D] becomes the rows of the pass's tokens in a matrix [N, D]; own [n, D] are this rank's,
  // and before them copies of others.
  void gather_rows_of_tokens(const Pass& pass, const PanelView& own, const Deal& deal,
                             TensorView x) const;
  // d_own [n, D] f32, of a matrix' rows from `first` on, += the rows of d [T, D] f32 of the pass's
  // tokens that are among them.
  void add_rows_of_tokens(const Pass& pass, TensorView d, int64_t first, TensorView d_own) const;

 private:
  class ChainTurn;
  // The rank whose outputs are the last of a deal.
  [[nodiscard]] int last_of(const Deal& outputs) const;
  // Whether this rank hears what another one has of a deal.
  [[nodiscard]] bool hears(int from, int to, const Deal& deal) const;
  void send_to_others(TensorView values, const Deal& deal) const;
  // Each other rank's columns of whole [T, N], as this type.
  void send_columns(const Pass& pass, TensorView whole, const Deal& deal, DType dtype) const;

  void count_gathered(const Pass& pass, const Deal& deal, int64_t rows, int64_t row_bytes) const;
  // Counts rows of tokens, which who has them in its part of the matrix sends.
  void count_gathered_tokens(const Pass& pass, const Deal& deal, int64_t row_bytes) const;
  // `bytes_to` a rank is what the last one gives it.
  void count_summed(const Pass& pass, const DxChain& chain,
                    FunctionRef<int64_t(int rank)> bytes_to) const;
  [[nodiscard]] TensorBytes& counted_of(int rank) const {
    return counted_[static_cast<size_t>(rank)];
  }

  const TensorShare share_;
  Comm* comm_ = nullptr;
  mutable std::vector<TensorBytes> counted_;  // of each rank
  mutable TensorWaits waits_;
};

}  // namespace strata::model
