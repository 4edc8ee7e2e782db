// Weights stored as 8-bit floats with one scale for each block of 128 x 128 (DeepSeek-V3): value =
// e4m3 * scale, the tensor "X" beside "X_scale_inv" [.., ceil(R / 128), ceil(C / 128)]; blocks at
// the ends are smaller. Format: OCP 8-bit floating point, E4M3: 1 sign, 4 exponent bits of bias 7,
// 3 mantissa bits, no infinity, NaN at 0x7f and 0xff.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "checkpoint/safetensors.h"

namespace strata {

constexpr int64_t kFp8Block = 128;
constexpr std::string_view kFp8ScaleSuffix = "_scale_inv";

float e4m3_to_float(uint8_t bits);

// Whether the tensor's bytes are e4m3 and its axes can be those of blocks.
bool is_fp8(const TensorInfo& info);

// What is wrong with `scale` as the scales of `weight`, or nothing.
std::string fp8_scale_fault(const TensorInfo& weight, const TensorInfo& scale);

// Reads elements [first, first + count) of the weight, in row-major order, times their scales, in
// f32. The scale has no fault.
void read_fp8(const SafetensorsFile& weights, const TensorInfo& weight,
              const SafetensorsFile& scales, const TensorInfo& scale, int64_t first, int64_t count,
              float* out);

}  // namespace strata
