// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/block_scales.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <span>

namespace strata {
namespace {

constexpr std::string_view kPowersOfTwo = "F8_E8M0";
// Elements that are read at once: few reads, of little memory beside what they become.
constexpr int64_t kElementsAtOnce = int64_t{8} << 20;

std::array<float, 256> make_e4m3() {
  std::array<float, 256> table{};
  for (int bits = 0; bits < 256; ++bits) {
    const int exponent = bits >> 3 & 15;
    const int mantissa = bits & 7;
    float value = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                                : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
    if (exponent == 15 && mantissa == 7) value = std::numeric_limits<float>::quiet_NaN();
    table[static_cast<size_t>(bits)] = bits >= 128 ? -value : value;
  }
  return table;
}

int64_t blocks_of(int64_t size, int64_t block) { return (size + block - 1) / block; }

std::vector<int64_t> scale_dims(const BlockFormat& format) {
  std::vector<int64_t> dims = format.dims;
  const size_t axis = dims.size() - 2;
  dims[axis] = blocks_of(dims[axis], format.block_rows);
  dims[axis + 1] = blocks_of(dims[axis + 1], format.block_cols);
  return dims;
}

void read_scales(const SafetensorsFile& file, const TensorInfo& scale, int64_t first,
                 std::span<float> out) {
  if (scale.dtype_name != kPowersOfTwo)
    return file.read_f32(scale, first, std::ssize(out), out.data());
  std::vector<uint8_t> bytes(out.size());
  file.read_bytes(scale, first, std::as_writable_bytes(std::span(bytes)));
  std::transform(bytes.begin(), bytes.end(), out.begin(), e8m0_to_float);
}

}  // namespace

float e4m3_to_float(uint8_t bits) {
  static const std::array<float, 256> kTable = make_e4m3();
  return kTable[bits];
}

float e2m1_to_float(uint8_t bits) {
  constexpr float kValues[] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
  const float value = kValues[bits & 7];
  return (bits & 8) != 0 ? -value : value;
}

float e8m0_to_float(uint8_t bits) {
  if (bits == 0xff) return std::numeric_limits<float>::quiet_NaN();
  return std::ldexp(1.0f, static_cast<int>(bits) - 127);
}

std::optional<BlockFormat> block_format(const TensorInfo& stored) {
  const std::string_view dtype = stored.dtype_name;
  if (stored.dims.size() < 2 || std::ssize(stored.dims) > kMaxRank) return std::nullopt;
  if (dtype == "F8_E4M3")
    return BlockFormat{.block_rows = 128, .block_cols = 128, .dims = stored.dims};
  if (dtype != "F4" && dtype != "I8" && dtype != "U8") return std::nullopt;
  BlockFormat format{
      .block_rows = 1, .block_cols = 32, .elements_per_byte = 2, .dims = stored.dims};
  if (dtype != "F4" && __builtin_mul_overflow(format.dims.back(), 2, &format.dims.back()))
    return std::nullopt;
  if (format.dims.back() % 2 != 0) return std::nullopt;  // a row would end inside a byte
  return format;
}

std::vector<std::string> scale_names(std::string_view tensor) {
  constexpr std::string_view kWeight = ".weight";
  std::vector<std::string> names = {fmt::format("{}_scale_inv", tensor)};
  if (tensor.ends_with(kWeight)) {
    names.push_back(fmt::format("{}.scale", tensor.substr(0, tensor.size() - kWeight.size())));
  }
  return names;
}

std::string scale_fault(const TensorInfo& weight, const BlockFormat& format,
                        const TensorInfo& scale) {
  if (!scale.readable && scale.dtype_name != kPowersOfTwo) {
    return fmt::format("tensor '{}': dtype {}, want F32, F16, BF16 or {}", scale.name,
                       scale.dtype_name, kPowersOfTwo);
  }
  const std::vector<int64_t> want = scale_dims(format);
  if (scale.dims == want) return "";
  return fmt::format("tensor '{}': shape {}, want [{}]: '{}' is {} {} in blocks of {} x {}{}",
                     scale.name, scale.shape_text(), fmt::join(want, ", "), weight.name,
                     weight.dtype_name, weight.shape_text(), format.block_rows, format.block_cols,
                     format.elements_per_byte == 2 ? " elements of 4 bits" : "");
}

void read_scaled(const SafetensorsFile& weights, const TensorInfo& weight,
                 const BlockFormat& format, const SafetensorsFile& scales, const TensorInfo& scale,
                 int64_t first, int64_t count, float* out) {
  const int64_t cols = format.dims[format.dims.size() - 1];
  const int64_t rows = format.dims[format.dims.size() - 2];
  const int64_t scale_cols = blocks_of(cols, format.block_cols);
  const auto scale_row = [&](int64_t row) {
    return row / rows * blocks_of(rows, format.block_rows) + row % rows / format.block_rows;
  };
  const int64_t end = first + count;
  std::vector<uint8_t> bytes;
  std::vector<float> factors;
  for (int64_t begin = first; begin < end; begin += kElementsAtOnce) {
    const int64_t last = std::min(end, begin + kElementsAtOnce) - 1;
    const int64_t first_byte = begin / format.elements_per_byte;
    bytes.resize(static_cast<size_t>(last / format.elements_per_byte + 1 - first_byte));
    weights.read_bytes(weight, first_byte, std::as_writable_bytes(std::span(bytes)));
    const int64_t first_row = scale_row(begin / cols);
    const int64_t num_rows = scale_row(last / cols) + 1 - first_row;
    factors.resize(static_cast<size_t>(num_rows * scale_cols));
    read_scales(scales, scale, first_row * scale_cols, factors);
    for (int64_t at = begin; at <= last;) {
      const int64_t col = at % cols;
      const int64_t n = std::min(cols - col, last + 1 - at);
      const float* row_factors = factors.data() + (scale_row(at / cols) - first_row) * scale_cols;
      for (int64_t i = 0; i < n; ++i) {
        const auto byte =
            bytes[static_cast<size_t>((at + i) / format.elements_per_byte - first_byte)];
        const float value = format.elements_per_byte == 1 ? e4m3_to_float(byte)
                            : (at + i) % 2 == 0           ? e2m1_to_float(byte)
                                                          : e2m1_to_float(byte >> 4);
        *out++ = value * row_factors[(col + i) / format.block_cols];
      }
      at += n;
    }
  }
}

}  // namespace strata
