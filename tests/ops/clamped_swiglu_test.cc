// SPDX-License-Identifier: Apache-2.0
#include "ops/clamped_swiglu.h"

#include "ops/ref/clamped_swiglu.h"
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
  bool scaled = false;
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
    {11, 300, kF32, true, true},
    {11, 153, kBF16, true, true},
};

constexpr float kLimit = 1.5f;
const SwigluForm kForms[] = {{.limit = kLimit},
                             {.limit = kLimit, .alpha = 1.702f, .up_offset = 1.0f}};

// Calls body(case, form).
template <typename Body>
void for_each_case(Body&& body) {
  for (const Case& c : kCases) {
    for (const SwigluForm& form : kForms) {
      SCOPED_TRACE(std::to_string(c.dim) + " alpha " + std::to_string(form.alpha));
      body(c, form);
    }
  }
}

// The rounding of alpha g, relative to the sigmoid that it is the argument of.
double argument_error(const SwigluForm& form, double gate) {
  return form.alpha == 1.0f ? 0.0 : std::abs(form.alpha * gate) * unit_roundoff(kF32);
}

Buffer input(const Case& c, uint64_t seed) {
  Buffer x = random_buffer(c.type, {c.tokens, c.dim},
                           {.seed = seed, .scale = 2, .row_stride = c.strided ? c.dim + 5 : 0});
  // Exactly at the limit, where a gradient still passes.
  if (x.size() > 2) x.set(2, kLimit);
  return x;
}
Buffer output(const Case& c) {
  return Buffer(c.type, {c.tokens, c.dim}, c.strided ? c.dim + 7 : 0, 1);
}
Buffer scales_of(const Case& c) { return random_buffer(kF32, {c.tokens}, {.seed = 4}); }

// Roundings of silu and its slope as in gated_test.cc: 7 and 18, and three factors.
constexpr double kValueError = 10 * 0x1p-24;
constexpr double kSlopeError = 21 * 0x1p-24;

TEST(ClampedSwiglu, ForwardMatchesReference) {
  for_each_case([](const Case& c, const SwigluForm& form) {
    const Buffer gate = input(c, 1), up = input(c, 2), scales = scales_of(c);
    const auto outputs = run_everywhere([&](Backend& backend) {
      std::vector<Buffer> out = {output(c)};
      clamped_swiglu(backend, form, gate, up, c.scaled ? scales.view() : TensorView(), out[0]);
      return out;
    });
    std::vector<double> want(static_cast<size_t>(gate.size())), bound(want.size());
    for (size_t i = 0; i < want.size(); ++i) {
      const auto at = static_cast<int64_t>(i);
      want[i] = ref::clamped_swiglu(form, gate.get(at), up.get(at)) *
                (c.scaled ? scales.get(at / c.dim) : 1.0);
      bound[i] = std::abs(want[i]) *
                 (kValueError + unit_roundoff(c.type) + argument_error(form, gate.get(at)));
    }
    expect_close(outputs[0], want, 1.0, bound);
  });
}

TEST(ClampedSwiglu, BackwardMatchesReference) {
  for_each_case([](const Case& c, const SwigluForm& form) {
    const Buffer gate = input(c, 1), up = input(c, 2), scales = scales_of(c);
    for (const DType d_y_type : {kF32, kBF16}) {
      const Buffer d_y = random_buffer(d_y_type, {c.tokens, c.dim}, {.seed = 3});
      const auto outputs = run_everywhere([&](Backend& backend) {
        std::vector<Buffer> out = {output(c), output(c), Buffer(kF32, {c.tokens})};
        clamped_swiglu_backward(backend, form, gate, up, c.scaled ? scales.view() : TensorView(),
                                d_y, out[0], out[1], c.scaled ? out[2].view() : TensorView());
        return out;
      });
      const auto n = static_cast<size_t>(gate.size());
      std::vector<double> d_gate(n), d_up(n), gate_bound(n), up_bound(n);
      std::vector<double> d_scales(static_cast<size_t>(c.tokens)), scale_size(d_scales.size());
      for (size_t i = 0; i < n; ++i) {
        const auto at = static_cast<int64_t>(i);
        const double scale = c.scaled ? scales.get(at / c.dim) : 1.0;
        ref::clamped_swiglu_backward(form, gate.get(at), up.get(at), d_y.get(at) * scale, d_gate[i],
                                     d_up[i]);
        const double argument = argument_error(form, gate.get(at));
        const double factor = std::abs(up.get(at)) + std::abs(double{form.up_offset});
        // Both terms of the slope are below 1.1.
        gate_bound[i] =
            std::abs(d_y.get(at) * factor * scale) * 2.2 * (kSlopeError + 2 * argument) +
            std::abs(d_gate[i]) * unit_roundoff(c.type);
        up_bound[i] = std::abs(d_up[i]) * (kValueError + argument + unit_roundoff(c.type));
        const double term = d_y.get(at) * ref::clamped_swiglu(form, gate.get(at), up.get(at));
        d_scales[i / static_cast<size_t>(c.dim)] += term;
        scale_size[i / static_cast<size_t>(c.dim)] +=
            std::abs(term) * (kValueError + argument + dot_tolerance(c.dim, kF32));
      }
      expect_close(outputs[0], d_gate, 1.0, gate_bound);
      expect_close(outputs[1], d_up, 1.0, up_bound);
      if (c.scaled) expect_close(outputs[2], d_scales, 1.0, scale_size);
    }
  });
}

// A diverged model must show itself: a NaN is not clamped away.
TEST(ClampedSwiglu, NanStays) {
  CpuBackend backend(choose_cpu_path(), 1);
  for (const int which : {0, 1}) {
    for (const SwigluForm& form : kForms) {
      Buffer gate = filled_buffer(kF32, {1, 1}, 1), up = filled_buffer(kF32, {1, 1}, 1);
      (which == 0 ? gate : up).set(0, std::nan(""));
      Buffer y(kF32, {1, 1});
      clamped_swiglu(backend, form, gate, up, {}, y);
      EXPECT_TRUE(std::isnan(y.get(0))) << which;
    }
  }
}

}  // namespace
}  // namespace strata::ops
