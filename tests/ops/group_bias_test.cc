// SPDX-License-Identifier: Apache-2.0
// Biases of groups of rows against double references; an empty group's is never read.
#include "ops/group_bias.h"

#include "tests/ops/indices.h"
#include "tests/ops/op_test.h"

namespace strata::ops {
namespace {

using namespace testing;  // NOLINT

constexpr DType kF32 = DType::kF32;
constexpr DType kBF16 = DType::kBF16;

struct Case {
  std::vector<int64_t> sizes;  // of the groups
  int64_t width;
  DType d_y_type = kF32;
};
const Case kCases[] = {
    {{0, 3, 0, 1}, 1},      {{5}, 17}, {{0, 0, 7, 20, 0}, 33}, {{40, 1, 0, 90}, 700},
    {{3, 0, 4}, 65, kBF16},
};

struct Batch {
  const Case& c;
  std::vector<int64_t> ends, part_ends;
  std::vector<int32_t> part_sequences;
  std::vector<int64_t> sequence_ends;
  Buffer bias, scales, y, d_y;
  int64_t rows = 0;

  static int64_t sum(const Case& c) {
    int64_t total = 0;
    for (const int64_t size : c.sizes) total += size;
    return total;
  }
  explicit Batch(const Case& of)
      : c(of),
        bias(random_buffer(kF32, {std::ssize(of.sizes), of.width}, {.seed = 1})),
        scales(random_buffer(kF32, {sum(of)}, {.seed = 2})),
        y(random_buffer(kF32, {sum(of), of.width}, {.seed = 3})),
        d_y(random_buffer(of.d_y_type, {sum(of), of.width}, {.seed = 4})) {
    for (size_t g = 0; g < c.sizes.size(); ++g) {
      rows += c.sizes[g];
      ends.push_back(rows);
      for (int64_t i = 0; c.sizes[g] == 0 && i < c.width; ++i) {
        bias.set(static_cast<int64_t>(g) * c.width + i, std::nan(""));
      }
    }
    sequence_ends = {std::max<int64_t>(rows, 1)};
    part_ends.resize(c.sizes.size());
    part_sequences.resize(c.sizes.size());
  }
  [[nodiscard]] GroupedRows grouped() {
    return {.num_rows = rows,
            .group_ends = indices(ends),
            .part_ends = indices(part_ends),
            .part_sequences = indices(part_sequences),
            .sequence_ends = sequence_ends};
  }
  [[nodiscard]] TensorStack stack(const Buffer& of) const {
    return {TensorView(of.view().data, kF32, {c.width}), c.width * 4};
  }
  [[nodiscard]] int64_t group_of(int64_t row) const {
    return std::upper_bound(ends.begin(), ends.end(), row) - ends.begin();
  }
};

TEST(GroupBias, ForwardMatchesReference) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.width);
    Batch batch(c);
    const auto outputs = run_everywhere([&](Backend& backend) {
      std::vector<Buffer> out = {batch.y};
      add_group_bias(backend, batch.grouped(), batch.stack(batch.bias), batch.scales, out[0]);
      return out;
    });
    std::vector<double> want, size;
    for (int64_t i = 0; i < batch.y.size(); ++i) {
      const int64_t row = i / c.width;
      const double term =
          batch.scales.get(row) * batch.bias.get(batch.group_of(row) * c.width + i % c.width);
      want.push_back(batch.y.get(i) + term);
      size.push_back(std::abs(batch.y.get(i)) + std::abs(term));
    }
    expect_close(outputs[0], want, 2 * unit_roundoff(kF32), size);
  }
}

TEST(GroupBias, BackwardMatchesReference) {
  for (const Case& c : kCases) {
    for (const bool scaled : {false, true}) {
      SCOPED_TRACE(c.width);
      Batch batch(c);
      const Buffer before = random_buffer(kF32, batch.scales.view().shape, {.seed = 5});
      const Buffer d_before = random_buffer(kF32, batch.bias.view().shape, {.seed = 6});
      const auto outputs = run_everywhere([&](Backend& backend) {
        std::vector<Buffer> out = {before, d_before};
        GroupBiasGradients grads = {.d_bias = batch.stack(out[1])};
        if (scaled) {
          grads.bias = batch.stack(batch.bias);
          grads.scales = batch.scales;
          grads.d_scales = out[0];
        }
        group_bias_backward(backend, batch.grouped(), grads, batch.d_y);
        return out;
      });
      std::vector<double> d_scales = before.values(), d_bias = d_before.values();
      std::vector<double> scale_size, bias_size;
      for (const double x : d_scales) scale_size.push_back(std::abs(x));
      for (const double x : d_bias) bias_size.push_back(std::abs(x));
      for (int64_t i = 0; i < batch.d_y.size(); ++i) {
        const int64_t row = i / c.width;
        const int64_t at = batch.group_of(row) * c.width + i % c.width;
        const double d = batch.d_y.get(i);
        const double term = d * (scaled ? batch.scales.get(row) : 1.0);
        d_bias[static_cast<size_t>(at)] += term;
        bias_size[static_cast<size_t>(at)] += std::abs(term);
        if (!scaled) continue;
        d_scales[static_cast<size_t>(row)] += d * batch.bias.get(at);
        scale_size[static_cast<size_t>(row)] += std::abs(d * batch.bias.get(at));
      }
      expect_close(outputs[0], d_scales, dot_tolerance(c.width + 2, kF32), scale_size);
      expect_close(outputs[1], d_bias, dot_tolerance(batch.rows + 2, kF32), bias_size);
    }
  }
}

// A group's chain goes on from call to call: cut at any row it has the same bits.
TEST(GroupBias, GradientIsOneChain) {
  const Case c = {{64}, 90};
  Batch batch(c);
  for (const CpuPath path : supported_paths()) {
    SCOPED_TRACE(cpu_path_name(path));
    CpuBackend backend(path, 2);
    Buffer whole = filled_buffer(kF32, {1, c.width}, 0), parts = whole;
    const auto add = [&](int64_t begin, int64_t end, Buffer& to) {
      batch.ends = {end - begin};
      batch.rows = end - begin;
      batch.sequence_ends = {end - begin};
      group_bias_backward(backend, batch.grouped(), {.d_bias = batch.stack(to)},
                          batch.d_y.view().slice_rows(begin, end));
    };
    add(0, 64, whole);
    for (const int64_t begin : {0, 16, 32, 48}) add(begin, begin + 16, parts);
    expect_same_bits(parts, whole);
  }
}

}  // namespace
}  // namespace strata::ops
