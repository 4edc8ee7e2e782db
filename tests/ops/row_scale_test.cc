// SPDX-License-Identifier: Apache-2.0
// Rows times their numbers, and their gradients, against plain double loops.
#include "ops/row_scale.h"

#include "tests/ops/op_test.h"

namespace strata::ops {
namespace {

using namespace testing;  // NOLINT

constexpr DType kF32 = DType::kF32;

struct Case {
  int64_t rows, width;
  DType type = kF32;
};
const Case kCases[] = {
    {0, 16},
    {1, 1},
    {1, 15},
    {3, 16},
    {2, 17},
    {7, 127},
    {9, 4096},
    {5, 33, DType::kBF16},
    {9, 4096, DType::kBF16},
};

Buffer input(const Case& c) { return random_buffer(c.type, {c.rows, c.width}, {.seed = 1}); }
Buffer numbers(const Case& c) { return random_buffer(kF32, {c.rows}, {.seed = 2}); }

TEST(RowScale, ForwardMatchesReference) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.width);
    const Buffer x = input(c), scales = numbers(c);
    const auto outputs = run_everywhere([&](Backend& backend) {
      std::vector<Buffer> out = {Buffer(c.type, {c.rows, c.width})};
      scale_rows(backend, x, scales, out[0]);
      return out;
    });
    std::vector<double> want, size;
    for (int64_t i = 0; i < x.size(); ++i) {
      want.push_back(x.get(i) * scales.get(i / c.width));
      size.push_back(std::abs(want.back()));
    }
    expect_close(outputs[0], want, unit_roundoff(c.type) + unit_roundoff(kF32), size);
  }
}

// In place, as a block uses it.
TEST(RowScale, BackwardMatchesReference) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.width);
    const Buffer x = input(c), scales = numbers(c);
    const Buffer d_y = random_buffer(kF32, {c.rows, c.width}, {.seed = 3});
    const auto outputs = run_everywhere([&](Backend& backend) {
      std::vector<Buffer> out = {d_y, Buffer(kF32, {c.rows})};
      scale_rows_backward(backend, x, scales, out[0], out[0], out[1]);
      return out;
    });
    std::vector<double> d_x, x_size;
    std::vector<double> d_scales(static_cast<size_t>(c.rows), 0.0), size(d_scales);
    for (int64_t i = 0; i < x.size(); ++i) {
      const auto row = static_cast<size_t>(i / c.width);
      d_x.push_back(d_y.get(i) * scales.get(i / c.width));
      x_size.push_back(std::abs(d_x.back()));
      d_scales[row] += d_y.get(i) * x.get(i);
      size[row] += std::abs(d_y.get(i) * x.get(i));
    }
    expect_close(outputs[0], d_x, unit_roundoff(kF32), x_size);
    // One of sixteen chains of fma, then four sums.
    const auto roundings = static_cast<double>(c.width / 16 + 5);
    expect_close(outputs[1], d_scales, roundings * unit_roundoff(kF32), size);
  }
}

}  // namespace
}  // namespace strata::ops
