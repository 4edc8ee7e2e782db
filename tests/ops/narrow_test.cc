// SPDX-License-Identifier: Apache-2.0
// Weights in few bits: their values against formulas in double, and every product against that of
// their bf16 copy, bit by bit.
#include "ops/cpu/narrow.h"

#include <string>

#include "ops/gemm.h"
#include "tests/ops/gemm_test.h"
#include "tests/ops/narrow_rows.h"
#include "tests/ops/op_test.h"

namespace strata::ops {
namespace {

using namespace testing;  // NOLINT: the helpers of this folder

// The columns that whole blocks of the form make of `cols`.
int64_t whole_blocks(NarrowForm form, int64_t cols) {
  return narrow_layout(form).has_super_blocks() ? (cols + 255) / 256 * 256 : cols;
}

// A random matrix as panels of its form, and its copy as panels of bf16.
struct Pair {
  NarrowMatrix matrix;
  Tensor narrow_memory, copy_memory;
  PanelView narrow, copy;

  Pair(Backend& backend, NarrowForm form, int64_t rows, int64_t cols, int64_t width, uint64_t seed)
      : matrix(form, rows, whole_blocks(form, cols), seed) {
    copy = {
        .data = nullptr, .dtype = DType::kBF16, .rows = rows, .cols = matrix.cols, .width = width};
    narrow = copy;
    narrow.form = form;
    narrow_memory = filled(narrow);
    copy_memory = filled(copy);
    narrow.data = narrow_memory.view().data;
    copy.data = copy_memory.view().data;
    pack_narrow_rows(backend, matrix.rows(), 0, narrow);
    Buffer values(DType::kBF16, {rows, matrix.cols});
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t k = 0; k < matrix.cols; ++k) {
        static_cast<Bf16*>(values.view().row(r))[k] = matrix.bf16(r, k);
      }
    }
    pack(backend, values, 0, copy);
  }

  // Memory whose padding counts.
  static Tensor filled(const PanelView& panel) {
    Tensor memory(cpu_allocator(), DType::kBF16, {panel.num_bytes() / 2 + 1});
    std::memset(memory.view().data, 0xff, static_cast<size_t>(panel.num_bytes()));
    return memory;
  }
};

std::string name(CpuPath path, NarrowForm form) {
  return std::string(cpu_path_name(path)) + " " + std::string(narrow_layout(form).name);
}

struct Shape2 {
  int64_t rows, cols;
};
constexpr Shape2 kShapes[] = {{64, 256}, {1, 32},  {17, 96},  {40, 352},
                              {65, 32},  {63, 64}, {130, 608}};

TEST(Narrow, PanelsHoldTheValuesOfTheirBf16Copy) {
  for (const CpuPath path : supported_paths()) {
    CpuBackend backend(path, 2);
    const int64_t width = ops::panel_width(backend);
    for (const NarrowForm form : narrow_form_list()) {
      for (const Shape2& shape : kShapes) {
        SCOPED_TRACE(name(path, form) + " " + std::to_string(shape.rows));
        const Pair w(backend, form, shape.rows, shape.cols, width, 1);
        const int64_t cols = w.matrix.cols;
        // Products take zeros for subnormals on this path, and so does what is unpacked for them.
        const bool flushes = path == CpuPath::kAvx512Bf16;
        std::vector<Bf16> panel(static_cast<size_t>(cols * width) + 32);
        auto* const data =
            reinterpret_cast<Bf16*>((reinterpret_cast<uintptr_t>(panel.data()) + 63) / 64 * 64);
        for (int64_t p = 0; p < w.copy.num_panels(); ++p) {
          // In two pieces, where there are two groups.
          const int64_t first = cols / 64 * 32;
          if (first > 0) cpu::unpack_narrow_columns(path, w.narrow, p, 0, first, data);
          cpu::unpack_narrow_columns(path, w.narrow, p, first, cols - first, data + first * width);
          const auto* want = static_cast<const Bf16*>(w.copy.panel(p));
          for (int64_t i = 0; i < cols * width; ++i) {
            const bool subnormal = (want[i].bits & 0x7f80) == 0;
            const uint16_t bits = flushes && subnormal ? want[i].bits & 0x8000 : want[i].bits;
            ASSERT_EQ(data[i].bits, bits) << "panel " << p << " element " << i;
          }
        }
        for (const DType out : {DType::kBF16, DType::kF32}) {
          Buffer back(out, {shape.rows, cols}, cols + 1);
          Buffer want(out, {shape.rows, cols}, cols + 1);
          unpack(backend, w.narrow, 0, back);
          unpack(backend, w.copy, 0, want);
          EXPECT_TRUE(back.intact());
          expect_same_bits(back, want);
          std::vector<int32_t> ids;
          for (int64_t t = 0; t < 9; ++t) ids.push_back(static_cast<int32_t>(t * 7 % shape.rows));
          Buffer some(out, {9, cols}), same(out, {9, cols});
          gather_rows(backend, w.narrow, ids, some);
          gather_rows(backend, w.copy, ids, same);
          expect_same_bits(some, same);
        }
      }
    }
  }
}

