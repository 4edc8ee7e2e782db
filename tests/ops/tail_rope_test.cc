// SPDX-License-Identifier: Apache-2.0
#include "ops/tail_rope.h"

#include "ops/ref/tail_rope.h"
#include "tests/ops/op_test.h"

namespace strata::ops {
namespace {

using namespace testing;  // NOLINT

constexpr DType kF32 = DType::kF32;
constexpr DType kBF16 = DType::kBF16;

struct Case {
  int64_t tokens, heads, width, rotated;
  bool norm = true, weighted = false, inverse = false;
  DType type = kF32, out = kF32;
};

const Case kCases[] = {{0, 2, 8, 4},
                       {1, 1, 2, 2},
                       {5, 3, 18, 6},
                       {4, 2, 18, 18, true, true},
                       {6, 1, 70, 20, true, true, false, kF32, kBF16},
                       {7, 2, 40, 8, false, false, true},
                       {7, 2, 40, 8, false, false, true, kBF16, kBF16},
                       {3, 4, 512, 64, true, false, false, kBF16, kBF16},
                       {9, 1, 128, 64, true, true, false, kBF16, kF32}};

constexpr int64_t kPositions = 50;

struct Inputs {
  Buffer x, weight, cos, sin;
  std::vector<int32_t> positions;
  explicit Inputs(const Case& c)
      : x(random_buffer(c.type, {c.tokens, c.heads, c.width}, {.seed = 1})),
        weight(random_buffer(kF32, {c.width}, {.seed = 2, .scale = 0.3, .mean = 1})),
        cos(kF32, {kPositions, c.rotated / 2}),
        sin(kF32, {kPositions, c.rotated / 2}) {
    for (int64_t i = 0; i < cos.size(); ++i) {
      const double angle = static_cast<double>(i / (c.rotated / 2)) *
                           std::pow(100.0, -static_cast<double>(i % (c.rotated / 2)) / 7);
      cos.set(i, std::cos(angle));
      sin.set(i, std::sin(angle));
    }
    for (int64_t t = 0; t < c.tokens; ++t) {
      positions.push_back(static_cast<int32_t>(7 * t % kPositions));
    }
  }
  [[nodiscard]] TailRopeArgs args(const Case& c) const {
    return {.x = x,
            .norm = c.norm,
            .weight = c.weighted ? weight.view() : TensorView(),
            .positions = positions,
            .cos = cos,
            .sin = sin,
            .inverse = c.inverse};
  }
  [[nodiscard]] ref::TailRope reference(const Case& c) const {
    return {.num_heads = c.heads,
            .width = c.width,
            .rotated = c.rotated,
            .norm = c.norm,
            .inverse = c.inverse,
            .positions = positions,
            .cos = cos.values(),
            .sin = sin.values()};
  }
  [[nodiscard]] std::vector<double> weights(const Case& c) const {
    return c.weighted ? weight.values() : std::vector<double>();
  }
};

TEST(TailRope, ForwardMatchesReference) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.width);
    const Inputs in(c);
    const auto outputs = run_everywhere([&](Backend& backend) {
      std::vector<Buffer> out = {Buffer(c.out, in.x.view().shape)};
      tail_rope(backend, in.args(c), out[0]);
      return out;
    });
    expect_close_l2(outputs[0], ref::tail_rope(in.reference(c), in.x.values(), in.weights(c)),
                    c.width / 16 + 16);
  }
}

TEST(TailRope, BackwardMatchesComplexStep) {
  for (const Case& c : kCases) {
    if (c.width > 200) continue;
    SCOPED_TRACE(c.width);
    const Inputs in(c);
    const Buffer d_y = random_buffer(c.out, in.x.view().shape, {.seed = 3});
    const Buffer before = random_buffer(kF32, {c.width}, {.seed = 4});
    const auto outputs = run_everywhere([&](Backend& backend) {
      std::vector<Buffer> out = {Buffer(c.type, in.x.view().shape), before};
      tail_rope_backward(backend, in.args(c), d_y, out[0],
                         c.weighted ? out[1].view() : TensorView());
      return out;
    });
    using Complex = std::vector<std::complex<double>>;
    const auto reference = in.reference(c);
    const auto by_x = complex_step(
        [&](const Complex& v) { return ref::tail_rope(reference, v, to_complex(in.weights(c))); },
        in.x.values(), d_y.values());
    expect_close_l2(outputs[0], by_x, c.width / 8 + 24);
    if (!c.weighted) continue;
    auto by_weight = complex_step(
        [&](const Complex& v) { return ref::tail_rope(reference, to_complex(in.x.values()), v); },
        in.weights(c), d_y.values());
    for (size_t i = 0; i < by_weight.size(); ++i) {
      by_weight[i] += before.get(static_cast<int64_t>(i));
    }
    expect_close_l2(outputs[1], by_weight, c.width / 8 + 24 + c.tokens * c.heads);
  }
}

// Turned and turned back is what it was.
TEST(TailRope, InverseUndoesTheTurn) {
  const Case c = {6, 2, 24, 10, false};
  const Inputs in(c);
  CpuBackend backend(choose_cpu_path(), 1);
  Buffer y(kF32, in.x.view().shape);
  tail_rope(backend, in.args(c), y);
  TailRopeArgs back = in.args(c);
  back.x = y;
  back.inverse = true;
  tail_rope(backend, back, y);  // in place
  expect_close_l2(y, in.x.values(), 8);
}

}  // namespace
}  // namespace strata::ops
