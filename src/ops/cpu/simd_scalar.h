// SPDX-License-Identifier: Apache-2.0
// The 16 lanes of cpu/simd.h in plain C++: the reference path. Included by *_reference.cc and
// this_path.h only.
#pragma once
#include <bit>
#include <cmath>

#include "ops/cpu/simd.h"

namespace strata::ops::cpu {

struct Scalar {
  struct F {
    float lane[kLanes];
  };

  template <typename Fn>
  static F make_lanes(Fn&& fn) {
    F out;
    for (int j = 0; j < kLanes; ++j) out.lane[j] = fn(j);
    return out;
  }
  static F set1(float value) {
    return make_lanes([&](int) { return value; });
  }

  // Through memcpy: log_softmax_backward writes bf16 over the f32 it reads.
  static float load_one(const float* p) {
    float value;
    __builtin_memcpy(&value, p, sizeof(value));
    return value;
  }
  static float load_one(const Bf16* p) {
    Bf16 value;
    __builtin_memcpy(&value, p, sizeof(value));
    return to_float(value);
  }
  static void store_one(float* p, float value) { __builtin_memcpy(p, &value, sizeof(value)); }
  static void store_one(Bf16* p, float value) {
    const Bf16 rounded = to_bf16(value);
    __builtin_memcpy(p, &rounded, sizeof(rounded));
  }
  template <typename T>
  static F load(const T* p, Whole) {
    return make_lanes([&](int j) { return load_one(p + j); });
  }
  template <typename T>
  static F load(const T* p, Part part, float fill = 0.0f) {
    return make_lanes([&](int j) { return j < part.lanes ? load_one(p + j) : fill; });
  }
  template <typename T>
  static F load(const T* p, Whole whole, float) {
    return load(p, whole);
  }
  template <typename T>
  static void store(T* p, F x, Whole) {
    for (int j = 0; j < kLanes; ++j) store_one(p + j, x.lane[j]);
  }
  template <typename T>
  static void store(T* p, F x, Part part) {
    for (int j = 0; j < part.lanes; ++j) store_one(p + j, x.lane[j]);
  }

  static F fma(F a, F b, F c) {
    return make_lanes([&](int j) { return std::fma(a.lane[j], b.lane[j], c.lane[j]); });
  }
  static F fnma(F a, F b, F c) {
    return make_lanes([&](int j) { return std::fma(-a.lane[j], b.lane[j], c.lane[j]); });
  }
  static F max(F a, F b) {
    return make_lanes([&](int j) { return a.lane[j] > b.lane[j] ? a.lane[j] : b.lane[j]; });
  }
  static F min(F a, F b) {
    return make_lanes([&](int j) { return a.lane[j] < b.lane[j] ? a.lane[j] : b.lane[j]; });
  }
  static F abs(F x) {
    return make_lanes([&](int j) { return std::fabs(x.lane[j]); });
  }
  static F sqrt(F x) {
    return make_lanes([&](int j) { return std::sqrt(x.lane[j]); });
  }
  static F select_negative(F x, F a, F b) {
    return make_lanes([&](int j) { return x.lane[j] < 0.0f ? a.lane[j] : b.lane[j]; });
  }
  // Two factors, each a normal number: the first product is exact, so the result is rounded once.
  static float scale_by_power(float x, float n) {
    if (n != n) return x;
    const int power = static_cast<int>(n);
    const int half = power >> 1;
    const auto factor = [](int exponent) {
      return std::bit_cast<float>(static_cast<uint32_t>(exponent + 127) << 23);
    };
    return x * factor(half) * factor(power - half);
  }
  static F scale_by_power(F x, F n) {
    return make_lanes([&](int j) { return scale_by_power(x.lane[j], n.lane[j]); });
  }

  static float sum(F x) {
    for (int half = kLanes / 2; half > 0; half /= 2) {
      for (int j = 0; j < half; ++j) x.lane[j] += x.lane[j + half];
    }
    return x.lane[0];
  }
  static float max_lane(F x) {
    for (int half = kLanes / 2; half > 0; half /= 2) {
      for (int j = 0; j < half; ++j) {
        x.lane[j] = x.lane[j] > x.lane[j + half] ? x.lane[j] : x.lane[j + half];
      }
    }
    return x.lane[0];
  }
};

inline Scalar::F operator+(Scalar::F a, Scalar::F b) {
  return Scalar::make_lanes([&](int j) { return a.lane[j] + b.lane[j]; });
}
inline Scalar::F operator-(Scalar::F a, Scalar::F b) {
  return Scalar::make_lanes([&](int j) { return a.lane[j] - b.lane[j]; });
}
inline Scalar::F operator*(Scalar::F a, Scalar::F b) {
  return Scalar::make_lanes([&](int j) { return a.lane[j] * b.lane[j]; });
}
inline Scalar::F operator/(Scalar::F a, Scalar::F b) {
  return Scalar::make_lanes([&](int j) { return a.lane[j] / b.lane[j]; });
}

}  // namespace strata::ops::cpu
