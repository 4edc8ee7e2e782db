// SPDX-License-Identifier: Apache-2.0
#include "ops/gated.h"

#include "ops/ref/gated.h"
#include "tests/ops/op_test.h"

namespace strata::ops {
namespace {

using namespace testing;  // NOLINT

constexpr DType kF32 = DType::kF32;
constexpr DType kBF16 = DType::kBF16;

struct Case {
  int64_t tokens;
  int64_t dim;
  DType type = kF32;
  bool strided = false;
};

const Case kCases[] = {
    {0, 16},
    {1, 1},
    {1, 15},
    {3, 16},
    {2, 17},
    {7, 127},
    {9, 4096},
    {9, 4096, kBF16},
    {3, 127, kBF16},
    {11, 3000, kF32, true},
    {11, 1537, kBF16, true},
};

std::string name_of(const Case& c) {
  return "tokens " + std::to_string(c.tokens) + ", dim " + std::to_string(c.dim) + ", " +
         std::string(dtype_name(c.type)) + (c.strided ? ", strided" : "");
}

Buffer input(const Case& c, uint64_t seed, double scale) {
  return random_buffer(c.type, {c.tokens, c.dim},
                       {.seed = seed, .scale = scale, .row_stride = c.strided ? c.dim + 5 : 0});
}
Buffer output(const Case& c) {
  return Buffer(c.type, {c.tokens, c.dim}, c.strided ? c.dim + 7 : 0, 1);
}

constexpr Activation kActivations[] = {Activation::kSilu, Activation::kGeluTanh,
                                       Activation::kSigmoid, Activation::kIdentity};

std::string name_of(Activation activation, const Case& c) {
  constexpr const char* kNames[] = {"silu, ", "gelu, ", "sigmoid, ", "identity, "};
  return kNames[static_cast<int>(activation)] + name_of(c);
}

// Roundings of act(x) and act'(x): exp 2, the sum, the quotient, the product; the argument z
// of kGeluTanh's exponential is good to 4, each of which moves it by |z|. The slope has the
// complement, its argument's slope and the sum besides. Factors count one each.
constexpr double kUnit = 0x1p-24;
constexpr double kFactors = 3;
double exponent_error(Activation activation, double x) {
  return activation == Activation::kGeluTanh ? 4 * std::abs(ref::gelu_argument(x)) * kUnit : 0;
}
double value_error(Activation activation, double x) {
  return (7 + kFactors) * kUnit + exponent_error(activation, x);
}
double slope_error(Activation activation, double x) {
  return (18 + kFactors) * kUnit + exponent_error(activation, x);
}
// The sum of the magnitudes of the two terms of act'(x), which cancel where act has its minimum;
// the sigmoid's slope is one product.
double slope_magnitude(Activation activation, double x) {
  if (activation == Activation::kSigmoid) return ref::activation_slope(activation, x);
  if (activation == Activation::kIdentity) return 1.0;
  const double sigmoid = x == 0 ? 0.5 : ref::activate(activation, x) / x;
  return sigmoid + std::abs(ref::activation_slope(activation, x) - sigmoid);
}

TEST(Gated, ForwardMatchesReference) {
  for (const Activation activation : kActivations) {
    for (const Case& c : kCases) {
      SCOPED_TRACE(name_of(activation, c));
      const Buffer gate = input(c, 1, 8);
      const Buffer up = input(c, 2, 1);
      const auto outputs = run_everywhere([&](Backend& backend) {
        std::vector<Buffer> out = {output(c)};
        act_and_mul(backend, activation, gate, up, out[0]);
        return out;
      });
      const auto want = ref::act_and_mul(activation, gate.values(), up.values());
      std::vector<double> bound(want.size());
      for (size_t i = 0; i < want.size(); ++i) {
        bound[i] = std::abs(want[i]) * (value_error(activation, gate.get(static_cast<int64_t>(i))) +
                                        unit_roundoff(c.type));
      }
      expect_close(outputs[0], want, 1.0, bound);
    }
  }
}

TEST(Gated, BackwardMatchesReference) {
  for (const Activation activation : kActivations) {
    for (const Case& c : kCases) {
      SCOPED_TRACE(name_of(activation, c));
      const Buffer gate = input(c, 1, 8);
      const Buffer up = input(c, 2, 1);
      for (const DType d_y_type : {kF32, kBF16}) {
        const Buffer d_y = random_buffer(d_y_type, {c.tokens, c.dim}, {.seed = 3});
        const auto outputs = run_everywhere([&](Backend& backend) {
          std::vector<Buffer> out = {output(c), output(c)};
          act_and_mul_backward(backend, activation, gate, up, d_y, out[0], out[1]);
          return out;
        });
        const auto n = static_cast<size_t>(gate.size());
        std::vector<double> d_gate(n), d_up(n), gate_bound(n), up_bound(n);
        ref::act_and_mul_backward(activation, gate.values(), up.values(), d_y.values(), d_gate,
                                  d_up);
        for (size_t i = 0; i < n; ++i) {
          const auto at = static_cast<int64_t>(i);
          const double x = gate.get(at);
          gate_bound[i] = std::abs(d_y.get(at) * up.get(at)) * slope_magnitude(activation, x) *
                              slope_error(activation, x) +
                          std::abs(d_gate[i]) * unit_roundoff(c.type);
          up_bound[i] = std::abs(d_up[i]) * (value_error(activation, x) + unit_roundoff(c.type));
        }
        expect_close(outputs[0], d_gate, 1.0, gate_bound);
        expect_close(outputs[1], d_up, 1.0, up_bound);
      }
    }
  }
}

TEST(Gated, ReferenceBackwardMatchesComplexStep) {
  for (const Activation activation : kActivations) {
    const auto gate = random_buffer(kF32, {9}, {.seed = 1, .scale = 3}).values();
    const auto up = random_buffer(kF32, {9}, {.seed = 2}).values();
    const auto d_y = random_buffer(kF32, {9}, {.seed = 3}).values();
    std::vector<double> d_gate(9);
    std::vector<double> d_up(9);
    ref::act_and_mul_backward(activation, gate, up, d_y, d_gate, d_up);
    using Complex = std::vector<std::complex<double>>;
    const auto by_gate = complex_step(
        [&](const Complex& point) { return ref::act_and_mul(activation, point, to_complex(up)); },
        gate, d_y);
    const auto by_up = complex_step(
        [&](const Complex& point) { return ref::act_and_mul(activation, to_complex(gate), point); },
        up, d_y);
    EXPECT_LE(relative_l2(d_gate, by_gate), 1e-13);
    EXPECT_LE(relative_l2(d_up, by_up), 1e-13);
  }
}

// The oracle's form is the published one: 0.5 x (1 + tanh(v)).
TEST(Gated, GeluIsTheFormWithTanh) {
  for (double x = -12; x <= 12; x += 1.0 / 64) {
    const double v = std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x);
    EXPECT_NEAR(ref::activate(Activation::kGeluTanh, x), 0.5 * x * (1 + std::tanh(v)), 4e-15) << x;
  }
}

// Every finite bf16 value: the error bounds, and no NaN from an infinity on the way.
TEST(Gated, GeluOfEveryBf16Value) {
  std::vector<double> x;
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const double value = to_float(Bf16{static_cast<uint16_t>(bits)});
    if (std::isfinite(value)) x.push_back(value);
  }
  const auto n = static_cast<int64_t>(x.size());
  Buffer gate(kF32, {n});
  gate.set_values(x);
  const Buffer ones = filled_buffer(kF32, {n}, 1);
  const auto outputs = run_everywhere([&](Backend& backend) {
    std::vector<Buffer> out = {Buffer(kF32, {n}), Buffer(kF32, {n}), Buffer(kF32, {n})};
    act_and_mul(backend, Activation::kGeluTanh, gate, ones, out[0]);
    act_and_mul_backward(backend, Activation::kGeluTanh, gate, ones, ones, out[1], out[2]);
    return out;
  });
  std::vector<double> want(x.size()), slope(x.size()), bound(x.size()), slope_bound(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    // The double formula overflows too: beyond 16 the function is x or 0.
    const bool far = std::abs(x[i]) > 16;
    want[i] = far ? std::max(x[i], 0.0) : ref::activate(Activation::kGeluTanh, x[i]);
    slope[i] = far ? (x[i] > 0 ? 1.0 : 0.0) : ref::activation_slope(Activation::kGeluTanh, x[i]);
    bound[i] = far ? 0 : std::abs(want[i]) * value_error(Activation::kGeluTanh, x[i]);
    slope_bound[i] = far ? 0
                         : slope_magnitude(Activation::kGeluTanh, x[i]) *
                               slope_error(Activation::kGeluTanh, x[i]);
  }
  expect_close(outputs[0], want, 1.0, bound);
  expect_close(outputs[1], slope, 1.0, slope_bound);
  expect_same_bits(outputs[2], outputs[0]);
}

