// SPDX-License-Identifier: Apache-2.0
// DeferredProducts: products of weight gradients that a backward leaves for later, so that the
// gradient of its input goes on its way first (zero-bubble schedules). Their factors are copied,
// since a backward's are gone when it returns. Only dense linears defer theirs, which are most of
// the work where base parameters train; all other gradients are made at once. A parameter's sum
// has the order in which passes run_deferred(). T tokens. Engine thread only.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "tensor/view.h"

namespace strata::model {

class DeferredProducts {
 public:
  // Copies come from `memory`, of which the caller holds a Mark until they have run.
  explicit DeferredProducts(Scratch& memory) : memory_(memory) {}

  // Copies dy and x; their product is added to dw when the deferred ones run.
  // dw [N, K] f32 += dy^T x, as ops::gemm_dw; dy [T, N], x [T, K].
  void defer_product(Backend& backend, TensorView dy, TensorView x,
                     std::span<const int64_t> sequence_ends, TensorView dw);
  // In the order in which they came; then there are none.
  void run_deferred(Backend& backend);

 private:
  struct Product {
    TensorView dy, x, dw;
    size_t first_end = 0, num_ends = 0;
  };
  Scratch& memory_;
  std::vector<Product> products_;
  std::vector<int64_t> ends_;  // of all
};

}  // namespace strata::model
