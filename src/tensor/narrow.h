// SPDX-License-Identifier: Apache-2.0
// Weights kept in 4 or 8 bits. A form says how an element's value is made of a code, a scale and
// perhaps a minimum:
//   value = RNE_bf16(values[code] * S + M)
// where S and M are f32 and belong to a row and 32 or 16 of its columns. The product is exact in
// f32 (f16 has 11 bits, and what files store besides never more than 13), so that the sum is the
// only f32 rounding, and an fma gives its bits. A product with a narrow weight is thus one with its
// bf16 copy, to the bit.
//
// Rows as they travel from files to panels, one after the other:
//   codes [cols] bytes; of every 32 columns its fields; of every 256 columns its f16 fields
// Panels of `width` rows (tensor/panel.h) are one stream: [the f16 fields of 256 columns, each
// [width]], then of each 32 columns [its fields, each [width]] and the codes in the order of a bf16
// panel's elements, [pair][width][2]: bytes, or of every 128 elements 16 little-endian words of 32
// bits, of which word d holds elements d, 16 + d, ..., 112 + d from its low bits on. Rows of
// padding have the value 0.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace strata {

enum class NarrowForm : uint8_t {
  kNone,  // bf16 or f32
  kQ4_0,
  kQ4_1,
  kQ4_K,
  kIq4Nl,
  kIq4Xs,
  kMxfp4,
  kQ8_0,
  kQ5_1,
  kQ5_K,
  kQ6_K
};
constexpr int kNumNarrowForms = 11;

// Of which stored fields S and M are made.
enum class NarrowScale : uint8_t {
  kHalf,      // of 32 columns: f16 d; S = d
  kHalfMin,   // of 32: f16 d, m; S = d, M = m
  kExponent,  // of 32: u8 e; S = 2^(e - 128)
  kSuper,     // of 32: i8 s; of 256: f16 d; S = d s
  kSuper16,   // of 32: i8 s, t, of its first and second 16; of 256: f16 d; S = d s
  kSuperMin,  // of 32: u8 s, m; of 256: f16 d, e; S = d s, M = -(e m)
};

constexpr int64_t kNarrowGroup = 32;   // columns
constexpr int64_t kNarrowSuper = 256;  // columns

struct NarrowLayout {
  std::string_view name;          // as files call the first of its types
  int bits = 0;                   // of a code: 4 or 8
  const float* values = nullptr;  // [16], of 4 bits; 8 are a signed whole number
  NarrowScale scale = NarrowScale::kHalf;
  int fields = 0;        // of 32 columns
  int field_bytes = 0;   // of each
  int super_fields = 0;  // of 256 columns, of two bytes each

  [[nodiscard]] bool has_min() const {
    return scale == NarrowScale::kHalfMin || scale == NarrowScale::kSuperMin;
  }
  // Of a row before it is packed.
  [[nodiscard]] int64_t row_bytes(int64_t cols) const;
  // Of a panel, from its beginning on: of the fields of group `g` of 32 columns, which its codes
  // follow, and of the f16 fields that it reads.
  [[nodiscard]] int64_t group_at(int64_t g, int64_t width) const;
  [[nodiscard]] int64_t super_at(int64_t g, int64_t width) const;
  [[nodiscard]] int64_t header_bytes(int64_t width) const { return fields * field_bytes * width; }
  [[nodiscard]] int64_t group_bytes(int64_t width) const {
    return header_bytes(width) + kNarrowGroup * width * bits / 8;
  }
  [[nodiscard]] int64_t super_bytes(int64_t width) const { return super_fields * 2 * width; }
  [[nodiscard]] int64_t panel_bytes(int64_t cols, int64_t width) const;
};

// Of a form that is not kNone.
const NarrowLayout& narrow_layout(NarrowForm form);

// Where the code of (row, column) of a group lies, in elements of [pair][width][2].
inline int64_t narrow_element(int64_t lane, int64_t col, int64_t width) {
  return (col / 2 * width + lane) * 2 + col % 2;
}

// Rows before they are packed. Borrows.
struct NarrowRows {
  NarrowForm form = NarrowForm::kNone;
  const std::byte* data = nullptr;
  int64_t rows = 0;
  int64_t cols = 0;
};

}  // namespace strata
