// SPDX-License-Identifier: Apache-2.0
#include "ops/delta_gates.h"

#include "ops/ref/delta_gates.h"
#include "tests/ops/op_test.h"

namespace strata::ops {
namespace {

using namespace testing;  // NOLINT

constexpr DType kF32 = DType::kF32;
constexpr DType kBF16 = DType::kBF16;
constexpr double kUnit = 0x1p-24;

struct Case {
  int64_t tokens;
  int64_t heads;
  DType type = kF32;
  double scale = 3;

  [[nodiscard]] Shape shape() const { return {tokens, heads}; }
};

const Case kCases[] = {
    {0, 16},        {1, 1},           {3, 15},
    {5, 16},        {2, 17},          {70, 33},
    {9, 64, kBF16}, {600, 48, kBF16}, {40, 20, kF32, 20},
};

std::string name_of(const Case& c) {
  return "tokens " + std::to_string(c.tokens) + ", heads " + std::to_string(c.heads) + ", " +
         std::string(dtype_name(c.type)) + ", scale " + std::to_string(c.scale);
}

struct Inputs {
  explicit Inputs(const Case& c)
      : a(random_buffer(c.type, c.shape(),
                        {.seed = 1, .scale = c.scale, .row_stride = c.heads + 3, .shift = 1})),
        b(random_buffer(c.type, c.shape(),
                        {.seed = 2, .scale = c.scale, .row_stride = c.heads + 5})),
        a_log(random_buffer(kF32, {c.heads}, {.seed = 3, .mean = 1})),
        dt_bias(random_buffer(kF32, {c.heads}, {.seed = 4, .scale = 2})) {}
  [[nodiscard]] DeltaGatesArgs args() const { return {a, b, a_log, dt_bias}; }
  // The error of s = a + dt_bias, one rounding.
  [[nodiscard]] double argument_error(int64_t i) const { return std::abs(argument(i)) * kUnit; }
  [[nodiscard]] double argument(int64_t i) const {
    return a.get(i) + dt_bias.get(i % a_log.size());
  }

  Buffer a;
  Buffer b;
  Buffer a_log;
  Buffer dt_bias;
};

// 12 and 6 units, and what the rounding of s moves softplus, whose slope is the sigmoid.
TEST(DeltaGates, ForwardMatchesReference) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(name_of(c));
    const Inputs in(c);
    const auto outputs = run_everywhere([&](Backend& backend) {
      std::vector<Buffer> out = {Buffer(kF32, c.shape(), c.heads + 1), Buffer(kF32, c.shape())};
      delta_gates(backend, in.args(), out[0], out[1]);
      return out;
    });
    const auto want = ref::log_decay(in.a.values(), in.a_log.values(), in.dt_bias.values());
    std::vector<double> bound(want.size());
    for (size_t i = 0; i < want.size(); ++i) {
      const auto at = static_cast<int64_t>(i);
      bound[i] = 12 * kUnit * std::abs(want[i]) + std::exp(in.a_log.get(at % c.heads)) *
                                                      ref::logistic(in.argument(at)) *
                                                      in.argument_error(at);
    }
    expect_close(outputs[0], want, 1.0, bound);
    expect_close(outputs[1], ref::delta_beta(in.b.values()), 6 * kUnit);
  }
}

