// SPDX-License-Identifier: Apache-2.0
// The oracle of attention against the derivative by complex step.
#include <complex>

#include "ops/ref/attention.h"
#include "tests/ops/attention_test.h"

namespace strata::ops::testing {
namespace {

// The derivative of L = sum(weight * out) by x is Im L(x + i eps) / eps, exact to rounding.
void expect_complex_step(const ref::AttentionShape& shape, const AttentionCase& c) {
  using Complex = std::complex<double>;
  constexpr double kEps = 1e-30;
  const AttentionData data(c, DType::kF32);
  const double scale = 0.7;
  std::vector<double> inputs[4] = {data.q.values(), data.k.values(), data.v.values(),
                                   data.sinks.values()};
  const std::vector<double> d_out = data.d_out.values();
  std::vector<double> grads[4];
  for (int i = 0; i < 4; ++i) grads[i].resize(inputs[i].size());
  const auto sinks_of = [&](auto& values) { return c.has_sinks ? values[3].data() : nullptr; };
  ref::attention_backward(shape, scale, inputs[0].data(), inputs[1].data(), inputs[2].data(),
                          sinks_of(inputs), d_out.data(), grads[0].data(), grads[1].data(),
                          grads[2].data(), grads[3].data());
  std::vector<Complex> x[4];
  for (int i = 0; i < 4; ++i) x[i].assign(inputs[i].begin(), inputs[i].end());
  std::vector<Complex> out(d_out.size());
  std::vector<Complex> lse(static_cast<size_t>(shape.num_tokens * shape.num_heads));
  for (int i = 0; i < 4; ++i) {
    for (size_t at = 0; at < x[i].size(); ++at) {
      x[i][at] += Complex(0, kEps);
      ref::attention(shape, scale, x[0].data(), x[1].data(), x[2].data(), sinks_of(x), out.data(),
                     lse.data());
      x[i][at] = inputs[i][at];
      Complex loss = 0;
      for (size_t j = 0; j < out.size(); ++j) loss += d_out[j] * out[j];
      EXPECT_NEAR(loss.imag() / kEps, grads[i][at], 1e-12) << "input " << i << " at " << at;
    }
  }
}

TEST(AttentionReference, BackwardMatchesComplexStep) {
  for (const int64_t window : {0, 1, 2, 3, 9}) {
    for (const bool has_sinks : {false, true}) {
      for (const double cap : {0.0, 1.5}) {
        expect_complex_step({5, 4, 2, 3, 3, window, cap}, {.lengths = {5},
                                                           .num_heads = 4,
                                                           .num_kv_heads = 2,
                                                           .head_dim = 3,
                                                           .has_sinks = has_sinks});
      }
    }
  }
}

TEST(AttentionReference, LatentBackwardMatchesComplexStep) {
  for (const int64_t window : {0, 2}) {
    expect_complex_step(
        {5, 4, 1, 5, 2, window},
        {.lengths = {5}, .num_heads = 4, .num_kv_heads = 1, .head_dim = 5, .latent_dim = 2});
  }
}

}  // namespace
}  // namespace strata::ops::testing
