// SPDX-License-Identifier: Apache-2.0
// Muon beside its definition in float64.
#include "train/muon.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/rng.h"
#include "ops/cpu/cpu_backend.h"
#include "ops/elementwise.h"

namespace strata::train {
namespace {

struct Matrix {
  int64_t rows = 0, cols = 0;
  std::vector<double> values;
  double& at(int64_t i, int64_t j) { return values[static_cast<size_t>(i * cols + j)]; }
  [[nodiscard]] double at(int64_t i, int64_t j) const {
    return values[static_cast<size_t>(i * cols + j)];
  }
};

Matrix random_matrix(int64_t rows, int64_t cols, uint64_t seed, double size) {
  Matrix m{rows, cols, std::vector<double>(static_cast<size_t>(rows * cols))};
  const Counter random{.seed = seed, .stream = 1};
  // What f32 holds, so that both sides begin alike.
  for (size_t i = 0; i < m.values.size(); ++i)
    m.values[i] = static_cast<double>(static_cast<float>(size * random.normal(i)));
  return m;
}

Matrix product(const Matrix& a, const Matrix& b) {
  Matrix out{a.rows, b.cols, std::vector<double>(static_cast<size_t>(a.rows * b.cols))};
  for (int64_t i = 0; i < a.rows; ++i) {
    for (int64_t k = 0; k < a.cols; ++k) {
      for (int64_t j = 0; j < b.cols; ++j) out.at(i, j) += a.at(i, k) * b.at(k, j);
    }
  }
  return out;
}

Matrix transposed(const Matrix& a) {
  Matrix out{a.cols, a.rows, std::vector<double>(a.values.size())};
  for (int64_t i = 0; i < a.rows; ++i) {
    for (int64_t j = 0; j < a.cols; ++j) out.at(j, i) = a.at(i, j);
  }
  return out;
}

Matrix sum(double a, const Matrix& x, double b, const Matrix& y) {
  Matrix out = x;
  for (size_t i = 0; i < out.values.size(); ++i) out.values[i] = a * x.values[i] + b * y.values[i];
  return out;
}

// From the left always, whatever the shape.
Matrix orthogonal(Matrix x) {
  double squares = 0.0;
  for (const double v : x.values) squares += v * v;
  if (squares == 0.0) return x;
  for (double& v : x.values) v /= std::sqrt(squares);
  for (int step = 0; step < 10; ++step) {
    const double a = step < 8 ? 3.4445 : 2.0, b = step < 8 ? -4.7750 : -1.5,
                 c = step < 8 ? 2.0315 : 0.5;
    const Matrix left = product(x, transposed(x));
    const Matrix polynomial = sum(b, left, c, product(left, left));
    x = sum(a, x, 1.0, product(polynomial, x));
  }
  return x;
}

struct Tensor {
  Tensor(Backend& backend, const Matrix& m)
      : memory(backend.allocator(), m.rows * m.cols * 4),
        view(memory.data(), DType::kF32, {m.rows, m.cols}) {
    const std::vector<float> values(m.values.begin(), m.values.end());
    ops::from_host(backend, values, view);
  }
  [[nodiscard]] std::vector<float> values(Backend& backend) const {
    std::vector<float> out(static_cast<size_t>(view.shape.num_elements()));
    ops::to_host(backend, view, out);
    return out;
  }
  Memory memory;
  TensorView view;
};

double relative_error(const std::vector<float>& got, const Matrix& want) {
  double error = 0.0, size = 0.0;
  for (size_t i = 0; i < got.size(); ++i) {
    error += std::pow(static_cast<double>(got[i]) - want.values[i], 2);
    size += want.values[i] * want.values[i];
  }
  return std::sqrt(error / size);
}

// A product of n terms in one fp32 chain is off by sqrt(n) roundings of 6e-8 at random, of which a
// step has three; steps add up ten times, and where a singular value is small the first eight
// multiply it, and its error, by up to 3.4 each until it is near one. Errors of that kind only
// matter relative to the value, which grows with them, so the bound takes no power of 3.4 but one
// step's for the last.
double bound(int64_t terms) { return 10 * 3 * 3.4 * std::sqrt(static_cast<double>(terms)) * 6e-8; }

TEST(Muon, OrthogonalisesAsItsDefinition) {
  CpuBackend backend(choose_cpu_path(), 2);
  for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{1, 1},
                                   {1, 7},
                                   {7, 1},
                                   {16, 16},
                                   {5, 130},
                                   {130, 5},
                                   {64, 33}}) {
    SCOPED_TRACE(std::to_string(rows) + " x " + std::to_string(cols));
    for (const double size : {1e-6, 1.0, 1e4}) {
      const Matrix x = random_matrix(rows, cols, 3, size);
      const Tensor u(backend, x);
      orthogonalise(backend, u.view);
      const std::vector<float> got = u.values(backend);
      const Matrix want = orthogonal(x);
      EXPECT_LT(relative_error(got, want), bound(std::min(rows, cols))) << size;
      // Singular values near one: the sum of squares is about their number.
      double squares = 0.0;
      for (const float v : got) squares += static_cast<double>(v) * v;
      EXPECT_NEAR(squares, static_cast<double>(std::min(rows, cols)),
                  0.1 * static_cast<double>(std::min(rows, cols)));
    }
  }
}