// Far out on both sides nothing overflows, and the small tail keeps its relative accuracy.
TEST(Gated, ExtremeGates) {
  Buffer gate(kF32, {8});
  gate.set_values({-100, -89, -87, -30, 30, 88, 100, 1e30});
  const Buffer up = filled_buffer(kF32, {8}, 1);
  const auto outputs = run_everywhere([&](Backend& backend) {
    std::vector<Buffer> out = {Buffer(kF32, {8}), Buffer(kF32, {8}), Buffer(kF32, {8})};
    act_and_mul(backend, Activation::kSilu, gate, up, out[0]);
    act_and_mul_backward(backend, Activation::kSilu, gate, up, up, out[1], out[2]);
    return out;
  });
  std::vector<double> d_gate(8);
  std::vector<double> d_up(8);
  ref::act_and_mul_backward(Activation::kSilu, gate.values(), up.values(), up.values(), d_gate,
                            d_up);
  // 1e-36: exp(-89) is a subnormal number
  for (int64_t i = 0; i < 8; ++i) {
    const auto at = static_cast<size_t>(i);
    EXPECT_NEAR(outputs[0].get(i), d_up[at], std::abs(d_up[at]) * 1e-6 + 1e-42);
    EXPECT_NEAR(outputs[1].get(i), d_gate[at], std::abs(d_gate[at]) * 1e-6 + 1e-42);
    EXPECT_EQ(outputs[2].get(i), outputs[0].get(i));
  }
}

