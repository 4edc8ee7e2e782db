// SPDX-License-Identifier: Apache-2.0
// gemm on the CPU. A worker owns some panels (and, where there are fewer panels than workers, some
// rows). A panel stays in L2 while the rows of a block pass over it in tiles; a tile's chains live
// in registers for all of K, then pass through a small buffer to the low-rank terms of their rows
// and to the epilogue, exactly, in fp32.
#include "ops/cpu/gemm.h"

#include <algorithm>

#include "ops/cpu/cpu_backend.h"
#include "ops/cpu/narrow.h"
#include "ops/cpu/tiles.h"

namespace strata::ops::cpu {
namespace {

constexpr int64_t kLine = 64;

// A panel longer than this is summed in blocks, the chains stored between. With one tile there is
// nothing to gain; with many, the block has to stay in L2; with few, the product is bound by memory
// and short blocks let all tiles of a block take part in fetching the next one.
int64_t block_bytes(int64_t groups) {
  if (groups == 1) return INT64_MAX;
  return groups <= 12 ? 64 << 10 : 512 << 10;
}

struct Forward {
  CpuPath path;
  const GemmKernels& kernels;
  const GemmArgs& args;
  TensorView y;
  int64_t tile_rows;
  int64_t k_blocks;

  // Continues the chains of rows [begin, end), whose tile starts at `begin`, with their runs.
  void add_low_rank_terms(int64_t panel, Range rows, size_t first_run, float* acc) const {
    const int64_t width = args.w.width;
    for (size_t r = first_run; r < args.runs.size() && args.runs[r].begin < rows.end; ++r) {
      const LowRankSegment& run = args.runs[r];
      const int64_t begin = std::max(run.begin, rows.begin);
      const int64_t end = std::min(run.end, rows.end);
      if (begin >= end) continue;
      const bool more = panel + 1 < run.w.num_panels();
      kernels.accumulate({.panel = run.w.panel(panel),
                          .width = width,
                          .x = run.x.row(begin),
                          .x_stride = run.x.row_stride,
                          .rows = end - begin,
                          .cols = run.w.cols,
                          .acc = acc + (begin - rows.begin) * width,
                          .acc_stride = width,
                          .start_at_zero = false,
                          .prefetch = more ? run.w.panel(panel + 1) : nullptr,
                          .prefetch_lines = more ? 4 : 0});
    }
  }

  void apply_epilogue(int64_t panel, Range rows, const float* acc) const {
    const int64_t width = args.w.width;
    const int64_t col = panel * width;
    const bool add = !args.add.empty();
    kernels.apply_epilogue({.acc = acc,
                            .acc_stride = width,
                            .rows = rows.size(),
                            .cols = std::min(width, args.w.rows - col),
                            .scale = args.scale,
                            .bias = args.bias.empty() ? nullptr : args.bias.f32() + col,
                            .add = add ? address(args.add, rows.begin, col) : nullptr,
                            .add_stride = args.add.row_stride,
                            .add_is_bf16 = args.add.dtype == DType::kBF16,
                            .y = address(y, rows.begin, col),
                            .y_stride = y.row_stride,
                            .y_is_bf16 = y.dtype == DType::kBF16});
  }

  // How many tiles the rows of a block are in, all nearly as tall.
  [[nodiscard]] int64_t num_tiles(Range rows) const { return ceil_div(rows.size(), tile_rows); }
  [[nodiscard]] Range rows_of_tile(Range rows, int64_t tile) const {
    const Range part = part_of(rows.size(), tile, num_tiles(rows));
    return {rows.begin + part.begin, rows.begin + part.end};
  }

  struct Prefetch {
    const void* data = nullptr;
    int lines = 0;
  };

  // Continues the chains of a tile with columns `cols`, which `panel` has.
  void accumulate_tile(const void* panel, Range rows, Range cols, Prefetch ahead,
                       float* acc) const {
    kernels.accumulate({.panel = panel,
                        .width = args.w.width,
                        .x = address(args.x, rows.begin, cols.begin),
                        .x_stride = args.x.row_stride,
                        .rows = rows.size(),
                        .cols = cols.size(),
                        .acc = acc,
                        .acc_stride = args.w.width,
                        .start_at_zero = cols.begin == 0,
                        .prefetch = ahead.data,
                        .prefetch_lines = ahead.lines,
                        .reads_on = !args.w.is_narrow()});
  }

  void finish_tile(int64_t panel, Range rows, size_t first_run, float* acc) const {
    add_low_rank_terms(panel, rows, first_run, acc);
    apply_epilogue(panel, rows, acc);
  }

