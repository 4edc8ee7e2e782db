// SPDX-License-Identifier: Apache-2.0
// The CPU behind ops/attention.h: arguments are checked; same meaning and order of summation.
#pragma once
#include <algorithm>

#include "ops/attention.h"
#include "ops/cpu/attention_kernels.h"
#include "ops/cpu/cpu_path.h"

namespace strata {
class CpuBackend;
}

namespace strata::ops::cpu {

void attention(CpuBackend& backend, const AttentionArgs& args, TensorView out, TensorView lse);
void attention_backward(CpuBackend& backend, const AttentionArgs& args,
                        const AttentionGradients& grads);

// The kernels of a path and element type; null: the reference path, which has none.
const AttentionKernels* choose_attention_kernels(CpuPath path, DType dtype);

// One element of f32 or bf16, for the reference paths.
inline float load_element(const void* data, DType dtype, int64_t index) {
  return dtype == DType::kF32 ? static_cast<const float*>(data)[index]
                              : to_float(static_cast<const Bf16*>(data)[index]);
}
inline void store_element(void* data, DType dtype, int64_t index, float value) {
  if (dtype == DType::kF32) {
    static_cast<float*>(data)[index] = value;
  } else {
    static_cast<Bf16*>(data)[index] = to_bf16(value);
  }
}
// What probabilities and their gradients are rounded to before a product.
inline float round_element(DType dtype, float value) {
  return dtype == DType::kF32 ? value : round_to_bf16(value);
}

// Plain loops, no instructions above the baseline: the path `reference`. Here and below: writes
// delta [T, N] f32, unless it is empty.
void attention_reference(CpuBackend& backend, const AttentionArgs& args, TensorView out,
                         TensorView lse);
void attention_backward_reference(CpuBackend& backend, const AttentionArgs& args,
                                  const AttentionGradients& grads, TensorView delta);

// The other paths: one driver, with the kernels of the path and the element type.
void attention_tiled(CpuBackend& backend, const AttentionKernels& kernels,
                     const AttentionArgs& args, TensorView out, TensorView lse);
void attention_backward_tiled(CpuBackend& backend, const AttentionKernels& kernels,
                              const AttentionArgs& args, const AttentionGradients& grads,
                              TensorView delta);

// rows[i] = address of the key or the value (`side`: &KvRange::keys or values) of position
// begin + i, key/value head `head`. All of them are in ranges.
inline void find_kv_rows(const KvView& kv, void* KvRange::* side, int64_t begin, int64_t count,
                         int64_t head, int64_t head_dim, int64_t element_bytes, const void** rows) {
  const int64_t stride = kv.position_stride * element_bytes;
  auto range = std::partition_point(kv.ranges.begin(), kv.ranges.end(),
                                    [&](const KvRange& r) { return r.end <= begin; });
  for (int64_t i = 0; i < count; ++range) {
    const char* row = static_cast<const char*>((*range).*side) +
                      (begin + i - range->begin) * stride + head * head_dim * element_bytes;
    const int64_t end = std::min(count, range->end - begin);
    for (; i < end; ++i, row += stride) rows[i] = row;
  }
}

// Sizes of packed forms, in words.
struct AttentionLayout {
  int64_t pack;
  int64_t dim;
  int64_t steps;          // words of a row that hold elements
  int64_t row_stride;     // words of a row in rows form
  int64_t lanes;          // words of a step in depth form; also the floats of an accumulator's row
  int64_t step_multiple;  // of the steps of lanes and depth forms

  AttentionLayout(const AttentionKernels& kernels, int64_t head_dim)
      : pack(kernels.pack),
        dim(head_dim),
        steps((head_dim + pack - 1) / pack),
        row_stride((steps + 15) / 16 * 16),
        lanes((head_dim + 15) / 16 * 16),
        step_multiple(kernels.step_multiple) {}
  [[nodiscard]] int64_t lanes_block() const { return with_zero_steps(steps) * kKeyBlock; }
  [[nodiscard]] int64_t depth_words(int64_t rows) const {
    return with_zero_steps((rows + pack - 1) / pack) * lanes;
  }
  [[nodiscard]] int64_t with_zero_steps(int64_t count) const {
    return (count + step_multiple - 1) / step_multiple * step_multiple;
  }
};

constexpr float kLog2E = 1.44269504f;
constexpr float kLn2 = 0.693147181f;

// What a tile multiplies products of q and k by, to have scores in units of log 2.
struct ScoreScales {
  float scale;
  float tanh_scale;  // ForwardTile::tanh_scale

  explicit ScoreScales(const AttentionArgs& args)
      : scale((args.score_cap == 0.0f ? args.scale : args.score_cap) * kLog2E),
        tanh_scale(args.score_cap == 0.0f ? 0.0f : args.scale / args.score_cap) {}
};

}  // namespace strata::ops::cpu