TEST(DeltaGates, BackwardMatchesReference) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(name_of(c));
    const Inputs in(c);
    const Buffer d_log_decay =
        random_buffer(kF32, c.shape(), {.seed = 5, .row_stride = c.heads + 2});
    const Buffer d_beta = random_buffer(kF32, c.shape(), {.seed = 6});
    const Buffer start = random_buffer(kF32, {c.heads}, {.seed = 7});
    const auto outputs = run_everywhere([&](Backend& backend) {
      std::vector<Buffer> out = {Buffer(c.type, c.shape(), c.heads + 1), Buffer(c.type, c.shape()),
                                 start, start};
      delta_gates_backward(backend, in.args(), d_log_decay, d_beta, out[0], out[1], out[2], out[3]);
      return out;
    });
    auto want =
        ref::delta_gates_backward(in.a.values(), in.b.values(), in.a_log.values(),
                                  in.dt_bias.values(), d_log_decay.values(), d_beta.values());
    const auto heads = static_cast<size_t>(c.heads);
    std::vector<double> a_bound(want.a.size()), b_bound(want.a.size());
    std::vector<double> a_log_bound(heads), dt_bias_bound(heads);
    std::vector<double> a_log_size(heads), dt_bias_size(heads);
    for (size_t h = 0; h < heads; ++h) {
      const double stored = start.get(static_cast<int64_t>(h));
      want.a_log[h] += stored;
      want.dt_bias[h] += stored;
      a_log_size[h] = dt_bias_size[h] = std::abs(stored);
    }
    for (size_t i = 0; i < want.a.size(); ++i) {
      const auto at = static_cast<int64_t>(i);
      const double s = in.argument(at);
      const double rate = std::abs(d_log_decay.get(at)) * std::exp(in.a_log.get(at % c.heads));
      const double term = rate * ref::softplus(s);
      const double a_error = 12 * kUnit * std::abs(want.a[i]) +
                             rate * ref::logistic(s) * ref::logistic(-s) * in.argument_error(at);
      a_bound[i] = a_error + unit_roundoff(c.type) * std::abs(want.a[i]);
      b_bound[i] = (12 * kUnit + unit_roundoff(c.type)) * std::abs(want.b[i]);
      a_log_bound[i % heads] += 12 * kUnit * term + rate * ref::logistic(s) * in.argument_error(at);
      dt_bias_bound[i % heads] += a_error;
      a_log_size[i % heads] += term;
      dt_bias_size[i % heads] += std::abs(want.a[i]);
    }
    for (size_t h = 0; h < heads; ++h) {
      a_log_bound[h] += dot_tolerance(c.tokens, kF32) * a_log_size[h];
      dt_bias_bound[h] += dot_tolerance(c.tokens, kF32) * dt_bias_size[h];
    }
    expect_close(outputs[0], want.a, 1.0, a_bound);
    expect_close(outputs[1], want.b, 1.0, b_bound);
    expect_close(outputs[2], want.a_log, 1.0, a_log_bound);
    expect_close(outputs[3], want.dt_bias, 1.0, dt_bias_bound);
  }
}

TEST(DeltaGates, ReferenceBackwardMatchesComplexStep) {
  const auto random = [](uint64_t seed, int64_t count) {
    return random_buffer(kF32, {count}, {.seed = seed, .scale = 2}).values();
  };
  const auto a = random(1, 12), b = random(2, 12), a_log = random(3, 3), dt_bias = random(4, 3);
  const auto d_log_decay = random(5, 12), d_beta = random(6, 12);
  const auto got = ref::delta_gates_backward(a, b, a_log, dt_bias, d_log_decay, d_beta);
  using Complex = std::vector<std::complex<double>>;
  const auto by_a = complex_step(
      [&](const Complex& point) {
        return ref::log_decay(point, to_complex(a_log), to_complex(dt_bias));
      },
      a, d_log_decay);
  const auto by_a_log = complex_step(
      [&](const Complex& point) {
        return ref::log_decay(to_complex(a), point, to_complex(dt_bias));
      },
      a_log, d_log_decay);
  const auto by_dt_bias = complex_step(
      [&](const Complex& point) { return ref::log_decay(to_complex(a), to_complex(a_log), point); },
      dt_bias, d_log_decay);
  const auto by_b =
      complex_step([&](const Complex& point) { return ref::delta_beta(point); }, b, d_beta);
  EXPECT_LE(relative_l2(got.a, by_a), 1e-13);
  EXPECT_LE(relative_l2(got.a_log, by_a_log), 1e-13);
  EXPECT_LE(relative_l2(got.dt_bias, by_dt_bias), 1e-13);
  EXPECT_LE(relative_l2(got.b, by_b), 1e-13);
}

// Every finite bf16 value of s, with a factor of -1: softplus keeps its relative accuracy on both
// sides, is s itself from torch's threshold on, and no gradient is infinite or NaN.
TEST(DeltaGates, SoftplusOfEveryBf16Value) {
  std::vector<double> x;
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const double value = to_float(Bf16{static_cast<uint16_t>(bits)});
    if (std::isfinite(value)) x.push_back(value);
  }
  const auto n = static_cast<int64_t>(x.size());
  Buffer a(kF32, {n, 1});
  a.set_values(x);
  const Buffer zero = filled_buffer(kF32, {1}, 0);
  const Buffer ones = filled_buffer(kF32, {n, 1}, 1);
  const auto outputs = run_everywhere([&](Backend& backend) {
    std::vector<Buffer> out(4, Buffer(kF32, {n, 1}));
    delta_gates(backend, {a, a, zero, zero}, out[0], out[1]);
    delta_gates_backward(backend, {a, a, zero, zero}, ones, ones, out[2], out[3], {}, {});
    return out;
  });
  std::vector<double> log_decay(x.size()), sigmoid(x.size()), d_a(x.size()), d_b(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    log_decay[i] = -ref::softplus(x[i]);
    sigmoid[i] = ref::logistic(x[i]);
    d_a[i] = -sigmoid[i];
    d_b[i] = sigmoid[i] * ref::logistic(-x[i]);
    if (x[i] >= 20) {
      EXPECT_EQ(outputs[0].get(static_cast<int64_t>(i)), -x[i]);
    }
  }
  expect_close(outputs[0], log_decay, 8 * kUnit);
  expect_close(outputs[1], sigmoid, 6 * kUnit);
  expect_close(outputs[2], d_a, 6 * kUnit);
  expect_close(outputs[3], d_b, 12 * kUnit);
}