TEST(Narrow, RowsInPiecesAreRowsAtOnce) {
  CpuBackend backend(CpuPath::kReference, 2);
  for (const NarrowForm form : narrow_form_list()) {
    SCOPED_TRACE(narrow_layout(form).name);
    const Pair w(backend, form, 100, 64, ops::panel_width(backend), 2);
    const Tensor memory = Pair::filled(w.narrow);
    PanelView panel = w.narrow;
    panel.data = memory.view().data;
    for (const auto& [begin, end] : {std::pair{70, 100}, {0, 1}, {1, 60}, {60, 70}}) {
      pack_narrow_rows(backend, w.matrix.rows(begin, end), begin, panel);
    }
    EXPECT_EQ(std::memcmp(panel.data, w.narrow.data, static_cast<size_t>(panel.num_bytes())), 0);
  }
}

// Every finite f16 scale times every code: S is the scale, and so are S times 31 and a minimum.
TEST(Narrow, AllScalesTimesAllCodes) {
  for (const CpuPath path : supported_paths()) {
    CpuBackend backend(path, 2);
    const int64_t width = ops::panel_width(backend);
    for (const NarrowForm form : {NarrowForm::kQ4_0, NarrowForm::kIq4Nl, NarrowForm::kQ8_0}) {
      SCOPED_TRACE(name(path, form));
      constexpr int64_t kRows = 1 << 16;
      const int64_t cols = narrow_layout(form).bits == 8 ? 256 : 32;
      NarrowMatrix matrix(form, kRows, cols, 1);
      for (int64_t r = 0; r < kRows; ++r) {
        const bool finite = (r & 0x7c00) != 0x7c00;
        const auto half = static_cast<uint16_t>(finite ? r : 0);
        for (int64_t c = 0; c < cols; ++c) {
          matrix.row(r)[c] = static_cast<uint8_t>(narrow_layout(form).bits == 8 ? c : c % 16);
        }
        for (int64_t g = 0; g < cols / 32; ++g) std::memcpy(matrix.row(r) + cols + 2 * g, &half, 2);
      }
      PanelView panel = {.data = nullptr,
                         .dtype = DType::kBF16,
                         .rows = kRows,
                         .cols = cols,
                         .width = width,
                         .form = form};
      const Tensor memory = Pair::filled(panel);
      panel.data = memory.view().data;
      pack_narrow_rows(backend, matrix.rows(), 0, panel);
      std::vector<Bf16> room(static_cast<size_t>(cols * width) + 32);
      auto* const data =
          reinterpret_cast<Bf16*>((reinterpret_cast<uintptr_t>(room.data()) + 63) / 64 * 64);
      for (int64_t p = 0; p < panel.num_panels(); ++p) {
        cpu::unpack_narrow_columns(path, panel, p, 0, cols, data);
        for (int64_t lane = 0; lane < width; ++lane) {
          for (int64_t c = 0; c < cols; ++c) {
            const int64_t row = width * p + lane;
            ASSERT_EQ(data[narrow_element(lane, c, width)].bits, matrix.bf16(row, c).bits)
                << "scale " << row << " code " << c;
          }
        }
      }
    }
  }
}

// Rows of one tile, of several, and more than a block; K of less than a block and of several.
TEST(Narrow, ProductsAreThoseOfTheBf16Copy) {
  for (const CpuPath path : supported_paths()) {
    CpuBackend backend(path, 2);
    const int64_t width = ops::panel_width(backend);
    for (const NarrowForm form : narrow_form_list()) {
      for (const int64_t tokens : {1, 2, 3, 4, 5, 6, 7, 8, 33, 100}) {
        for (const auto& [outputs, cols] : {std::pair{200, 96}, {130, 1312}, {16, 2400}}) {
          if (path == CpuPath::kReference && tokens > 33) continue;
          SCOPED_TRACE(name(path, form) + " " + std::to_string(tokens) + " rows, K " +
                       std::to_string(cols));
          const Pair w(backend, form, outputs, cols, width, 3);
          const Buffer x = random_buffer(DType::kBF16, {tokens, w.matrix.cols}, {.seed = 4});
          const Buffer bias = random_buffer(DType::kF32, {outputs}, {.seed = 5});
          const Buffer add = random_buffer(DType::kBF16, {tokens, outputs}, {.seed = 6});
          const Buffer h = random_buffer(DType::kBF16, {tokens, 8}, {.seed = 7});
          const Weight b(backend, DType::kBF16, outputs, 8, width, 8);
          const LowRankSegment runs[] = {
              {.begin = tokens / 3, .end = tokens, .x = h, .w = b.panel}};
          GemmArgs args = {.x = x, .w = w.copy, .runs = runs, .bias = bias, .add = add};
          Buffer want(DType::kF32, {tokens, outputs}), got(DType::kF32, {tokens, outputs});
          gemm(backend, args, want);
          args.w = w.narrow;
          gemm(backend, args, got);
          expect_same_bits(got, want);
        }
      }
    }
  }
}

