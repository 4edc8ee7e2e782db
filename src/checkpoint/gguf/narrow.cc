// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/gguf/narrow.h"

#include <array>
#include <cstring>

#include "base/check.h"
#include "checkpoint/nvfp4.h"

namespace strata {
namespace {

// Exponents up to this keep every e2m1 times 2^(e - 127) finite.
constexpr int kLargestMxExponent = 252;

// Where the parts of one block go: its codes, the fields of its groups, and its super fields.
struct Out {
  uint8_t* codes;
  uint8_t* fields;
  uint8_t* supers;
};

int u8(const uint8_t* block, int64_t at) { return block[at]; }

// An f16 that is no infinity and no NaN.
bool finite(const uint8_t* half) { return (half[1] & 0x7c) != 0x7c; }

// The code of one of 32 elements in 16 bytes: the low halves are the first 16.
int nibble(const uint8_t* codes, int i) { return i < 16 ? codes[i] & 15 : codes[i - 16] >> 4; }

// A block's parts are written; whether its scales are finite.
using Convert = bool (*)(const uint8_t* block, const Out& out);

bool repack_q8_0(const uint8_t* b, const Out& out) {
  std::memcpy(out.fields, b, 2);
  std::memcpy(out.codes, b + 2, 32);
  return finite(b);
}

// Q4_0, Q4_1, IQ4_NL: kScales of two bytes, then the codes.
template <int kScales>
bool repack_q4(const uint8_t* b, const Out& out) {
  std::memcpy(out.fields, b, 2 * kScales);
  for (int i = 0; i < 32; ++i) out.codes[i] = static_cast<uint8_t>(nibble(b + 2 * kScales, i));
  return finite(b) && (kScales == 1 || finite(b + 2));
}

// Q5_0 and, with a minimum, Q5_1.
template <bool kMin>
bool repack_q5(const uint8_t* b, const Out& out) {
  constexpr int kHigh = kMin ? 4 : 2;
  std::memcpy(out.fields, b, kHigh);
  for (int i = 0; i < 32; ++i) {
    const int high = b[kHigh + i / 8] >> (i % 8) & 1;
    const int code = nibble(b + kHigh + 4, i) | high << 4;
    out.codes[i] = static_cast<uint8_t>(kMin ? code : code - 16);
  }
  return finite(b) && (!kMin || finite(b + 2));
}

bool repack_mxfp4(const uint8_t* b, const Out& out) {
  out.fields[0] = b[0];
  bool fits = true;
  for (int i = 0; i < 32; ++i) {
    const int code = nibble(b + 1, i);
    out.codes[i] = static_cast<uint8_t>(code);
    // 2^(e - 128) times twice the value: of 253 and 254 the small ones are finite.
    const int magnitude = code & 7;
    fits = fits && (b[0] <= kLargestMxExponent || magnitude == 0 ||
                    (b[0] == 253 && magnitude < 6) || (b[0] == 254 && magnitude < 4));
  }
  return b[0] != 255 && fits;
}

// The six-bit scale and minimum of each of eight groups.
void unpack_k_scales(const uint8_t* x, uint8_t* fields) {
  for (int g = 0; g < 8; ++g) {
    const int scale = g < 4 ? u8(x, g) & 63 : (u8(x, g + 4) & 15) | (u8(x, g - 4) >> 6) << 4;
    const int min = g < 4 ? u8(x, g + 4) & 63 : (u8(x, g + 4) >> 4) | (u8(x, g) >> 6) << 4;
    fields[2 * g] = static_cast<uint8_t>(scale);
    fields[2 * g + 1] = static_cast<uint8_t>(min);
  }
}

// Q4_K and Q5_K, which has fifth bits before the codes.
template <bool kFive>
bool repack_q4_q5_k(const uint8_t* b, const Out& out) {
  constexpr int kCodes = kFive ? 48 : 16;
  std::memcpy(out.supers, b, 4);
  unpack_k_scales(b + 4, out.fields);
  for (int i = 0; i < 256; ++i) {
    const int g = i / 32;
    const int byte = u8(b, kCodes + 32 * (g / 2) + i % 32);
    const int high = kFive ? u8(b, 16 + i % 32) >> g & 1 : 0;
    out.codes[i] = static_cast<uint8_t>((g % 2 == 0 ? byte & 15 : byte >> 4) | high << 4);
  }
  return finite(b) && finite(b + 2);
}

bool repack_q6_k(const uint8_t* b, const Out& out) {
  std::memcpy(out.supers, b + 208, 2);
  std::memcpy(out.fields, b + 192, 16);
  for (int i = 0; i < 256; ++i) {
    const int half = i / 128;
    const int part = i % 128 / 32;
    const int l = i % 32;
    const int low = u8(b, 64 * half + l + 32 * (part % 2));
    const int high = u8(b, 128 + 32 * half + l) >> (2 * part) & 3;
    out.codes[i] = static_cast<uint8_t>(((part < 2 ? low & 15 : low >> 4) | high << 4) - 32);
  }
  return finite(b + 208);
}

// The six-bit scale of each of sixteen groups.
void unpack_q3_k_scales(const uint8_t* x, uint8_t* fields) {
  for (int g = 0; g < 16; ++g) {
    const int low = g < 8 ? u8(x, g) & 15 : u8(x, g - 8) >> 4;
    const int high = u8(x, 8 + g % 4) >> (2 * (g / 4)) & 3;
    fields[g] = static_cast<uint8_t>((low | high << 4) - 32);
  }
}

bool repack_q3_k(const uint8_t* b, const Out& out) {
  std::memcpy(out.supers, b + 108, 2);
  unpack_q3_k_scales(b + 96, out.fields);
  for (int i = 0; i < 256; ++i) {
    const int part = i % 128 / 32;
    const int bits = u8(b, 32 + 32 * (i / 128) + i % 32) >> (2 * part) & 3;
    const bool high = (u8(b, i % 32) >> (4 * (i / 128) + part) & 1) != 0;
    out.codes[i] = static_cast<uint8_t>(bits - (high ? 0 : 4));
  }
  return finite(b + 108);
}

bool repack_iq4_xs(const uint8_t* b, const Out& out) {
  std::memcpy(out.supers, b, 2);
  const int high = u8(b, 2) | u8(b, 3) << 8;
  for (int g = 0; g < 8; ++g) {
    const int low = g % 2 == 0 ? u8(b, 4 + g / 2) & 15 : u8(b, 4 + g / 2) >> 4;
    out.fields[g] = static_cast<uint8_t>((low | (high >> (2 * g) & 3) << 4) - 32);
    for (int i = 0; i < 32; ++i) {
      out.codes[32 * g + i] = static_cast<uint8_t>(nibble(b + 8 + 16 * g, i));
    }
  }
  return finite(b);
}

// Super fields are the tensor's. Code 8 is a zero without a sign, as in MXFP4.
bool repack_nvfp4(const uint8_t* b, const Out& out) {
  for (int g = 0; g < 4; ++g) {
    out.fields[g] = gguf_nvfp4_scale(b[g]);
    for (int i = 0; i < 16; ++i) {
      const int byte = u8(b, 4 + 8 * g + i % 8);
      const int code = i < 8 ? byte & 15 : byte >> 4;
      out.codes[16 * g + i] = static_cast<uint8_t>(code == 8 ? 0 : code);
    }
  }
  return true;
}

struct Row {
  std::string_view type;
  NarrowForm form;
  Convert convert;
};

constexpr std::array kRows = {
    Row{"Q8_0", NarrowForm::kQ8_0, repack_q8_0},
    Row{"Q4_0", NarrowForm::kQ4_0, repack_q4<1>},
    Row{"Q4_1", NarrowForm::kQ4_1, repack_q4<2>},
    Row{"IQ4_NL", NarrowForm::kIq4Nl, repack_q4<1>},
    Row{"Q5_0", NarrowForm::kQ5_0, repack_q5<false>},
    Row{"Q5_1", NarrowForm::kQ5_1, repack_q5<true>},
    Row{"MXFP4", NarrowForm::kMxfp4, repack_mxfp4},
    Row{"Q4_K", NarrowForm::kQ4_K, repack_q4_q5_k<false>},
    Row{"Q5_K", NarrowForm::kQ5_K, repack_q4_q5_k<true>},
    Row{"Q6_K", NarrowForm::kQ6_K, repack_q6_k},
    Row{"Q3_K", NarrowForm::kQ6_K, repack_q3_k},
    Row{"IQ4_XS", NarrowForm::kIq4Xs, repack_iq4_xs},
    Row{"NVFP4", NarrowForm::kNvfp4, repack_nvfp4},
};

const Row* row_of(const GgufType& type) {
  for (const Row& row : kRows) {
    if (row.type == type.name) return &row;
  }
  return nullptr;
}

}  // namespace

NarrowForm gguf_narrow_form(const GgufType& type) {
  const Row* row = row_of(type);
  return row == nullptr ? NarrowForm::kNone : row->form;
}

int64_t gguf_repack_rows_until_fault(const GgufType& type, const std::byte* blocks, int64_t rows,
                                     int64_t cols, std::byte* out,
                                     const std::array<float, 2>& tensor_scale) {
  const Row* row = row_of(type);
  CHECK(row != nullptr && cols % type.block_elements == 0, type.name, cols);
  const NarrowLayout& layout = narrow_layout(row->form);
  const int64_t blocks_each = cols / type.block_elements;
  const int64_t field_bytes =
      type.block_elements / kNarrowGroup * layout.fields * layout.field_bytes;  // of a block
  const auto* from = reinterpret_cast<const uint8_t*>(blocks);
  for (int64_t r = 0; r < rows; ++r) {
    auto* const codes = reinterpret_cast<uint8_t*>(out) + r * layout.row_bytes(cols);
    uint8_t* const fields = codes + cols;
    uint8_t* const supers = fields + blocks_each * field_bytes;
    if (row->form == NarrowForm::kNvfp4) {
      const int64_t at = cols + blocks_each * field_bytes;
      fill_nvfp4_super_fields(tensor_scale, {out + r * layout.row_bytes(cols) + at,
                                             out + (r + 1) * layout.row_bytes(cols)});
    }
    for (int64_t b = 0; b < blocks_each; ++b, from += type.block_bytes) {
      const Out to = {codes + b * type.block_elements, fields + b * field_bytes,
                      supers + b * type.block_elements / kNarrowSuper * layout.super_bytes(1)};
      if (!row->convert(from, to)) return r * blocks_each + b;
    }
  }
  return -1;
}

}  // namespace strata
