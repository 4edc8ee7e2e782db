// SPDX-License-Identifier: Apache-2.0
// Unpacking of weights in few bits as the paths share it, as templates over a path P: registers of
// P::kCount f32 lanes, and what turns codes and scales into bf16. A file that includes this has its
// own copy.
#pragma once
#include "ops/cpu/narrow_kernels.h"
#include "ops/cpu/unroll.h"

namespace strata::ops::cpu {
namespace {

constexpr int64_t kMostLanes = 64;

// S and M of a group by lane; on paths whose registers hold both elements of a pair (P::kTimes is
// 2) each lane's twice.
struct alignas(64) GroupScales {
  float s[2][2 * kMostLanes];  // of the first and the last 16 columns
  float m[2 * kMostLanes];
};

// The super fields that group `g` reads, and its own fields.
inline const uint8_t* super_of(const NarrowArgs& a, int64_t g) {
  constexpr int64_t kGroups = kNarrowSuper / kNarrowGroup;
  return a.panel + g / kGroups * (a.super_bytes + kGroups * a.group_bytes);
}
inline const uint8_t* group_of(const NarrowArgs& a, int64_t g) {
  constexpr int64_t kGroups = kNarrowSuper / kNarrowGroup;
  return a.panel + (g / kGroups + 1) * a.super_bytes + g * a.group_bytes;
}

// Asks for what a panel has so far behind what is read now. Left to the machine, streams that do as
// much work between lines as these come late, those of some forms by a factor of three.
[[gnu::always_inline]] inline void fetch_ahead(const uint8_t* now, int64_t bytes) {
  constexpr int64_t kAhead = 8 << 10, kLine = 64;
  for (int64_t at = 0; at < bytes; at += kLine) __builtin_prefetch(now + at + kAhead);
}

struct alignas(64) CodeBytes {
  uint8_t bytes[kNarrowGroup * kMostLanes];
};

// A register of the path's, anywhere in memory.
constexpr int kPlaneBytes = __BIGGEST_ALIGNMENT__;
typedef uint64_t PlaneWords  // NOLINT(modernize-use-using)
    __attribute__((vector_size(kPlaneBytes), aligned(1), may_alias));
typedef uint8_t PlaneBytes  // NOLINT(modernize-use-using)
    __attribute__((vector_size(kPlaneBytes), aligned(1), may_alias));

constexpr uint64_t in_each_byte(uint64_t byte) { return byte * 0x0101010101010101; }

// The codes of two planes, a byte each, of panels of 16 rows or of 64. Words shift what masks leave
// out from byte to byte. Not inline: each kernel would have a copy.
template <int kHighBits>
[[gnu::noinline]] void join_planes(const NarrowArgs& a, const uint8_t* low, uint8_t* out) {
  constexpr int kParts = 8 / kHighBits;
  constexpr uint64_t kLow = in_each_byte(15), kHigh = in_each_byte(((1 << kHighBits) - 1) << 4);
  const int64_t half = kNarrowGroup / 2 * a.width;
  const int64_t count = 2 * half / kParts;
  const auto least = static_cast<uint8_t>(a.least_code);
  for (int64_t at = 0; at < count; at += kPlaneBytes) {
    const PlaneWords high = *reinterpret_cast<const PlaneWords*>(low + half + at);
    unroll<kParts>([&](auto k) __attribute__((always_inline)) {
      constexpr bool kIsUpper = 2 * k >= kParts;
      constexpr int kShift = 4 - k * kHighBits;  // to where the fifth bit belongs
      const int64_t element = k * count + at;
      PlaneWords nibbles =
          *reinterpret_cast<const PlaneWords*>(low + element - (kIsUpper ? half : 0));
      if constexpr (kIsUpper) nibbles >>= 4;
      PlaneWords bits = high;
      if constexpr (kShift >= 0) {
        bits <<= kShift;
      } else {
        bits >>= -kShift;
      }
      const PlaneWords codes = (nibbles & kLow) | (bits & kHigh);
      *reinterpret_cast<PlaneBytes*>(out + element) = (PlaneBytes)codes + least;
    });
  }
}

// Asks for codes behind those of a group that are read where they are: codes_of() did for others.
template <NarrowCodes kCodes>
[[gnu::always_inline]] inline void fetch_codes_ahead(const NarrowArgs& a, const uint8_t* codes,
                                                     int64_t bytes) {
  if (kCodes != NarrowCodes::kInt8 || a.high_bits == 0) fetch_ahead(codes, bytes);
}

// The codes of a group, a byte each where they are of more than 4 bits; `joined` holds those that
// are in planes.
[[gnu::always_inline]] inline const uint8_t* codes_of(const NarrowArgs& a, int64_t g,
                                                      CodeBytes& joined) {
  const uint8_t* const stored = group_of(a, g) + a.header_bytes;
  if (a.high_bits == 0) return stored;
  fetch_ahead(stored, a.group_bytes - a.header_bytes);
  if (a.high_bits == 1) {
    join_planes<1>(a, stored, joined.bytes);
  } else {
    join_planes<2>(a, stored, joined.bytes);
  }
  return joined.bytes;
}

// The values of a group's fields.
template <typename P>
[[gnu::always_inline]] inline void load_scales(const NarrowArgs& a, int64_t g, GroupScales& out) {
  const uint8_t* const super = super_of(a, g);
  const uint8_t* const field = group_of(a, g);
  if (g % (kNarrowSuper / kNarrowGroup) == 0) fetch_ahead(super, a.super_bytes);
  fetch_ahead(field, a.header_bytes);
  for (int64_t lane = 0; lane < a.width; lane += P::kCount) {
    float* const s = out.s[0] + P::kTimes * lane;
    float* const m = out.m + P::kTimes * lane;
    switch (a.scale) {
      case NarrowScale::kHalf:
        P::store_scale(s, P::half(field + 2 * lane));
        break;
      case NarrowScale::kHalfMin:
        P::store_scale(s, P::half(field + 2 * lane));
        P::store_scale(m, P::half(field + 2 * (a.width + lane)));
        break;
      case NarrowScale::kExponent:
        P::store_scale(s, P::half_e8m0(field + lane));
        break;
      case NarrowScale::kSuper:
        P::store_scale(s, P::mul(P::half(super + 2 * lane), P::i8(field + lane)));
        break;
      case NarrowScale::kSuper16: {
        const auto d = P::half(super + 2 * lane);
        P::store_scale(s, P::mul(d, P::i8(field + lane)));
        P::store_scale(out.s[1] + P::kTimes * lane, P::mul(d, P::i8(field + a.width + lane)));
        break;
      }
      case NarrowScale::kSuperMin:
        P::store_scale(s, P::mul(P::half(super + 2 * lane), P::u8(field + lane)));
        P::store_scale(m, P::negative(P::mul(P::half(super + 2 * (a.width + lane)),
                                             P::u8(field + a.width + lane))));
        break;
      case NarrowScale::kFloat:
        P::store_scale(
            s, P::f32(super + 4 * (narrow_float_field(g, a.super_fields) * a.width + lane)));
        break;
      case NarrowScale::kE4m3:
        for (int part = 0; part < 2; ++part) {
          const auto e = P::e4m3(field + part * a.width + lane);
          P::store_scale(
              out.s[part] + P::kTimes * lane,
              P::fma(e, P::f32(super + 4 * lane), P::mul(e, P::f32(super + 4 * (a.width + lane)))));
        }
        break;
    }
  }
}

// What a kernel is made for: how a form has its codes, and how their values become bf16.
template <NarrowCodes kCodesOf, bool kMinOf, NarrowRounding kRoundingOf, bool kAreBf16Of = true>
struct Form {
  static constexpr NarrowCodes kCodes = kCodesOf;
  static constexpr bool kMin = kMinOf;
  static constexpr NarrowRounding kRounding = kRoundingOf;
  static constexpr bool kAreBf16 = kAreBf16Of;  // the values of codes
};

// body(Form) of the groups' form.
template <typename Body>
inline void with_form(const NarrowArgs& a, const Body& body) {
  using enum NarrowCodes;
  using enum NarrowRounding;
  switch (a.codes) {
    case kNibbles:
      if (a.has_min) return body(Form<kNibbles, true, kUsual>{});
      if (a.rounding == kNone) return body(Form<kNibbles, false, kNone>{});
      return a.are_bf16 ? body(Form<kNibbles, false, kUsual>{})
                        : body(Form<kNibbles, false, kUsual, false>{});
    case kInt8:
      return a.has_min ? body(Form<kInt8, true, kUsual>{}) : body(Form<kInt8, false, kUsual>{});
    case kE4m3:
      return body(Form<kE4m3, false, kUsual>{});
  }
}

// tile(Form, rows) of the groups' form, with the number of rows as a type.
template <typename Tile>
inline void with_form_and_rows(const NarrowArgs& a, int64_t rows, const Tile& tile) {
  with_form(a, [&](auto form) {
    switch (rows) {
      case 1:
        return tile(form, Index<1>{});
      case 2:
        return tile(form, Index<2>{});
      case 3:
        return tile(form, Index<3>{});
      default:
        return tile(form, Index<kNarrowTileRows>{});
    }
  });
}

template <typename P, NarrowCodes kCodes, bool kMin>
void unpack_groups(const NarrowArgs& args) {
  const NarrowArgs a = args;  // a copy that the stores below cannot change
  GroupScales scales;
  CodeBytes joined;
  const bool halves = has_two_scales(a.scale);
  const int64_t part_elements = kNarrowGroup / 2 * a.width;  // of 16 columns
  const int64_t part_bytes = kCodes == NarrowCodes::kNibbles ? part_elements / 2 : part_elements;
  auto* dst = static_cast<uint16_t*>(a.dst);
  const typename P::Values values(a.values);
  for (int64_t g = a.first; g < a.first + a.count; ++g) {
    load_scales<P>(a, g, scales);
    const uint8_t* codes = codes_of(a, g, joined);
    for (int part = 0; part < 2; ++part) {
      const float* const s = scales.s[halves ? part : 0];
      fetch_codes_ahead<kCodes>(a, codes, part_bytes);
      if constexpr (kCodes == NarrowCodes::kNibbles) {
        P::template unpack_nibbles<kMin>(codes, part_elements, a.width, values, s, scales.m, dst);
      } else {
        P::template unpack_bytes<kCodes, kMin>(codes, part_elements, a.width, s, scales.m, dst);
      }
      codes += part_bytes;
      dst += part_elements;
    }
  }
}

template <typename P>
void unpack_groups(const NarrowArgs& a) {
  with_form(a,
            [&](auto form) { unpack_groups<P, decltype(form)::kCodes, decltype(form)::kMin>(a); });
}

}  // namespace
}  // namespace strata::ops::cpu
