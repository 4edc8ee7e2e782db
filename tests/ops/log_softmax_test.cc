// SPDX-License-Identifier: Apache-2.0
#include "ops/log_softmax.h"

#include <bit>
#include <numeric>

#include "ops/ref/log_softmax.h"
#include "tests/ops/op_test.h"

namespace strata::ops {
namespace {

using namespace testing;  // NOLINT

constexpr DType kF32 = DType::kF32;
constexpr DType kBF16 = DType::kBF16;

struct Case {
  int64_t rows;
  int64_t vocab;
  double scale = 3;
};

const Case kCases[] = {{0, 16},  {1, 1},    {2, 15},    {3, 16},      {2, 17},
                       {5, 127}, {6, 4096}, {3, 33333}, {4, 1000, 40}};

std::string name_of(const Case& c) {
  return "rows " + std::to_string(c.rows) + ", vocab " + std::to_string(c.vocab);
}

Buffer input(const Case& c) {
  return random_buffer(kF32, {c.rows, c.vocab},
                       {.seed = 1, .scale = c.scale, .row_stride = c.vocab + 1});
}

std::vector<int32_t> targets_of(const Case& c) {
  std::vector<int32_t> targets;
  for (int64_t row = 0; row < c.rows; ++row) {
    targets.push_back(static_cast<int32_t>(row * 7919 % c.vocab));
  }
  return targets;
}

std::vector<double> row_of(const Buffer& x, int64_t row) {
  std::vector<double> out;
  for (int64_t j = 0; j < x.view().cols(); ++j) out.push_back(x.get(row * x.view().cols() + j));
  return out;
}

TEST(LogSoftmax, ForwardMatchesReference) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(name_of(c));
    const Buffer logits = input(c);
    const auto outputs = run_everywhere([&](Backend& backend) {
      std::vector<Buffer> out = {Buffer(kF32, {c.rows, 2})};
      logsumexp(backend, logits, out[0]);
      return out;
    });
    const auto targets = targets_of(c);
    // The last row's target comes twice: a row may have several.
    std::vector<int32_t> rows(static_cast<size_t>(c.rows));
    std::iota(rows.begin(), rows.end(), 0);
    auto ids = targets;
    if (c.rows > 0) {
      rows.push_back(static_cast<int32_t>(c.rows - 1));
      ids.push_back(targets.back());
    }
    std::vector<float> logprobs(rows.size());
    CpuBackend reader(choose_cpu_path(), 1);
    compute_target_logprobs(reader, logits, outputs[0], rows, ids, logprobs);
    if (c.rows > 0) {
      EXPECT_EQ(logprobs.back(), logprobs[static_cast<size_t>(c.rows - 1)]);
    }
    for (int64_t row = 0; row < c.rows; ++row) {
      const auto values = row_of(logits, row);
      const double want = ref::logsumexp(values.data(), c.vocab);
      const double max = *std::max_element(values.begin(), values.end());
      EXPECT_EQ(outputs[0].get(2 * row), max);
      // The sum's relative error is its log's absolute one; then the log is rounded. How large the
      // logits are does not matter.
      const double log_sum = want - max;
      const double bound = dot_tolerance(c.vocab / 16 + 9, kF32) + log_sum * 0x1.0p-24;
      EXPECT_NEAR(outputs[0].get(2 * row + 1), log_sum, bound);
      const auto at = static_cast<size_t>(row);
      const double below = max - values[static_cast<size_t>(targets[at])];
      const double lp = -below - log_sum;
      EXPECT_NEAR(logprobs[at], lp, bound + (below + std::abs(lp)) * 0x1.0p-24);
    }
  }
}

