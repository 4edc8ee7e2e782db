// SPDX-License-Identifier: Apache-2.0
// Mistakes in the delta rule that others made (docs/dev/traps.md) and that no file of a model can
// express: each is planted by what the rule is given, and must be a hundred bounds away.
#include <cmath>

#include "tests/ops/delta_net_test.h"

namespace strata::ops::testing {
namespace {

constexpr double kVisible = 100;

// How many bounds `got` is from what the recurrence says of a case's data.
double bounds_apart(const DeltaCase& c, const DeltaData& data, const std::vector<double>& got) {
  const auto want = expected_delta(c, data, DType::kF32).out.want;
  const double apart = relative_l2(got, want) / chunks_bound(c, DType::kF32);
  ::testing::Test::RecordProperty("bounds", std::to_string(apart));
  return apart;
}

double bounds_apart(const DeltaCase& c, const DeltaData& data, const Buffer& got) {
  return bounds_apart(c, data, got.values());
}

// Rows [begin, end) of a case's data.
void copy_rows(const Buffer& from, int64_t begin, int64_t end, Buffer& to, int64_t at) {
  const int64_t width = from.size() / from.view().shape[0];
  for (int64_t i = 0; i < (end - begin) * width; ++i) {
    to.set(at * width + i, from.get(begin * width + i));
  }
}

// A prefill padded to a length of a list, whose pads decay the state: what decoding then reads.
TEST(DeltaNetTraps, AStateDecayedByPaddingShows) {
  constexpr int64_t kPrompt = 70, kPads = 26, kDecoded = 8;
  const DeltaCase c{.lengths = {kPrompt + kDecoded}, .shape = {1, 2, 16, 24}, .decay = 0.01};
  const DeltaData data(c, DType::kF32);
  const DeltaCase padded_case{.lengths = {kPrompt + kPads + kDecoded}, .shape = c.shape};
  DeltaData padded(padded_case, DType::kF32);
  const auto lay = [&](const Buffer& from, Buffer& to, double pad) {
    const int64_t width = from.size() / from.view().shape[0];
    copy_rows(from, 0, kPrompt, to, 0);
    copy_rows(from, kPrompt, kPrompt + kDecoded, to, kPrompt + kPads);
    for (int64_t i = kPrompt * width; i < (kPrompt + kPads) * width; ++i) to.set(i, pad);
  };
  lay(data.qkv, padded.qkv, 0);
  lay(data.log_decay, padded.log_decay, -0.1);
  lay(data.beta, padded.beta, 0.5);
  CpuBackend backend(choose_cpu_path(), 1);
  EXPECT_LE(bounds_apart(c, data, run_delta(backend, c, data, whole_segments(c))), 1);
  const Buffer got = run_delta(backend, padded_case, padded, whole_segments(padded_case));
  std::vector<double> real;
  for (int64_t i = 0; i < got.size(); ++i) {
    const int64_t row = i / (got.size() / got.view().shape[0]);
    if (row < kPrompt || row >= kPrompt + kPads) real.push_back(got.get(i));
  }
  EXPECT_GT(bounds_apart(c, data, real), kVisible);
}

// The state of the sequence before, without its window, which is not this op's.
TEST(DeltaNetTraps, AStateThatLeaksIntoTheNextSequenceShows) {
  const DeltaCase c{.lengths = {64, 70}, .shape = {1, 2, 16, 24}, .decay = 0.01};
  const DeltaData data(c, DType::kF32);
  CpuBackend backend(choose_cpu_path(), 1);
  EXPECT_LE(bounds_apart(c, data, run_delta(backend, c, data, whole_segments(c))), 1);
  const std::vector<StateSegment> joined = {{.begin = 0, .end = 134}};
  EXPECT_GT(bounds_apart(c, data, run_delta(backend, c, data, joined)), kVisible);
}

// x / sqrt(sum x^2 + 1e-5) is what x / sqrt(10) gives with 1e-6. In rows this small it shows.
TEST(DeltaNetTraps, AnotherEpsilonOfTheL2NormShows) {
  const DeltaCase c{.lengths = {70}, .shape = {1, 2, 16, 24}};
  DeltaData data(c, DType::kF32);
  DeltaData wrong(c, DType::kF32);
  const int64_t width = c.shape.width();
  for (int64_t i = 0; i < data.qkv.size(); ++i) {
    const bool is_value = i % width >= 2 * c.shape.num_key_heads * c.shape.key_dim;
    data.qkv.set(i, (is_value ? 1 : 1e-3) * data.qkv.get(i));
    wrong.qkv.set(i, (is_value ? 1 : 1 / std::sqrt(10.0)) * data.qkv.get(i));
  }
  CpuBackend backend(choose_cpu_path(), 1);
  EXPECT_LE(bounds_apart(c, data, run_delta(backend, c, data, whole_segments(c))), 1);
  EXPECT_GT(bounds_apart(c, data, run_delta(backend, c, wrong, whole_segments(c))), kVisible);
}

// g in bf16, as everything else is in bf16 mode: over a chunk the rounding of its sum shows.
TEST(DeltaNetTraps, ADecayInBf16Shows) {
  const DeltaCase c{.lengths = {64}, .shape = {1, 2, 16, 24}};
  const DeltaData data(c, DType::kF32);
  DeltaData wrong(c, DType::kF32);
  Buffer rounded(DType::kBF16, c.head_shape());
  for (int64_t i = 0; i < rounded.size(); ++i) {
    rounded.set(i, data.log_decay.get(i));
    wrong.log_decay.set(i, rounded.get(i));
  }
  CpuBackend backend(choose_cpu_path(), 1);
  EXPECT_GT(bounds_apart(c, data, run_delta(backend, c, wrong, whole_segments(c))), kVisible);
}

}  // namespace
}  // namespace strata::ops::testing
