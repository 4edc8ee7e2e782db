// SPDX-License-Identifier: Apache-2.0
// The loops of the limit probes; each path's file is compiled for its own instructions.
#pragma once
#include <cstdint>

#include "tensor/dtype.h"

namespace strata {
class CpuBackend;
enum class CpuPath;
}  // namespace strata

namespace strata::ops::cpu {

// The CPU behind ops/limits.h.
double measure_matrix_flops(CpuBackend& backend, DType dtype, double seconds);
// Reads memory of whole MiB, all of one value.
double measure_read_bandwidth(CpuBackend& backend, const void* data, int64_t bytes);

// One thread's work, and the operations that one iteration of it does.
struct LimitLoop {
  void (*run)(int64_t iterations) = nullptr;
  int64_t flops = 0;
};

LimitLoop limit_loop_reference();
LimitLoop limit_loop_avx2();
LimitLoop limit_loop_avx512();
LimitLoop limit_loop_avx512_bf16();
LimitLoop limit_loop_amx_tiles();

}  // namespace strata::ops::cpu
