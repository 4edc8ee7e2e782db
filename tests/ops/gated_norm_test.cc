// SPDX-License-Identifier: Apache-2.0
#include "ops/gated_norm.h"

#include "ops/ref/gated_norm.h"
#include "tests/ops/op_test.h"

namespace strata::ops {
namespace {

using namespace testing;  // NOLINT

constexpr DType kF32 = DType::kF32;
constexpr DType kBF16 = DType::kBF16;
constexpr float kEps = 1e-6f;

struct Case {
  int64_t tokens;
  int64_t heads;
  int64_t dim;
  DType type = kF32;
  double scale = 3;

  [[nodiscard]] Shape shape() const { return {tokens, heads, dim}; }
};

const Case kCases[] = {
    {0, 4, 64},
    {1, 1, 1},
    {3, 2, 15},
    {2, 3, 16},
    {5, 1, 17},
    {3, 4, 127},
    {9, 16, 128},
    {7, 32, 128, kBF16},
    {40, 5, 33, kBF16},
    {2, 3, 1000, kBF16},
    {4, 2, 100, kF32, 1e-4},  // eps outweighs the mean square
    {2, 2, 100, kF32, 0},
};

std::string name_of(const Case& c) {
  return "tokens " + std::to_string(c.tokens) + ", heads " + std::to_string(c.heads) + ", dim " +
         std::to_string(c.dim) + ", " + std::string(dtype_name(c.type)) + ", scale " +
         std::to_string(c.scale);
}

struct Inputs {
  explicit Inputs(const Case& c)
      : x(random_buffer(c.type, c.shape(),
                        {.seed = 1, .scale = c.scale, .row_stride = c.dim + 3, .shift = 1})),
        z(random_buffer(c.type, {c.tokens, c.heads * c.dim},
                        {.seed = 2, .scale = 2, .row_stride = c.heads * c.dim + 5})),
        weight(random_buffer(kF32, {c.dim}, {.seed = 3, .scale = 0.3, .mean = 1})) {}
  [[nodiscard]] GatedNormArgs args() const { return {x, z, weight, kEps}; }

  Buffer x;
  Buffer z;
  Buffer weight;
};

// As of ops/rms_norm.h, and of a gate: silu's 7 and the product.
int64_t terms(const Case& c) { return c.dim / 16 + 12 + 8; }

TEST(GatedNorm, ForwardMatchesReference) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(name_of(c));
    const Inputs in(c);
    const auto outputs = run_everywhere([&](Backend& backend) {
      std::vector<Buffer> out = {Buffer(c.type, c.shape(), c.dim + 1)};
      gated_norm(backend, in.args(), out[0]);
      return out;
    });
    const auto want = ref::gated_norm(in.x.values(), in.z.values(), in.weight.values(), kEps);
    expect_close(outputs[0], want, dot_tolerance(terms(c), c.type));
  }
}

// The bound of d_x = inv (g - x inv^2 mean(g x)), of whose terms little may remain (nothing but eps
// where D is 1). inv has D / 16 + 7 roundings under the root and 2 after it, and enters three
// times; g has 9, its dot product D / 16 + 5 more, and 5 products, quotients and differences
// follow.
std::vector<double> d_x_bound(const Case& c, const Inputs& in, const Buffer& d_y,
                              const std::vector<double>& d_x) {
  const auto x = in.x.values();
  const double chain = static_cast<double>(c.dim) / 16;
  const auto roundings = static_cast<int64_t>(3 * ((chain + 7) / 2 + 2) + 9 + chain + 5 + 5) + 1;
  std::vector<double> bound(d_x.size());
  for (int64_t row = 0; row < c.tokens * c.heads; ++row) {
    const auto first = static_cast<size_t>(row * c.dim);
    const double inv = ref::inv_rms(&x[first], c.dim, kEps);
    const auto g = [&](int64_t i) {
      const int64_t at = row * c.dim + i;
      return std::abs(d_y.get(at) * in.weight.get(i) *
                      ref::activate(Activation::kSilu, in.z.get(at)));
    };
    double mean = 0;
    for (int64_t i = 0; i < c.dim; ++i) {
      mean += g(i) * std::abs(x[first + static_cast<size_t>(i)]) / static_cast<double>(c.dim);
    }
    for (int64_t i = 0; i < c.dim; ++i) {
      const size_t at = first + static_cast<size_t>(i);
      const double size = inv * (g(i) + std::abs(x[at]) * inv * inv * mean);
      bound[at] = dot_tolerance(roundings, kF32) * size + unit_roundoff(c.type) * std::abs(d_x[at]);
    }
  }
  return bound;
}

