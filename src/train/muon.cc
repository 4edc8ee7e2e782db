// SPDX-License-Identifier: Apache-2.0
#include "train/muon.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/elementwise.h"
#include "ops/gemm.h"
#include "ops/pack.h"

namespace strata::train {
namespace {

constexpr double kUpdateRms = 0.18;
constexpr int kFastSteps = 8;
constexpr int kSteps = 10;
// At most this norm counts as zero: its inverse is no number of f32.
constexpr double kLeastNorm = 1.0 / std::numeric_limits<float>::max();

struct Coefficients {
  float a, b, c;
};
constexpr Coefficients kFast = {3.4445f, -4.7750f, 2.0315f};
constexpr Coefficients kSettling = {2.0f, -1.5f, 0.5f};

PanelView pack_in_scratch(Backend& backend, TensorView x) {
  PanelView panel{.data = nullptr,
                  .dtype = DType::kF32,
                  .rows = x.rows(),
                  .cols = x.cols(),
                  .width = ops::panel_width(backend)};
  panel.data = backend.scratch().take(panel.num_bytes());
  ops::pack(backend, x, 0, panel);
  return panel;
}

// a becomes b a + c a^2; a [n, n] symmetric.
void apply_polynomial(Backend& backend, const Coefficients& k, TensorView a) {
  const Scratch::Mark mark(backend.scratch());
  const TensorView square = backend.scratch().take(DType::kF32, a.shape);
  ops::gemm(backend, {.x = a, .w = pack_in_scratch(backend, a)}, square);
  ops::scale(backend, a, k.b, a);
  ops::scale(backend, square, k.c, square);
  ops::add_into(backend, square, a);
}

void newton_schulz_step(Backend& backend, const Coefficients& k, TensorView x) {
  Scratch& scratch = backend.scratch();
  const Scratch::Mark mark(scratch);
  const int64_t n = std::min(x.rows(), x.cols());
  const TensorView a = scratch.take(DType::kF32, {n, n});
  const TensorView y = scratch.take(DType::kF32, x.shape);
  if (x.rows() <= x.cols()) {
    const PanelView panel = pack_in_scratch(backend, x);
    ops::gemm(backend, {.x = x, .w = panel}, a);
    apply_polynomial(backend, k, a);
    ops::gemm_dx(backend, {.x = a, .w = panel}, y);
  } else {
    const int64_t end = x.rows();
    ops::fill_zero(backend, a);
    ops::gemm_dw(backend, x, x, {&end, 1}, a);
    apply_polynomial(backend, k, a);
    ops::gemm(backend, {.x = x, .w = pack_in_scratch(backend, a)}, y);
  }
  ops::scale(backend, x, k.a, x);
  ops::add_into(backend, y, x);
}

}  // namespace

void orthogonalise(Backend& backend, TensorView u) {
  const double norm = std::sqrt(ops::sum_of_squares(backend, u));
  backend.if_counting([&] { newton_schulz_step(backend, kFast, u); });
  backend.unless_counting([&] {
    if (norm <= kLeastNorm) return;
    ops::scale(backend, u, static_cast<float>(1.0 / norm), u);
    for (int step = 0; step < kSteps; ++step)
      newton_schulz_step(backend, step < kFastSteps ? kFast : kSettling, u);
  });
}

void muon_step(Backend& backend, const MuonArgs& args, TensorView g, TensorView p, TensorView m) {
  const Scratch::Mark mark(backend.scratch());
  const TensorView u = backend.scratch().take(DType::kF32, g.shape);
  const auto momentum = static_cast<float>(args.momentum);
  ops::scale(backend, g, static_cast<float>(args.grad_scale), g);
  ops::scale(backend, m, momentum, m);
  ops::add_into(backend, g, m);
  ops::scale(backend, m, momentum, u);
  ops::add_into(backend, g, u);
  orthogonalise(backend, u);
  const double size = std::sqrt(static_cast<double>(std::max(g.rows(), g.cols())));
  ops::scale(backend, p, static_cast<float>(1.0 - args.lr * args.weight_decay), p);
  ops::scale(backend, u, static_cast<float>(-args.lr * kUpdateRms * size), u);
  ops::add_into(backend, u, p);
}

}  // namespace strata::train