TEST(LogSoftmax, BackwardMatchesReference) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(name_of(c));
    const Buffer logits = input(c);
    const auto targets = targets_of(c);
    std::vector<float> d_lp;
    for (int64_t row = 0; row < c.rows; ++row) {
      d_lp.push_back(row % 3 == 1 ? 0.0f : static_cast<float>(row) - 1.5f);
    }
    for (const DType type : {kF32, kBF16}) {
      const auto outputs = run_everywhere([&](Backend& backend) {
        std::vector<Buffer> out = {Buffer(type, {c.rows, c.vocab}, c.vocab + 2)};
        Buffer lse(kF32, {c.rows, 2});
        logsumexp(backend, logits, lse);
        log_softmax_backward(backend, logits, lse, targets, d_lp, out[0]);
        return out;
      });
      std::vector<double> want;
      std::vector<double> magnitude;
      for (int64_t row = 0; row < c.rows; ++row) {
        const auto at = static_cast<size_t>(row);
        const auto values = row_of(logits, row);
        const auto d_row = ref::log_softmax_backward(values, targets[at], d_lp[at]);
        const double lse = ref::logsumexp(values.data(), c.vocab);
        const double max = *std::max_element(values.begin(), values.end());
        for (size_t j = 0; j < d_row.size(); ++j) {
          want.push_back(d_row[j]);
          // The logprob's absolute error is p's relative one; in units of 2^-24.
          const double p = std::exp(values[j] - lse);
          const double off = 2 * (max - values[j]) + 2 * (lse - max) + c.vocab / 16.0 + 12;
          const bool is_target = j == static_cast<size_t>(targets[at]);
          magnitude.push_back(std::abs(d_lp[at]) * (p * off + (is_target ? 1 : 0)) +
                              std::abs(d_row[j]) * unit_roundoff(type) * 0x1.0p24);
        }
      }
      expect_close(outputs[0], want, 0x1.02p-24, magnitude);
    }
  }
}

// Large logits cost a logprob nothing: all of a row shifted by 2^20 gives the same logprobs.
TEST(LogSoftmax, LogprobsDoNotFeelACommonShift) {
  Buffer low(kF32, {1, 500});
  Buffer high(kF32, {1, 500});
  for (int64_t j = 0; j < 500; ++j) {
    low.set(j, static_cast<double>(j * 37 % 64) / 8);
    high.set(j, low.get(j) + 0x1p20);
  }
  CpuBackend backend(choose_cpu_path(), 1);
  Buffer lse(kF32, {2, 2});
  logsumexp(backend, low, lse.view().slice_rows(0, 1));
  logsumexp(backend, high, lse.view().slice_rows(1, 2));
  for (int64_t j = 0; j < 500; ++j) {
    EXPECT_EQ(logprob(low.view().f32()[j], lse.view().f32()),
              logprob(high.view().f32()[j], lse.view().f32() + 2));
  }
}

TEST(LogSoftmax, ReferenceBackwardMatchesComplexStep) {
  const auto logits = random_buffer(kF32, {9}, {.seed = 1, .scale = 3}).values();
  const auto d_logits = ref::log_softmax_backward(logits, 4, 1.5);
  const auto by_logits = complex_step(
      [&](const std::vector<std::complex<double>>& point) {
        return std::vector<std::complex<double>>{point[4] - ref::logsumexp(point.data(), 9)};
      },
      logits, {1.5});
  EXPECT_LE(relative_l2(d_logits, by_logits), 1e-13);
}

// Granite's division, Gemma 2's cap, and both.
const LogitMap kMaps[] = {{.scale = 0.125f}, {.cap = 30.0f}, {.scale = 0.3f, .cap = 2.0f}};

TEST(LogitMap, MatchesReference) {
  constexpr int64_t kCount = 20011;
  for (const LogitMap& map : kMaps) {
    SCOPED_TRACE(::testing::Message() << map.scale << ", " << map.cap);
    Buffer logits(kF32, {2, kCount}, kCount + 3);
    const Counter counter{.seed = 3, .stream = 0};
    for (int64_t i = 0; i < 2 * kCount; ++i) {
      // From far below the unit roundoff to far beyond the cap.
      const double size = std::exp2(-30 + 40 * counter.uniform(static_cast<uint64_t>(i)));
      logits.set(i, i % 2 == 0 ? size : -size);
    }
    const auto outputs = run_everywhere([&](Backend& backend) {
      std::vector<Buffer> out = {logits};
      map_logits(backend, map, out[0]);
      return out;
    });
    for (int64_t i = 0; i < 2 * kCount; ++i) {
      const double want = ref::mapped_logit(logits.get(i), map.scale, map.cap);
      // scale / cap, its product, tanh by 3 ulp, and cap times that.
      EXPECT_NEAR(outputs[0].get(i), want, 9 * 0x1.0p-24 * std::abs(want)) << logits.get(i);
    }
  }
}