TEST(Gated, NanStaysNan) {
  Buffer gate(kF32, {3});
  gate.set_values({std::nan(""), 1, 1});
  Buffer up(kF32, {3});
  up.set_values({1, std::nan(""), 1});
  for (const CpuPath path : supported_paths()) {
    for (const Activation activation : kActivations) {
      CpuBackend backend(path, 1);
      Buffer y(kF32, {3});
      act_and_mul(backend, activation, gate, up, y);
      EXPECT_TRUE(std::isnan(y.get(0)));
      EXPECT_TRUE(std::isnan(y.get(1)));
      EXPECT_FALSE(std::isnan(y.get(2)));
      Buffer d_gate(kF32, {3}), d_up(kF32, {3});
      act_and_mul_backward(backend, activation, gate, up, up, d_gate, d_up);
      EXPECT_TRUE(std::isnan(d_up.get(0)));
      // The slope of the identity does not read the gate.
      EXPECT_EQ(std::isnan(d_gate.get(0)), activation != Activation::kIdentity);
    }
  }
}

TEST(Gated, OutputsMayLieOverInputs) {
  for (const DType type : {kF32, kBF16}) {
    const Case c{.tokens = 5, .dim = 4099, .type = type};
    const Buffer gate = input(c, 1, 3);
    const Buffer up = input(c, 2, 1);
    const Buffer d_y = input(c, 3, 1);
    for (const CpuPath path : supported_paths()) {
      CpuBackend backend(path, 2);
      Buffer y = output(c);
      Buffer over = gate;
      act_and_mul(backend, Activation::kSilu, gate, up, y);
      act_and_mul(backend, Activation::kSilu, over, up, over);
      expect_same_bits(over, y);
      Buffer d_gate = output(c);
      Buffer d_up = output(c);
      Buffer gate_over = gate;
      Buffer up_over = up;
      act_and_mul_backward(backend, Activation::kSilu, gate, up, d_y, d_gate, d_up);
      act_and_mul_backward(backend, Activation::kSilu, gate_over, up_over, d_y, gate_over, up_over);
      expect_same_bits(gate_over, d_gate);
      expect_same_bits(up_over, d_up);
      Buffer d_over = d_y;
      act_and_mul_backward(backend, Activation::kSilu, gate, up, d_over, d_over, d_up);
      expect_same_bits(d_over, d_gate);
    }
  }
}

