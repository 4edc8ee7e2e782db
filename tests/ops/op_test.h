// SPDX-License-Identifier: Apache-2.0
// Helpers shared by the tests of ops: the CPU paths to run on, buffers whose outputs start as NaN
// and stand between canaries, reproducible random data, and errors with derived tolerances.
//   for (const CpuPath path : supported_paths()) {
//     SCOPED_TRACE(cpu_path_name(path));
//     CpuBackend backend(path, 2);
//     Buffer y = output(DType::kF32, {3, 64});
//     ops::copy(backend, random_buffer(DType::kBF16, {3, 64}, {.seed = 1}).view(), y.view());
//     expect_close(y, want, dot_tolerance(64, DType::kF32));
//   }
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "base/rng.h"
#include "ops/cpu/cpu_backend.h"
#include "tensor/view.h"

namespace strata::ops::testing {

// Every path this machine can run, the reference among them.
inline std::vector<CpuPath> supported_paths() {
  std::vector<CpuPath> paths;
  for (const CpuPath path : {CpuPath::kReference, CpuPath::kAvx2, CpuPath::kAvx512,
                             CpuPath::kAvx512Bf16, CpuPath::kAmx}) {
    if (cpu_path_supported(path)) paths.push_back(path);
  }
  return paths;
}

inline double load_element(const void* data, DType dtype, int64_t index) {
  switch (dtype) {
    case DType::kF32:
      return static_cast<const float*>(data)[index];
    case DType::kBF16:
      return to_float(static_cast<const Bf16*>(data)[index]);
    case DType::kF16:
      return f16_to_float(static_cast<const uint16_t*>(data)[index]);
  }
  return 0;
}

inline void store_element(void* data, DType dtype, int64_t index, double value) {
  const auto rounded = static_cast<float>(value);
  switch (dtype) {
    case DType::kF32:
      static_cast<float*>(data)[index] = rounded;
      return;
    case DType::kBF16:
      static_cast<Bf16*>(data)[index] = to_bf16(rounded);
      return;
    case DType::kF16:
      static_cast<uint16_t*>(data)[index] = float_to_f16(rounded);
      return;
  }
}

// A tensor's own memory between two canaries; every element (and every element between the rows of
// a strided tensor) starts as NaN. `shift` moves the data that many elements off its 64-byte
// alignment. Copies are deep. intact(): canaries and the gaps between rows still hold what they
// held at the start.
class Buffer {
 public:
  Buffer(DType dtype, const Shape& shape, int64_t row_stride = 0, int64_t shift = 0)
      : view_(nullptr, dtype, shape) {
    if (row_stride > 0) view_.row_stride = row_stride;
    const int64_t elements = std::max<int64_t>(0, view_.rows() * view_.row_stride);
    bytes_ = elements * dtype_bytes(dtype);
    offset_ = kCanary + shift * dtype_bytes(dtype);
    memory_.assign(static_cast<size_t>(bytes_ + 2 * kCanary + offset_ + 64), kCanaryByte);
    place();
    const double nan = std::numeric_limits<double>::quiet_NaN();
    for (int64_t i = 0; i < elements; ++i) store_element(view_.data, dtype, i, nan);
  }
  Buffer(const Buffer& other) : Buffer(other.view_.dtype, other.view_.shape, other) {}
  Buffer& operator=(const Buffer&) = delete;

  [[nodiscard]] TensorView view() const { return view_; }
  operator TensorView() const { return view_; }  // NOLINT: a buffer is used where a view is wanted
  [[nodiscard]] int64_t size() const { return view_.shape.num_elements(); }
  // Element `index` of the flattened [rows, cols] tensor.
  [[nodiscard]] double get(int64_t index) const {
    return load_element(view_.data, view_.dtype, place_of(index));
  }
  void set(int64_t index, double value) {
    store_element(view_.data, view_.dtype, place_of(index), value);
  }
  [[nodiscard]] std::vector<double> values() const {
    std::vector<double> out(static_cast<size_t>(size()));
    for (int64_t i = 0; i < size(); ++i) out[static_cast<size_t>(i)] = get(i);
    return out;
  }
  void set_values(const std::vector<double>& values) {
    ASSERT_EQ(static_cast<int64_t>(values.size()), size());
    for (int64_t i = 0; i < size(); ++i) set(i, values[static_cast<size_t>(i)]);
  }
  [[nodiscard]] bool intact() const {
    const auto is_canary = [](char c) { return c == kCanaryByte; };
    const char* data = static_cast<const char*>(view_.data);
    const char* begin = memory_.data();
    const char* end = begin + memory_.size();
    if (!std::all_of(begin, data, is_canary) || !std::all_of(data + bytes_, end, is_canary)) {
      return false;
    }
    for (int64_t row = 0; row < view_.rows(); ++row) {
      for (int64_t col = view_.cols(); col < view_.row_stride; ++col) {
        if (!std::isnan(load_element(view_.data, view_.dtype, row * view_.row_stride + col))) {
          return false;
        }
      }
    }
    return true;
  }

