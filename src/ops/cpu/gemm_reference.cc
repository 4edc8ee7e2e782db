// SPDX-License-Identifier: Apache-2.0
// Kernels in plain C++: any machine, any compiler. bf16 products are exact in fp32, so multiply and
// add round like one fma.
#include <cstring>

#include "ops/cpu/gemm_kernels.h"
#include "tensor/dtype.h"

namespace strata::ops::cpu {
namespace {

constexpr int64_t kLanes = 16;

// Sixteen lanes of one row: acc += x * w.
inline void add_lanes(float* acc, float x, const float* w) {
  for (int64_t lane = 0; lane < kLanes; ++lane) acc[lane] += x * w[lane];
}

void accumulate_f32(const TileArgs& a) {
  for (int64_t row = 0; row < a.rows; ++row) {
    const float* x = static_cast<const float*>(a.x) + row * a.x_stride;
    for (int64_t lane = 0; lane < a.width; lane += kLanes) {
      float* out = a.acc + row * a.acc_stride + lane;
      float acc[kLanes] = {};
      if (!a.start_at_zero) std::memcpy(acc, out, sizeof(acc));
      const float* w = static_cast<const float*>(a.panel) + lane;
      for (int64_t k = 0; k < a.cols; ++k) add_lanes(acc, x[k], w + k * a.width);
      std::memcpy(out, acc, sizeof(acc));
    }
  }
}

// Element `half` of sixteen pairs.
inline void widen(const Bf16* pairs, int half, float* w) {
  for (int64_t lane = 0; lane < kLanes; ++lane) w[lane] = to_float(pairs[2 * lane + half]);
}

void accumulate_bf16(const TileArgs& a) {
  float w[kLanes];
  for (int64_t row = 0; row < a.rows; ++row) {
    const Bf16* x = static_cast<const Bf16*>(a.x) + row * a.x_stride;
    for (int64_t lane = 0; lane < a.width; lane += kLanes) {
      float* out = a.acc + row * a.acc_stride + lane;
      float acc[kLanes] = {};
      if (!a.start_at_zero) std::memcpy(acc, out, sizeof(acc));
      const Bf16* pairs = static_cast<const Bf16*>(a.panel) + lane * 2;
      for (int64_t k = 0; k < a.cols; ++k) {
        widen(pairs + k / 2 * a.width * 2, static_cast<int>(k % 2), w);
        add_lanes(acc, to_float(x[k]), w);
      }
      std::memcpy(out, acc, sizeof(acc));
    }
  }
}

void apply_epilogue(const EpilogueArgs& a) {
  for (int64_t row = 0; row < a.rows; ++row) {
    for (int64_t col = 0; col < a.cols; ++col) {
      float value = a.scale * a.acc[row * a.acc_stride + col];
      if (a.bias != nullptr) value += a.bias[col];
      if (a.add != nullptr) {
        const int64_t index = row * a.add_stride + col;
        value = (a.add_is_bf16 ? to_float(static_cast<const Bf16*>(a.add)[index])
                               : static_cast<const float*>(a.add)[index]) +
                value;
      }
      const int64_t index = row * a.y_stride + col;
      if (a.y_is_bf16) {
        static_cast<Bf16*>(a.y)[index] = to_bf16(value);
      } else {
        static_cast<float*>(a.y)[index] = value;
      }
    }
  }
}

void transpose_panel_f32(const TransposeArgs& a) {
  const float* src = static_cast<const float*>(a.panel) + a.col_begin * a.width;
  float* dst = static_cast<float*>(a.dst);
  for (int64_t lane = 0; lane < a.width; ++lane) {
    for (int64_t col = 0; col < a.dst_width; ++col) {
      dst[lane * a.dst_width + col] = col < a.cols ? src[col * a.width + lane] : 0.0f;
    }
  }
}

void transpose_panel_bf16(const TransposeArgs& a) {
  const Bf16* src = static_cast<const Bf16*>(a.panel) + a.col_begin * a.width;
  Bf16* dst = static_cast<Bf16*>(a.dst);
  for (int64_t lane = 0; lane < a.width; ++lane) {
    for (int64_t col = 0; col < a.dst_width; ++col) {
      dst[(lane / 2 * a.dst_width + col) * 2 + lane % 2] =
          col < a.cols ? src[(col / 2 * a.width + lane) * 2 + col % 2] : Bf16{};
    }
  }
}

void pack_tokens_as_panel_f32(const StepArgs& a) {
  float* dst = static_cast<float*>(a.dst);
  for (int64_t step = 0; step < a.steps; ++step, dst += a.dst_stride) {
    const float* row = static_cast<const float*>(a.x) + a.first[step] * a.x_stride;
    std::memcpy(dst, row, static_cast<size_t>(a.cols) * sizeof(float));
    std::memset(dst + a.cols, 0, static_cast<size_t>(a.dst_stride - a.cols) * sizeof(float));
  }
}

void pack_tokens_as_panel_bf16(const StepArgs& a) {
  Bf16* dst = static_cast<Bf16*>(a.dst);
  for (int64_t step = 0; step < a.steps; ++step, dst += 2 * a.dst_stride) {
    const Bf16* row = static_cast<const Bf16*>(a.x) + a.first[step] * a.x_stride;
    for (int64_t col = 0; col < a.dst_stride; ++col) {
      const bool inside = col < a.cols;
      dst[2 * col] = inside && a.rows[step] > 0 ? row[col] : Bf16{};
      dst[2 * col + 1] = inside && a.rows[step] > 1 ? row[a.x_stride + col] : Bf16{};
    }
  }
}

void pack_tokens_as_rows_f32(const StepArgs& a) {
  for (int64_t col = 0; col < a.cols; ++col) {
    float* dst = static_cast<float*>(a.dst) + col * a.dst_stride;
    for (int64_t step = 0; step < a.steps; ++step) {
      dst[step] = static_cast<const float*>(a.x)[a.first[step] * a.x_stride + col];
    }
  }
}

void pack_tokens_as_rows_bf16(const StepArgs& a) {
  for (int64_t col = 0; col < a.cols; ++col) {
    Bf16* dst = static_cast<Bf16*>(a.dst) + col * a.dst_stride;
    for (int64_t step = 0; step < a.steps; ++step) {
      const Bf16* x = static_cast<const Bf16*>(a.x) + a.first[step] * a.x_stride + col;
      dst[2 * step] = a.rows[step] > 0 ? x[0] : Bf16{};
      dst[2 * step + 1] = a.rows[step] > 1 ? x[a.x_stride] : Bf16{};
    }
  }
}

void transpose_f32(const TransposeF32Args& a) {
  for (int64_t col = 0; col < a.cols; ++col) {
    for (int64_t row = 0; row < a.rows; ++row) {
      a.dst[col * a.dst_stride + row] = a.src[row * a.src_stride + col];
    }
  }
}

constexpr GemmKernels kF32 = {.pair = 1,
                              .rows_16 = 8,
                              .rows_32 = 8,
                              .rows_64 = 8,
                              .accumulate = accumulate_f32,
                              .apply_epilogue = apply_epilogue,
                              .transpose_panel = transpose_panel_f32,
                              .pack_tokens_as_panel = pack_tokens_as_panel_f32,
                              .pack_tokens_as_rows = pack_tokens_as_rows_f32,
                              .transpose_f32 = transpose_f32};
constexpr GemmKernels kBF16 = {.pair = 2,
                               .rows_16 = 8,
                               .rows_32 = 8,
                               .rows_64 = 8,
                               .accumulate = accumulate_bf16,
                               .apply_epilogue = apply_epilogue,
                               .transpose_panel = transpose_panel_bf16,
                               .pack_tokens_as_panel = pack_tokens_as_panel_bf16,
                               .pack_tokens_as_rows = pack_tokens_as_rows_bf16,
                               .transpose_f32 = transpose_f32};

}  // namespace

const GemmKernels& gemm_kernels_reference(bool bf16) { return bf16 ? kBF16 : kF32; }

}  // namespace strata::ops::cpu