// The output gate of attention lies beside the queries, head by head: [T, N, 2 H] = [q | gate]. The
// two halves are views with rows 2 H apart, and give the bits of their copies, forward and
// backward.
TEST(Gated, GateMayLieInsideHeadsOfAProjection) {
  constexpr int64_t kTokens = 37, kHeads = 3, kWidth = 21;
  const auto half_of = [](TensorView x, int64_t first) {
    TensorView view = x.slice_cols(first, first + kWidth);
    view.shape = {kTokens, kHeads, kWidth};
    return view;
  };
  const Shape heads = {kTokens, kHeads, kWidth};
  for (const DType type : {kF32, kBF16}) {
    const Buffer projection =
        random_buffer(type, {kTokens, kHeads, 2 * kWidth}, {.seed = 1, .scale = 3});
    const Buffer context = random_buffer(type, heads, {.seed = 2});
    const Buffer d_y = random_buffer(kF32, heads, {.seed = 3});
    Buffer gate(type, heads);
    for (int64_t i = 0; i < gate.size(); ++i) {
      gate.set(i, projection.get(i / kWidth * 2 * kWidth + kWidth + i % kWidth));
    }
    for (const CpuPath path : supported_paths()) {
      CpuBackend backend(path, 3);
      Buffer y(type, heads), want(type, heads);
      act_and_mul(backend, Activation::kSigmoid, half_of(projection, kWidth), context, y);
      act_and_mul(backend, Activation::kSigmoid, gate, context, want);
      expect_same_bits(y, want);
      Buffer d_projection(type, {kTokens, kHeads, 2 * kWidth});
      Buffer d_gate(type, heads), d_context(type, heads), d_context_want(type, heads);
      act_and_mul_backward(backend, Activation::kSigmoid, half_of(projection, kWidth), context, d_y,
                           half_of(d_projection, kWidth), d_context);
      act_and_mul_backward(backend, Activation::kSigmoid, gate, context, d_y, d_gate,
                           d_context_want);
      expect_same_bits(d_context, d_context_want);
      EXPECT_TRUE(d_projection.intact());
      for (int64_t i = 0; i < d_projection.size(); ++i) {
        const int64_t row = i / (2 * kWidth), col = i % (2 * kWidth);
        if (col < kWidth) {
          EXPECT_TRUE(std::isnan(d_projection.get(i))) << "wrote a query's gradient at " << i;
        } else {
          EXPECT_EQ(d_projection.get(i), d_gate.get(row * kWidth + col - kWidth)) << i;
        }
      }
    }
  }
}

// A factor a row: with ones the bits of gated, else a double reference.
TEST(Gated, RowsHaveFactors) {
  for (const Activation activation : kActivations) {
    for (const DType type : {kF32, kBF16}) {
      const Shape shape = {5, 37};
      const Buffer gate = random_buffer(type, shape, {.seed = 1, .scale = 3});
      const Buffer up = random_buffer(type, shape, {.seed = 2});
      const Buffer d_y = random_buffer(type, shape, {.seed = 3});
      const Buffer ones = filled_buffer(kF32, {5}, 1);
      const Buffer factors = random_buffer(kF32, {5}, {.seed = 4});
      const auto outputs = run_everywhere([&](Backend& backend) {
        std::vector<Buffer> out = {Buffer(type, shape), Buffer(type, shape), Buffer(type, shape),
                                   Buffer(type, shape), Buffer(type, shape), Buffer(kF32, {5})};
        act_and_mul(backend, activation, gate, up, out[0]);
        scaled_act_and_mul(backend, activation, gate, up, ones, out[1]);
        scaled_act_and_mul(backend, activation, gate, up, factors, out[2]);
        scaled_act_and_mul_backward(backend, activation, gate, up, factors, d_y, out[3], out[4],
                                    out[5]);
        return out;
      });
      expect_same_bits(outputs[1], outputs[0]);
      const double unit = unit_roundoff(type);
      for (int64_t t = 0; t < 5; ++t) {
        double sum = 0, sum_bound = 0;
        for (int64_t i = t * 37; i < (t + 1) * 37; ++i) {
          const double x = gate.get(i), value = ref::activate(activation, x);
          const double d = d_y.get(i) * factors.get(t), term = d_y.get(i) * value * up.get(i);
          const double error = value_error(activation, x);
          const auto close = [&](double got, double want) {
            EXPECT_NEAR(got, want, (error + unit) * std::abs(want) + 1e-38);
          };
          close(outputs[2].get(i), factors.get(t) * value * up.get(i));
          close(outputs[4].get(i), d * value);
          const double d_gate = d * up.get(i) * ref::activation_slope(activation, x);
          EXPECT_NEAR(outputs[3].get(i), d_gate,
                      slope_error(activation, x) * slope_magnitude(activation, x) *
                              std::abs(d * up.get(i)) +
                          unit * std::abs(d_gate) + 1e-38);
          sum += term;
          // Summed in fp32 before any rounding to bf16: a lane's 3 terms and the tree's 4.
          sum_bound += std::abs(term) * (error + 7 * kUnit);
        }
        EXPECT_NEAR(outputs[5].get(t), sum, sum_bound);
      }
    }
  }
}

}  // namespace
}  // namespace strata::ops
