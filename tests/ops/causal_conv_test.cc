// SPDX-License-Identifier: Apache-2.0
#include "ops/causal_conv.h"

#include <numeric>

#include "ops/ref/causal_conv.h"
#include "ops/ref/gated.h"
#include "tests/ops/op_test.h"

namespace strata::ops {
namespace {

using namespace testing;  // NOLINT

constexpr DType kF32 = DType::kF32;
constexpr DType kBF16 = DType::kBF16;
constexpr double kUnit = 0x1p-24;

struct Case {
  std::vector<int64_t> lengths;  // of the sequences of the batch
  int64_t channels;
  int64_t taps;
  DType type = kF32;
  double scale = 1;
  bool silu = true;
  bool bias = false;

  [[nodiscard]] int64_t tokens() const {
    return std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  }
  [[nodiscard]] Shape shape() const { return {tokens(), channels}; }
  [[nodiscard]] std::vector<StateSegment> segments() const {
    std::vector<StateSegment> out;
    int64_t begin = 0;
    for (const int64_t length : lengths) {
      out.push_back({.begin = begin, .end = begin + length});
      begin += length;
    }
    return out;
  }
};

// Channels around a register, a block and the split over threads; sequences shorter and longer than
// the taps.
const std::vector<Case> kCases = {
    {{}, 16, 4},
    {{1}, 1, 1},
    {{5}, 1, 1},
    {{1}, 1, 8},
    {{2}, 15, 4},
    {{3, 1}, 16, 4},
    {{4, 4}, 17, 4},
    {{1, 1, 1, 9}, 511, 3},
    {{7, 0, 6}, 512, 4},
    {{9, 8, 7, 1}, 513, 8},
    {{23, 40}, 1100, 4},
    {{33}, 300, 2, kBF16},
    {{5, 3, 70}, 515, 4, kBF16},
    {{17, 2}, 131, 7, kBF16},
    {{300}, 64, 4, kF32, 30},
    {{20}, 40, 4, kBF16, 1e-3},
    {{5, 1, 30}, 515, 3, kF32, 1, false},
    {{17, 2}, 131, 3, kBF16, 1, false},
    {{4, 9}, 600, 3, kBF16, 1, false, true},
    {{3, 12}, 20, 5, kF32, 1, false, true},
    {{9}, 33, 4, kF32, 1, true, true},
};

std::string name_of(const Case& c) {
  std::string name = "lengths";
  for (const int64_t length : c.lengths) name += " " + std::to_string(length);
  return name + ", channels " + std::to_string(c.channels) + ", taps " + std::to_string(c.taps) +
         ", " + std::string(dtype_name(c.type)) + ", scale " + std::to_string(c.scale) +
         (c.silu ? "" : ", no silu") + (c.bias ? ", bias" : "");
}

ref::CausalConv conv_of(const Case& c, const StateSegment& rows) {
  return {rows.end - rows.begin, c.channels, c.taps, c.silu};
}

struct Inputs {
  explicit Inputs(const Case& c)
      : x(random_buffer(c.type, c.shape(),
                        {.seed = 1, .scale = c.scale, .row_stride = c.channels + 3, .shift = 1})),
        weight(random_buffer(kF32, {c.channels, c.taps}, {.seed = 2, .scale = 0.7})),
        bias(random_buffer(kF32, {c.bias ? c.channels : 0}, {.seed = 6})),
        segments(c.segments()),
        silu(c.silu) {}
  [[nodiscard]] TensorView bias_or_none() const {
    return bias.size() == 0 ? TensorView() : bias.view();
  }
  [[nodiscard]] CausalConvArgs args() const { return {x, weight, segments, bias_or_none(), silu}; }

