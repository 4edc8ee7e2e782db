// SPDX-License-Identifier: Apache-2.0
// gemm_dw on the CPU. The summed axis is the tokens. One operand becomes panels (its columns are
// the lanes of the chains), the other becomes rows; both step by one token (f32) or by a pair
// within a sequence (bf16). The lanes are K, and the chains are read and written in dw itself;
// where K is a rank (at most kNarrow) they are N, and the chains pass through a transposed buffer.
#include <algorithm>
#include <cstring>

#include "ops/cpu/cpu_backend.h"
#include "ops/cpu/gemm.h"
#include "ops/cpu/tiles.h"

namespace strata::ops::cpu {
namespace {

constexpr int64_t kNarrow = 64;

// The rows of consecutive steps.
struct Steps {
  int32_t* first;
  uint8_t* rows;
  int64_t count = 0;

  // Takes up to kGradientSteps steps from `row`, which is in sequence `sequence`; advances both. A
  // sequence ends a group, which is filled up with steps of no rows.
  void collect_next_rows(std::span<const int64_t> ends, const GemmKernels& kernels, int64_t& row,
                         size_t& sequence) {
    count = 0;
    while (count < kGradientSteps && sequence < ends.size()) {
      const int64_t left = ends[sequence] - row;
      if (left <= 0 && count % kernels.group == 0) {
        ++sequence;
        continue;
      }
      first[count] = static_cast<int32_t>(left > 0 ? row : row - 1);
      rows[count] = static_cast<uint8_t>(std::clamp<int64_t>(left, 0, kernels.pair));
      row += rows[count];
      ++count;
    }
  }
};

static_assert(kGradientSteps % kGroupSteps == 0);

struct WeightGradient {
  static constexpr int64_t kStrip = 16 * 2 * kGradientSteps;  // elements of packed rows

  const GemmKernels& kernels;
  TensorView lanes;  // [T, L]
  TensorView rows;   // [T, S]
  TensorView dw;     // [S, L], or [L, S] where transposed
  bool transposed;

  [[nodiscard]] StepArgs step_args(const TensorView& x, int64_t col, int64_t cols,
                                   const Steps& steps) const {
    return {.x = address(x, 0, col),
            .x_stride = x.row_stride,
            .first = steps.first,
            .rows = steps.rows,
            .steps = steps.count,
            .cols = cols,
            .dst = nullptr,
            .dst_stride = 0};
  }

  // Moves the chains [row, lane] of dw to a [rows, width] buffer, or back.
  void load_chains(Range row, Range lane, float* chains, int64_t width) const {
    if (transposed) {
      kernels.transpose_f32({.src = at(lane.begin, row.begin),
                             .src_stride = dw.row_stride,
                             .rows = lane.size(),
                             .cols = row.size(),
                             .dst = chains,
                             .dst_stride = width});
      return;
    }
    for (int64_t r = 0; r < row.size(); ++r) {
      std::memcpy(chains + r * width, at(row.begin + r, lane.begin),
                  static_cast<size_t>(lane.size()) * sizeof(float));
    }
  }
  void store_chains(Range row, Range lane, const float* chains, int64_t width) const {
    if (transposed) {
      kernels.transpose_f32({.src = chains,
                             .src_stride = width,
                             .rows = row.size(),
                             .cols = lane.size(),
                             .dst = at(lane.begin, row.begin),
                             .dst_stride = dw.row_stride});
      return;
    }
    for (int64_t r = 0; r < row.size(); ++r) {
      std::memcpy(at(row.begin + r, lane.begin), chains + r * width,
                  static_cast<size_t>(lane.size()) * sizeof(float));
    }
  }
  [[nodiscard]] float* at(int64_t row, int64_t col) const {
    return reinterpret_cast<float*>(address(dw, row, col));
  }

  // Chains of columns `row` of the row operand, prepared in step_rows, and of the lanes of one
  // panel. kNarrow rows at a time where the chains have to pass through a buffer.
  void accumulate_panel(Range lane, Range row, const char* step_rows, int64_t row_origin,
                        const Steps& steps, const char* panel_data) const {
    alignas(64) float buffer[kNarrow * kMaxWidth];
    const int64_t width = tile_width(lane.size());
    // Sums that lie a matrix' row apart share a set of L1: tiles do better with a buffer.
    if (!transposed && lane.size() == width && kernels.pack_rows == nullptr) {
      return accumulate_tiles(row, step_rows, row_origin, steps, panel_data, width,
                              at(row.begin, lane.begin), dw.row_stride);
    }
    for (int64_t begin = row.begin; begin < row.end; begin += kNarrow) {
      const Range part = {begin, std::min(begin + kNarrow, row.end)};
      load_chains(part, lane, buffer, width);
      accumulate_tiles(part, step_rows, row_origin, steps, panel_data, width, buffer, width);
      store_chains(part, lane, buffer, width);
    }
  }

