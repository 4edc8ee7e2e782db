// SPDX-License-Identifier: Apache-2.0
// Random rows of every form of few bits, and their values by the formulas of tensor/narrow.h in
// double, rounded once to f32 and then to bf16.
#pragma once
#include <cmath>
#include <cstring>
#include <vector>

#include "base/rng.h"
#include "tensor/dtype.h"
#include "tensor/narrow.h"

namespace strata::ops::testing {

inline std::vector<NarrowForm> narrow_form_list() {
  std::vector<NarrowForm> forms;
  for (int i = 1; i < kNumNarrowForms; ++i) forms.push_back(static_cast<NarrowForm>(i));
  return forms;
}

struct NarrowMatrix {
  NarrowForm form;
  int64_t num_rows, cols;
  std::vector<std::byte> bytes;

  NarrowMatrix(NarrowForm of, int64_t rows_of, int64_t cols_of, uint64_t seed)
      : form(of), num_rows(rows_of), cols(cols_of) {
    const NarrowLayout& layout = narrow_layout(form);
    const int64_t row_bytes = layout.row_bytes(cols);
    const Counter counter{.seed = seed, .stream = static_cast<uint64_t>(form)};
    bytes.resize(static_cast<size_t>(num_rows * row_bytes));
    for (size_t i = 0; i < bytes.size(); ++i) {
      bytes[i] = static_cast<std::byte>(counter.words(i)[0] >> 7);
    }
    for (int64_t r = 0; r < num_rows; ++r) {
      uint8_t* const codes = row(r);
      for (int64_t c = 0; c < cols; ++c) codes[c] = code_of(codes[c]);
      uint8_t* const fields = codes + cols;
      const int64_t field_bytes = cols / kNarrowGroup * layout.fields * layout.field_bytes;
      if (layout.field_bytes == 2) tame(fields, field_bytes);
      for (int64_t i = 0; i < field_bytes && layout.field_bytes == 1; ++i) {
        fields[i] = field_of(fields[i]);
      }
      const int64_t super_bytes = row_bytes - cols - field_bytes;
      if (layout.scale == NarrowScale::kE4m3) {
        tame_two_floats(fields + field_bytes, super_bytes);
      } else if (layout.scale == NarrowScale::kFloat) {
        tame_floats(fields + field_bytes, super_bytes);
      } else {
        tame(fields + field_bytes, super_bytes);
      }
    }
  }

  NarrowMatrix(NarrowForm of, int64_t rows_of, int64_t cols_of, std::vector<std::byte> data)
      : form(of), num_rows(rows_of), cols(cols_of), bytes(std::move(data)) {}

  [[nodiscard]] uint8_t* row(int64_t r) {
    return reinterpret_cast<uint8_t*>(bytes.data()) + r * narrow_layout(form).row_bytes(cols);
  }
  [[nodiscard]] const uint8_t* row(int64_t r) const {
    return const_cast<NarrowMatrix*>(this)->row(r);  // NOLINT: reads
  }
  [[nodiscard]] NarrowRows rows(int64_t begin, int64_t end) const {
    return {.form = form,
            .data = bytes.data() + begin * narrow_layout(form).row_bytes(cols),
            .rows = end - begin,
            .cols = cols};
  }
  [[nodiscard]] NarrowRows rows() const { return rows(0, num_rows); }

  [[nodiscard]] float f32(int64_t r, int64_t col) const {
    const NarrowLayout& layout = narrow_layout(form);
    const uint8_t* const codes = row(r);
    const uint8_t* const fields =
        codes + cols + col / kNarrowGroup * layout.fields * layout.field_bytes;
    const uint8_t* const supers = codes + cols +
                                  cols / kNarrowGroup * layout.fields * layout.field_bytes +
                                  col / kNarrowSuper * layout.super_bytes(1);
    const double code = code_value(codes[col]);
    switch (layout.scale) {
      case NarrowScale::kHalf:
        return static_cast<float>(code * half(fields));
      case NarrowScale::kHalfMin:
        return static_cast<float>(code * half(fields) + half(fields + 2));
      case NarrowScale::kExponent:
        return static_cast<float>(code * std::ldexp(1.0, fields[0] - 128));
      case NarrowScale::kSuper:
        return static_cast<float>(half(supers) * static_cast<int8_t>(fields[0]) * code);
      case NarrowScale::kSuper16:
        return static_cast<float>(half(supers) * static_cast<int8_t>(fields[col % 32 / 16]) * code);
      case NarrowScale::kSuperMin:
        return static_cast<float>(half(supers) * fields[0] * code - half(supers + 2) * fields[1]);
      case NarrowScale::kFloat: {
        float scale;
        std::memcpy(&scale, supers + 4 * (col % 256 * layout.super_fields / 256), sizeof(scale));
        return static_cast<float>(static_cast<double>(scale) * code);
      }
      case NarrowScale::kE4m3: {
        float of[2];
        std::memcpy(of, supers, sizeof(of));
        const double e = e4m3(fields[col % 32 / 16] & 0x7f);
        // Of the second product 28 bits are rounded; the sum of this has more than a double's.
        const auto more = static_cast<float>(e * static_cast<double>(of[1]));
        return static_cast<float>(
            static_cast<double>(std::fma(static_cast<float>(e), of[0], more)) * code);
      }
    }
    return NAN;
  }
  [[nodiscard]] Bf16 bf16(int64_t r, int64_t col) const { return to_bf16(f32(r, col)); }