// silu' is within 18 units of its terms (ops/gated.h), 11 more than silu.
TEST(GatedNorm, BackwardMatchesReference) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(name_of(c));
    const Inputs in(c);
    const Buffer start = random_buffer(kF32, {c.dim}, {.seed = 5});
    for (const DType d_y_type : {kF32, kBF16}) {
      const Buffer d_y = random_buffer(d_y_type, c.shape(), {.seed = 4, .row_stride = c.dim + 2});
      const auto outputs = run_everywhere([&](Backend& backend) {
        std::vector<Buffer> out = {Buffer(c.type, c.shape(), c.dim + 1),
                                   Buffer(c.type, {c.tokens, c.heads * c.dim}), start};
        gated_norm_backward(backend, in.args(), d_y, out[0], out[1], out[2]);
        return out;
      });
      std::vector<double> d_x, d_z, d_weight = start.values();
      ref::gated_norm_backward(in.x.values(), in.z.values(), in.weight.values(), kEps, d_y.values(),
                               d_x, d_z, d_weight);
      expect_close(outputs[0], d_x, 1.0, d_x_bound(c, in, d_y, d_x));
      expect_close_l2(outputs[1], d_z, terms(c) + 11);
      expect_close_l2(outputs[2], d_weight, c.tokens * c.heads + terms(c));
    }
  }
}

TEST(GatedNorm, ReferenceBackwardMatchesComplexStep) {
  const auto random = [](uint64_t seed, int64_t count) {
    return random_buffer(kF32, {count}, {.seed = seed, .scale = 2}).values();
  };
  const auto x = random(1, 14), z = random(2, 14), weight = random(3, 7), d_y = random(4, 14);
  std::vector<double> d_x, d_z, d_weight(7);
  ref::gated_norm_backward(x, z, weight, kEps, d_y, d_x, d_z, d_weight);
  using Complex = std::vector<std::complex<double>>;
  const auto by_x = complex_step(
      [&](const Complex& point) {
        return ref::gated_norm(point, to_complex(z), to_complex(weight), kEps);
      },
      x, d_y);
  const auto by_z = complex_step(
      [&](const Complex& point) {
        return ref::gated_norm(to_complex(x), point, to_complex(weight), kEps);
      },
      z, d_y);
  const auto by_weight = complex_step(
      [&](const Complex& point) {
        return ref::gated_norm(to_complex(x), to_complex(z), point, kEps);
      },
      weight, d_y);
  EXPECT_LE(relative_l2(d_x, by_x), 1e-13);
  EXPECT_LE(relative_l2(d_z, by_z), 1e-13);
  EXPECT_LE(relative_l2(d_weight, by_weight), 1e-13);
}

// The gate's heads lie flat or apart, inside wider rows too: the same bits.
TEST(GatedNorm, HeadsFlatOrApart) {
  const Case c{.tokens = 7, .heads = 3, .dim = 40};
  const Inputs in(c);
  Buffer z(kF32, c.shape(), c.dim + 9);
  z.set_values(in.z.values());
  const Buffer d_y = random_buffer(kF32, c.shape(), {.seed = 4});
  for (const CpuPath path : supported_paths()) {
    CpuBackend backend(path, 2);
    Buffer y(kF32, c.shape()), flat(kF32, {c.tokens, c.heads * c.dim});
    gated_norm(backend, in.args(), y);
    gated_norm(backend, {in.x, z, in.weight, kEps}, flat);
    EXPECT_EQ(flat.values(), y.values());
    Buffer d_x(kF32, c.shape()), d_x_flat(kF32, {c.tokens, c.heads * c.dim});
    Buffer d_z(kF32, c.shape()), d_z_flat(kF32, {c.tokens, c.heads * c.dim});
    gated_norm_backward(backend, in.args(), d_y, d_x, d_z_flat, {});
    gated_norm_backward(backend, {in.x, z, in.weight, kEps}, d_y, d_x_flat, d_z, {});
    EXPECT_EQ(d_x_flat.values(), d_x.values());
    EXPECT_EQ(d_z_flat.values(), d_z.values());
  }
}

// With d_weight, which reads everything that the others may lie over.
TEST(GatedNorm, OutputsMayLieOverInputs) {
  for (const DType type : {kF32, kBF16}) {
    const Case c{.tokens = 50, .heads = 5, .dim = 130, .type = type};
    const Inputs in(c);
    const Buffer d_y = random_buffer(type, c.shape(), {.seed = 4});
    for (const CpuPath path : supported_paths()) {
      CpuBackend backend(path, 3);
      Buffer y(type, c.shape()), over_x = in.x, over_z = in.z, over_d_y = d_y;
      gated_norm(backend, in.args(), y);
      gated_norm(backend, {over_x, in.z, in.weight, kEps}, over_x);
      gated_norm(backend, {in.x, over_z, in.weight, kEps}, over_z);
      expect_same_bits(over_x, y);
      EXPECT_EQ(over_z.values(), y.values());

      const Buffer start = filled_buffer(kF32, {c.dim}, 0);
      Buffer d_x(type, c.shape()), d_z(type, c.shape()), d_weight = start;
      gated_norm_backward(backend, in.args(), d_y, d_x, d_z, d_weight);
      Inputs over = in;
      Buffer d_weight_over = start;
      gated_norm_backward(backend, over.args(), d_y, over.x, over.z, d_weight_over);
      expect_same_bits(over.x, d_x);
      EXPECT_EQ(over.z.values(), d_z.values());
      expect_same_bits(d_weight_over, d_weight);
      d_weight_over.set_values(start.values());
      Buffer d_z_apart(type, c.shape());
      gated_norm_backward(backend, in.args(), over_d_y, over_d_y, d_z_apart, d_weight_over);
      expect_same_bits(over_d_y, d_x);
      expect_same_bits(d_z_apart, d_z);
      expect_same_bits(d_weight_over, d_weight);
    }
  }
}