  // Lays out the steps of columns `cols`, which begin a strip, in tiles of sixteen columns and a
  // group of steps, for kernels that take packed rows.
  void pack_rows_as_tiles(Range block, Range cols, const Steps& steps, char* step_rows) const {
    for (int64_t col = cols.begin; col < cols.end; col += 16) {
      for (int64_t step = 0; step < steps.count; step += kGroupSteps) {
        StepArgs args = step_args(rows, block.begin + col, std::min<int64_t>(16, cols.end - col),
                                  {steps.first + step, steps.rows + step, kGroupSteps});
        args.dst_stride = 2 * kGroupSteps;
        args.dst = step_rows + (col / 16 * kStrip + step * 32) * 2;
        kernels.pack_tokens_as_rows(args);
      }
    }
  }

  // Lays out the steps of columns `cols`, counted from the start of a block of rows, in step_rows.
  void pack_rows(Range block, Range cols, const Steps& steps, char* step_rows) const {
    if (kernels.pack_rows != nullptr) return pack_rows_as_tiles(block, cols, steps, step_rows);
    StepArgs args = step_args(rows, block.begin + cols.begin, cols.size(), steps);
    args.dst_stride = kGradientSteps * kernels.pair;
    args.dst = step_rows + cols.begin * args.dst_stride * dtype_bytes(rows.dtype);
    kernels.pack_tokens_as_rows(args);
  }

  // Lays out the steps of the lanes of one panel.
  void pack_panel(Range lane, const Steps& steps, char* panel_data) const {
    StepArgs args = step_args(lanes, lane.begin, lane.size(), steps);
    args.dst = panel_data;
    args.dst_stride = tile_width(lane.size());
    kernels.pack_tokens_as_panel(args);
  }

  // Those of the tiles of a block that a worker's part of the grid has.
  [[nodiscard]] static Range rows_of_part(const Grid& grid, int64_t part, Range block,
                                          int64_t tile_rows) {
    const Range tiles =
        part_of(ceil_div(block.size(), tile_rows), part / grid.col_parts, grid.row_parts);
    return {block.begin + tiles.begin * tile_rows,
            std::min(block.begin + tiles.end * tile_rows, block.end)};
  }

  // A worker's part of the grid of panels and tiles of a block of rows, whose steps are prepared in
  // step_rows; `panel_data` is the worker's own.
  void accumulate_part(const Grid& grid, int64_t part, Range block, int64_t tile_rows,
                       const char* step_rows, const Steps& steps, char* panel_data) const {
    const int64_t num_lanes = lanes.cols();
    const Range mine =
        part_of(ceil_div(num_lanes, kMaxWidth), part % grid.col_parts, grid.col_parts);
    const Range row = rows_of_part(grid, part, block, tile_rows);
    for (int64_t p = mine.begin; p < mine.end; ++p) {
      const Range lane = {p * kMaxWidth, std::min((p + 1) * kMaxWidth, num_lanes)};
      pack_panel(lane, steps, panel_data);
      accumulate_panel(lane, row, step_rows, block.begin, steps, panel_data);
    }
  }

  static void prefetch_chains(Range rows, int64_t width, const float* chains, int64_t stride) {
    for (int64_t r = rows.begin; r < rows.end; ++r) {
      for (int64_t i = 0; i < width; i += 16) __builtin_prefetch(chains + r * stride + i, 1);
    }
  }