 private:
  static constexpr int64_t kCanary = 256;
  static constexpr char kCanaryByte = 0x5a;

  Buffer(DType dtype, const Shape& shape, const Buffer& other)
      : view_(nullptr, dtype, shape), bytes_(other.bytes_), offset_(other.offset_) {
    view_.row_stride = other.view_.row_stride;
    memory_.assign(other.memory_.size(), kCanaryByte);
    place();
    if (bytes_ > 0) std::memcpy(view_.data, other.view_.data, static_cast<size_t>(bytes_));
  }
  void place() {
    const auto base = reinterpret_cast<uintptr_t>(memory_.data());
    const auto aligned = (base + kCanary + 63) / 64 * 64;
    view_.data = reinterpret_cast<void*>(aligned + static_cast<uintptr_t>(offset_ - kCanary));
  }
  [[nodiscard]] int64_t place_of(int64_t index) const {
    if (view_.dense()) return index;
    return index / view_.cols() * view_.row_stride + index % view_.cols();
  }

  TensorView view_;
  int64_t bytes_ = 0;
  int64_t offset_ = 0;
  std::vector<char> memory_;
};

struct RandomArgs {
  uint64_t seed = 0;
  double scale = 1.0;  // standard deviation
  double mean = 0.0;
  int64_t row_stride = 0;
  int64_t shift = 0;
};

// Standard normals times scale plus mean, rounded to dtype; element i is a function of (seed, i).
inline Buffer random_buffer(DType dtype, const Shape& shape, const RandomArgs& args) {
  Buffer buffer(dtype, shape, args.row_stride, args.shift);
  const Counter counter{.seed = args.seed, .stream = 0x6f705f74657374};
  for (int64_t i = 0; i < buffer.size(); ++i) {
    buffer.set(i, args.mean + args.scale * counter.normal(static_cast<uint64_t>(i)));
  }
  return buffer;
}

inline Buffer filled_buffer(DType dtype, const Shape& shape, double value) {
  Buffer buffer(dtype, shape);
  for (int64_t i = 0; i < buffer.size(); ++i) buffer.set(i, value);
  return buffer;
}

// Relative rounding error of one rounding to nearest: half a unit in the last place.
inline double unit_roundoff(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return 0x1.0p-24;
    case DType::kBF16:
      return 0x1.0p-8;
    case DType::kF16:
      return 0x1.0p-11;
  }
  return 0;
}

// Bound of the error of a chain of `terms` fp32 operations, relative to the sum of the terms'
// magnitudes (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1: gamma_n), plus
// one rounding to the result's type.
inline double dot_tolerance(int64_t terms, DType result) {
  const double n = static_cast<double>(terms) * 0x1.0p-24;
  return n / (1.0 - n) + (result == DType::kF32 ? 0.0 : unit_roundoff(result));
}

// sqrt(sum (got - want)^2 / sum want^2); 0 when both are zero, infinity when only `want` is or when
// anything is not finite.
inline double relative_l2(const std::vector<double>& got, const std::vector<double>& want) {
  double error = 0;
  double norm = 0;
  if (got.size() != want.size()) return std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < got.size(); ++i) {
    error += (got[i] - want[i]) * (got[i] - want[i]);
    norm += want[i] * want[i];
  }
  if (!std::isfinite(error) || !std::isfinite(norm)) return std::numeric_limits<double>::infinity();
  if (error == 0) return 0;
  return norm == 0 ? std::numeric_limits<double>::infinity() : std::sqrt(error / norm);
}

// Every element: |got - want| <= relative * magnitude, where magnitude is |want| or, when given,
// the sum of the magnitudes of the terms that make up the element. Canaries must be intact.
inline void expect_close(const Buffer& got, const std::vector<double>& want, double relative,
                         const std::vector<double>& magnitude = {}) {
  ASSERT_EQ(got.size(), static_cast<int64_t>(want.size()));
  EXPECT_TRUE(got.intact()) << "wrote outside the output";
  int failures = 0;
  for (int64_t i = 0; i < got.size() && failures < 5; ++i) {
    const auto at = static_cast<size_t>(i);
    const double scale = magnitude.empty() ? std::abs(want[at]) : magnitude[at];
    const double error = std::abs(got.get(i) - want[at]);
    if (error <= relative * scale + std::numeric_limits<float>::min()) continue;
    ++failures;
    ADD_FAILURE() << "element " << i << ": got " << got.get(i) << ", want " << want[at]
                  << ", error " << error << " > " << relative << " * " << scale;
  }
}