  Buffer x;
  Buffer weight;
  Buffer bias;
  std::vector<StateSegment> segments;
  bool silu;
};

std::vector<double> rows_of(const std::vector<double>& x, const Case& c, const StateSegment& rows) {
  return {x.begin() + rows.begin * c.channels, x.begin() + rows.end * c.channels};
}
std::vector<double> abs_of(std::vector<double> x) {
  for (double& value : x) value = std::abs(value);
  return x;
}
void append(std::vector<double>& to, const std::vector<double>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

// silu is within 7 units (ops/gated.h) and steepens an error of z, a chain of K from the bias, at
// most 1.1 times.
TEST(CausalConv, ForwardMatchesReference) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(name_of(c));
    const Inputs in(c);
    const auto outputs = run_everywhere([&](Backend& backend) {
      std::vector<Buffer> out = {Buffer(c.type, c.shape(), c.channels + 1)};
      causal_conv(backend, in.args(), out[0]);
      return out;
    });
    const auto weight = in.weight.values();
    const auto bias = in.bias.values();
    std::vector<double> want, bound;
    for (const StateSegment& rows : in.segments) {
      const ref::CausalConv conv = conv_of(c, rows);
      const auto x = rows_of(in.x.values(), c, rows);
      const auto y = ref::activated_causal_conv(conv, x, weight, bias);
      auto error = ref::causal_conv(conv, abs_of(x), abs_of(weight), abs_of(bias));
      for (size_t i = 0; i < y.size(); ++i) {
        error[i] = 1.1 * dot_tolerance(c.taps, kF32) * error[i] +
                   (7 * kUnit + unit_roundoff(c.type)) * std::abs(y[i]);
      }
      append(want, y);
      append(bound, error);
    }
    expect_close(outputs[0], want, 1.0, bound);
  }
}

// The last inputs of one sequence as the first of the next (docs/dev/traps.md).
TEST(CausalConv, AWindowThatLeaksIntoTheNextSequenceShows) {
  const Case c{{64, 5}, 16, 4};
  const Inputs in(c);
  const Case joined{{69}, 16, 4};
  const auto joined_segments = joined.segments();
  CpuBackend backend(choose_cpu_path(), 1);
  const Buffer right(kF32, c.shape());
  const Buffer wrong(kF32, c.shape());
  causal_conv(backend, in.args(), right);
  causal_conv(backend, {in.x, in.weight, joined_segments}, wrong);
  // The three rows that have inputs before their sequence: 64, 65 and 66.
  std::vector<double> got, want;
  for (int64_t i = 64 * 16; i < 67 * 16; ++i) {
    got.push_back(wrong.get(i));
    want.push_back(right.get(i));
  }
  EXPECT_GT(relative_l2(got, want), 100 * (dot_tolerance(c.taps, kF32) + 7 * kUnit));
}

// Gradients of all sequences and how far they may be off. d_z = d_y act'(z): silu' is within 18
// units of its terms (ops/gated.h) and silu'' at most 0.5.
struct ExpectedGradients {
  const Case& c;
  std::vector<double> d_x, d_x_bound;
  std::vector<double> d_weight, d_weight_bound, weight_magnitude;
  std::vector<double> d_bias, d_bias_bound, bias_magnitude;

  // From what is stored before.
  ExpectedGradients(const Case& of, const Buffer& weights, const Buffer& biases)
      : c(of),
        d_weight(weights.values()),
        d_weight_bound(d_weight.size()),
        weight_magnitude(abs_of(d_weight)),
        d_bias(biases.values()),
        d_bias_bound(d_bias.size()),
        bias_magnitude(abs_of(d_bias)) {}

