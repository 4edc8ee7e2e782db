// SPDX-License-Identifier: Apache-2.0
// The table of CPU paths: for each what a machine must have, and its kernels. A path is added by
// its files and a row. Any thread.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "ops/cpu/attention_kernels.h"
#include "ops/cpu/cpu_path.h"
#include "ops/cpu/delta_net_kernels.h"
#include "ops/cpu/gemm_kernels.h"
#include "ops/cpu/limits.h"
#include "ops/cpu/narrow_kernels.h"
#include "ops/cpu/pack_kernels.h"

namespace strata::ops::cpu {

// Registers of the ops that are templates over a path's vectors (cpu/simd.h).
enum class Simd : uint8_t { kAvx512, kAvx2, kScalar };

struct PathRow {
  CpuPath path = CpuPath::kReference;
  std::string_view name;
  // Which instructions this row takes, where several rows are for one path; all give the same bits.
  std::string_view engine = {};
  // The name to ask for this row by: "amx:avx2".
  [[nodiscard]] std::string full_name() const;
  bool (*is_supported)() = nullptr;  // by this machine
  bool is_automatic = true;          // taken where it is the best and nobody names another
  Simd simd = Simd::kScalar;
  int64_t panel_width = 16;  // outputs in a panel of weights (tensor/panel.h)
  const GemmKernels& (*gemm)(bool bf16) = nullptr;
  const AttentionKernels* attention_f32 = nullptr;  // null: plain loops
  const AttentionKernels* attention_bf16 = nullptr;
  const DeltaKernels* delta = nullptr;
  PackKernel pack = {};
  NarrowUnpack unpack_narrow = nullptr;
  NarrowAccumulate accumulate_narrow = nullptr;  // null: by way of unpack_narrow
  // What measures products; with bf16 by the path's instruction for them, where it has one.
  LimitLoop (*limit)(bool bf16) = nullptr;
};

// Best first.
std::span<const PathRow> path_rows();
// The row of a path: of several the first that this machine supports, or the one whose engine
// STRATA_CPU_PATH names ("amx:avx2").
const PathRow& path_row(CpuPath path);

}  // namespace strata::ops::cpu
