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

// exp 2, the sum, the quotient, the complement, four products.
constexpr int64_t kTerms = 9;

TEST(Gated, ForwardMatchesReference) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(name_of(c));
    const Buffer gate = input(c, 1, 8);
    const Buffer up = input(c, 2, 1);
    const auto outputs = run_everywhere([&](Backend& backend) {
      std::vector<Buffer> out = {output(c)};
      gated(backend, Activation::kSilu, gate, up, out[0]);
      return out;
    });
    expect_close(outputs[0], ref::gated(Activation::kSilu, gate.values(), up.values()),
                 dot_tolerance(kTerms, c.type));
  }
}

TEST(Gated, BackwardMatchesReference) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(name_of(c));
    const Buffer gate = input(c, 1, 8);
    const Buffer up = input(c, 2, 1);
    for (const DType d_y_type : {kF32, kBF16}) {
      const Buffer d_y = random_buffer(d_y_type, {c.tokens, c.dim}, {.seed = 3});
      const auto outputs = run_everywhere([&](Backend& backend) {
        std::vector<Buffer> out = {output(c), output(c)};
        gated_backward(backend, Activation::kSilu, gate, up, d_y, out[0], out[1]);
        return out;
      });
      const auto n = static_cast<size_t>(gate.size());
      std::vector<double> d_gate(n);
      std::vector<double> d_up(n);
      std::vector<double> magnitude(n);
      ref::gated_backward(Activation::kSilu, gate.values(), up.values(), d_y.values(), d_gate,
                          d_up);
      for (size_t i = 0; i < n; ++i) {  // 1 + g (1 - sigmoid(g)) cancels near g = -1.28
        const auto at = static_cast<int64_t>(i);
        const double s = 1 / (1 + std::exp(-gate.get(at)));
        magnitude[i] = std::abs(d_y.get(at) * up.get(at)) * s *
                       (1 + std::abs(gate.get(at)) / (1 + std::exp(gate.get(at))));
      }
      expect_close(outputs[0], d_gate, dot_tolerance(kTerms + 4, c.type), magnitude);
      expect_close(outputs[1], d_up, dot_tolerance(kTerms, c.type));
    }
  }
}

TEST(Gated, ReferenceBackwardMatchesComplexStep) {
  const auto gate = random_buffer(kF32, {9}, {.seed = 1, .scale = 3}).values();
  const auto up = random_buffer(kF32, {9}, {.seed = 2}).values();
  const auto d_y = random_buffer(kF32, {9}, {.seed = 3}).values();
  std::vector<double> d_gate(9);
  std::vector<double> d_up(9);
  ref::gated_backward(Activation::kSilu, gate, up, d_y, d_gate, d_up);
  using Complex = std::vector<std::complex<double>>;
  const auto by_gate = complex_step(
      [&](const Complex& point) { return ref::gated(Activation::kSilu, point, to_complex(up)); },
      gate, d_y);
  const auto by_up = complex_step(
      [&](const Complex& point) { return ref::gated(Activation::kSilu, to_complex(gate), point); },
      up, d_y);
  EXPECT_LE(relative_l2(d_gate, by_gate), 1e-13);
  EXPECT_LE(relative_l2(d_up, by_up), 1e-13);
}

// Far out on both sides nothing overflows, and the small tail keeps its relative accuracy.
TEST(Gated, ExtremeGates) {
  Buffer gate(kF32, {8});
  gate.set_values({-100, -89, -87, -30, 30, 88, 100, 1e30});
  const Buffer up = filled_buffer(kF32, {8}, 1);
  const auto outputs = run_everywhere([&](Backend& backend) {
    std::vector<Buffer> out = {Buffer(kF32, {8}), Buffer(kF32, {8}), Buffer(kF32, {8})};
    gated(backend, Activation::kSilu, gate, up, out[0]);
    gated_backward(backend, Activation::kSilu, gate, up, up, out[1], out[2]);
    return out;
  });
  std::vector<double> d_gate(8);
  std::vector<double> d_up(8);
  ref::gated_backward(Activation::kSilu, gate.values(), up.values(), up.values(), d_gate, d_up);
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
    Backend backend(path, 1);
    Buffer y(kF32, {3});
    gated(backend, Activation::kSilu, gate, up, y);
    EXPECT_TRUE(std::isnan(y.get(0)));
    EXPECT_TRUE(std::isnan(y.get(1)));
    EXPECT_FALSE(std::isnan(y.get(2)));
  }
}

