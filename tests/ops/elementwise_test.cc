// SPDX-License-Identifier: Apache-2.0
#include "ops/elementwise.h"

#include <bit>

#include "ops/ref/elementwise.h"
#include "tests/ops/indices.h"
#include "tests/ops/op_test.h"

namespace strata::ops {
namespace {

using namespace testing;  // NOLINT

constexpr DType kF32 = DType::kF32;
constexpr DType kBF16 = DType::kBF16;
constexpr DType kF16 = DType::kF16;

struct Case {
  int64_t rows;
  int64_t cols;
  int64_t gap = 0;  // elements between rows
};

const Case kCases[] = {{0, 16},      {1, 1},       {1, 15},   {3, 16},
                       {2, 17},      {5, 127},     {9, 4096}, {1, 40000},
                       {300, 64, 3}, {7, 5001, 1}, {40, 576}, {17, 1024, 64}};

std::string name_of(const Case& c) {
  return "rows " + std::to_string(c.rows) + ", cols " + std::to_string(c.cols) + ", gap " +
         std::to_string(c.gap);
}

int64_t stride(const Case& c) { return c.gap == 0 ? 0 : c.cols + c.gap; }

Buffer input(const Case& c, DType dtype, uint64_t seed) {
  return random_buffer(dtype, {c.rows, c.cols},
                       {.seed = seed, .row_stride = stride(c), .shift = 1});
}

std::vector<int32_t> random_rows(int64_t count, int64_t limit) {
  const Counter counter{.seed = 9, .stream = 0};
  std::vector<int32_t> rows;
  for (int64_t i = 0; i < count; ++i) {
    rows.push_back(static_cast<int32_t>(counter.words(static_cast<uint64_t>(i))[0] %
                                        static_cast<uint32_t>(limit)));
  }
  return rows;
}

std::vector<float> to_floats(const std::vector<double>& x) { return {x.begin(), x.end()}; }
std::vector<double> to_doubles(const std::vector<float>& x) { return {x.begin(), x.end()}; }

TEST(Elementwise, CopyConverts) {
  for (const Case& c : kCases) {
    for (const DType from : {kF32, kBF16, kF16}) {
      for (const DType to : {kF32, kBF16, kF16}) {
        SCOPED_TRACE(name_of(c) + std::string(dtype_name(from)) + std::string(dtype_name(to)));
        const Buffer x = input(c, from, 1);
        const auto outputs = run_everywhere([&](Backend& backend) {
          std::vector<Buffer> out = {Buffer(to, {c.rows, c.cols}, stride(c) * 2)};
          copy(backend, x, out[0]);
          return out;
        });
        expect_same_bits(outputs[0], converted(x, to));
      }
    }
  }
}

// Every bf16 pattern survives a trip through f32, NaN payloads too (quieted); every special f32
// rounds as the scalar conversion does, on every path.
TEST(Elementwise, CopyRoundsSpecialValues) {
  Buffer all(kBF16, {65536});
  for (int64_t i = 0; i < 65536; ++i) all.view().bf16()[i].bits = static_cast<uint16_t>(i);
  std::vector<float> specials;
  for (const uint32_t top :
       {0x0000u, 0x0001u, 0x007fu, 0x0080u, 0x3f80u, 0x7f7fu, 0x7f80u, 0x7fc0u, 0x7f81u}) {
    for (const uint32_t low : {0x0000u, 0x0001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      for (const uint32_t sign : {0u, 0x80000000u}) {
        specials.push_back(std::bit_cast<float>(sign | top << 16 | low));
      }
    }
  }
  const auto n = static_cast<int64_t>(specials.size());
  for (const CpuPath path : supported_paths()) {
    SCOPED_TRACE(cpu_path_name(path));
    CpuBackend backend(path, 2);
    Buffer wide(kF32, {65536});
    Buffer back(kBF16, {65536});
    copy(backend, all, wide);
    copy(backend, wide, back);
    for (int64_t i = 0; i < 65536; ++i) {
      const Bf16 bits{static_cast<uint16_t>(i)};
      ASSERT_EQ(back.view().bf16()[i].bits, to_bf16(to_float(bits)).bits) << i;
    }
    Buffer rounded(kBF16, {n});
    copy(backend, TensorView(specials.data(), kF32, {n}), rounded);
    for (int64_t i = 0; i < n; ++i) {
      ASSERT_EQ(rounded.view().bf16()[i].bits, to_bf16(specials[static_cast<size_t>(i)]).bits) << i;
    }
  }
}

TEST(Elementwise, AddIntoIsOneAddition) {
  for (const Case& c : kCases) {
    for (const DType type : {kF32, kBF16}) {
      SCOPED_TRACE(name_of(c));
      const Buffer x = input(c, type, 1);
      const Buffer y = input(c, kF32, 2);
      const auto outputs = run_everywhere([&](Backend& backend) {
        std::vector<Buffer> out = {y};
        add_into(backend, x, out[0]);
        return out;
      });
      Buffer want(kF32, {c.rows, c.cols});
      for (int64_t i = 0; i < x.size(); ++i) {
        want.set(i, static_cast<float>(x.get(i)) + static_cast<float>(y.get(i)));
      }
      expect_same_bits(outputs[0], want);
    }
  }
}

TEST(Elementwise, ScaleIsOneProduct) {
  for (const Case& c : kCases) {
    for (const DType from : {kF32, kBF16}) {
      for (const DType to : {kF32, kBF16}) {
        SCOPED_TRACE(name_of(c) + std::string(dtype_name(from)) + std::string(dtype_name(to)));
        const Buffer x = input(c, from, 1);
        constexpr float kFactor = 33.8f;
        const auto outputs = run_everywhere([&](Backend& backend) {
          std::vector<Buffer> out = {Buffer(to, {c.rows, c.cols}, stride(c) * 2), x,
                                     Buffer(to, {c.rows, c.cols})};
          scale(backend, x, kFactor, out[0]);
          scale(backend, out[1], kFactor, out[1]);
          Buffer factor(kF32, {1});
          factor.set(0, kFactor);
          scale_by(backend, x, factor, out[2]);
          return out;
        });
        Buffer want(to, {c.rows, c.cols});
        for (int64_t i = 0; i < x.size(); ++i) {
          want.set(i, kFactor * static_cast<float>(x.get(i)));
        }
        expect_same_bits(outputs[0], want);
        expect_same_bits(outputs[2], want);
        if (from == to) expect_same_bits(outputs[1], want);
      }
    }
  }
}

TEST(Elementwise, GatherTakesRows) {
  for (const Case& c : kCases) {
    if (c.rows == 0) continue;
    for (const DType type : {kF32, kBF16, kF16}) {
      SCOPED_TRACE(name_of(c));
      const Buffer x = input(c, type, 1);
      for (const int64_t count : {0, 1, 50}) {
        const auto rows = random_rows(count, c.rows);
        const auto outputs = run_everywhere([&](Backend& backend) {
          std::vector<Buffer> out = {Buffer(type, {count, c.cols}, c.cols + 2)};
          gather(backend, x, rows, out[0]);
          Buffer of_numbers(type, {count, c.cols});
          gather(backend, x, indices(rows), of_numbers);
          expect_same_bits(out[0], of_numbers);
          return out;
        });
        Buffer want(type, {count, c.cols});
        for (int64_t i = 0; i < want.size(); ++i) {
          want.set(i, x.get(rows[static_cast<size_t>(i / c.cols)] * c.cols + i % c.cols));
        }
        expect_same_bits(outputs[0], want);
      }
    }
  }
}

// Bit for bit the ascending chain of fp32 additions.
TEST(Elementwise, GatherSumIsOneChainInTheOrderOfTheRows) {
  const std::vector<int32_t> rows = {3, 0, 4, 1, 1, 2};
  for (const CpuPath path : supported_paths()) {
    CpuBackend backend(path, 2);
    const Buffer x = random_buffer(DType::kF32, {5, 19}, {.seed = 1});
    const Buffer add = random_buffer(DType::kF32, {2, 19}, {.seed = 2});
    Buffer y(DType::kF32, {2, 19}), alone(DType::kF32, {2, 19});
    gather_sum(backend, x, indices(rows), add, y);
    gather_sum(backend, x, indices(rows), {}, alone);
    for (int64_t t = 0; t < 2; ++t) {
      for (int64_t i = 0; i < 19; ++i) {
        const auto at = [&](size_t k) {
          return x.view().f32()[rows[static_cast<size_t>(t) * 3 + k] * 19 + i];
        };
        const float sum = (at(0) + at(1)) + at(2);
        EXPECT_EQ(alone.view().f32()[t * 19 + i], sum);
        EXPECT_EQ(y.view().f32()[t * 19 + i], add.view().f32()[t * 19 + i] + sum);
      }
    }
    EXPECT_TRUE(y.intact());
  }
}

TEST(Elementwise, ScatterAddIsOneAscendingChain) {
  for (const Case& c : kCases) {
    for (const DType type : {kF32, kBF16}) {
      SCOPED_TRACE(name_of(c));
      const int64_t targets = 3;
      const Buffer x = input(c, type, 1);
      const Buffer y =
          random_buffer(kF32, {targets, c.cols}, {.seed = 2, .row_stride = c.cols + 3});
      const auto rows = random_rows(c.rows, targets);
      const auto outputs = run_everywhere([&](Backend& backend) {
        std::vector<Buffer> out = {y};
        scatter_add(backend, x, rows, out[0]);
        return out;
      });
      auto want = to_floats(y.values());
      ref::scatter_add(to_floats(x.values()), rows, c.cols, want);
      expect_close(outputs[0], to_doubles(want), 0);
    }
  }
}

TEST(Elementwise, AddRowsIntoIsOneAscendingChain) {
  for (const Case& c : kCases) {
    for (const DType type : {kF32, kBF16}) {
      SCOPED_TRACE(name_of(c));
      const Buffer x = input(c, type, 1);
      const Buffer y = random_buffer(kF32, {c.cols}, {.seed = 2});
      const auto outputs = run_everywhere([&](Backend& backend) {
        std::vector<Buffer> out = {y};
        add_rows_into(backend, x, out[0]);
        return out;
      });
      auto want = to_floats(y.values());
      const std::vector<int32_t> rows(static_cast<size_t>(c.rows), 0);
      ref::scatter_add(to_floats(x.values()), rows, c.cols, want);
      expect_close(outputs[0], to_doubles(want), 0);
    }
  }
}

TEST(Elementwise, SumOfSquaresIsDouble) {
  for (const Case& c : kCases) {
    for (const DType type : {kF32, kBF16}) {
      SCOPED_TRACE(name_of(c));
      const Buffer x = input(c, type, 1);
      const double want = ref::sum_of_squares(x.values());
      CpuBackend reference(CpuPath::kReference, 1);
      const double first = sum_of_squares(reference, x);
      EXPECT_NEAR(first, want, want * static_cast<double>(x.size()) * 0x1p-53);
      for (const CpuPath path : supported_paths()) {
        for (const int threads : {1, 2, 7}) {
          CpuBackend backend(path, threads);
          EXPECT_EQ(sum_of_squares(backend, x), first) << cpu_path_name(path) << threads;
        }
      }
    }
  }
}

// Squares that overflow and underflow fp32 are ordinary numbers here.
TEST(Elementwise, SumOfSquaresOfExtremes) {
  Buffer x(kF32, {3});
  x.set_values({1e30, 1e-30, -1e30});
  CpuBackend backend(choose_cpu_path(), 1);
  EXPECT_DOUBLE_EQ(sum_of_squares(backend, x), 2.0 * std::pow(static_cast<double>(1e30f), 2));
}

TEST(ElementwiseDeathTest, RowOutOfRange) {
  const Buffer x = random_buffer(kF32, {3, 4}, {.seed = 1});
  Buffer y(kF32, {1, 4});
  CpuBackend backend(CpuPath::kReference, 1);
  EXPECT_DEATH(gather(backend, x, std::vector<int32_t>{3}, y), "row");
  EXPECT_DEATH(gather(backend, x, std::vector<int32_t>{-1}, y), "row");
}

TEST(Elementwise, ColumnsAsRows) {
  constexpr int64_t kRank = 5, kVocab = 700;
  const std::vector<int32_t> columns = {3, 0, 699, 3, 12};
  const Buffer x = random_buffer(DType::kF32, {kRank, kVocab}, {.seed = 1});
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const auto out = run_everywhere([&](Backend& backend) {
      std::vector<Buffer> y = {Buffer(dtype, {std::ssize(columns), kRank})};
      gather_columns(backend, x, columns, 0.37f, y[0]);
      return y;
    });
    Buffer want(dtype, out[0].view().shape);
    for (size_t i = 0; i < columns.size(); ++i) {
      for (int64_t j = 0; j < kRank; ++j) {
        const auto value = static_cast<float>(x.get(j * kVocab + columns[i]));
        want.set(static_cast<int64_t>(i) * kRank + j,
                 0.37f * (dtype == DType::kF32 ? value : strata::round_to_bf16(value)));
      }
    }
    expect_same_bits(out[0], want);
  }
}

// A column may come again: one chain over the rows, from what is stored.
TEST(Elementwise, RowsAddToColumns) {
  constexpr int64_t kRank = 3, kVocab = 40;
  std::vector<int32_t> columns;
  for (int32_t i = 0; i < 60; ++i) columns.push_back(i * i % 7);
  const Buffer x = random_buffer(DType::kF32, {std::ssize(columns), kRank}, {.seed = 1});
  const Buffer start = random_buffer(DType::kF32, {kRank, kVocab}, {.seed = 2});
  const auto out = run_everywhere([&](Backend& backend) {
    std::vector<Buffer> y = {start};
    scatter_add_columns(backend, x, columns, y[0]);
    return y;
  });
  Buffer want = start;
  for (size_t i = 0; i < columns.size(); ++i) {
    for (int64_t j = 0; j < kRank; ++j) {
      const int64_t at = j * kVocab + columns[i];
      want.set(at, static_cast<float>(want.get(at)) +
                       static_cast<float>(x.get(static_cast<int64_t>(i) * kRank + j)));
    }
  }
  expect_same_bits(out[0], want);
}

TEST(Elementwise, ValuesGoToTheirPlacesAlone) {
  const std::vector<int32_t> rows = {0, 2, 2}, columns = {4, 0, 3};
  const std::vector<float> values = {1.0078125f, -2.0f, 3.3f};
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const auto out = run_everywhere([&](Backend& backend) {
      std::vector<Buffer> y = {random_buffer(dtype, {3, 5}, {.seed = 1, .row_stride = 8})};
      scatter_values(backend, rows, columns, values, y[0]);
      return y;
    });
    Buffer want = random_buffer(dtype, {3, 5}, {.seed = 1, .row_stride = 8});
    for (size_t i = 0; i < rows.size(); ++i) {
      want.set(rows[i] * 5 + columns[i], static_cast<double>(values[i]));
    }
    expect_same_bits(out[0], want);
  }
  CpuBackend backend(choose_cpu_path(), 1);
  Buffer y(DType::kF32, {2, 5});
  EXPECT_DEATH(scatter_values(backend, rows, columns, values, y), "CHECK failed");
}

TEST(Elementwise, FillsAndRoundsInPlace) {
  const Buffer x = random_buffer(DType::kF32, {70'001}, {.seed = 1});
  const auto out = run_everywhere([&](Backend& backend) {
    std::vector<Buffer> y = {x, Buffer(DType::kF32, {70'001})};
    round_to_bf16_in_place(backend, y[0]);
    fill(backend, y[1], -0.5f);
    return y;
  });
  expect_same_bits(out[0], converted(converted(x, DType::kBF16), DType::kF32));
  expect_same_bits(out[1], filled_buffer(DType::kF32, {70'001}, -0.5));
}

TEST(Elementwise, CopiesToAndFromTheHost) {
  CpuBackend backend(choose_cpu_path(), 2);
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    const Buffer x = random_buffer(dtype, {3, 7}, {.seed = 1, .row_stride = 9});
    std::vector<float> host(21);
    to_host(backend, x, host);
    for (int64_t i = 0; i < 21; ++i) EXPECT_EQ(host[static_cast<size_t>(i)], x.get(i));
    Buffer y(dtype, {3, 7}, 9);
    from_host(backend, host, y);
    expect_same_bits(y, x);
    EXPECT_DEATH(to_host(backend, x, std::span(host).first(20)), "CHECK failed");
  }
  const std::vector<int64_t> numbers = {1, -2, int64_t{1} << 40};
  std::vector<int64_t> out(3);
  std::vector<int64_t> there = numbers;
  const IndexView<int64_t> ends = indices(there);
  to_host(backend, ends, out);
  EXPECT_EQ(out, numbers);
  const std::vector<int64_t> others = {4, -5, int64_t{6} << 40};
  from_host(backend, others, ends);
  to_host(backend, ends, out);
  EXPECT_EQ(out, others);
  const std::vector<int32_t> rows = {7, -1};
  std::vector<int32_t> out_rows(2);
  to_host(backend, indices(rows), out_rows);
  EXPECT_EQ(out_rows, rows);
  std::vector<int32_t> to_rows(2);
  from_host(backend, rows, indices(to_rows));
  EXPECT_EQ(to_rows, rows);
  std::vector<int64_t> copy(3);
  copy_bytes(backend, numbers.data(), copy.data(), 16);
  EXPECT_EQ(copy, (std::vector<int64_t>{1, -2, 0}));
}

// Several tensors, small and large: what each gives alone, added in order.
TEST(Elementwise, SumOfSquaresOfSeveralTensors) {
  std::vector<Buffer> parts;
  double want = 0;
  CpuBackend one(CpuPath::kReference, 1);
  for (const int64_t rows : {1, 300, 5, 40}) {
    parts.push_back(random_buffer(DType::kF32, {rows, 1000}, {.seed = parts.size()}));
    want += sum_of_squares(one, parts.back());
  }
  const std::vector<TensorView> views(parts.begin(), parts.end());
  for (const CpuPath path : supported_paths()) {
    for (const int threads : {1, 2, 7}) {
      CpuBackend backend(path, threads);
      EXPECT_EQ(sum_of_squares(backend, views), want);
    }
  }
}

}  // namespace
}  // namespace strata::ops