TEST(Narrow, ListsOfProductsAreThoseOfTheBf16Copies) {
  for (const CpuPath path : supported_paths()) {
    CpuBackend backend(path, 3);
    const int64_t width = ops::panel_width(backend);
    for (const NarrowForm form : {NarrowForm::kQ4_K, NarrowForm::kQ8_0, NarrowForm::kMxfp4,
                                  NarrowForm::kNf4, NarrowForm::kFp8}) {
      SCOPED_TRACE(name(path, form));
      const Pair w0(backend, form, 96, 2560, width, 1), w1(backend, form, 96, 2560, width, 2);
      const Buffer x = random_buffer(DType::kBF16, {40, 2560}, {.seed = 3});
      const Buffer dy = random_buffer(DType::kBF16, {40, 96}, {.seed = 4});
      Buffer want(DType::kBF16, {40, 96}), got(DType::kBF16, {40, 96});
      Buffer want_dx(DType::kF32, {40, 2560}), got_dx(DType::kF32, {40, 2560});
      const auto run = [&](const PanelView& a, const PanelView& b, Buffer& y, Buffer& dx) {
        const TensorView xs[] = {x.view().slice_rows(0, 3), x.view().slice_rows(3, 40)};
        const TensorView ys[] = {y.view().slice_rows(0, 3), y.view().slice_rows(3, 40)};
        const GemmArgs products[] = {{.x = xs[0], .w = a}, {.x = xs[1], .w = b}};
        gemm_list(backend, products, ys, 40);
        const TensorView dys[] = {dy.view().slice_rows(0, 3), dy.view().slice_rows(3, 40)};
        const TensorView dxs[] = {dx.view().slice_rows(0, 3), dx.view().slice_rows(3, 40)};
        const GemmArgs back[] = {{.x = dys[0], .w = a}, {.x = dys[1], .w = b}};
        gemm_dx_list(backend, back, dxs, false, 40);
      };
      run(w0.copy, w1.copy, want, want_dx);
      run(w0.narrow, w1.narrow, got, got_dx);
      expect_same_bits(got, want);
      expect_same_bits(got_dx, want_dx);
    }
  }
}

TEST(Narrow, InputGradientsAreThoseOfTheBf16Copy) {
  for (const CpuPath path : supported_paths()) {
    CpuBackend backend(path, 2);
    const int64_t width = ops::panel_width(backend);
    for (const NarrowForm form : narrow_form_list()) {
      for (const int64_t tokens : {1, 19, 70}) {
        for (const auto& [outputs, cols] : {std::pair{200, 96}, {131, 416}, {2200, 64}}) {
          SCOPED_TRACE(name(path, form) + " " + std::to_string(tokens) + " rows, N " +
                       std::to_string(outputs));
          const Pair w(backend, form, outputs, cols, width, 3);
          const Buffer dy = random_buffer(DType::kBF16, {tokens, outputs}, {.seed = 4});
          const Buffer d_h = random_buffer(DType::kBF16, {tokens, 8}, {.seed = 7});
          const Weight a(backend, DType::kBF16, 8, w.matrix.cols, width, 8);
          const LowRankSegment runs[] = {
              {.begin = tokens / 3, .end = tokens, .x = d_h, .w = a.panel}};
          GemmArgs args = {.x = dy, .w = w.copy, .runs = runs};
          Buffer want(DType::kF32, {tokens, w.matrix.cols});
          Buffer got(DType::kF32, {tokens, w.matrix.cols});
          gemm_dx_blocked_with_runs(backend, args, want);
          args.w = w.narrow;
          gemm_dx_blocked_with_runs(backend, args, got);
          expect_same_bits(got, want);
        }
      }
    }
  }
}

}  // namespace
}  // namespace strata::ops
