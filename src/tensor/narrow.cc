// SPDX-License-Identifier: Apache-2.0
#include "tensor/narrow.h"

#include "base/check.h"

namespace strata {
namespace {

alignas(64) constexpr float kSigned[16] = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};
alignas(64) constexpr float kUnsigned[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
alignas(64) constexpr float kIq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                        1,    13,   25,  38,  53,  69,  89,  113};
// Twice the values of e2m1.
alignas(64) constexpr float kTwiceE2m1[16] = {0, 1,  2,  3,  4,  6,  8,  12,
                                              0, -1, -2, -3, -4, -6, -8, -12};
alignas(64) constexpr float kTwiceE2m1Signed[16] = {0,     1,  2,  3,  4,  6,  8,  12,
                                                    -0.0f, -1, -2, -3, -4, -6, -8, -12};
alignas(64) constexpr float kE2m1[16] = {0,     0.5f,  1,  1.5f,  2,  3,  4,  6,
                                         -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};
// bitsandbytes' functional.py, create_normal_map and get_4bit_type("fp4"), as files have them.
alignas(64) constexpr float kNf4[16] = {-1.0f,
                                        -0.6961928009986877f,
                                        -0.5250730514526367f,
                                        -0.39491748809814453f,
                                        -0.28444138169288635f,
                                        -0.18477343022823334f,
                                        -0.09105003625154495f,
                                        0.0f,
                                        0.07958029955625534f,
                                        0.16093020141124725f,
                                        0.24611230194568634f,
                                        0.33791524171829224f,
                                        0.44070982933044434f,
                                        0.5626170039176941f,
                                        0.7229568362236023f,
                                        1.0f};
alignas(64) constexpr float kFp4[16] = {
    0.0f, 0.0625f / 12,  8.0f / 12,  1.0f,  4.0f / 12,  0.5f,  2.0f / 12,  0.25f,
    0.0f, -0.0625f / 12, -8.0f / 12, -1.0f, -4.0f / 12, -0.5f, -2.0f / 12, -0.25f};

constexpr NarrowLayout make_layout(std::string_view name, int bits, const float* values,
                                   NarrowScale scale) {
  NarrowLayout l = {.name = name,
                    .bits = bits,
                    .values = values,
                    .codes = bits == 4 ? NarrowCodes::kNibbles : NarrowCodes::kInt8,
                    .scale = scale};
  switch (scale) {
    case NarrowScale::kHalf:
      l.fields = 1, l.field_bytes = 2;
      break;
    case NarrowScale::kHalfMin:
      l.fields = 2, l.field_bytes = 2;
      break;
    case NarrowScale::kExponent:
      l.fields = 1, l.field_bytes = 1;
      break;
    case NarrowScale::kSuper:
      l.fields = 1, l.field_bytes = 1, l.super_fields = 1;
      break;
    case NarrowScale::kSuper16:
      l.fields = 2, l.field_bytes = 1, l.super_fields = 1;
      break;
    case NarrowScale::kSuperMin:
      l.fields = 2, l.field_bytes = 1, l.super_fields = 2;
      break;
    case NarrowScale::kFloat:
      l.super_fields = 4, l.super_field_bytes = 4;
      break;
    case NarrowScale::kE4m3:
      l.fields = 2, l.field_bytes = 1, l.super_fields = 2, l.super_field_bytes = 4;
      break;
  }
  return l;
}

constexpr NarrowLayout make_planes(std::string_view name, int bits, int least_code,
                                   NarrowScale scale) {
  NarrowLayout l = make_layout(name, bits, nullptr, scale);
  l.least_code = least_code;
  return l;
}

// Its scales are for 128 columns each.
constexpr NarrowLayout fp8() {
  NarrowLayout l = make_layout("fp8", 8, nullptr, NarrowScale::kFloat);
  l.codes = NarrowCodes::kE4m3, l.super_fields = 2;
  return l;
}

// By NarrowForm.
constexpr NarrowLayout kLayouts[kNumNarrowForms] = {
    {},
    make_layout("q4_0", 4, kSigned, NarrowScale::kHalf),
    make_layout("q4_1", 4, kUnsigned, NarrowScale::kHalfMin),
    make_layout("q4_k", 4, kUnsigned, NarrowScale::kSuperMin),
    make_layout("iq4_nl", 4, kIq4, NarrowScale::kHalf),
    make_layout("iq4_xs", 4, kIq4, NarrowScale::kSuper),
    make_layout("mxfp4", 4, kTwiceE2m1, NarrowScale::kExponent),
    make_layout("q8_0", 8, nullptr, NarrowScale::kHalf),
    make_planes("q5_1", 5, 0, NarrowScale::kHalfMin),
    make_planes("q5_k", 5, 0, NarrowScale::kSuperMin),
    make_planes("q6_k", 6, -32, NarrowScale::kSuper16),
    make_layout("e2m1", 4, kTwiceE2m1Signed, NarrowScale::kExponent),
    make_layout("nf4", 4, kNf4, NarrowScale::kFloat),
    make_layout("fp4", 4, kFp4, NarrowScale::kFloat),
    fp8(),
    make_layout("nvfp4", 4, kE2m1, NarrowScale::kE4m3),
    make_planes("q5_0", 5, -16, NarrowScale::kHalf),
};

constexpr int64_t kGroupsOfSuper = kNarrowSuper / kNarrowGroup;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

int64_t NarrowLayout::row_bytes(int64_t cols) const {
  return cols + cols / kNarrowGroup * fields * field_bytes +
         ceil_div(cols, kNarrowSuper) * super_fields * super_field_bytes;
}

int64_t NarrowLayout::super_at(int64_t g, int64_t width) const {
  const int64_t super = g / kGroupsOfSuper;
  return super * (super_bytes(width) + kGroupsOfSuper * group_bytes(width));
}

int64_t NarrowLayout::group_at(int64_t g, int64_t width) const {
  return (g / kGroupsOfSuper + 1) * super_bytes(width) + g * group_bytes(width);
}

int64_t NarrowLayout::panel_bytes(int64_t cols, int64_t width) const {
  const int64_t groups = cols / kNarrowGroup;
  return ceil_div(groups, kGroupsOfSuper) * super_bytes(width) + groups * group_bytes(width);
}

const NarrowLayout& narrow_layout(NarrowForm form) {
  CHECK(form != NarrowForm::kNone && static_cast<int>(form) < kNumNarrowForms,
        static_cast<int>(form));
  return kLayouts[static_cast<int>(form)];
}

}  // namespace strata