  void add(const StateSegment& rows, const Inputs& in, const Buffer& d_y, DType d_x_type) {
    const ref::CausalConv conv = conv_of(c, rows);
    const auto weight = in.weight.values();
    const auto bias = in.bias.values();
    const auto x = rows_of(in.x.values(), c, rows);
    const auto d_rows = rows_of(d_y.values(), c, rows);
    std::vector<double> d_part;
    ref::causal_conv_backward(conv, x, weight, bias, d_rows, d_part, d_weight, d_bias);
    const auto z = ref::causal_conv(conv, x, weight, bias);
    const auto z_error = ref::causal_conv(conv, abs_of(x), abs_of(weight), abs_of(bias));
    std::vector<double> d_z(z.size()), d_z_error(z.size()), part_bound(z.size());
    for (size_t i = 0; i < z.size(); ++i) {
      const double sigmoid = 1 / (1 + std::exp(-z[i]));
      const double slope = ref::causal_conv_slope(conv, z[i]);
      const double terms = c.silu ? sigmoid + std::abs(slope - sigmoid) : 1;
      d_z[i] = d_rows[i] * slope;
      d_z_error[i] = std::abs(d_rows[i]) *
                     (0.5 * dot_tolerance(c.taps, kF32) * z_error[i] + 19 * kUnit * terms);
      if (!c.bias) continue;
      d_bias_bound[i % bias.size()] += d_z_error[i];
      bias_magnitude[i % bias.size()] += std::abs(d_z[i]);
    }
    conv.for_each_product([&](size_t out, size_t from, size_t tap) {
      const double w = std::abs(weight[tap]), d = std::abs(d_z[out]);
      part_bound[from] += w * (d_z_error[out] + dot_tolerance(c.taps, kF32) * d);
      d_weight_bound[tap] += std::abs(x[from]) * d_z_error[out];
      weight_magnitude[tap] += std::abs(x[from]) * d;
    });
    for (size_t i = 0; i < d_part.size(); ++i) {
      part_bound[i] += unit_roundoff(d_x_type) * std::abs(d_part[i]);
    }
    append(d_x, d_part);
    append(d_x_bound, part_bound);
  }

  // Of the chains over all tokens.
  void add_roundings_of_sums() {
    const double each = dot_tolerance(c.tokens(), kF32);
    for (size_t i = 0; i < d_weight.size(); ++i) d_weight_bound[i] += each * weight_magnitude[i];
    for (size_t i = 0; i < d_bias.size(); ++i) d_bias_bound[i] += each * bias_magnitude[i];
  }
};

TEST(CausalConv, BackwardMatchesReference) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(name_of(c));
    const Inputs in(c);
    const Buffer start = random_buffer(kF32, {c.channels, c.taps}, {.seed = 4});
    const Buffer start_bias = random_buffer(kF32, {in.bias.size()}, {.seed = 5});
    for (const DType d_y_type : {kF32, kBF16}) {
      const DType d_x_type = d_y_type == c.type ? kF32 : kBF16;
      const Buffer d_y =
          random_buffer(d_y_type, c.shape(), {.seed = 3, .row_stride = c.channels + 2});
      const auto outputs = run_everywhere([&](Backend& backend) {
        std::vector<Buffer> out = {Buffer(d_x_type, c.shape(), c.channels + 5), start, start_bias};
        causal_conv_backward(backend, in.args(), d_y, out[0], out[1],
                             c.bias ? out[2].view() : TensorView());
        return out;
      });
      ExpectedGradients want(c, start, start_bias);
      for (const StateSegment& rows : in.segments) want.add(rows, in, d_y, d_x_type);
      want.add_roundings_of_sums();
      expect_close(outputs[0], want.d_x, 1.0, want.d_x_bound);
      expect_close(outputs[1], want.d_weight, 1.0, want.d_weight_bound);
      expect_close(outputs[2], want.d_bias, 1.0, want.d_bias_bound);
    }
  }
}

TEST(CausalConv, ReferenceBackwardMatchesComplexStep) {
  const auto x = random_buffer(kF32, {6, 3}, {.seed = 1}).values();
  const auto weight = random_buffer(kF32, {3, 4}, {.seed = 2}).values();
  const auto bias = random_buffer(kF32, {3}, {.seed = 4}).values();
  const auto d_y = random_buffer(kF32, {6, 3}, {.seed = 3}).values();
  for (const bool silu : {true, false}) {
    const ref::CausalConv conv{6, 3, 4, silu};
    std::vector<double> d_x;
    std::vector<double> d_weight(weight.size()), d_bias(bias.size());
    ref::causal_conv_backward(conv, x, weight, bias, d_y, d_x, d_weight, d_bias);
    using Complex = std::vector<std::complex<double>>;
    const auto forward = [&](const Complex& inputs, const Complex& taps, const Complex& biases) {
      return ref::activated_causal_conv(conv, inputs, taps, biases);
    };
    const Complex at_x = to_complex(x), at_weight = to_complex(weight), at_bias = to_complex(bias);
    const auto by_x = complex_step(
        [&](const Complex& point) { return forward(point, at_weight, at_bias); }, x, d_y);
    const auto by_weight = complex_step(
        [&](const Complex& point) { return forward(at_x, point, at_bias); }, weight, d_y);
    const auto by_bias = complex_step(
        [&](const Complex& point) { return forward(at_x, at_weight, point); }, bias, d_y);
    EXPECT_LE(relative_l2(d_x, by_x), 1e-13);
    EXPECT_LE(relative_l2(d_weight, by_weight), 1e-13);
    EXPECT_LE(relative_l2(d_bias, by_bias), 1e-13);
  }
}