  // chains [row, width] continue.
  void accumulate_tiles(Range row, const char* step_rows, int64_t row_origin, const Steps& steps,
                        const char* panel_data, int64_t width, float* chains,
                        int64_t chains_stride) const {
    if (kernels.pack_rows != nullptr) {
      return kernels.accumulate({.panel = panel_data,
                                 .width = width,
                                 .x = step_rows + (row.begin - row_origin) / 16 * kStrip * 2,
                                 .x_stride = kStrip,
                                 .x_is_packed = true,
                                 .rows = row.size(),
                                 .cols = steps.count * kernels.pair,
                                 .acc = chains,
                                 .acc_stride = chains_stride,
                                 .start_at_zero = false});
    }
    const int64_t stride = kGradientSteps * kernels.pair;
    const int64_t groups = ceil_div(row.size(), max_rows(kernels, width));
    for (int64_t g = 0; g < groups; ++g) {
      const Range part = part_of(row.size(), g, groups);
      prefetch_chains(part_of(row.size(), std::min(g + 1, groups - 1), groups), width, chains,
                      chains_stride);
      kernels.accumulate({.panel = panel_data,
                          .width = width,
                          .x = step_rows + (row.begin + part.begin - row_origin) * stride *
                                               dtype_bytes(rows.dtype),
                          .x_stride = stride,
                          .rows = part.size(),
                          .cols = steps.count * kernels.pair,
                          .acc = chains + part.begin * chains_stride,
                          .acc_stride = chains_stride,
                          .start_at_zero = false});
    }
  }
};

// How a gradient divides among workers.
struct WorkSplit {
  int64_t block_rows;
  int64_t tile_rows;
  Grid grid;

  WorkSplit(const WeightGradient& gradient, int64_t threads) {
    const int64_t num_lanes = gradient.lanes.cols();
    block_rows = std::min(gradient.rows.cols(), kGradientRows);
    tile_rows = max_rows(gradient.kernels, tile_width(std::min(num_lanes, kMaxWidth)));
    grid = split_grid(threads, ceil_div(num_lanes, kMaxWidth), ceil_div(block_rows, tile_rows));
  }
  [[nodiscard]] int64_t num_parts() const { return grid.col_parts * grid.row_parts; }
};

// Memory of a call.
struct Workspace {
  Steps steps;
  char* step_rows;  // a block of rows, laid out by pack_rows
  char* panels;     // of the workers, one each
  int64_t panel_bytes;
};

Workspace take_workspace(Scratch& scratch, const WeightGradient& gradient,
                         const WorkSplit& shares) {
  Workspace work{};
  work.steps = {.first = static_cast<int32_t*>(scratch.take(kGradientSteps * 4)),
                .rows = static_cast<uint8_t*>(scratch.take(kGradientSteps))};
  const int64_t lane_bytes =
      kGradientSteps * gradient.kernels.pair * dtype_bytes(gradient.rows.dtype);
  work.step_rows =
      static_cast<char*>(scratch.take(ceil_div(shares.block_rows, 16) * 16 * lane_bytes));
  work.panel_bytes = lane_bytes * kMaxWidth;
  work.panels = static_cast<char*>(scratch.take(work.panel_bytes * shares.num_parts()));
  return work;
}

// What the steps add to a block of rows of dw.
void accumulate_block(ThreadPool& pool, const WeightGradient& gradient, const WorkSplit& shares,
                      Range block, const Workspace& work) {
  constexpr int64_t kColumns = 16;  // that a worker takes at a time
  pool.run(ceil_div(block.size(), kColumns), [&](int64_t begin, int64_t end, int) {
    gradient.pack_rows(block, {begin * kColumns, std::min(end * kColumns, block.size())},
                       work.steps, work.step_rows);
  });
  pool.run(shares.num_parts(), [&](int64_t begin, int64_t end, int) {
    const TileRegion region;
    for (int64_t part = begin; part < end; ++part) {
      gradient.accumulate_part(shares.grid, part, block, shares.tile_rows, work.step_rows,
                               work.steps, work.panels + part * work.panel_bytes);
    }
  });
}

}  // namespace

void gemm_dw(CpuBackend& backend, TensorView dy, TensorView x,
             std::span<const int64_t> sequence_ends, TensorView dw) {
  const HostAccess access(backend.allocator());
  const GemmKernels& kernels = choose_gemm_kernels(backend.path(), x.dtype);
  const bool transposed = x.cols() <= kNarrow && dy.cols() > x.cols();
  const WeightGradient gradient{kernels, transposed ? dy : x, transposed ? x : dy, dw, transposed};
  const int64_t num_rows = gradient.rows.cols();
  const WorkSplit shares(gradient, backend.pool().num_threads());
  const Scratch::Mark mark(backend.scratch());
  Workspace work = take_workspace(backend.scratch(), gradient, shares);
  if (backend.is_counting()) return;
  int64_t token = 0;
  size_t sequence = 0;
  while (true) {
    work.steps.collect_next_rows(sequence_ends, kernels, token, sequence);
    if (work.steps.count == 0) break;
    for (int64_t origin = 0; origin < num_rows; origin += kGradientRows) {
      const Range block = {origin, std::min(origin + kGradientRows, num_rows)};
      accumulate_block(backend.pool(), gradient, shares, block, work);
    }
  }
}

}  // namespace strata::ops::cpu