  // Where the chains of a tile's rows are: in `chains`, which has those of all `rows`, or in
  // `tile`.
  [[nodiscard]] float* chains_of_tile(Range rows, Range part, float* chains, float* tile) const {
    return chains == nullptr ? tile : chains + (part.begin - rows.begin) * args.w.width;
  }

  // A block of K of one panel.
  struct PanelBlock {
    const char* data;
    int64_t bytes;
    int64_t step_bytes;
    Range cols;
    bool is_last;
  };

  [[nodiscard]] PanelBlock block_of_panel(int64_t index, int64_t block) const {
    const int64_t step_bytes = args.w.width * kernels.pair * dtype_bytes(args.w.dtype);
    const int64_t steps = args.w.padded_cols() / kernels.pair;
    const Range groups = part_of(ceil_div(steps, kernels.group), block, k_blocks);
    const Range step = {groups.begin * kernels.group, std::min(groups.end * kernels.group, steps)};
    return {.data = static_cast<const char*>(args.w.panel(index)) + step.begin * step_bytes,
            .bytes = step.size() * step_bytes,
            .step_bytes = step_bytes,
            .cols = {step.begin * kernels.pair, std::min(step.end * kernels.pair, args.w.cols)},
            .is_last = block + 1 == k_blocks};
  }

  // One panel over the rows of a block. `chains` holds the block's chains between blocks of K, and
  // is null where K is one block.
  void multiply_panel(int64_t index, Range rows, size_t first_run, bool last_panel,
                      float* chains) const {
    alignas(64) float tile[kMaxTileRows * kMaxWidth];
    const int64_t tiles = num_tiles(rows);
    for (int64_t b = 0; b < k_blocks; ++b) {
      const PanelBlock block = block_of_panel(index, b);
      for (int64_t t = 0; t < tiles; ++t) {
        const Range part = rows_of_tile(rows, t);
        float* acc = chains_of_tile(rows, part, chains, tile);
        if (block.is_last) {
          const Range next = rows_of_tile(rows, std::min(t + 1, tiles - 1));
          prefetch_outputs_and_next_rows(index, part, next, block.cols.begin);
        }
        const Prefetch ahead = plan_prefetch(block, t, tiles, last_panel && block.is_last);
        accumulate_tile(block.data, part, block.cols, ahead, acc);
        if (block.is_last) finish_tile(index, part, first_run, acc);
      }
    }
  }

  // The same of a panel in few bits: block by block it is unpacked, and then is one of bf16.
  void multiply_narrow_panel(int64_t index, Range rows, size_t first_run, float* chains) const {
    alignas(64) float tile[kMaxTileRows * kMaxWidth];
    const int64_t tiles = num_tiles(rows);
    if (tiles == 1 && try_accumulate_narrow_tile(index, rows, tile)) {
      return finish_tile(index, rows, first_run, tile);
    }
    NarrowScratch scratch;  // not initialised
    const int64_t block =
        narrow_columns(tiles == 1 ? kNarrowTileBytes : kNarrowBlockBytes, args.w.width);
    for (int64_t col = 0; col < args.w.cols; col += block) {
      const Range cols = {col, std::min(col + block, args.w.cols)};
      unpack_narrow_columns(path, args.w, index, col, cols.size(), scratch.bytes);
      for (int64_t t = 0; t < tiles; ++t) {
        const Range part = rows_of_tile(rows, t);
        float* acc = chains_of_tile(rows, part, chains, tile);
        accumulate_tile(scratch.bytes, part, cols, {}, acc);
        if (cols.end == args.w.cols) finish_tile(index, part, first_run, acc);
      }
    }
  }

  // Continues the chains of all `rows`, which are packed, with columns `cols` of a panel.
  void accumulate_packed(const void* panel, Range rows, const char* packed, Range cols,
                         float* chains) const {
    kernels.accumulate({.panel = panel,
                        .width = args.w.width,
                        .x = packed + cols.begin / 32 * 1024,
                        .x_stride = packed_strip(args.w.cols),
                        .x_is_packed = true,
                        .rows = rows.size(),
                        .cols = cols.size(),
                        .acc = chains,
                        .acc_stride = args.w.width,
                        .start_at_zero = cols.begin == 0,
                        .reads_on = !args.w.is_narrow()});
  }