// One pass, passes of any lengths (0, and shorter than the taps), token by token: the same bits,
// and a history that is the last inputs. It starts as NaN, which first_position 0 must not read.
TEST(CausalConv, SplitsGiveTheSameBits) {
  for (const DType type : {kF32, kBF16}) {
    for (const int64_t taps : {1, 2, 3, 4, 8}) {
      SCOPED_TRACE("taps " + std::to_string(taps));
      // With bias and without SiLU where the taps are odd.
      const Case c{.lengths = {21},
                   .channels = 530,
                   .taps = taps,
                   .type = type,
                   .silu = taps % 2 == 0,
                   .bias = taps % 2 == 1};
      const Inputs in(c);
      for (const CpuPath path : supported_paths()) {
        CpuBackend backend(path, 2);
        Buffer whole(type, c.shape());
        causal_conv(backend, in.args(), whole);
        const std::vector<std::vector<int64_t>> splits = {
            {21}, {20, 1}, {1, 20}, {1, 0, 1, 2, 9, 8}, std::vector<int64_t>(21, 1)};
        for (const auto& split : splits) {
          Buffer pieces(type, c.shape());
          Buffer history(type, {std::max<int64_t>(taps - 1, 1), c.channels});
          int64_t position = 0;
          for (const int64_t length : split) {
            const StateSegment rows{.begin = position,
                                    .end = position + length,
                                    .first_position = position,
                                    .state = history.view().data};
            CausalConvArgs args = in.args();
            args.segments = {&rows, 1};
            causal_conv(backend, args, pieces);
            position += length;
            for (int64_t i = 0; i < (taps - 1) * c.channels; ++i) {
              const int64_t from = position - (taps - 1) + i / c.channels;
              const double want = from < 0 ? 0 : in.x.get(from * c.channels + i % c.channels);
              ASSERT_EQ(history.get(i), want) << "element " << i << " before position " << position;
            }
          }
          expect_same_bits(pieces, whole);
          EXPECT_TRUE(history.intact());
        }
      }
    }
  }
}

// Rows of several sequences in one pass, each continued from its own history.
TEST(CausalConv, SequencesDecodeBesideEachOther) {
  const Case c{.lengths = {6, 9}, .channels = 530, .taps = 4, .type = kBF16};
  const Inputs in(c);
  for (const CpuPath path : supported_paths()) {
    CpuBackend backend(path, 2);
    Buffer whole(kBF16, c.shape());
    causal_conv(backend, in.args(), whole);
    Buffer first(kBF16, {3, c.channels}), second(kBF16, {3, c.channels});
    for (int64_t t = 0; t < 6; ++t) {
      Buffer x(kBF16, {2, c.channels}), y(kBF16, {2, c.channels});
      for (int64_t n = 0; n < c.channels; ++n) {
        x.set(n, in.x.get((6 + t) * c.channels + n));
        x.set(c.channels + n, in.x.get(t * c.channels + n));
      }
      const StateSegment rows[] = {{0, 1, t, second.view().data}, {1, 2, t, first.view().data}};
      causal_conv(backend, {x, in.weight, rows}, y);
      for (int64_t n = 0; n < c.channels; ++n) {
        EXPECT_EQ(y.get(n), whole.get((6 + t) * c.channels + n));
        EXPECT_EQ(y.get(c.channels + n), whole.get(t * c.channels + n));
      }
    }
  }
}

