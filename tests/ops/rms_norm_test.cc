// SPDX-License-Identifier: Apache-2.0
#include "ops/rms_norm.h"

#include "ops/ref/rms_norm.h"
#include "tests/ops/op_test.h"

namespace strata::ops {
namespace {

using namespace testing;  // NOLINT

constexpr DType kF32 = DType::kF32;
constexpr DType kBF16 = DType::kBF16;
constexpr float kEps = 1e-5f;

struct Case {
  int64_t tokens;
  int64_t dim;
  DType x_type = kF32;
  DType y_type = kF32;
  double scale = 3;
  float offset = 0;
};

const Case kCases[] = {
    {0, 64},
    {1, 1},
    {3, 15},
    {2, 16},
    {5, 17},
    {3, 127},
    {5, 4096},
    {9, 2048, kF32, kBF16},
    {40, 576, kBF16, kF32},
    {1, 4096, kBF16, kBF16},
    {7, 127, kBF16, kBF16},
    {3, 33, kF32, kBF16},
    {4, 100, kF32, kF32, 1e-3},  // eps outweighs the mean square
    {2, 100, kF32, kF32, 0},
    {5, 127, kF32, kF32, 3, 1},
    {7, 2048, kBF16, kBF16, 3, 1},
    {3, 33, kF32, kBF16, 3, -0.75},
};

std::string name_of(const Case& c) {
  return "tokens " + std::to_string(c.tokens) + ", dim " + std::to_string(c.dim) + ", types " +
         std::string(dtype_name(c.x_type)) + " " + std::string(dtype_name(c.y_type)) + ", offset " +
         std::to_string(c.offset);
}

Buffer input(const Case& c) {
  return random_buffer(c.x_type, {c.tokens, c.dim},
                       {.seed = 1, .scale = c.scale, .row_stride = c.dim + 3, .shift = 1});
}
Buffer weight(const Case& c) {
  return random_buffer(kF32, {c.dim}, {.seed = 2, .scale = 0.3, .mean = 1.0 - c.offset});
}

// Roundings on the way to an element: a lane's chain, the tree, mean, eps, root, quotient,
// products.
int64_t terms(const Case& c) { return c.dim / 16 + 12; }

TEST(RmsNorm, ForwardMatchesReference) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(name_of(c));
    const Buffer x = input(c);
    const Buffer w = weight(c);
    const auto outputs = run_everywhere([&](Backend& backend) {
      std::vector<Buffer> out = {Buffer(c.y_type, {c.tokens, c.dim}, c.dim + 1),
                                 Buffer(kF32, {c.tokens})};
      rms_norm(backend, {x, w, kEps, c.offset}, out[0], out[1]);
      return out;
    });
    const auto want = ref::rms_norm(x.values(), w.values(), kEps, c.offset);
    expect_close(outputs[0], want, dot_tolerance(terms(c), c.y_type));
    EXPECT_LE(relative_l2(outputs[0].values(), want), l2_tolerance(12, c.y_type));
    const auto values = x.values();
    for (int64_t t = 0; t < c.tokens; ++t) {
      const double inv = ref::inv_rms(&values[static_cast<size_t>(t * c.dim)], c.dim, kEps);
      EXPECT_NEAR(outputs[1].get(t), inv, inv * dot_tolerance(terms(c), kF32));
    }
  }
}

TEST(RmsNorm, BackwardMatchesReference) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(name_of(c));
    const Buffer x = input(c);
    const Buffer w = weight(c);
    const Buffer d_y = random_buffer(kF32, {c.tokens, c.dim}, {.seed = 3, .row_stride = c.dim + 2});
    const Buffer d_x_start =
        random_buffer(kF32, {c.tokens, c.dim}, {.seed = 4, .row_stride = c.dim + 1});
    const Buffer d_w_start = random_buffer(kF32, {c.dim}, {.seed = 5});
    const auto outputs = run_everywhere([&](Backend& backend) {
      std::vector<Buffer> out = {d_x_start, d_w_start};
      rms_norm_backward(backend, {x, w, kEps, c.offset}, {}, d_y, out[0], out[1]);
      return out;
    });
    auto d_x = d_x_start.values();
    auto d_w = d_w_start.values();
    ref::rms_norm_backward(x.values(), w.values(), kEps, d_y.values(), d_x, d_w, c.offset);
    expect_close_l2(outputs[0], d_x, terms(c));
    expect_close_l2(outputs[1], d_w, c.tokens + terms(c));
  }
}

