// SPDX-License-Identifier: Apache-2.0
// Weights kept in 4 to 8 bits. A form says how an element's value is made of a code, a scale and
// perhaps a minimum:
//   value = RNE_bf16(values[code] * S + M)
// where S and M are f32 and belong to a row and some of its columns. Only one f32 operation rounds:
// where there is an M, the product is exact in f32 (f16 has 11 bits, and what files store besides
// never more than 13), and an fma gives the sum's bits; without one it is the product. A product
// with a narrow weight is thus one with its bf16 copy, to the bit.
//
// Rows as they travel from files to panels, one after the other:
//   codes [cols] bytes; of every 32 columns its fields; of every 256 columns its super fields
// Panels of `width` rows (tensor/panel.h) are one stream: [the super fields of 256 columns, each
// [width]], then of each 32 columns [its fields, each [width]] and the codes in the order of a bf16
// panel's elements, [pair][width][2]: bytes, or nibbles in the order that registers of paths with
// panels of that width take apart (narrow_nibble of ops/cpu/narrow_kernels.h). Codes of 5 and 6
// bits are two planes of a group's n elements: the low four bits, of elements i and n / 2 + i in
// byte i, and then the h others, of elements k n h / 8 + i in the k-th h bits of byte i. Rows of
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
  kQ6_K,
  kE2m1,  // MXFP4 whose code 8 is -0
  kNf4,   // of bitsandbytes, as is
  kFp4,
  kFp8,
  kNvfp4,
  kQ5_0
};
constexpr int kNumNarrowForms = 17;

// Which stored fields S and M are made of.
enum class NarrowScale : uint8_t {
  kHalf,      // of 32 columns: f16 d; S = d
  kHalfMin,   // of 32: f16 d, m; S = d, M = m
  kExponent,  // of 32: u8 e; S = 2^(e - 128)
  kSuper,     // of 32: i8 s; of 256: f16 d; S = d s
  kSuper16,   // of 32: i8 s, t, of its first and second 16; of 256: f16 d; S = d s
  kSuperMin,  // of 32: u8 s, m; of 256: f16 d, e; S = d s, M = -(e m)
  kFloat,     // of 256: f32 d of each of its super fields' columns; S = d
  kE4m3,      // of 32: u8 s, t, e4m3 without a sign, of its first and second 16;
              // of 256: f32 d, e; S = s d + s e, of which the second product is rounded to f32
};

// Whether the first and the second 16 columns of a group have an S each.
// Always inline: files for wider instructions call it, too (ops/cpu/simd.h).
[[gnu::always_inline]] inline bool has_two_scales(NarrowScale scale) {
  return scale == NarrowScale::kSuper16 || scale == NarrowScale::kE4m3;
}

enum class NarrowCodes : uint8_t {
  kNibbles,  // of 16 values
  kInt8,     // of bytes, or of planes of 5 or 6 bits that say how much it is above the least one
  kE4m3,     // value: e4m3 / 256, as f16 has it
};

constexpr int64_t kNarrowGroup = 32;   // columns
constexpr int64_t kNarrowSuper = 256;  // columns

struct NarrowLayout {
  std::string_view name;          // as files call the first of its types
  int bits = 0;                   // of a code: 4, 5, 6 or 8
  const float* values = nullptr;  // [16], of 4 bits
  NarrowCodes codes = NarrowCodes::kNibbles;
  NarrowScale scale = NarrowScale::kHalf;
  int fields = 0;        // of 32 columns
  int field_bytes = 0;   // of each
  int super_fields = 0;  // of 256 columns
  int super_field_bytes = 2;
  int least_code = 0;  // of 5 and 6 bits

  [[nodiscard]] bool has_min() const {
    return scale == NarrowScale::kHalfMin || scale == NarrowScale::kSuperMin;
  }
  // How many bits of a code are in the second plane.
  [[nodiscard]] int high_bits() const { return bits == 5 || bits == 6 ? bits - 4 : 0; }
  // Whether rows are whole blocks of 256 columns, as those that have f16 for each of them are.
  [[nodiscard]] bool has_super_blocks() const { return super_fields > 0 && super_field_bytes == 2; }
  // Bytes of a row before it is packed.
  [[nodiscard]] int64_t row_bytes(int64_t cols) const;
  // Where in a panel the fields of group `g` of 32 columns are, which its codes follow, and the
  // super fields that it reads.
  [[nodiscard]] int64_t group_at(int64_t g, int64_t width) const;
  [[nodiscard]] int64_t super_at(int64_t g, int64_t width) const;
  [[nodiscard]] int64_t header_bytes(int64_t width) const { return fields * field_bytes * width; }
  [[nodiscard]] int64_t group_bytes(int64_t width) const {
    return header_bytes(width) + kNarrowGroup * width * bits / 8;
  }
  [[nodiscard]] int64_t super_bytes(int64_t width) const {
    return super_fields * super_field_bytes * width;
  }
  [[nodiscard]] int64_t panel_bytes(int64_t cols, int64_t width) const;
};

// The layout of a form that is not kNone.
const NarrowLayout& narrow_layout(NarrowForm form);

// Which of the super fields of kFloat group `g` of 32 columns reads.
// Always inline: files for wider instructions call it, too (ops/cpu/simd.h).
[[gnu::always_inline]] inline int64_t narrow_float_field(int64_t g, int64_t super_fields) {
  constexpr int64_t kGroups = kNarrowSuper / kNarrowGroup;
  return g % kGroups * super_fields / kGroups;
}

// The bits of e4m3 as f16, which is the value / 256: of a scale too, so that NarrowScale::kE4m3 has
// 256 times what the scale is multiplied by.
inline uint16_t narrow_e4m3_half(uint8_t code) {
  return static_cast<uint16_t>((code & 0x80) << 8 | (code & 0x7f) << 7);
}

// Where the code of (row, column) of a group is, in elements of [pair][width][2].
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