// A sequence between others that hold NaN, and rows of no sequence: its bits alone, and nothing is
// written elsewhere.
TEST(CausalConv, SequencesNeverSeeEachOther) {
  const Case alone{.lengths = {9}, .channels = 70, .taps = 4};
  const Inputs in(alone);
  const Buffer d_y = random_buffer(kF32, alone.shape(), {.seed = 3});
  const Shape wide = {20, alone.channels};
  for (const CpuPath path : supported_paths()) {
    CpuBackend backend(path, 2);
    Buffer y(kF32, alone.shape()), d_x(kF32, alone.shape());
    Buffer d_weight = filled_buffer(kF32, in.weight.view().shape, 0), unused = d_weight;
    causal_conv(backend, in.args(), y);
    causal_conv_backward(backend, in.args(), d_y, d_x, d_weight);

    Buffer x_wide(kF32, wide), d_y_wide(kF32, wide), y_wide(kF32, wide), d_x_wide(kF32, wide);
    for (int64_t i = 0; i < in.x.size(); ++i) {
      x_wide.set(6 * alone.channels + i, in.x.get(i));
      d_y_wide.set(6 * alone.channels + i, d_y.get(i));
    }
    y_wide.set_values(std::vector<double>(static_cast<size_t>(y_wide.size()), 7));
    d_x_wide.set_values(y_wide.values());
    const StateSegment rows[] = {{.begin = 1, .end = 6}, {.begin = 6, .end = 15}, {15, 18, 0, {}}};
    causal_conv(backend, {x_wide, in.weight, rows}, y_wide);
    causal_conv_backward(backend, {x_wide, in.weight, rows}, d_y_wide, d_x_wide, unused);
    for (int64_t i = 0; i < y_wide.size(); ++i) {
      const int64_t row = i / alone.channels;
      if (row == 0 || row >= 18) {
        EXPECT_EQ(y_wide.get(i), 7.0) << i;
        EXPECT_EQ(d_x_wide.get(i), 7.0) << i;
      } else if (row >= 6 && row < 15) {
        EXPECT_EQ(y_wide.get(i), y.get(i - 6 * alone.channels)) << i;
        EXPECT_EQ(d_x_wide.get(i), d_x.get(i - 6 * alone.channels)) << i;
      }
    }
    Buffer weight_alone = filled_buffer(kF32, in.weight.view().shape, 0);
    causal_conv_backward(backend, {x_wide, in.weight, {rows + 1, 1}}, d_y_wide, d_x_wide,
                         weight_alone);
    expect_same_bits(weight_alone, d_weight);
  }
}

TEST(CausalConv, WeightGradientContinuesAcrossPasses) {
  const Case c{.lengths = {5, 1, 12}, .channels = 133, .taps = 4, .bias = true};
  const Inputs in(c);
  const Buffer d_y = random_buffer(kF32, c.shape(), {.seed = 3});
  for (const CpuPath path : supported_paths()) {
    CpuBackend backend(path, 2);
    Buffer d_x(kF32, c.shape()), d_x_without(kF32, c.shape());
    Buffer whole = random_buffer(kF32, in.weight.view().shape, {.seed = 5}), split = whole;
    Buffer whole_bias = random_buffer(kF32, {c.channels}, {.seed = 6}), split_bias = whole_bias;
    causal_conv_backward(backend, in.args(), d_y, d_x, whole, whole_bias);
    for (const StateSegment& rows : in.segments) {
      CausalConvArgs args = in.args();
      args.segments = {&rows, 1};
      causal_conv_backward(backend, args, d_y, d_x_without, split, split_bias);
    }
    expect_same_bits(split, whole);
    expect_same_bits(split_bias, whole_bias);
    // Of the bias alone.
    Buffer alone = random_buffer(kF32, {c.channels}, {.seed = 6});
    causal_conv_backward(backend, in.args(), d_y, d_x_without, {}, alone);
    expect_same_bits(alone, whole_bias);
    expect_same_bits(d_x_without, d_x);
    causal_conv_backward(backend, in.args(), d_y, d_x_without, {});
    expect_same_bits(d_x_without, d_x);
  }
}

