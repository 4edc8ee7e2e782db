// SPDX-License-Identifier: Apache-2.0
// pack, unpack and gather_rows against PanelView::offset, element by element.
#include "ops/pack.h"

#include <string>

#include "tests/ops/op_test.h"

namespace strata::ops {
namespace {

using namespace testing;  // NOLINT: the helpers of this folder

struct Case {
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t width = 0;
};
const Case kCases[] = {{1, 1, 16},   {16, 2, 16}, {15, 3, 16},  {17, 33, 16},  {40, 31, 32},
                       {64, 64, 64}, {63, 1, 64}, {65, 65, 64}, {130, 47, 64}, {128, 96, 64}};

std::string name(CpuPath path, const Case& c) {
  return std::string(cpu_path_name(path)) + " rows " + std::to_string(c.rows) + " cols " +
         std::to_string(c.cols) + " width " + std::to_string(c.width);
}

double converted(double value, DType to) {
  Buffer one = filled_buffer(to, {1}, value);
  return one.get(0);
}

TEST(Pack, PlacesEveryElementAndZeroesThePadding) {
  for (const CpuPath path : supported_paths()) {
    CpuBackend backend(path, 2);
    for (const Case& c : kCases) {
      SCOPED_TRACE(name(path, c));
      for (const DType from : {DType::kF32, DType::kBF16, DType::kF16}) {
        const Buffer rows =
            random_buffer(from, {c.rows, c.cols}, {.seed = 1, .row_stride = c.cols + 3});
        for (const DType to : {DType::kF32, DType::kBF16}) {
          PanelView panel{
              .data = nullptr, .dtype = to, .rows = c.rows, .cols = c.cols, .width = c.width};
          Buffer memory(to, {panel.num_bytes() / dtype_bytes(to)});
          panel.data = memory.view().data;
          pack(backend, rows, 0, panel);
          EXPECT_TRUE(memory.intact());
          std::vector<double> want(static_cast<size_t>(memory.size()), 0.0);
          for (int64_t r = 0; r < c.rows; ++r) {
            for (int64_t k = 0; k < c.cols; ++k) {
              want[static_cast<size_t>(panel.offset(r, k))] =
                  converted(rows.get(r * c.cols + k), to);
            }
          }
          ASSERT_EQ(memory.values(), want) << dtype_name(from) << " to " << dtype_name(to);
        }
      }
    }
  }
}

TEST(Pack, UnpackAndGatherReadBack) {
  for (const CpuPath path : supported_paths()) {
    CpuBackend backend(path, 2);
    for (const Case& c : kCases) {
      SCOPED_TRACE(name(path, c));
      for (const DType dtype : {DType::kF32, DType::kBF16}) {
        const Buffer rows = random_buffer(dtype, {c.rows, c.cols}, {.seed = 2});
        const Tensor memory(cpu_allocator(), DType::kF32,
                            {panel_matrix_bytes(dtype, c.rows, c.cols, c.width) / 4 + 1});
        const PanelView panel{.data = memory.view().data,
                              .dtype = dtype,
                              .rows = c.rows,
                              .cols = c.cols,
                              .width = c.width};
        pack(backend, rows, 0, panel);
        std::vector<int32_t> ids;
        for (int64_t t = 0; t < 20; ++t) ids.push_back(static_cast<int32_t>(t * 7 % c.rows));
        for (const DType out : {dtype, DType::kF32}) {
          Buffer back(out, {c.rows, c.cols}, c.cols + 1);
          unpack(backend, panel, 0, back);
          EXPECT_TRUE(back.intact());
          ASSERT_EQ(back.values(), rows.values());
          Buffer some(out, {20, c.cols}, c.cols + 5);
          gather_rows(backend, panel, ids, some);
          EXPECT_TRUE(some.intact());
          for (int64_t i = 0; i < some.size(); ++i) {
            const int64_t row = ids[static_cast<size_t>(i / c.cols)];
            ASSERT_EQ(some.get(i), rows.get(row * c.cols + i % c.cols)) << i;
          }
        }
      }
    }
  }
}

// Rows written a few at a time, in any order, make the same panels; others keep their values.
TEST(Pack, RowsInPieces) {
  for (const CpuPath path : supported_paths()) {
    CpuBackend backend(path, 2);
    for (const DType from : {DType::kF32, DType::kBF16, DType::kF16}) {
      const Buffer rows = random_buffer(from, {100, 37}, {.seed = 3});
      PanelView panel{.data = nullptr, .dtype = DType::kBF16, .rows = 100, .cols = 37, .width = 64};
      Buffer whole(DType::kBF16, {panel.num_bytes() / 2});
      Buffer pieces(whole);
      panel.data = whole.view().data;
      pack(backend, rows, 0, panel);
      panel.data = pieces.view().data;
      for (const auto& [begin, end] : {std::pair{70, 100}, {0, 1}, {1, 60}, {60, 70}}) {
        pack(backend, rows.view().slice_rows(begin, end), begin, panel);
      }
      expect_same_bits(pieces, whole);
      Buffer back(DType::kF32, {25, 37});
      unpack(backend, panel, 50, back);
      Buffer all(DType::kF32, {100, 37});
      unpack(backend, panel, 0, all);
      for (int64_t i = 0; i < back.size(); ++i) ASSERT_EQ(back.get(i), all.get(50 * 37 + i));
    }
  }
}

// Large matrices are written past the caches.
TEST(Pack, LargeMatricesAreTheSame) {
  constexpr int64_t kRows = 2123, kCols = 1003;
  CpuBackend reference(CpuPath::kReference, 1);
  for (const DType from : {DType::kF32, DType::kBF16, DType::kF16}) {
    const Tensor rows(cpu_allocator(), from, {kRows, kCols});
    auto* bits = static_cast<uint16_t*>(rows.view().data);
    const Counter counter{.seed = 7, .stream = 1};
    for (int64_t i = 0; i < rows.view().num_bytes() / 2; ++i) {
      // Sign and exponent of finite values around one in each of the three types.
      bits[i] = static_cast<uint16_t>(counter.words(static_cast<uint64_t>(i))[0] & 0xbbff);
    }
    for (const DType to : {DType::kF32, DType::kBF16}) {
      const int64_t bytes = panel_matrix_bytes(to, kRows, kCols, 64);
      ASSERT_GT(bytes, 4 << 20);
      const Tensor want(cpu_allocator(), DType::kF32, {bytes / 4});
      PanelView panel{
          .data = want.view().data, .dtype = to, .rows = kRows, .cols = kCols, .width = 64};
      pack(reference, rows, 0, panel);
      for (const CpuPath path : supported_paths()) {
        SCOPED_TRACE(cpu_path_name(path));
        CpuBackend backend(path, 2);
        const Tensor got(cpu_allocator(), DType::kF32, {bytes / 4});
        panel.data = got.view().data;
        pack(backend, rows, 0, panel);
        EXPECT_EQ(std::memcmp(got.view().data, want.view().data, static_cast<size_t>(bytes)), 0)
            << dtype_name(from) << " to " << dtype_name(to);
      }
    }
  }
}

TEST(Pack, KeepsTheBitsOfItsOwnTypeAndRoundsToNearestEven) {
  for (const CpuPath path : supported_paths()) {
    CpuBackend backend(path, 1);
    const uint16_t bits[] = {0x7fc1, 0xff81, 0x7f80, 0xff80, 0x8000, 0x0001, 0x807f, 0x3f80};
    Tensor memory(cpu_allocator(), DType::kBF16, {panel_matrix_bytes(DType::kBF16, 1, 8, 16) / 2});
    const PanelView panel{
        .data = memory.view().data, .dtype = DType::kBF16, .rows = 1, .cols = 8, .width = 16};
    uint16_t back[8] = {};
    pack(backend, TensorView(const_cast<uint16_t*>(bits), DType::kBF16, {1, 8}), 0, panel);
    unpack(backend, panel, 0, TensorView(back, DType::kBF16, {1, 8}));
    for (int i = 0; i < 8; ++i) EXPECT_EQ(back[i], bits[i]) << i;
    // 1 + 2^-8 is a tie and goes to the even 1; 1 + 3 * 2^-8 goes up; the last is just above a tie.
    float values[] = {1.00390625f, 1.01171875f, 1.00390637f, -0.0f, 3.4e38f, 1e-40f, 2.0f, -1.5f};
    pack(backend, TensorView(values, DType::kF32, {1, 8}), 0, panel);
    unpack(backend, panel, 0, TensorView(back, DType::kBF16, {1, 8}));
    for (int i = 0; i < 8; ++i) EXPECT_EQ(back[i], to_bf16(values[i]).bits) << i;
    EXPECT_EQ(back[0], 0x3f80);
    EXPECT_EQ(back[1], 0x3f82);
    EXPECT_EQ(back[2], 0x3f81);
  }
}

// Many matrices, each whole: what pack gives one by one, with any number of workers.
TEST(Pack, AListIsItsPacks) {
  for (const CpuPath path : supported_paths()) {
    for (const int threads : {1, 3}) {
      CpuBackend backend(path, threads);
      std::vector<Buffer> rows, want, got;
      std::vector<PackItem> items;
      for (const Case& c : kCases) {
        const PanelView shape{.data = nullptr,
                              .dtype = DType::kBF16,
                              .rows = c.rows,
                              .cols = c.cols,
                              .width = c.width};
        rows.push_back(random_buffer(DType::kF32, {c.rows, c.cols}, {.seed = want.size()}));
        want.emplace_back(DType::kBF16, Shape{shape.num_bytes() / 2});
        got.emplace_back(DType::kBF16, Shape{shape.num_bytes() / 2});
      }
      for (size_t i = 0; i < rows.size(); ++i) {
        PanelView panel{.data = want[i].view().data,
                        .dtype = DType::kBF16,
                        .rows = kCases[i].rows,
                        .cols = kCases[i].cols,
                        .width = kCases[i].width};
        pack(backend, rows[i], 0, panel);
        panel.data = got[i].view().data;
        items.push_back({rows[i], panel});
      }
      pack_list(backend, items);
      for (size_t i = 0; i < rows.size(); ++i) expect_same_bits(got[i], want[i]);
    }
  }
}

}  // namespace
}  // namespace strata::ops
