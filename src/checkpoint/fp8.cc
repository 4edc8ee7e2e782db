#include "checkpoint/fp8.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

namespace strata {
namespace {

std::array<float, 256> make_table() {
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

const std::array<float, 256>& table() {
  static const std::array<float, 256> kTable = make_table();
  return kTable;
}

int64_t blocks_of(int64_t size) { return (size + kFp8Block - 1) / kFp8Block; }

std::vector<int64_t> scale_dims(const TensorInfo& weight) {
  std::vector<int64_t> dims = weight.dims;
  for (size_t axis = dims.size() - 2; axis < dims.size(); ++axis)
    dims[axis] = blocks_of(dims[axis]);
  return dims;
}

}  // namespace

float e4m3_to_float(uint8_t bits) { return table()[bits]; }

bool is_fp8(const TensorInfo& info) {
  return info.dtype_name == "F8_E4M3" && info.dims.size() >= 2 &&
         info.dims.size() <= static_cast<size_t>(kMaxRank);
}

std::string fp8_scale_fault(const TensorInfo& weight, const TensorInfo& scale) {
  if (!scale.readable) {
    return fmt::format("tensor '{}': dtype {}, want F32, F16 or BF16", scale.name,
                       scale.dtype_name);
  }
  const std::vector<int64_t> want = scale_dims(weight);
  if (scale.dims == want) return "";
  return fmt::format("tensor '{}': shape {}, want [{}]: '{}' is {} in blocks of {} x {}",
                     scale.name, scale.shape_text(), fmt::join(want, ", "), weight.name,
                     weight.shape_text(), kFp8Block, kFp8Block);
}

void read_fp8(const SafetensorsFile& weights, const TensorInfo& weight,
              const SafetensorsFile& scales, const TensorInfo& scale, int64_t first, int64_t count,
              float* out) {
  const int64_t cols = weight.dims[weight.dims.size() - 1];
  const int64_t rows = weight.dims[weight.dims.size() - 2];
  const int64_t scale_cols = blocks_of(cols);
  std::vector<uint8_t> bytes;
  std::vector<float> row_scales(static_cast<size_t>(scale_cols));
  int64_t have = -1;  // the row of scales in row_scales
  for (int64_t at = first; at < first + count;) {
    const int64_t row = at / cols;
    const int64_t col = at % cols;
    const int64_t n = std::min(cols - col, first + count - at);
    const int64_t scale_row = row / rows * blocks_of(rows) + row % rows / kFp8Block;
    if (scale_row != have) {
      scales.read_f32(scale, scale_row * scale_cols, scale_cols, row_scales.data());
      have = scale_row;
    }
    bytes.resize(static_cast<size_t>(n));
    weights.read_bytes(weight, at, std::as_writable_bytes(std::span(bytes)));
    for (int64_t i = 0; i < n; ++i) {
      *out++ = e4m3_to_float(bytes[static_cast<size_t>(i)]) *
               row_scales[static_cast<size_t>((col + i) / kFp8Block)];
    }
    at += n;
  }
}

}  // namespace strata