TEST(CausalConv, GradientMayLieOverItsSources) {
  for (const DType type : {kF32, kBF16}) {
    const Case c{.lengths = {2, 30, 4}, .channels = 530, .taps = 4, .type = type};
    const Inputs in(c);
    const Buffer d_y = random_buffer(type, c.shape(), {.seed = 3});
    for (const CpuPath path : supported_paths()) {
      CpuBackend backend(path, 2);
      Buffer apart(type, c.shape()), over_d_y = d_y, over_x = in.x;
      Buffer want = filled_buffer(kF32, in.weight.view().shape, 0), first = want, second = want;
      causal_conv_backward(backend, in.args(), d_y, apart, want);
      causal_conv_backward(backend, in.args(), over_d_y, over_d_y, first);
      causal_conv_backward(backend, {over_x, in.weight, in.segments}, d_y, over_x, second);
      expect_same_bits(over_d_y, apart);
      expect_same_bits(over_x, apart);
      expect_same_bits(first, want);
      expect_same_bits(second, want);
    }
  }
}

TEST(CausalConv, ResultsAreRoundedOnce) {
  const Case c{.lengths = {30}, .channels = 530, .taps = 4, .type = kBF16};
  const Inputs in(c);
  const Buffer x = converted(in.x, kF32);
  const Buffer d_y = random_buffer(kBF16, c.shape(), {.seed = 3});
  CpuBackend backend(choose_cpu_path(), 1);
  Buffer narrow(kBF16, c.shape()), wide(kF32, c.shape());
  causal_conv(backend, in.args(), narrow);
  causal_conv(backend, {x, in.weight, in.segments}, wide);
  expect_same_bits(narrow, converted(wide, kBF16));
  causal_conv_backward(backend, in.args(), d_y, narrow, {});
  causal_conv_backward(backend, {x, in.weight, in.segments}, d_y, wide, {});
  expect_same_bits(narrow, converted(wide, kBF16));
}

// Takes nothing and touches nothing: the memory is not there.
TEST(CausalConv, CountsNothing) {
  CpuBackend backend = CpuBackend::counting(choose_cpu_path(), 2);
  void* nowhere = reinterpret_cast<void*>(64);
  const TensorView x(nowhere, kBF16, {512, 6144});
  const TensorView weight(nowhere, kF32, {6144, 4});
  const StateSegment rows[] = {{.begin = 0, .end = 500}, {500, 501, 70000, nullptr}};
  causal_conv(backend, {x, weight, rows}, x);
  causal_conv_backward(backend, {x, weight, {rows, 1}}, x, x, weight);
  EXPECT_EQ(backend.scratch().high_water(), 0);
}

TEST(CausalConvDeathTest, WhatItRefuses) {
  CpuBackend backend(CpuPath::kReference, 1);
  const Buffer x = filled_buffer(kF32, {4, 3}, 1);
  const Buffer weight = filled_buffer(kF32, {3, 4}, 1);
  const Buffer long_weight = filled_buffer(kF32, {3, kMaxConvTaps + 1}, 1);
  Buffer y(kF32, {4, 3});
  const StateSegment rows{.begin = 0, .end = 4};
  const StateSegment continued{.begin = 0, .end = 4, .first_position = 3};
  const StateSegment twice[] = {{.begin = 0, .end = 3}, {.begin = 2, .end = 4}};
  const StateSegment beyond{.begin = 0, .end = 5};
  EXPECT_DEATH(causal_conv(backend, {x, long_weight, {&rows, 1}}, y), "kMaxConvTaps");
  EXPECT_DEATH(causal_conv(backend, {x, weight, {&continued, 1}}, y), "state");
  EXPECT_DEATH(causal_conv(backend, {x, weight, twice}, y), "last_end");
  EXPECT_DEATH(causal_conv(backend, {x, weight, {&beyond, 1}}, y), "last_end");
  EXPECT_DEATH(causal_conv_backward(backend, {x, weight, {&continued, 1}}, x, y, {}),
               "first_position");
}

}  // namespace
}  // namespace strata::ops