// What is left of a momentum that nothing was added to for some two thousand steps: f32's smallest
// numbers, whose norm has no inverse in f32.
TEST(Muon, AMomentumThatHasFadedMovesNothing) {
  CpuBackend backend(choose_cpu_path(), 2);
  const int64_t rows = 12, cols = 40;
  Matrix faded{rows, cols, std::vector<double>(static_cast<size_t>(rows * cols), 1e-44)};
  faded.at(3, 5) = 0.0;
  const Matrix none{rows, cols, std::vector<double>(faded.values.size())};
  const Matrix p = random_matrix(rows, cols, 1, 0.02);
  const Tensor p_ours(backend, p), m_ours(backend, faded), g_ours(backend, none);
  muon_step(backend, {.lr = 0.05, .weight_decay = 0.0}, g_ours.view, p_ours.view, m_ours.view);
  const std::vector<float> got = p_ours.values(backend);
  for (size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], static_cast<float>(p.values[i])) << i;
}

TEST(Muon, ThreeStepsAsTheirDefinition) {
  CpuBackend backend(choose_cpu_path(), 2);
  for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{12, 40}, {40, 12}}) {
    Matrix p = random_matrix(rows, cols, 1, 0.02);
    Matrix m{rows, cols, std::vector<double>(p.values.size())};
    const Tensor p_ours(backend, p), m_ours(backend, m);
    const MuonArgs args{.lr = 0.05, .momentum = 0.9, .weight_decay = 0.1, .grad_scale = 0.5};
    for (uint64_t step = 0; step < 3; ++step) {
      const Matrix g = random_matrix(rows, cols, 10 + step, 1e-3);
      const Tensor g_ours(backend, g);
      muon_step(backend, args, g_ours.view, p_ours.view, m_ours.view);
      m = sum(0.9, m, 0.5, g);
      const Matrix u = orthogonal(sum(0.9, m, 0.5, g));
      p = sum(1.0 - 0.05 * 0.1, p, -0.05 * 0.18 * std::sqrt(40.0), u);
    }
    EXPECT_LT(relative_error(m_ours.values(backend), m), 1e-6);
    EXPECT_LT(relative_error(p_ours.values(backend), p), 3 * bound(12));
  }
}

TEST(Muon, AGradientOfZeroLeavesTheDecayAlone) {
  CpuBackend backend(choose_cpu_path(), 1);
  const Matrix zero{3, 4, std::vector<double>(12)};
  Matrix p = random_matrix(3, 4, 1, 1.0);
  const Tensor g(backend, zero), m(backend, zero), ours(backend, p);
  muon_step(backend, {.lr = 0.5, .weight_decay = 0.5}, g.view, ours.view, m.view);
  for (double& v : p.values) v *= 0.75;
  EXPECT_LT(relative_error(ours.values(backend), p), 1e-7);
}

}  // namespace
}  // namespace strata::train