 private:
  [[nodiscard]] double code_value(uint8_t code) const {
    const NarrowLayout& layout = narrow_layout(form);
    switch (layout.codes) {
      case NarrowCodes::kNibbles:
        return static_cast<double>(layout.values[code]);
      case NarrowCodes::kInt8:
        return static_cast<int8_t>(code);
      case NarrowCodes::kE4m3:
        return e4m3(code);
    }
    return NAN;
  }
  // / 256
  [[nodiscard]] static double e4m3(uint8_t code) {
    const int exponent = code >> 3 & 15, mantissa = code & 7;
    const double value =
        exponent == 0 ? std::ldexp(mantissa, -17) : std::ldexp(8 + mantissa, exponent - 18);
    return code >= 128 ? -value : value;
  }
  // What the types of files have: products of more bits would not be exact in f32.
  [[nodiscard]] uint8_t code_of(uint8_t random) const {
    if (narrow_layout(form).bits == 4) return random & 15;
    if (form == NarrowForm::kQ8_0) return random;
    if (form == NarrowForm::kFp8) return (random & 0x7f) == 0x7f ? 0 : random;
    const NarrowLayout& layout = narrow_layout(form);
    return static_cast<uint8_t>(random % (1 << layout.bits) + layout.least_code);
  }
  [[nodiscard]] uint8_t field_of(uint8_t random) const {
    switch (narrow_layout(form).scale) {
      case NarrowScale::kExponent:  // finite, and subnormal now and then
        return random % 4 == 0 ? random / 4 % 16 : static_cast<uint8_t>(110 + random % 30);
      case NarrowScale::kSuper:
        return static_cast<uint8_t>(random % 64 - 32);
      case NarrowScale::kSuperMin:
        return random % 64;
      case NarrowScale::kE4m3:
        return (random & 0x7f) == 0x7f ? 0x38 : random & 0x7f;
      default:
        return random;
    }
  }
  // Halves of both signs around one, and subnormal ones; none that is no number.
  static void tame(uint8_t* halves, int64_t count) {
    for (int64_t i = 1; i < count; i += 2) {
      halves[i] =
          static_cast<uint8_t>(halves[i] % 16 == 0 ? halves[i] & 0x83 : (halves[i] & 0x9f) | 0x20);
      halves[i] &= 0xbf;
    }
  }
  // Any 24 bits, of both signs and the size of weights, and zeros now and then.
  static void tame_floats(uint8_t* floats, int64_t count) {
    for (int64_t i = 3; i < count; i += 4) {
      floats[i] = static_cast<uint8_t>((floats[i] & 0x83) | 0x3c);
      if (floats[i - 1] % 16 == 0) std::memset(floats + i - 3, 0, 4);
    }
  }
  // Pairs of a scale and what one of more bits has besides, or nothing.
  static void tame_two_floats(uint8_t* floats, int64_t count) {
    tame_floats(floats, count);
    for (int64_t i = 0; i < count; i += 8) {
      float of[2];
      std::memcpy(of, floats + i, sizeof(of));
      of[1] *= of[0] * 0x1p-24f * (floats[i] % 3 == 0 ? 0.0f : 1.0f);
      std::memcpy(floats + i, of, sizeof(of));
    }
  }
  static double half(const uint8_t* p) {
    return f16_to_float(static_cast<uint16_t>(p[0] | p[1] << 8));
  }
};

}  // namespace strata::ops::testing
