// gemm_dx on the CPU. The summed axis is the panels' lanes, so tiles of the forward panels are
// transposed on the fly: for 64 outputs (columns of W), up to kLaneBlock lanes are laid out as one
// panel whose summed axis is the lanes, and the rows of a block pass over it with the kernels of
// the forward product. Their chains wait in fp32 between blocks of lanes.
#include <algorithm>
#include <cstring>

#include "ops/cpu/gemm.h"

namespace strata::ops::cpu {
namespace {

constexpr int64_t kRowBlock = 1056;   // chains of a block: 264 KiB
constexpr int64_t kLaneBlock = 1024;  // transposed panel in bf16: 128 KiB
constexpr int64_t kOutputs = kMaxWidth;

struct Backward {
  const GemmKernels& kernels;
  const GemmArgs& args;
  TensorView dx;
  bool accumulate;
  float* chains;  // [kRowBlock, width] of this worker
  char* panel;    // [kLaneBlock, width] of this worker

  // Continues the chains of `rows` (a block that starts at `origin`) with x[rows] w[:, columns].
  void add_product(const TensorView& x, const PanelView& w, Range rows, int64_t origin,
                   Range columns, bool start_at_zero) const {
    const int64_t width = tile_width(columns.size());
    const int64_t lane_bytes = width * dtype_bytes(w.dtype);
    const int64_t block_panels = std::max<int64_t>(kLaneBlock / w.width, 1);
    const int64_t tile_rows = max_rows(kernels, width);
    const int64_t groups = ceil_div(rows.size(), tile_rows);
    const int64_t stored = std::min(columns.begin + width, w.padded_cols()) - columns.begin;
    for (int64_t first = 0; first < w.num_panels(); first += block_panels) {
      const int64_t last = std::min(first + block_panels, w.num_panels());
      for (int64_t p = first; p < last; ++p) {
        kernels.transpose({.panel = w.panel(p),
                           .width = w.width,
                           .col_begin = columns.begin,
                           .cols = stored,
                           .dst = panel + (p - first) * w.width * lane_bytes,
                           .dst_width = width});
      }
      const int64_t lane = first * w.width;
      for (int64_t g = 0; g < groups; ++g) {
        const Range part = part_of(rows.size(), g, groups);
        kernels.accumulate({.panel = panel,
                            .width = width,
                            .x = address(x, rows.begin + part.begin, lane),
                            .x_stride = x.row_stride,
                            .rows = part.size(),
                            .cols = std::min(last * w.width, w.rows) - lane,
                            .acc = chains + (rows.begin - origin + part.begin) * width,
                            .acc_stride = width,
                            .start_at_zero = start_at_zero && first == 0,
                            .prefetch = nullptr,
                            .prefetch_lines = 0});
      }
    }
  }

  void load_chains(Range rows, Range columns, int64_t width) const {
    for (int64_t row = rows.begin; row < rows.end; ++row) {
      std::memcpy(chains + (row - rows.begin) * width, address(dx, row, columns.begin),
                  static_cast<size_t>(columns.size()) * sizeof(float));
    }
  }

  // Columns [columns.begin, columns.end) of the rows of one block.
  void block(Range rows, Range columns) const {
    const int64_t width = tile_width(columns.size());
    if (accumulate) load_chains(rows, columns, width);
    add_product(args.x, args.w, rows, rows.begin, columns, !accumulate);
    for (const LowRankRun& run : args.runs) {
      const Range part = {std::max(run.begin, rows.begin), std::min(run.end, rows.end)};
      if (part.begin < part.end) add_product(run.x, run.w, part, rows.begin, columns, false);
    }
    kernels.finish({.acc = chains,
                    .acc_stride = width,
                    .rows = rows.size(),
                    .cols = columns.size(),
                    .scale = args.scale,
                    .bias = nullptr,
                    .add = nullptr,
                    .add_stride = 0,
                    .add_is_bf16 = false,
                    .y = address(dx, rows.begin, columns.begin),
                    .y_stride = dx.row_stride,
                    .y_is_bf16 = dx.dtype == DType::kBF16});
  }
};

}  // namespace

void gemm_dx(Backend& backend, const GemmArgs& args, TensorView dx, bool accumulate) {
  const GemmKernels& kernels = gemm_kernels(backend.path(), args.w.dtype);
  const int64_t num_rows = dx.rows();
  const int64_t tile_rows = max_rows(kernels, tile_width(std::min(args.w.cols, kOutputs)));
  const int64_t num_tiles = ceil_div(num_rows, tile_rows);
  const int64_t num_blocks = ceil_div(args.w.cols, kOutputs);
  ThreadPool& pool = backend.pool();
  const Grid grid = split_grid(pool.num_threads(), num_blocks, num_tiles);
  const int64_t num_parts = grid.col_parts * grid.row_parts;

  const Scratch::Mark mark(backend.scratch());
  const int64_t chains_bytes = std::min(num_rows, kRowBlock) * kOutputs * 4;
  const int64_t panel_bytes = kLaneBlock * kOutputs * dtype_bytes(args.w.dtype);
  char* memory =
      static_cast<char*>(backend.scratch().take(num_parts * (chains_bytes + panel_bytes)));
  pool.run(num_parts, [&](int64_t begin, int64_t end, int) {
    for (int64_t part = begin; part < end; ++part) {
      char* own = memory + part * (chains_bytes + panel_bytes);
      const Backward backward{
          kernels, args, dx, accumulate, reinterpret_cast<float*>(own), own + chains_bytes};
      const Range blocks = part_of(num_blocks, part % grid.col_parts, grid.col_parts);
      const Range tiles = part_of(num_tiles, part / grid.col_parts, grid.row_parts);
      const int64_t row_end = std::min(tiles.end * tile_rows, num_rows);
      for (int64_t row = tiles.begin * tile_rows; row < row_end; row += kRowBlock) {
        const Range rows = {row, std::min(row + kRowBlock, row_end)};
        for (int64_t b = blocks.begin; b < blocks.end; ++b) {
          backward.block(rows, {b * kOutputs, std::min((b + 1) * kOutputs, args.w.cols)});
        }
      }
    }
  });
}

}  // namespace strata::ops::cpu