  // A slice of the columns of a panel, which may be in few bits.
  void accumulate_slice(int64_t index, Range rows, const char* packed, Range slice,
                        float* chains) const {
    if (!args.w.is_narrow()) {
      const char* panel = static_cast<const char*>(args.w.panel(index));
      const int64_t begin = slice.begin * args.w.width * dtype_bytes(args.w.dtype);
      return accumulate_packed(panel + begin, rows, packed, slice, chains);
    }
    NarrowScratch scratch;  // not initialised
    const int64_t block = narrow_columns(kNarrowBlockBytes, args.w.width);
    for (int64_t col = slice.begin; col < slice.end; col += block) {
      const Range cols = {col, std::min(col + block, slice.end)};
      unpack_narrow_columns(path, args.w, index, col, cols.size(), scratch.bytes);
      accumulate_packed(scratch.bytes, rows, packed, cols, chains);
    }
  }

  // Low-rank terms and outputs of a panel whose chains are complete.
  void finish_packed_panel(int64_t index, Range rows, size_t first_run, float* chains) const {
    add_low_rank_terms(index, rows, first_run, chains);
    const int64_t tiles = num_tiles(rows);
    for (int64_t t = 0; t < tiles; ++t) {
      const Range next = rows_of_tile(rows, std::min(t + 1, tiles - 1));
      prefetch_outputs_and_next_rows(index, next, {}, 0);
      const Range part = rows_of_tile(rows, t);
      apply_epilogue(index, part, chains + (part.begin - rows.begin) * args.w.width);
    }
  }

  // At most kSlicePanels panels over rows that are packed.
  void multiply_packed_panels(Range panels, Range rows, const char* packed, size_t first_run,
                              float* chains) const {
    const int64_t chains_each = rows.size() * args.w.width;
    for (int64_t col = 0; col < args.w.cols; col += kSliceColumns) {
      const Range slice = {col, std::min(col + kSliceColumns, args.w.cols)};
      for (int64_t p = panels.begin; p < panels.end; ++p) {
        float* own = chains + (p - panels.begin) * chains_each;
        accumulate_slice(p, rows, packed, slice, own);
        if (slice.end == args.w.cols) finish_packed_panel(p, rows, first_run, own);
      }
    }
  }

  void multiply_panels(Range panels, Range rows, size_t first_run, float* chains) const {
    for (int64_t p = panels.begin; p < panels.end; ++p) {
      if (args.w.is_narrow()) {
        multiply_narrow_panel(p, rows, first_run, chains);
      } else {
        multiply_panel(p, rows, first_run, p + 1 == panels.end, chains);
      }
    }
  }

  // All columns of a panel in few bits, straight from its codes, where the path has a kernel for so
  // few rows; else false.
  bool try_accumulate_narrow_tile(int64_t index, Range rows, float* acc) const {
    return try_accumulate_narrow_panel(path, args.w, index,
                                       {.width = args.w.width,
                                        .x = address(args.x, rows.begin, 0),
                                        .x_stride = args.x.row_stride,
                                        .rows = rows.size(),
                                        .acc = acc,
                                        .acc_stride = args.w.width,
                                        .start_at_zero = true});
  }

  // The first tiles over a block share the work of fetching the next block, which follows in
  // memory, as evenly as whole lines allow: of the four lines of a step two tiles take 2 + 2, three
  // 2 + 1 + 1, more 1 + 1 + 1 + 1. One tile alone streams, which the hardware foresees.
  static Prefetch plan_prefetch(const PanelBlock& block, int64_t tile, int64_t tiles, bool last) {
    if (tiles == 1 || last || block.step_bytes != 4 * kLine) return {};
    if (tile >= 4) return {};
    const int64_t quarter = tiles >= 4 ? tile : tiles == 2 || tile == 0 ? 2 * tile : tile + 1;
    const int lines = tiles == 2 || (tiles == 3 && tile == 0) ? 2 : 1;
    return {block.data + block.bytes + quarter * (block.bytes / 4), lines};
  }

  // Lines that a tile will need when its sums are done: where it writes, what is added, and the
  // first line of the next tile's rows.
  void prefetch_outputs_and_next_rows(int64_t panel, Range rows, Range next, int64_t k) const {
    const int64_t begin = panel * args.w.width;
    const int64_t end = std::min(begin + args.w.width, args.w.rows);
    for (int64_t row = rows.begin; row < rows.end; ++row) {
      prefetch_lines(address(y, row, begin), address(y, row, end));
      if (!args.add.empty()) {
        prefetch_lines(address(args.add, row, begin), address(args.add, row, end));
      }
    }
    for (int64_t row = next.begin; row < next.end; ++row) {
      __builtin_prefetch(address(args.x, row, k));
    }
  }

  static void prefetch_lines(const char* begin, const char* end) {
    for (; begin < end; begin += kLine) __builtin_prefetch(begin, 1);
  }
};

// How a product divides among workers.
struct WorkSplit {
  CpuPath path;
  const GemmKernels& kernels;
  const GemmArgs& args;
  int64_t tile_rows, num_tiles, k_blocks;
  Grid grid;

