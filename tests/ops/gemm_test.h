// SPDX-License-Identifier: Apache-2.0
// Operands of the tests of matrix products: a row-major matrix of random values beside its panels,
// and the batch of runs of low-rank terms.
#pragma once
#include <algorithm>
#include <vector>

#include "ops/cpu/gemm.h"
#include "ops/cpu/gemm_kernels.h"
#include "ops/gemm.h"
#include "ops/pack.h"
#include "tests/ops/op_test.h"

namespace strata::ops::testing {

// [rows, cols] row-major and as panels; the panels' memory starts as NaN, so that padding counts.
struct Weight {
  Buffer rows;
  Tensor memory;
  PanelView panel;

  Weight(Backend& backend, DType dtype, int64_t num_rows, int64_t cols, int64_t width,
         uint64_t seed)
      : rows(random_buffer(dtype, {num_rows, cols}, {.seed = seed})) {
    panel = {.data = nullptr, .dtype = dtype, .rows = num_rows, .cols = cols, .width = width};
    const int64_t elements = panel.num_bytes() / dtype_bytes(dtype);
    memory = Tensor(backend.allocator(), dtype, {elements});
    panel.data = memory.view().data;
    for (int64_t i = 0; i < elements; ++i) store_element(panel.data, dtype, i, std::nan(""));
    pack(backend, rows, 0, panel);
  }
};

struct RunSpec {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t rank = 0;
};

inline std::vector<double> absolute(std::vector<double> values) {
  for (double& value : values) value = std::abs(value);
  return values;
}

// The rows `index` of a buffer, in that order.
inline Buffer take_rows(const Buffer& from, const std::vector<int64_t>& index) {
  const int64_t cols = from.view().cols();
  Buffer out(from.view().dtype, {static_cast<int64_t>(index.size()), cols});
  for (size_t i = 0; i < index.size(); ++i) {
    std::memcpy(out.view().row(static_cast<int64_t>(i)), from.view().row(index[i]),
                static_cast<size_t>(cols * dtype_bytes(from.view().dtype)));
  }
  return out;
}

// What one call takes at most on one thread, by the drivers' blocks: chains that wait, and the
// larger of the operands that are prepared.
inline int64_t most_scratch_bytes() {
  constexpr int64_t kElement = 4;
  const int64_t forward = cpu::kProductRows * cpu::kMaxWidth * kElement;
  const int64_t backward = (cpu::kBackwardRows + cpu::kBackwardLanes) * cpu::kMaxWidth * kElement;
  const int64_t gradient = cpu::kGradientSteps * cpu::kMaxWidth * kElement;
  const int64_t shared = cpu::kGradientSteps * (cpu::kGradientRows * kElement + 5) + 4096;
  return std::max({forward, backward, gradient}) + shared;
}

inline std::vector<DType> product_dtypes() { return {DType::kF32, DType::kBF16}; }

}  // namespace strata::ops::testing
