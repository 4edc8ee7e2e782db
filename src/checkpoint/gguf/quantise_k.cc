// SPDX-License-Identifier: Apache-2.0
// Sources: ggml's ggml-common.h (layouts) and ggml-quants.c (how scales are searched for). The
// order of every sum is ggml's.
#include "checkpoint/gguf/quantise_k.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "tensor/dtype.h"

namespace strata {
namespace {

constexpr int kBlock = 256;
constexpr int kPart = 32;  // of Q4_K and Q5_K: values that share a scale and a minimum
constexpr int kParts = kBlock / kPart;
constexpr int kSmallPart = 16;  // of Q6_K: values that share a scale
constexpr int kSmallParts = kBlock / kSmallPart;
constexpr float kMostPartScale = 63.0f;  // 6 bits

// To the nearest whole number in [least, most], of halves to the even one; of NaN the least.
int nearest_code(float value, int least, int most) {
  constexpr float kShift = 12582912.0f;  // 1.5 * 2^23: what is added to it loses its fraction
  const auto low = static_cast<float>(least), high = static_cast<float>(most);
  const float clamped = value > low ? (value < high ? value : high) : low;
  return static_cast<int>((clamped + kShift) - kShift);
}

void put_half(std::byte* to, float value) {
  const uint16_t bits = float_to_f16(value);
  std::memcpy(to, &bits, sizeof(bits));
}

float read_half(const std::byte* from) {
  uint16_t bits;
  std::memcpy(&bits, from, sizeof(bits));
  return f16_to_float(bits);
}

// value = scale * code - minimum, codes of 0 to `most`.
struct Affine {
  float scale = 0, minimum = 0;
};

struct AffineSearch {
  int most;           // code
  float first_shift;  // of the range of codes that is tried first
  int steps;          // of 0.1, that many more
};

using Codes = std::array<uint8_t, kPart>;

// Larger values count more.
std::array<float, kPart> weights_of(const float* x) {
  float square_sum = 0;
  for (int i = 0; i < kPart; ++i) square_sum += x[i] * x[i];
  const float rms = std::sqrt(square_sum / kPart);
  std::array<float, kPart> weights;
  for (int i = 0; i < kPart; ++i) weights[i] = rms + std::fabs(x[i]);
  return weights;
}

float weighted_error(const float* x, const std::array<float, kPart>& weights, const Codes& codes,
                     const Affine& line) {
  float error = 0;
  for (int i = 0; i < kPart; ++i) {
    const float difference = line.scale * codes[i] - line.minimum - x[i];
    error += weights[i] * (difference * difference);
  }
  return error;
}

void round_to_codes(const float* x, float factor, float least, int most, Codes& codes) {
  for (int i = 0; i < kPart; ++i) {
    codes[i] = static_cast<uint8_t>(nearest_code(factor * (x[i] - least), 0, most));
  }
}

// The weighted least squares of values by codes, with a minimum that is not negative; false where
// the codes are all one.
bool fit_line(const float* x, const std::array<float, kPart>& weights, const Codes& codes,
              float weight_sum, float value_sum, Affine& line) {
  float code_sum = 0, square_sum = 0, product_sum = 0;
  for (int i = 0; i < kPart; ++i) {
    const float weighted = weights[i] * codes[i];
    code_sum += weighted;
    square_sum += weighted * codes[i];
    product_sum += weighted * x[i];
  }
  const float determinant = weight_sum * square_sum - code_sum * code_sum;
  if (!(determinant > 0)) return false;
  line.scale = (weight_sum * product_sum - value_sum * code_sum) / determinant;
  const float least = (square_sum * value_sum - code_sum * product_sum) / determinant;
  line.minimum = -least;
  if (least > 0) line = {.scale = product_sum / square_sum, .minimum = 0};
  return true;
}

// The best of several ranges of codes for 32 values.
Affine search_line(const float* x, const AffineSearch& search, Codes& codes) {
  const std::array<float, kPart> weights = weights_of(x);
  float weight_sum = 0, value_sum = 0;
  for (int i = 0; i < kPart; ++i) {
    weight_sum += weights[i];
    value_sum += weights[i] * x[i];
  }
  const auto [smallest, largest] = std::minmax_element(x, x + kPart);
  float least = std::min(*smallest, 0.0f);
  codes.fill(0);
  Affine best = {.scale = 0, .minimum = -least};
  if (*largest == least) return best;
  const float factor = static_cast<float>(search.most) / (*largest - least);
  best.scale = 1 / factor;
  round_to_codes(x, factor, least, search.most, codes);
  float best_error = weighted_error(x, weights, codes, best);
  for (int step = 0; step <= search.steps; ++step) {
    const float codes_of_range =
        search.first_shift + 0.1f * static_cast<float>(step) + static_cast<float>(search.most);
    Codes tried;
    Affine line;
    round_to_codes(x, codes_of_range / (*largest - least), least, search.most, tried);
    if (!fit_line(x, weights, tried, weight_sum, value_sum, line)) continue;
    const float error = weighted_error(x, weights, tried, line);
    if (!(error < best_error)) continue;
    codes = tried;
    best_error = error;
    best = line;
    least = -line.minimum;  // where the ranges that follow begin
  }
  return best;
}

// 6 bits each in 12 bytes: the low four of the last parts and the high two of them share bytes.
void put_part_scales(const std::array<uint8_t, kParts>& scales,
                     const std::array<uint8_t, kParts>& minima, std::byte* to) {
  std::array<uint8_t, 12> out = {};
  for (int j = 0; j < 4; ++j) {
    out[j] = static_cast<uint8_t>(scales[j] | (scales[j + 4] >> 4 << 6));
    out[j + 4] = static_cast<uint8_t>(minima[j] | (minima[j + 4] >> 4 << 6));
    out[j + 8] = static_cast<uint8_t>((scales[j + 4] & 15) | (minima[j + 4] & 15) << 4);
  }
  std::memcpy(to, out.data(), out.size());
}

// Scales and minima of a block to `to` (16 bytes), and the codes by what is stored of them.
void fit_block(const float* x, const AffineSearch& search, std::byte* to,
               std::array<Codes, kParts>& codes) {
  std::array<Affine, kParts> lines;
  float most_scale = 0, most_minimum = 0;
  for (int j = 0; j < kParts; ++j) {
    lines[j] = search_line(x + j * kPart, search, codes[j]);
    most_scale = std::max(most_scale, lines[j].scale);
    most_minimum = std::max(most_minimum, lines[j].minimum);
  }
  const float scale_factor = most_scale > 0 ? kMostPartScale / most_scale : 0.0f;
  const float minimum_factor = most_minimum > 0 ? kMostPartScale / most_minimum : 0.0f;
  put_half(to, most_scale / kMostPartScale);
  put_half(to + 2, most_minimum / kMostPartScale);
  const float scale_unit = read_half(to), minimum_unit = read_half(to + 2);
  std::array<uint8_t, kParts> scales, minima;
  for (int j = 0; j < kParts; ++j) {
    scales[j] = static_cast<uint8_t>(nearest_code(scale_factor * lines[j].scale, 0, 63));
    minima[j] = static_cast<uint8_t>(nearest_code(minimum_factor * lines[j].minimum, 0, 63));
    const float scale = scale_unit * scales[j], minimum = minimum_unit * minima[j];
    if (scale == 0) continue;
    for (int i = 0; i < kPart; ++i) {
      const float code = (x[j * kPart + i] + minimum) / scale;
      codes[j][i] = static_cast<uint8_t>(nearest_code(code, 0, search.most));
    }
  }
  put_part_scales(scales, minima, to + 4);
}

// The low four bits: of two parts in the halves of 32 bytes.
void put_low_bits(const std::array<Codes, kParts>& codes, std::byte* to) {
  for (int j = 0; j < kParts; j += 2) {
    for (int i = 0; i < kPart; ++i) {
      *to++ = static_cast<std::byte>((codes[j][i] & 15) | (codes[j + 1][i] & 15) << 4);
    }
  }
}

// Codes of [-32, 31] and the scale for them.
float search_scale(const float* x, std::array<int8_t, kSmallPart>& codes) {
  constexpr int kMost = 32;
  constexpr float kNothing = 1e-15f;
  float largest = 0;
  for (int i = 0; i < kSmallPart; ++i) {
    if (std::fabs(x[i]) > std::fabs(largest)) largest = x[i];
  }
  codes.fill(-kMost);  // what ggml has there; nobody sees them unless the block has a scale
  if (!(std::fabs(largest) >= kNothing)) return 0;
  float scale = 0, best = 0;
  // The plain range first, then those around it.
  constexpr int kShifts[] = {0, -9, -8, -7, -6, -5, -4, -3, -2, -1, 1, 2, 3, 4, 5, 6, 7, 8, 9};
  for (const int shift : kShifts) {
    const float factor = -(kMost + 0.1f * static_cast<float>(shift)) / largest;
    std::array<int8_t, kSmallPart> tried;
    float product_sum = 0, square_sum = 0;
    for (int i = 0; i < kSmallPart; ++i) {
      tried[i] = static_cast<int8_t>(nearest_code(factor * x[i], -kMost, kMost - 1));
      const float weight = x[i] * x[i];
      product_sum += weight * x[i] * tried[i];
      square_sum += weight * tried[i] * tried[i];
    }
    const bool is_better = square_sum > 0 && product_sum * product_sum > best * square_sum;
    if (shift != 0 && !is_better) continue;
    codes = tried;
    scale = square_sum > 0 ? product_sum / square_sum : 0.0f;
    best = scale * product_sum;
  }
  return scale;
}

// Writes 128 codes of six bits: the low four of four runs of 32 in 64 bytes, the high two in 32.
void put_six_bits(const uint8_t* codes, std::byte* low, std::byte* high) {
  for (int i = 0; i < 32; ++i) {
    const int a = codes[i], b = codes[i + 32], c = codes[i + 64], d = codes[i + 96];
    low[i] = static_cast<std::byte>((a & 15) | (c & 15) << 4);
    low[i + 32] = static_cast<std::byte>((b & 15) | (d & 15) << 4);
    high[i] = static_cast<std::byte>(a >> 4 | b >> 4 << 2 | c >> 4 << 4 | d >> 4 << 6);
  }
}

void quantise_q6_k_block(const float* x, std::byte* block) {
  constexpr int kLowBytes = kBlock / 2, kHighBytes = kBlock / 4;
  std::byte* scale_bytes = block + kLowBytes + kHighBytes;
  std::byte* half = scale_bytes + kSmallParts;
  std::array<std::array<int8_t, kSmallPart>, kSmallParts> codes;
  std::array<float, kSmallParts> scales;
  float largest = 0;  // with its sign
  for (int j = 0; j < kSmallParts; ++j) {
    scales[j] = search_scale(x + j * kSmallPart, codes[j]);
    if (std::fabs(scales[j]) > std::fabs(largest)) largest = scales[j];
  }
  std::memset(block, 0, kLowBytes + kHighBytes + kSmallParts + 2);
  if (!(std::fabs(largest) >= 1e-15f)) return;
  const float factor = -128.0f / largest;
  put_half(half, 1 / factor);
  const float unit = read_half(half);
  std::array<uint8_t, kBlock> shifted;
  for (int j = 0; j < kSmallParts; ++j) {
    const int part_scale = nearest_code(factor * scales[j], -128, 127);
    scale_bytes[j] = static_cast<std::byte>(static_cast<int8_t>(part_scale));
    const float scale = unit * static_cast<float>(part_scale);
    for (int i = 0; i < kSmallPart; ++i) {
      const int at = j * kSmallPart + i;
      if (scale != 0) codes[j][i] = static_cast<int8_t>(nearest_code(x[at] / scale, -32, 31));
      shifted[at] = static_cast<uint8_t>(codes[j][i] + 32);
    }
  }
  for (int i = 0; i < 2; ++i) {
    put_six_bits(shifted.data() + i * 128, block + i * 64, block + kLowBytes + i * 32);
  }
}

}  // namespace

void quantise_q4_k(const float* values, int64_t count, std::byte* blocks) {
  constexpr AffineSearch kSearch = {.most = 15, .first_shift = -1.0f, .steps = 20};
  constexpr int kBytes = 16 + kBlock / 2;
  for (int64_t b = 0; b < count; ++b, values += kBlock, blocks += kBytes) {
    std::array<Codes, kParts> codes;
    fit_block(values, kSearch, blocks, codes);
    put_low_bits(codes, blocks + 16);
  }
}

void quantise_q5_k(const float* values, int64_t count, std::byte* blocks) {
  constexpr AffineSearch kSearch = {.most = 31, .first_shift = -0.5f, .steps = 15};
  constexpr int kBytes = 16 + kPart + kBlock / 2;
  for (int64_t b = 0; b < count; ++b, values += kBlock, blocks += kBytes) {
    std::array<Codes, kParts> codes;
    fit_block(values, kSearch, blocks, codes);
    for (int i = 0; i < kPart; ++i) {
      int high = 0;  // one bit of each part
      for (int j = 0; j < kParts; ++j) high |= codes[j][i] >> 4 << j;
      blocks[16 + i] = static_cast<std::byte>(high);
    }
    put_low_bits(codes, blocks + 16 + kPart);
  }
}

void quantise_q6_k(const float* values, int64_t count, std::byte* blocks) {
  constexpr int kBytes = kBlock / 2 + kBlock / 4 + kSmallParts + 2;
  for (int64_t b = 0; b < count; ++b) {
    quantise_q6_k_block(values + b * kBlock, blocks + b * kBytes);
  }
}

}  // namespace strata
