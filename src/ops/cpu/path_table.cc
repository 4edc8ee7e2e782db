// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/path_table.h"

#include <algorithm>

#include "base/check.h"

namespace strata::ops::cpu {
namespace {

#if defined(__x86_64__)
bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("f16c");
}

bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

bool has_avx512_bf16() { return has_avx512() && __builtin_cpu_supports("avx512bf16"); }
#endif

bool is_any() { return true; }

const PathRow kRows[] = {
#if defined(__x86_64__)
    {.path = CpuPath::kAvx512Bf16,
     .name = "avx512_bf16",
     .is_supported = has_avx512_bf16,
     .simd = Simd::kAvx512,
     .panel_width = 64,
     .gemm = [](bool bf16) -> const GemmKernels& {
       return bf16 ? gemm_kernels_avx512_bf16() : gemm_kernels_avx512(bf16);
     },
     .attention_f32 = &kAttentionAvx512F32,
     .attention_bf16 = &kAttentionAvx512Bf16,
     .delta = &kDeltaAvx512,
     .pack = {pack_avx512, 1},
     .unpack_narrow = narrow_unpack_avx512_bf16,
     .accumulate_narrow = narrow_accumulate_avx512_bf16,
     .limit = [](bool bf16) { return bf16 ? limit_loop_avx512_bf16() : limit_loop_avx512(); }},
    {.path = CpuPath::kAvx512,
     .name = "avx512",
     .is_supported = has_avx512,
     .simd = Simd::kAvx512,
     .panel_width = 64,
     .gemm = gemm_kernels_avx512,
     .attention_f32 = &kAttentionAvx512F32,
     .attention_bf16 = &kAttentionAvx512Widened,
     .delta = &kDeltaAvx512,
     .pack = {pack_avx512, 1},
     .unpack_narrow = narrow_unpack_avx512,
     .accumulate_narrow = narrow_accumulate_avx512,
     .limit = [](bool) { return limit_loop_avx512(); }},
    {.path = CpuPath::kAvx2,
     .name = "avx2",
     .is_supported = has_avx2,
     .simd = Simd::kAvx2,
     .panel_width = 16,
     .gemm = gemm_kernels_avx2,
     .attention_f32 = &kAttentionAvx2F32,
     .attention_bf16 = &kAttentionAvx2Widened,
     .delta = &kDeltaAvx2,
     .pack = {pack_avx2, kPackBlock},
     .unpack_narrow = narrow_unpack_avx2,
     .accumulate_narrow = narrow_accumulate_avx2,
     .limit = [](bool) { return limit_loop_avx2(); }},
#endif
    {.path = CpuPath::kReference,
     .name = "reference",
     .is_supported = is_any,
     .simd = Simd::kScalar,
     .panel_width = 16,
     .gemm = gemm_kernels_reference,
     .delta = &kDeltaReference,
     .unpack_narrow = narrow_unpack_reference,
     .limit = [](bool) { return limit_loop_reference(); }},
};

}  // namespace

std::span<const PathRow> path_rows() { return kRows; }

const PathRow& path_row(CpuPath path) {
  const PathRow* row = std::ranges::find(kRows, path, &PathRow::path);
  CHECK(row != std::end(kRows), path);
  return *row;
}

}  // namespace strata::ops::cpu
