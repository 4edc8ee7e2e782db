// SPDX-License-Identifier: Apache-2.0
// What this machine can do at the moment, measured: the limits that speeds are quoted as shares of.
// Clocks and memory bandwidth of shared machines move within minutes, so a probe runs right before
// or after the work it is compared with, on the same threads. Engine thread only.
#pragma once
#include <algorithm>

#include "backend/arena.h"
#include "backend/backend.h"

namespace strata::ops {

class LimitProbe {
 public:
  static constexpr int64_t kReadBytes = 256 << 20;

  // Borrows the backend. Takes `read_bytes` (a MiB at least) on the first measure_read_bandwidth.
  explicit LimitProbe(Backend& backend, int64_t read_bytes = kReadBytes)
      : backend_(backend), read_bytes_(std::max<int64_t>(read_bytes, 1 << 20)) {}

  // FLOP/s of all threads multiplying and adding in registers with the widest instruction that the
  // backend's path has for products of this type (f32 or bf16). Takes about `seconds`.
  double measure_matrix_flops(DType dtype, double seconds = 0.02);

  // Bytes/s of all threads reading that memory once, each its own part.
  double measure_read_bandwidth();

 private:
  Backend& backend_;
  int64_t read_bytes_;
  Memory memory_;
};

}  // namespace strata::ops
