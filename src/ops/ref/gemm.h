// SPDX-License-Identifier: Apache-2.0
// The oracle of ops/gemm.h: plain sums over row-major matrices, templated on the scalar (double;
// complex<double> for the complex step). T tokens, N outputs, K inputs, R rank.
#pragma once
#include <cstdint>
#include <span>

namespace strata::ops::ref {

template <typename S>
struct LowRank {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t rank = 0;
  const S* x = nullptr;  // [T, R]
  const S* w = nullptr;  // gemm: [N, R]; gemm_dx: [R, K]
};

// y [T, N] = add + (scale * (x [T, K] w [N, K]^T + low rank) + bias [N]); null bias or add: none.
template <typename S>
void gemm(int64_t tokens, int64_t outputs, int64_t inputs, const S* x, const S* w,
          std::span<const LowRank<S>> runs, S scale, const S* bias, const S* add, S* y) {
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t n = 0; n < outputs; ++n) {
      S sum = 0;
      for (int64_t k = 0; k < inputs; ++k) sum += x[t * inputs + k] * w[n * inputs + k];
      for (const LowRank<S>& run : runs) {
        if (t < run.begin || t >= run.end) continue;
        for (int64_t r = 0; r < run.rank; ++r) {
          sum += run.x[t * run.rank + r] * run.w[n * run.rank + r];
        }
      }
      S value = scale * sum;
      if (bias != nullptr) value += bias[n];
      if (add != nullptr) value += add[t * outputs + n];
      y[t * outputs + n] = value;
    }
  }
}

// dx [T, K] = scale * (dy [T, N] w [N, K] + low rank), plus what dx holds where accumulate.
template <typename S>
void gemm_dx(int64_t tokens, int64_t outputs, int64_t inputs, const S* dy, const S* w,
             std::span<const LowRank<S>> runs, S scale, bool accumulate, S* dx) {
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t k = 0; k < inputs; ++k) {
      S sum = 0;
      for (int64_t n = 0; n < outputs; ++n) sum += dy[t * outputs + n] * w[n * inputs + k];
      for (const LowRank<S>& run : runs) {
        if (t < run.begin || t >= run.end) continue;
        for (int64_t r = 0; r < run.rank; ++r) {
          sum += run.x[t * run.rank + r] * run.w[r * inputs + k];
        }
      }
      S& out = dx[t * inputs + k];
      out = scale * sum + (accumulate ? out : S(0));
    }
  }
}

// dw [N, K] += dy [T, N]^T x [T, K].
template <typename S>
void gemm_dw(int64_t tokens, int64_t outputs, int64_t inputs, const S* dy, const S* x, S* dw) {
  for (int64_t n = 0; n < outputs; ++n) {
    for (int64_t k = 0; k < inputs; ++k) {
      for (int64_t t = 0; t < tokens; ++t) {
        dw[n * inputs + k] += dy[t * outputs + n] * x[t * inputs + k];
      }
    }
  }
}

}  // namespace strata::ops::ref