  WorkSplit(CpuPath of, int64_t threads, const GemmArgs& product)
      : path(of), kernels(choose_gemm_kernels(of, product.w.dtype)), args(product) {
    const int64_t panel_bytes = args.w.panel_elements() * dtype_bytes(args.w.dtype);
    tile_rows = max_rows(kernels, args.w.width);
    num_tiles = ceil_div(args.x.rows(), tile_rows);
    // One tile takes the blocks of a panel in few bits in turn, and keeps its chains.
    const int64_t most =
        args.w.is_narrow() && num_tiles > 1 ? kNarrowBlockBytes : block_bytes(num_tiles);
    k_blocks = ceil_div(panel_bytes, std::min(panel_bytes, most));
    grid = split_grid(threads, args.w.num_panels(), num_tiles);
  }

  [[nodiscard]] int64_t num_parts() const { return grid.col_parts * grid.row_parts; }
  // What one worker takes: chains that wait between blocks of K, or those of some panels and rows
  // that are packed.
  [[nodiscard]] int64_t memory_bytes(bool shares_packed_rows) const {
    const int64_t rows = args.x.rows();
    return std::max(k_blocks == 1 ? 0 : chains_bytes(args.w, rows),
                    packing_bytes(kernels, args.w, rows, shares_packed_rows));
  }
  static int64_t chains_bytes(const PanelView& w, int64_t rows) {
    return std::min(rows, kProductRows) * w.width * 4;
  }
  // Panels whose chains wait at once: one where a slice has all columns.
  static int64_t slice_panels(const PanelView& w) {
    return w.cols <= kSliceColumns ? 1 : std::min(kSlicePanels, w.num_panels());
  }
  static int64_t packing_bytes(const GemmKernels& kernels, const PanelView& w, int64_t rows,
                               bool shares_packed_rows) {
    if (kernels.pack_rows == nullptr || rows < kFewestPackedRows) return 0;
    const int64_t block = std::min(rows, packed_rows(w.cols));
    return slice_panels(w) * block * w.width * 4 +
           (shares_packed_rows ? 0 : packed_bytes(block, w.cols));
  }

  // `packed`: all rows, or null.
  void multiply_part(int64_t part, const TensorView& y, const char* packed, char* memory) const {
    const Forward forward{path, kernels, args, y, tile_rows, k_blocks};
    const Range panels = part_of(args.w.num_panels(), part % grid.col_parts, grid.col_parts);
    const Range tiles = part_of(num_tiles, part / grid.col_parts, grid.row_parts);
    const Range rows = {tiles.begin * tile_rows, std::min(tiles.end * tile_rows, args.x.rows())};
    const bool packs = kernels.pack_rows != nullptr && rows.size() >= kFewestPackedRows;
    const int64_t most = packs ? packed_rows(args.w.cols) : kProductRows;
    size_t run = 0;
    for (int64_t row = rows.begin; row < rows.end; row += most) {
      while (run < args.runs.size() && args.runs[run].end <= row) ++run;
      const Range block = {row, std::min(row + most, rows.end)};
      if (packs) {
        multiply_packed_block(forward, panels, block, run, packed, memory);
      } else {
        forward.multiply_panels(panels, block, run,
                                k_blocks == 1 ? nullptr : reinterpret_cast<float*>(memory));
      }
    }
  }

