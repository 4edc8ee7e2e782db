// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/path_table.h"

#include <fmt/format.h>

#include <array>

#include "base/env.h"
#include "ops/cpu/tiles.h"

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

bool has_tiles() { return has_avx512() && tiles_granted(); }

bool has_avx512_bf16() { return has_avx512() && __builtin_cpu_supports("avx512bf16"); }
#endif

bool is_any() { return true; }

#if defined(__x86_64__)
// Rows of the path `amx`: but for products of bf16 they are those of their engine's instructions.
constexpr PathRow amx_row_avx512() {
  return {.path = CpuPath::kAmx,
          .name = "amx",
          .engine = "avx512",
          .is_supported = has_avx512,
          .is_automatic = false,
          .simd = Simd::kAvx512,
          .panel_width = 64,
          .gemm = [](bool bf16) -> const GemmKernels& {
            return bf16 ? gemm_kernels_amx_avx512() : gemm_kernels_avx512(bf16);
          },
          .attention_f32 = &kAttentionAvx512F32,
          .attention_bf16 = &kAttentionAmxAvx512,
          .delta = &kDeltaAvx512,
          .pack = {pack_avx512, 1},
          .unpack_narrow = narrow_unpack_avx512,
          .limit = [](bool) { return limit_loop_avx512(); }};
}

constexpr PathRow amx_row_tiles() {
  PathRow row = amx_row_avx512();
  row.engine = "tiles";
  row.is_supported = has_tiles;
  row.is_automatic = true;
  row.gemm = [](bool bf16) -> const GemmKernels& {
    return bf16 ? gemm_kernels_amx_tiles() : gemm_kernels_avx512(bf16);
  };
  row.attention_bf16 = &kAttentionAmxTiles;
  row.limit = [](bool bf16) { return bf16 ? limit_loop_amx_tiles() : limit_loop_avx512(); };
  return row;
}
#endif

const PathRow kRows[] = {
#if defined(__x86_64__)
    amx_row_tiles(),
    amx_row_avx512(),
    {.path = CpuPath::kAmx,
     .name = "amx",
     .engine = "avx2",
     .is_supported = has_avx2,
     .is_automatic = false,
     .simd = Simd::kAvx2,
     .panel_width = 16,
     .gemm = [](bool bf16) -> const GemmKernels& {
       return bf16 ? gemm_kernels_amx_avx2() : gemm_kernels_avx2(bf16);
     },
     .attention_f32 = &kAttentionAvx2F32,
     .attention_bf16 = &kAttentionAmxAvx2,
     .delta = &kDeltaAvx2,
     .pack = {pack_avx2, kPackBlock},
     .unpack_narrow = narrow_unpack_avx2,
     .limit = [](bool) { return limit_loop_avx2(); }},
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

constexpr size_t kNumPaths = static_cast<size_t>(CpuPath::kReference) + 1;

// By path. `wanted` may name one row of a path.
std::array<const PathRow*, kNumPaths> choose_rows(std::string_view wanted) {
  std::array<const PathRow*, kNumPaths> rows = {};
  for (const PathRow& row : kRows) {
    const PathRow*& chosen = rows[static_cast<size_t>(row.path)];
    if (chosen != nullptr && chosen->full_name() == wanted) continue;
    const bool is_first = chosen == nullptr || (!chosen->is_supported() && row.is_supported());
    if (is_first || row.full_name() == wanted) chosen = &row;
  }
  return rows;
}

}  // namespace

std::string PathRow::full_name() const {
  return engine.empty() ? std::string(name) : fmt::format("{}:{}", name, engine);
}

std::span<const PathRow> path_rows() { return kRows; }

const PathRow& path_row(CpuPath path) {
  // The row of each path, found once: the ops ask at every call.
  static const std::array<const PathRow*, kNumPaths> rows = choose_rows(env_cpu_path());
  return *rows[static_cast<size_t>(path)];
}

}  // namespace strata::ops::cpu