TEST(LogitMap, SpecialValues) {
  const float inf = std::numeric_limits<float>::infinity();
  const auto outputs = run_everywhere([&](Backend& backend) {
    std::vector<Buffer> out = {Buffer(kF32, {1, 4})};
    const double values[] = {0, inf, -inf, 1e30};
    for (int64_t i = 0; i < 4; ++i) out[0].set(i, values[i]);
    map_logits(backend, {.cap = 30.0f}, out[0]);
    return out;
  });
  EXPECT_EQ(outputs[0].get(0), 0);
  EXPECT_EQ(outputs[0].get(1), 30);
  EXPECT_EQ(outputs[0].get(2), -30);
  EXPECT_EQ(outputs[0].get(3), 30);
  Buffer nan(kF32, {1, 1});
  nan.set(0, std::nan(""));
  CpuBackend backend(choose_cpu_path(), 1);
  map_logits(backend, {.cap = 30.0f}, nan);
  EXPECT_TRUE(std::isnan(nan.get(0)));
}

TEST(LogitMap, ReferenceSlopeMatchesComplexStep) {
  for (const LogitMap& map : kMaps) {
    for (const double z : {-40.0, -1.0, 0.0, 0.3, 7.0}) {
      const auto slope = complex_step(
          [&](const std::vector<std::complex<double>>& point) {
            return std::vector<std::complex<double>>{
                ref::mapped_logit(point[0], map.scale, map.cap)};
          },
          {z}, {1.0});
      const double y = ref::mapped_logit(z, map.scale, map.cap);
      EXPECT_NEAR(slope[0], ref::logit_slope(y, map.scale, map.cap), 1e-14);
    }
  }
}

TEST(LogitMap, BackwardMultipliesBySlope) {
  const Case c{.rows = 4, .vocab = 1021};
  const auto targets = targets_of(c);
  const std::vector<float> d_lp = {1, 0, -2, 0.5f};
  for (const LogitMap& map : kMaps) {
    SCOPED_TRACE(::testing::Message() << map.scale << ", " << map.cap);
    const auto outputs = run_everywhere([&](Backend& backend) {
      std::vector<Buffer> out = {random_buffer(kF32, {c.rows, c.vocab}, {.seed = 1, .scale = 20}),
                                 Buffer(kF32, {c.rows, c.vocab}), Buffer(kF32, {c.rows, c.vocab})};
      Buffer lse(kF32, {c.rows, 2});
      map_logits(backend, map, out[0]);
      logsumexp(backend, out[0], lse);
      log_softmax_backward(backend, out[0], lse, targets, d_lp, out[1]);
      log_softmax_backward(backend, out[0], lse, targets, d_lp, out[2], map);
      return out;
    });
    for (int64_t i = 0; i < c.rows * c.vocab; ++i) {
      const double y = outputs[0].get(i), plain = outputs[1].get(i);
      const double want = plain * ref::logit_slope(y, map.scale, map.cap);
      // Of 1 - (y / cap)^2 each term is rounded: near the cap it is what is left of them.
      EXPECT_NEAR(outputs[2].get(i), want, 8 * 0x1.0p-24 * std::abs(plain) * map.scale);
      EXPECT_NEAR(map.slope(static_cast<float>(y)), ref::logit_slope(y, map.scale, map.cap),
                  4 * 0x1.0p-24 * map.scale);
    }
  }
}

TEST(LogSoftmax, GradientMayLieOverLogits) {
  const Case c{.rows = 5, .vocab = 4100};
  const auto targets = targets_of(c);
  const std::vector<float> d_lp = {1, 0, -2, 0.5f, 3};
  for (const CpuPath path : supported_paths()) {
    SCOPED_TRACE(cpu_path_name(path));
    CpuBackend backend(path, 2);
    const Buffer logits = random_buffer(kF32, {c.rows, c.vocab}, {.seed = 1, .scale = 3});
    Buffer lse(kF32, {c.rows, 2});
    logsumexp(backend, logits, lse);
    for (const DType type : {kF32, kBF16}) {
      Buffer apart(type, {c.rows, c.vocab});
      log_softmax_backward(backend, logits, lse, targets, d_lp, apart);
      Buffer over = logits;
      TensorView d_logits(over.view().data, type, {c.rows, c.vocab});
      if (type == kBF16) d_logits.row_stride = 2 * c.vocab;
      log_softmax_backward(backend, over, lse, targets, d_lp, d_logits);
      EXPECT_TRUE(over.intact());
      Buffer got(type, {c.rows, c.vocab});
      for (int64_t row = 0; row < c.rows; ++row) {
        std::memcpy(got.view().row(row), d_logits.row(row),
                    static_cast<size_t>(c.vocab * dtype_bytes(type)));
      }
      expect_same_bits(got, apart);
    }
  }
}

