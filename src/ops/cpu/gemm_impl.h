// SPDX-License-Identifier: Apache-2.0
// The loops of matrix products that AVX2 and AVX-512 share, as templates over a path's register of
// words (cpu/panels_<path>.h) and, for the epilogue, over its arithmetic. A file that includes this
// has its own copy: Words is of that file alone.
#pragma once
#include "ops/cpu/gemm_kernels.h"

namespace strata::ops::cpu {
namespace {

// E: the arithmetic of a register's worth of columns; `left` of them are there.
template <typename E>
void apply_epilogue(const EpilogueArgs& a) {
  const auto scale = E::set1(a.scale);
  for (int64_t row = 0; row < a.rows; ++row) {
    for (int64_t col = 0; col < a.cols; col += E::kCount) {
      const int64_t left = a.cols - col;
      auto value = E::mul(scale, E::load(a.acc + row * a.acc_stride + col));
      if (a.bias != nullptr) value = E::add(value, E::load(a.bias + col, left));
      if (a.add != nullptr) {
        const int64_t index = row * a.add_stride + col;
        value = E::add(a.add_is_bf16 ? E::load(static_cast<const uint16_t*>(a.add) + index, left)
                                     : E::load(static_cast<const float*>(a.add) + index, left),
                       value);
      }
      const int64_t index = row * a.y_stride + col;
      if (a.y_is_bf16) {
        E::store(static_cast<uint16_t*>(a.y) + index, value, left);
      } else {
        E::store(static_cast<float*>(a.y) + index, value, left);
      }
    }
  }
}

template <typename W>
void transpose_panel_f32(const TransposeArgs& a) {
  const float* src = static_cast<const float*>(a.panel) + a.col_begin * a.width;
  float* dst = static_cast<float*>(a.dst);
  for (int64_t lane = 0; lane < a.width; lane += W::kCount) {
    for (int64_t col = 0; col < a.dst_width; col += W::kCount) {
      typename W::I block[W::kCount];
      for (int i = 0; i < W::kCount; ++i) {
        block[i] = col + i < a.cols ? W::load(src + (col + i) * a.width + lane) : W::zero();
      }
      W::transpose(block);
      for (int i = 0; i < W::kCount; ++i) W::store(dst + (lane + i) * a.dst_width + col, block[i]);
    }
  }
}

template <typename W>
typename W::I load_step_f32(const StepArgs& a, int64_t step, int64_t col) {
  const float* row = static_cast<const float*>(a.x) + a.first[step] * a.x_stride + col;
  return W::load_masked(row, W::mask(a.cols - col));
}

// One column of words of a step: what load_step_f32 gives.
template <typename W>
using LoadStep = typename W::I (*)(const StepArgs&, int64_t, int64_t);

// dst_stride counts elements of the type; `kScale` of them make 32 bits.
template <typename W, LoadStep<W> kLoad, int kScale>
void pack_tokens_as_rows(const StepArgs& a) {
  auto* dst = static_cast<uint32_t*>(a.dst);
  const int64_t stride = a.dst_stride / kScale;
  for (int64_t step = 0; step < a.steps; step += W::kCount) {
    const auto mask = W::mask(a.steps - step);
    for (int64_t col = 0; col < a.cols; col += W::kCount) {
      typename W::I block[W::kCount];
      for (int i = 0; i < W::kCount; ++i) {
        block[i] = step + i < a.steps ? kLoad(a, step + i, col) : W::zero();
      }
      W::transpose(block);
      for (int i = 0; i < W::kCount && col + i < a.cols; ++i) {
        W::store_masked(dst + (col + i) * stride + step, block[i], mask);
      }
    }
  }
}

template <typename W>
void transpose_f32(const TransposeF32Args& a) {
  for (int64_t row = 0; row < a.rows; row += W::kCount) {
    const auto rows_mask = W::mask(a.rows - row);
    for (int64_t col = 0; col < a.cols; col += W::kCount) {
      const auto cols_mask = W::mask(a.cols - col);
      typename W::I block[W::kCount];
      for (int i = 0; i < W::kCount; ++i) {
        const float* src = a.src + (row + i) * a.src_stride + col;
        block[i] = row + i < a.rows ? W::load_masked(src, cols_mask) : W::zero();
      }
      W::transpose(block);
      for (int i = 0; i < W::kCount && col + i < a.cols; ++i) {
        W::store_masked(reinterpret_cast<uint32_t*>(a.dst + (col + i) * a.dst_stride + row),
                        block[i], rows_mask);
      }
    }
  }
}

}  // namespace
}  // namespace strata::ops::cpu