TEST(Gated, OutputsMayLieOverInputs) {
  for (const DType type : {kF32, kBF16}) {
    const Case c{.tokens = 5, .dim = 4099, .type = type};
    const Buffer gate = input(c, 1, 3);
    const Buffer up = input(c, 2, 1);
    const Buffer d_y = input(c, 3, 1);
    for (const CpuPath path : supported_paths()) {
      Backend backend(path, 2);
      Buffer y = output(c);
      Buffer over = gate;
      gated(backend, Activation::kSilu, gate, up, y);
      gated(backend, Activation::kSilu, over, up, over);
      expect_same_bits(over, y);
      Buffer d_gate = output(c);
      Buffer d_up = output(c);
      Buffer gate_over = gate;
      Buffer up_over = up;
      gated_backward(backend, Activation::kSilu, gate, up, d_y, d_gate, d_up);
      gated_backward(backend, Activation::kSilu, gate_over, up_over, d_y, gate_over, up_over);
      expect_same_bits(gate_over, d_gate);
      expect_same_bits(up_over, d_up);
      Buffer d_over = d_y;
      gated_backward(backend, Activation::kSilu, gate, up, d_over, d_over, d_up);
      expect_same_bits(d_over, d_gate);
    }
  }
}

// A factor a row: with ones the bits of gated, else a double reference.
TEST(Gated, RowsHaveFactors) {
  for (const CpuPath path : supported_paths()) {
    Backend backend(path, 2);
    for (const DType type : {kF32, kBF16}) {
      const Shape shape = {5, 37};
      const Buffer gate = random_buffer(type, shape, {.seed = 1, .scale = 3});
      const Buffer up = random_buffer(type, shape, {.seed = 2});
      const Buffer d_y = random_buffer(type, shape, {.seed = 3});
      Buffer ones(kF32, {5}), factors = random_buffer(kF32, {5}, {.seed = 4});
      for (int64_t t = 0; t < 5; ++t) ones.set(t, 1.0);
      Buffer plain(type, shape), same(type, shape), y(type, shape);
      gated(backend, Activation::kSilu, gate, up, plain);
      gated_rows(backend, Activation::kSilu, gate, up, ones, same);
      EXPECT_EQ(same.values(), plain.values());
      gated_rows(backend, Activation::kSilu, gate, up, factors, y);
      Buffer d_gate(type, shape), d_up(type, shape), d_factors(kF32, {5});
      gated_rows_backward(backend, Activation::kSilu, gate, up, factors, d_y, d_gate, d_up,
                          d_factors);
      const double unit = type == kF32 ? 0x1p-24 : 0x1p-8;
      for (int64_t t = 0; t < 5; ++t) {
        double sum = 0, size = 0;
        for (int64_t i = t * 37; i < (t + 1) * 37; ++i) {
          const double s = 1 / (1 + std::exp(-gate.get(i))), silu = gate.get(i) * s;
          const double d = d_y.get(i) * factors.get(t);
          const auto close = [&](double got, double want) {
            EXPECT_NEAR(got, want, (kTerms + 2) * unit * std::abs(want) + 1e-12);
          };
          close(y.get(i), factors.get(t) * silu * up.get(i));
          close(d_up.get(i), d * silu);
          EXPECT_NEAR(d_gate.get(i), d * up.get(i) * s * (1 + gate.get(i) * (1 - s)),
                      (kTerms + 2) * unit * std::abs(d * up.get(i)) + 1e-12);
          sum += d_y.get(i) * silu * up.get(i);
          size += std::abs(d_y.get(i) * silu * up.get(i));
        }
        // The products are summed in fp32 before any rounding to bf16.
        EXPECT_NEAR(d_factors.get(t), sum, (kTerms + 7) * 0x1p-24 * size + 1e-12);
      }
    }
  }
}

}  // namespace
}  // namespace strata::ops