TEST(DeltaGates, NanStaysNan) {
  const double nan = std::nan("");
  Buffer a(kF32, {1, 3}), b(kF32, {1, 3});
  a.set_values({nan, 1, 1});
  b.set_values({1, nan, 1});
  const Buffer zero = filled_buffer(kF32, {3}, 0);
  for (const CpuPath path : supported_paths()) {
    CpuBackend backend(path, 1);
    Buffer log_decay(kF32, {1, 3}), beta(kF32, {1, 3});
    delta_gates(backend, {a, b, zero, zero}, log_decay, beta);
    for (int64_t i = 0; i < 3; ++i) {
      EXPECT_EQ(std::isnan(log_decay.get(i)), i == 0);
      EXPECT_EQ(std::isnan(beta.get(i)), i == 1);
    }
  }
}

TEST(DeltaGates, GradientsMayLieOverInputs) {
  for (const DType type : {kF32, kBF16}) {
    const Case c{.tokens = 50, .heads = 20, .type = type};
    const Inputs in(c);
    const Buffer d = random_buffer(kF32, c.shape(), {.seed = 5});
    for (const CpuPath path : supported_paths()) {
      CpuBackend backend(path, 2);
      Inputs over = in;
      Buffer d_a(type, c.shape()), d_b(type, c.shape());
      delta_gates_backward(backend, in.args(), d, d, d_a, d_b, {}, {});
      delta_gates_backward(backend, over.args(), d, d, over.a, over.b, {}, {});
      expect_same_bits(over.a, d_a);
      expect_same_bits(over.b, d_b);
    }
  }
}

// A token's gates are its own, and the chains go on where the last pass stopped.
TEST(DeltaGates, SplitsGiveTheSameBits) {
  const Case c{.tokens = 33, .heads = 20, .type = kBF16};
  const Inputs in(c);
  const Buffer d_log_decay = random_buffer(kF32, c.shape(), {.seed = 5});
  const Buffer d_beta = random_buffer(kF32, c.shape(), {.seed = 6});
  const Buffer start = random_buffer(kF32, {c.heads}, {.seed = 7});
  for (const CpuPath path : supported_paths()) {
    CpuBackend backend(path, 2);
    std::vector<Buffer> whole = {Buffer(kF32, c.shape()),
                                 Buffer(kF32, c.shape()),
                                 Buffer(kBF16, c.shape()),
                                 Buffer(kBF16, c.shape()),
                                 start,
                                 start};
    std::vector<Buffer> split = whole;
    const auto run = [&](std::vector<Buffer>& out, int64_t begin, int64_t end) {
      const auto rows = [&](const Buffer& x) { return x.view().slice_rows(begin, end); };
      const DeltaGatesArgs args = {rows(in.a), rows(in.b), in.a_log, in.dt_bias};
      delta_gates(backend, args, rows(out[0]), rows(out[1]));
      delta_gates_backward(backend, args, rows(d_log_decay), rows(d_beta), rows(out[2]),
                           rows(out[3]), out[4], out[5]);
    };
    run(whole, 0, 33);
    for (const auto& [begin, end] : {std::pair{0, 1}, std::pair{1, 20}, std::pair{20, 33}}) {
      run(split, begin, end);
    }
    for (size_t i = 0; i < whole.size(); ++i) expect_same_bits(split[i], whole[i]);
  }
}

TEST(DeltaGates, CountsNothing) {
  CpuBackend backend = CpuBackend::counting(choose_cpu_path(), 2);
  void* nowhere = reinterpret_cast<void*>(64);
  const TensorView gate(nowhere, kF32, {4096, 64});
  const TensorView head(nowhere, kF32, {64});
  delta_gates(backend, {gate, gate, head, head}, gate, gate);
  delta_gates_backward(backend, {gate, gate, head, head}, gate, gate, gate, gate, head, head);
  EXPECT_EQ(backend.scratch().high_water(), 0);
}

}  // namespace
}  // namespace strata::ops