  void multiply_packed_block(const Forward& forward, Range panels, Range rows, size_t first_run,
                             const char* packed, char* memory) const {
    const int64_t most = slice_panels(args.w);
    if (packed != nullptr) {
      packed += packed_bytes(rows.begin, args.w.cols);
    } else {
      char* own = memory + most * rows.size() * args.w.width * 4;
      kernels.pack_rows({.x = args.x.row(rows.begin),
                         .x_stride = args.x.row_stride,
                         .rows = rows.size(),
                         .cols = args.w.cols,
                         .dst = own,
                         .dst_stride = packed_strip(args.w.cols)});
      packed = own;
    }
    for (int64_t p = panels.begin; p < panels.end; p += most) {
      forward.multiply_packed_panels({p, std::min(p + most, panels.end)}, rows, packed, first_run,
                                     reinterpret_cast<float*>(memory));
    }
  }
};

// How many workers have a part, and the bytes of memory of each.
struct WorkSize {
  int64_t parts = 0;
  int64_t bytes = 0;
};

WorkSize work_size_of(CpuPath path, int64_t threads, std::span<const GemmArgs> products,
                      bool shares_packed_rows) {
  WorkSize size;
  for (const GemmArgs& args : products) {
    const WorkSplit shares(path, threads, args);
    size.parts = std::max(size.parts, shares.num_parts());
    size.bytes = std::max(size.bytes, shares.memory_bytes(shares_packed_rows));
  }
  return size;
}

// What any division of so many rows takes at most.
WorkSize most_work_size(CpuPath path, int64_t threads, const PanelView& w, int64_t most_rows) {
  const bool one_block = w.panel_elements() * dtype_bytes(w.dtype) <= block_bytes(2);
  const int64_t chains = one_block ? 0 : WorkSplit::chains_bytes(w, most_rows);
  const GemmKernels& kernels = choose_gemm_kernels(path, w.dtype);
  return {threads, std::max(chains, WorkSplit::packing_bytes(kernels, w, most_rows, false))};
}

// The part-th part of every product that has so many.
void multiply_part_of_each(CpuPath path, int64_t threads, std::span<const GemmArgs> products,
                           std::span<const TensorView> y, int64_t part, const char* packed,
                           char* memory) {
  for (size_t i = 0; i < products.size(); ++i) {
    const WorkSplit shares(path, threads, products[i]);
    if (part < shares.num_parts()) shares.multiply_part(part, y[i], packed, memory);
  }
}

int64_t num_jobs_of(const GemmKernels& kernels, const SegmentProduct& run) {
  return ceil_div(run.end - run.begin, max_rows(kernels, run.w.width)) * run.w.num_panels();
}

// Jobs of the product of a run, of which each is one panel over one tile of rows.
void multiply_jobs_of_run(CpuPath path, const GemmKernels& kernels, const TensorView& x,
                          const SegmentProduct& run, Range jobs, const TensorView& y) {
  const GemmArgs args = {.x = x, .w = run.w, .scale = run.scale};
  const Forward forward{path, kernels, args, y, max_rows(kernels, run.w.width), /*k_blocks=*/1};
  const Range rows = {run.begin, run.end};
  const int64_t tiles = forward.num_tiles(rows);
  for (int64_t job = jobs.begin; job < jobs.end; ++job) {
    forward.multiply_panel(job / tiles, forward.rows_of_tile(rows, job % tiles), 0,
                           /*last_panel=*/true, nullptr);
  }
}

// Jobs of the products of all runs, counted from the first run's first.
void multiply_jobs(CpuPath path, const GemmKernels& kernels, const TensorView& x,
                   std::span<const SegmentProduct> runs, Range jobs, const TensorView& y) {
  int64_t first = 0;  // job of the run
  for (const SegmentProduct& run : runs) {
    const int64_t last = first + num_jobs_of(kernels, run);
    const Range own = {std::max(jobs.begin, first) - first, std::min(jobs.end, last) - first};
    multiply_jobs_of_run(path, kernels, x, run, own, y);
    first = last;
  }
}

}  // namespace

void gemm(CpuBackend& backend, std::span<const GemmArgs> products, std::span<const TensorView> y,
          int64_t most_rows) {
  const HostAccess access(backend.allocator());
  const CpuPath path = backend.path();
  const int64_t threads = backend.pool().num_threads();
  const Scratch::Mark mark(backend.scratch());
  const bool is_alone = products.size() == 1 && most_rows == 0;
  const PackedRows packed =
      is_alone ? pack_rows_together(backend, products[0].x, products[0].w.cols) : PackedRows();
  const auto [parts, bytes] = most_rows > 0
                                  ? most_work_size(path, threads, products[0].w, most_rows)
                                  : work_size_of(path, threads, products, packed.are_shared);
  char* memory = static_cast<char*>(backend.scratch().take(bytes * parts));
  backend.pool().run(parts, [&](int64_t begin, int64_t end, int) {
    const TileRegion region;
    for (int64_t part = begin; part < end; ++part) {
      multiply_part_of_each(path, threads, products, y, part, packed.data, memory + part * bytes);
    }
  });
}

void gemm_runs(CpuBackend& backend, const TensorView& x, std::span<const SegmentProduct> runs,
               const TensorView& y) {
  if (runs.empty()) return;
  const HostAccess access(backend.allocator());
  const GemmKernels& kernels = choose_gemm_kernels(backend.path(), x.dtype);
  int64_t num_jobs = 0;
  for (const SegmentProduct& run : runs) num_jobs += num_jobs_of(kernels, run);
  backend.pool().run(num_jobs, [&](int64_t begin, int64_t end, int) {
    const TileRegion region;
    multiply_jobs(backend.path(), kernels, x, runs, {begin, end}, y);
  });
}

}  // namespace strata::ops::cpu