TEST(RmsNorm, ReferenceBackwardMatchesComplexStep) {
  const int64_t tokens = 2;
  const int64_t dim = 7;
  for (const double offset : {0.0, 1.0}) {
    const auto x = random_buffer(kF32, {tokens, dim}, {.seed = 1}).values();
    const auto w = random_buffer(kF32, {dim}, {.seed = 2}).values();
    const auto d_y = random_buffer(kF32, {tokens, dim}, {.seed = 3}).values();
    std::vector<double> d_x(x.size());
    std::vector<double> d_w(w.size());
    ref::rms_norm_backward(x, w, kEps, d_y, d_x, d_w, offset);
    using Complex = std::vector<std::complex<double>>;
    const auto by_x = complex_step(
        [&](const Complex& point) { return ref::rms_norm(point, to_complex(w), kEps, offset); }, x,
        d_y);
    const auto by_w = complex_step(
        [&](const Complex& point) { return ref::rms_norm(to_complex(x), point, kEps, offset); }, w,
        d_y);
    EXPECT_LE(relative_l2(d_x, by_x), 1e-13);
    EXPECT_LE(relative_l2(d_w, by_w), 1e-13);
  }
}

// The multiplier is the fp32 sum: the bits of a norm whose weight holds it.
TEST(RmsNorm, OffsetIsOneAddition) {
  const Case c{.tokens = 5, .dim = 300};
  const Buffer x = input(c);
  const Buffer w = weight(c);
  const Buffer d_y = random_buffer(kF32, {c.tokens, c.dim}, {.seed = 3});
  Buffer sum(kF32, {c.dim});
  for (int64_t i = 0; i < c.dim; ++i) sum.set(i, 1.0f + static_cast<float>(w.get(i)));
  for (const CpuPath path : supported_paths()) {
    CpuBackend backend(path, 2);
    Buffer y(kF32, {c.tokens, c.dim}), want(kF32, {c.tokens, c.dim});
    rms_norm(backend, {x, w, kEps, 1.0f}, y, {});
    rms_norm(backend, {x, sum, kEps}, want, {});
    expect_same_bits(y, want);
    Buffer d_x = filled_buffer(kF32, {c.tokens, c.dim}, 0), d_x_want = d_x;
    Buffer d_w = filled_buffer(kF32, {c.dim}, 0), d_w_want = d_w;
    rms_norm_backward(backend, {x, w, kEps, 1.0f}, {}, d_y, d_x, d_w);
    rms_norm_backward(backend, {x, sum, kEps}, {}, d_y, d_x_want, d_w_want);
    expect_same_bits(d_x, d_x_want);
    expect_same_bits(d_w, d_w_want);
  }
}

TEST(RmsNorm, WithoutAWeightHasTheBitsOfOnes) {
  const Case c{.tokens = 5, .dim = 37};
  const Buffer x = input(c);
  const Buffer ones = filled_buffer(kF32, {c.dim}, 1);
  const Buffer d_y = random_buffer(kF32, {c.tokens, c.dim}, {.seed = 3});
  for (const CpuPath path : supported_paths()) {
    CpuBackend backend(path, 2);
    Buffer y(kF32, {c.tokens, c.dim}), want(kF32, {c.tokens, c.dim});
    rms_norm(backend, {x, {}, kEps}, y, {});
    rms_norm(backend, {x, ones, kEps}, want, {});
    expect_same_bits(y, want);
    Buffer d_x = filled_buffer(kF32, {c.tokens, c.dim}, 0.5), d_x_want = d_x;
    rms_norm_backward(backend, {x, {}, kEps}, {}, d_y, d_x, {});
    rms_norm_backward(backend, {x, ones, kEps}, {}, d_y, d_x_want, {});
    expect_same_bits(d_x, d_x_want);
  }
}