// The same bits in every element (NaN equals NaN of the same bits) and intact canaries.
inline void expect_same_bits(const Buffer& got, const Buffer& want) {
  ASSERT_EQ(got.view().dtype, want.view().dtype);
  ASSERT_EQ(got.view().shape, want.view().shape);
  EXPECT_TRUE(got.intact()) << "wrote outside the output";
  const auto bytes = static_cast<size_t>(got.view().cols() * dtype_bytes(got.view().dtype));
  for (int64_t row = 0; row < got.view().rows(); ++row) {
    if (std::memcmp(got.view().row(row), want.view().row(row), bytes) == 0) continue;
    for (int64_t col = 0; col < got.view().cols(); ++col) {
      const int64_t i = row * got.view().cols() + col;
      const double a = got.get(i);
      const double b = want.get(i);
      if (std::memcmp(&a, &b, sizeof(a)) == 0) continue;
      ADD_FAILURE() << "element " << i << ": got " << a << ", want exactly " << b;
      return;
    }
  }
}

// The bound that rounding errors of a chain of `terms` fp32 operations keep in the L2 sense: they
// behave like independent draws, so sqrt(terms) takes the place of terms (Higham and Mary, SIAM J.
// Sci. Comput. 41, 2019); 4 standard deviations.
inline double l2_tolerance(int64_t terms, DType result) {
  const double chain = 4.0 * std::sqrt(static_cast<double>(terms)) * 0x1.0p-24;
  return chain + (result == DType::kF32 ? 0.0 : unit_roundoff(result));
}

// For results that are differences of larger terms: the L2 error stays below l2_tolerance(terms),
// and no element is further off than dot_tolerance(terms) of the largest one.
inline void expect_close_l2(const Buffer& got, const std::vector<double>& want, int64_t terms) {
  const DType dtype = got.view().dtype;
  double largest = 0;
  for (const double value : want) largest = std::max(largest, std::abs(value));
  expect_close(got, want, dot_tolerance(terms, dtype), std::vector<double>(want.size(), largest));
  EXPECT_LE(relative_l2(got.values(), want), l2_tolerance(terms, dtype));
}

// The buffer's values rounded to `dtype`.
inline Buffer converted(const Buffer& x, DType dtype) {
  Buffer out(dtype, x.view().shape);
  for (int64_t i = 0; i < x.size(); ++i) out.set(i, x.get(i));
  return out;
}

inline std::vector<std::complex<double>> to_complex(const std::vector<double>& x) {
  return {x.begin(), x.end()};
}

// The derivative of sum_j weights[j] f(x)[j] by each x[i], by the complex step: Im f(x + ih) / h is
// exact to rounding, for h so small that h^2 vanishes.
template <typename Function>
std::vector<double> complex_step(Function&& f, const std::vector<double>& x,
                                 const std::vector<double>& weights) {
  constexpr double kStep = 1e-100;
  std::vector<std::complex<double>> point = to_complex(x);
  std::vector<double> derivative(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    point[i] += std::complex<double>(0, kStep);
    const std::vector<std::complex<double>> y = f(point);
    for (size_t j = 0; j < y.size(); ++j) derivative[i] += weights[j] * y[j].imag() / kStep;
    point[i] = x[i];
  }
  return derivative;
}

// Runs op(backend), which makes and returns all its outputs, on every path with 1, 2 and 7 threads
// and once more: the same bits and intact canaries each time, between paths too. Returns the
// outputs of the reference path.
template <typename Op>
std::vector<Buffer> run_everywhere(Op&& op) {
  CpuBackend reference(CpuPath::kReference, 1);
  std::vector<Buffer> want = op(reference);
  for (const CpuPath path : supported_paths()) {
    for (const int threads : {1, 2, 7, 7}) {
      SCOPED_TRACE(std::string(cpu_path_name(path)) + ", threads " + std::to_string(threads));
      CpuBackend backend(path, threads);
      const std::vector<Buffer> got = op(backend);
      for (size_t i = 0; i < want.size(); ++i) expect_same_bits(got[i], want[i]);
      EXPECT_EQ(got.size(), want.size());
    }
  }
  return want;
}

}  // namespace strata::ops::testing
