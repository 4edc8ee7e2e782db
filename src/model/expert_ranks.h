// SPDX-License-Identifier: Apache-2.0
// ExpertRanks: what joins a pass to the passes of the other expert ranks, which have other experts.
// Where these run sequences of their own, rows go to their experts and back
// (model/blocks/experts/row_exchange.h). Where they run the same rows, a row's result is made where
// its expert is and sent to all. Either way a token's results are added at home in the order of its
// choice, as one process does. A weight table owns it, and it borrows the ranks' Comm. Engine
// thread only.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "backend/comm.h"
#include "model/weights/expert_share.h"
#include "tensor/view.h"

namespace strata::model {

struct Pass;

// Tags of what crosses these ranks, for who counts it.
constexpr int64_t kExpertRowTag = 0, kExpertRowGradientTag = 1, kExpertGradientTag = 2,
                  kExpertCountTag = 3;

// Rows [first, end) of a routing.
struct RowSpan {
  int64_t first = 0;
  int64_t end = 0;
  [[nodiscard]] int64_t count() const { return end - first; }
};

// Bytes that an expert rank may send to others at most, by the first two of these tags and the
// last.
struct ExpertBytes {
  int64_t rows = 0, row_gradients = 0, counts = 0;
};

// How often all expert ranks wait for each other, for rows and for gradients of rows.
struct ExpertWaits {
  int64_t rows = 0, row_gradients = 0;
};

class ExpertRanks {
 public:
  explicit ExpertRanks(const ExpertShare& share) : share_(share) { reset_count(); }
  // Before the first pass that runs: these ranks alone, by their numbers.
  void connect(Comm& comm);

  [[nodiscard]] const ExpertShare& share() const { return share_; }
  [[nodiscard]] Comm& comm() const;
  // Whether all of them say so.
  [[nodiscard]] bool all_say(bool own) const;

  // What each of them sends at most in passes of sequences of their own that a counting backend has
  // run, which send nothing.
  [[nodiscard]] std::span<const ExpertBytes> counted() const { return counted_; }
  [[nodiscard]] const ExpertWaits& counted_waits() const { return waits_; }
  void reset_count() {
    counted_.assign(static_cast<size_t>(share_.num_ranks), {});
    waits_ = {};
  }
  void count_sent(int rank, int64_t tag, int64_t bytes) const;
  void count_wait(int64_t tag) const;

  // The rows of a rank's experts, of a layer whose experts' rows end so: a list of the host.
  [[nodiscard]] RowSpan rows_of(int rank, std::span<const int64_t> expert_ends) const;
  // Rows of `values` [n, N], dense, are in the order of a routing whose experts' rows end so. Those
  // of this rank's experts are there; the others become what their ranks have. All ranks gather in
  // the same order, so what rows are of (`tag`) is said for who counts alone.
  void gather_rows(const Pass& pass, std::span<const int64_t> expert_ends, TensorView values,
                   int64_t tag) const;

 private:
  const ExpertShare share_;
  Comm* comm_ = nullptr;
  mutable std::vector<ExpertBytes> counted_;  // of each rank
  mutable ExpertWaits waits_;
};

}  // namespace strata::model