TEST(RmsNorm, StoredAndRecomputedInvRmsGiveTheSameBits) {
  const Case c{.tokens = 20, .dim = 1000};
  const Buffer x = input(c);
  const Buffer w = weight(c);
  const Buffer d_y = random_buffer(kF32, {c.tokens, c.dim}, {.seed = 3});
  for (const CpuPath path : supported_paths()) {
    CpuBackend backend(path, 2);
    Buffer y(kF32, {c.tokens, c.dim});
    Buffer inv(kF32, {c.tokens});
    rms_norm(backend, {x, w, kEps}, y, inv);
    Buffer stored = filled_buffer(kF32, {c.tokens, c.dim}, 0);
    Buffer recomputed = filled_buffer(kF32, {c.tokens, c.dim}, 0);
    rms_norm_backward(backend, {x, w, kEps}, inv, d_y, stored, {});
    rms_norm_backward(backend, {x, w, kEps}, {}, d_y, recomputed, {});
    expect_same_bits(stored, recomputed);
  }
}

TEST(RmsNorm, RowsAloneEqualRowsTogether) {
  const Case c{.tokens = 33, .dim = 517};
  const Buffer x = input(c);
  const Buffer w = weight(c);
  for (const CpuPath path : supported_paths()) {
    CpuBackend backend(path, 7);
    Buffer together(kBF16, {c.tokens, c.dim});
    Buffer alone(kBF16, {c.tokens, c.dim});
    rms_norm(backend, {x, w, kEps}, together, {});
    for (int64_t t = 0; t < c.tokens; ++t) {
      rms_norm(backend, {x.view().slice_rows(t, t + 1), w, kEps}, alone.view().slice_rows(t, t + 1),
               {});
    }
    expect_same_bits(alone, together);
  }
}

// The chain of d_weight goes on where the last pass stopped, so a split of the tokens does not
// show.
TEST(RmsNorm, WeightGradientContinuesAcrossPasses) {
  const Case c{.tokens = 33, .dim = 517};
  const Buffer x = input(c);
  const Buffer w = weight(c);
  const Buffer d_y = random_buffer(kF32, {c.tokens, c.dim}, {.seed = 3});
  for (const CpuPath path : supported_paths()) {
    CpuBackend backend(path, 2);
    Buffer d_x = filled_buffer(kF32, {c.tokens, c.dim}, 0);
    Buffer whole = filled_buffer(kF32, {c.dim}, 0);
    Buffer split = filled_buffer(kF32, {c.dim}, 0);
    rms_norm_backward(backend, {x, w, kEps}, {}, d_y, d_x, whole);
    for (const auto& [begin, end] : {std::pair{0, 1}, std::pair{1, 20}, std::pair{20, 33}}) {
      rms_norm_backward(backend, {x.view().slice_rows(begin, end), w, kEps}, {},
                        d_y.view().slice_rows(begin, end), d_x.view().slice_rows(begin, end),
                        split);
    }
    expect_same_bits(split, whole);
  }
}

TEST(RmsNorm, OutputMayLieOverInput) {
  for (const DType dtype : {kF32, kBF16}) {
    const Case c{.tokens = 9, .dim = 2050, .x_type = dtype, .y_type = dtype};
    const Buffer w = weight(c);
    for (const CpuPath path : supported_paths()) {
      CpuBackend backend(path, 2);
      Buffer over = input(c);
      Buffer apart(dtype, {c.tokens, c.dim}, c.dim + 3);
      rms_norm(backend, {over, w, kEps}, apart, {});
      rms_norm(backend, {over, w, kEps}, over, {});
      expect_same_bits(over, apart);
    }
  }
}

// One rounding: the bf16 result is the rounded fp32 result.
TEST(RmsNorm, ResultIsRoundedOnce) {
  const Case c{.tokens = 4, .dim = 300};
  const Buffer x = input(c);
  const Buffer w = weight(c);
  CpuBackend backend(choose_cpu_path(), 1);
  Buffer wide(kF32, {c.tokens, c.dim});
  Buffer narrow(kBF16, {c.tokens, c.dim});
  rms_norm(backend, {x, w, kEps}, wide, {});
  rms_norm(backend, {x, w, kEps}, narrow, {});
  expect_same_bits(narrow, converted(wide, kBF16));
}

}  // namespace
}  // namespace strata::ops
