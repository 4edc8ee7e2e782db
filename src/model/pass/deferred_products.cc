// SPDX-License-Identifier: Apache-2.0
#include "model/pass/deferred_products.h"

#include "ops/elementwise.h"
#include "ops/gemm.h"

namespace strata::model {

void DeferredProducts::defer_product(Backend& backend, TensorView dy, TensorView x,
                                     std::span<const int64_t> sequence_ends, TensorView dw) {
  const auto copy = [&](TensorView from) {
    const TensorView to = memory_.take(from.dtype, {from.rows(), from.cols()}, "deferred");
    ops::copy(backend, from, to);
    return to;
  };
  products_.push_back({.dy = copy(dy),
                       .x = copy(x),
                       .dw = dw,
                       .first_end = ends_.size(),
                       .num_ends = sequence_ends.size()});
  ends_.insert(ends_.end(), sequence_ends.begin(), sequence_ends.end());
}

void DeferredProducts::run_deferred(Backend& backend) {
  for (const Product& product : products_) {
    ops::gemm_dw(backend, product.dy, product.x,
                 std::span(ends_).subspan(product.first_end, product.num_ends), product.dw);
  }
  products_.clear();
  ends_.clear();
}

}  // namespace strata::model