TEST(LogSoftmax, RowsAloneEqualRowsTogether) {
  const Case c{.rows = 9, .vocab = 5003};
  const Buffer logits = input(c);
  for (const CpuPath path : supported_paths()) {
    CpuBackend backend(path, 7);
    Buffer together(kF32, {c.rows, 2});
    Buffer alone(kF32, {c.rows, 2});
    logsumexp(backend, logits, together);
    for (int64_t row = 0; row < c.rows; ++row) {
      logsumexp(backend, logits.view().slice_rows(row, row + 1),
                alone.view().slice_rows(row, row + 1));
    }
    expect_same_bits(alone, together);
  }
}

TEST(LogSoftmax, HostileRows) {
  const double inf = std::numeric_limits<double>::infinity();
  Buffer logits(kF32, {5, 20});
  for (int64_t j = 0; j < 20; ++j) {
    logits.set(j, -inf);                              // nothing allowed
    logits.set(20 + j, j == 3 ? std::nan("") : 1.0);  // a NaN that is not the maximum of its lane
    logits.set(40 + j, j == 19 ? 5.0 : -inf);         // one token allowed
    logits.set(60 + j, 1e30);                         // huge and equal
    logits.set(80 + j, std::nan(""));
  }
  for (const CpuPath path : supported_paths()) {
    SCOPED_TRACE(cpu_path_name(path));
    CpuBackend backend(path, 1);
    Buffer lse(kF32, {5, 2});
    logsumexp(backend, logits, lse);
    const auto sum = [&](int64_t row) { return lse.get(2 * row) + lse.get(2 * row + 1); };
    EXPECT_TRUE(std::isnan(sum(0)));
    EXPECT_TRUE(std::isnan(sum(1)));
    EXPECT_EQ(sum(2), 5.0);
    EXPECT_EQ(lse.get(6), static_cast<double>(1e30f));
    EXPECT_TRUE(std::isnan(sum(4)));
    // A row without a loss gives exact zeros whatever its logits hold.
    Buffer d_logits(kF32, {5, 20});
    log_softmax_backward(backend, logits, lse, std::vector<int32_t>(5, 19),
                         std::vector<float>{0, -0.0f, 1, 0, 0}, d_logits);
    for (int64_t i = 0; i < 100; ++i) EXPECT_EQ(d_logits.get(i), 0.0) << i;
  }
}

// exp itself, seen through the gradient with lse = 0 and d_lp = -1: at most 1.01 ulp, over the
// whole range of floats, gradual underflow included.
TEST(LogSoftmax, ExpIsAccurate) {
  const int64_t n = 300000;
  Buffer x(kF32, {2, n});
  const Counter counter{.seed = 5, .stream = 0};
  for (int64_t i = 0; i < n; ++i) {
    x.set(i, -110 + 200 * counter.uniform(static_cast<uint64_t>(i)));
    const auto bits = counter.words(static_cast<uint64_t>(i))[3];
    const auto any = std::bit_cast<float>(bits);
    x.set(n + i, any != any ? 0.5f : any);
  }
  const Buffer lse = filled_buffer(kF32, {2, 2}, 0);
  const auto outputs = run_everywhere([&](Backend& backend) {
    std::vector<Buffer> out = {Buffer(kF32, {2, n})};
    log_softmax_backward(backend, x, lse, std::vector<int32_t>{0, 0}, std::vector<float>{-1, -1},
                         out[0]);
    return out;
  });
  double worst = 0;
  for (int64_t i = 0; i < 2 * n; ++i) {
    if (i % n == 0) continue;  // the target
    const double want = std::exp(x.get(i));
    const double got = outputs[0].get(i);
    if (want > std::numeric_limits<float>::max()) {
      EXPECT_EQ(got, std::numeric_limits<double>::infinity()) << x.get(i);
      continue;
    }
    const double ulp = std::max(std::ldexp(1.0, std::ilogb(std::max(want, 1e-300)) - 23), 0x1p-149);
    worst = std::max(worst, std::abs(got - want) / ulp);
  }
  EXPECT_LE(worst, 1.01);
  EXPECT_GE(worst, 0.5);  // fewer would mean that nothing was measured
  RecordProperty("worst_ulp", std::to_string(worst));
}

}  // namespace
}  // namespace strata::ops