// Rows alone, and the chain of d_weight across passes.
TEST(GatedNorm, SplitsGiveTheSameBits) {
  const Case c{.tokens = 33, .heads = 4, .dim = 130};
  const Inputs in(c);
  const Buffer d_y = random_buffer(kF32, c.shape(), {.seed = 4});
  const Buffer start = random_buffer(kF32, {c.dim}, {.seed = 5});
  for (const CpuPath path : supported_paths()) {
    CpuBackend backend(path, 2);
    std::vector<Buffer> whole(3, Buffer(kF32, c.shape()));
    whole.push_back(start);
    std::vector<Buffer> split = whole;
    const auto run = [&](std::vector<Buffer>& out, int64_t begin, int64_t end) {
      const auto tokens = [&](const Buffer& x) {
        TensorView rows = x.view().slice_rows(begin * c.heads, end * c.heads);
        rows.shape = {end - begin, c.heads, c.dim};
        return rows;
      };
      const GatedNormArgs args = {tokens(in.x), in.z.view().slice_rows(begin, end), in.weight,
                                  kEps};
      gated_norm(backend, args, tokens(out[0]));
      gated_norm_backward(backend, args, tokens(d_y), tokens(out[1]), tokens(out[2]), out[3]);
    };
    run(whole, 0, 33);
    for (const auto& [begin, end] : {std::pair{0, 1}, std::pair{1, 20}, std::pair{20, 33}}) {
      run(split, begin, end);
    }
    for (size_t i = 0; i < whole.size(); ++i) expect_same_bits(split[i], whole[i]);
  }
}

TEST(GatedNorm, ResultsAreRoundedOnce) {
  const Case c{.tokens = 9, .heads = 4, .dim = 130, .type = kBF16};
  const Inputs in(c);
  const Buffer x = converted(in.x, kF32), z = converted(in.z, kF32);
  const Buffer d_y = random_buffer(kBF16, c.shape(), {.seed = 4});
  CpuBackend backend(choose_cpu_path(), 1);
  Buffer y(kBF16, c.shape()), d_x(kBF16, c.shape()), d_z(kBF16, c.shape());
  Buffer y_wide(kF32, c.shape()), d_x_wide(kF32, c.shape()), d_z_wide(kF32, c.shape());
  gated_norm(backend, in.args(), y);
  gated_norm(backend, {x, z, in.weight, kEps}, y_wide);
  gated_norm_backward(backend, in.args(), d_y, d_x, d_z, {});
  gated_norm_backward(backend, {x, z, in.weight, kEps}, d_y, d_x_wide, d_z_wide, {});
  expect_same_bits(y, converted(y_wide, kBF16));
  expect_same_bits(d_x, converted(d_x_wide, kBF16));
  expect_same_bits(d_z, converted(d_z_wide, kBF16));
}

// A counting backend takes what a real one takes, and touches nothing.
TEST(GatedNorm, CountsWhatItTakes) {
  const Case c{.tokens = 9, .heads = 4, .dim = 130};
  const Inputs in(c);
  const Buffer d_y = random_buffer(kF32, c.shape(), {.seed = 4});
  void* nowhere = reinterpret_cast<void*>(64);
  const TensorView x(nowhere, kF32, c.shape());
  const TensorView weight(nowhere, kF32, {c.dim});
  for (const bool want_weight : {false, true}) {
    CpuBackend backend(choose_cpu_path(), 2);
    CpuBackend counter = CpuBackend::counting(choose_cpu_path(), 2);
    Buffer d_x(kF32, c.shape()), d_z(kF32, c.shape());
    Buffer d_weight = filled_buffer(kF32, {c.dim}, 0);
    gated_norm_backward(backend, in.args(), d_y, d_x, d_z,
                        want_weight ? d_weight.view() : TensorView());
    gated_norm(counter, {x, x, weight}, x);
    gated_norm_backward(counter, {x, x, weight}, x, x, x, want_weight ? weight : TensorView());
    EXPECT_EQ(counter.scratch().high_water(), backend.scratch().high_water());
    EXPECT_EQ(counter.scratch().high_water() > 0, want_weight);
  }
}

}  // namespace
}  // namespace strata::ops
