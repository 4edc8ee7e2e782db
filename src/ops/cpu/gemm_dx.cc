// SPDX-License-Identifier: Apache-2.0
// gemm_dx on the CPU. The summed axis is the panels' lanes, so tiles of the forward panels are
// transposed on the fly: for 64 outputs (columns of W), up to kBackwardLanes lanes are laid out as
// one panel whose summed axis is the lanes, and the rows of a block pass over it with the kernels
// of the forward product. Their chains wait in fp32 between blocks of lanes.
#include <algorithm>
#include <atomic>
#include <cstring>

#include "ops/cpu/cpu_backend.h"
#include "ops/cpu/gemm.h"
#include "ops/cpu/narrow.h"
#include "ops/cpu/tiles.h"

namespace strata::ops::cpu {
namespace {

constexpr int64_t kOutputs = kMaxWidth;
static_assert(kBackwardLanes % (2 * kGroupSteps) == 0);  // groups stay whole
constexpr int64_t kLine = 64;
// Half blocks even out the workers' shares. They pay from so many tiles of rows and lanes on; with
// fewer, laying out a block costs more than its products.
constexpr int64_t kManyTiles = 3;
constexpr int64_t kManyLanes = 512;

// Lanes of a slice of rows that are packed.
int64_t slice_columns(const PanelView& w) { return std::min(w.rows, kSliceColumns); }

struct Backward {
  CpuPath path;
  const GemmKernels& kernels;
  const GemmArgs& args;
  TensorView dx;
  bool accumulate;
  float* chains;       // [kBackwardRows, width] of this worker
  char* panel;         // [kBackwardLanes, width] of this worker
  const char* packed;  // a block of rows of dy, where they are packed together; null: by slices
  char* slice;         // those of a slice of lanes, of this worker

  // Continues the chains of `rows` (a block that starts at `origin`) with x[rows] w[:, columns].
  // `after` is the first column that the next call will take of the same w, or none (-1).
  void accumulate_product(const TensorView& x, const PanelView& w, Range rows, int64_t origin,
                          Range columns, int64_t after, bool start_at_zero) const {
    const int64_t width = tile_width(columns.size());
    const int64_t block_panels = kBackwardLanes / w.width;
    for (int64_t first = 0; first < w.num_panels(); first += block_panels) {
      const int64_t last = std::min(first + block_panels, w.num_panels());
      transpose_panels(w, first, last, columns, width);
      const bool same = last < w.num_panels();
      const int64_t next_panel = same ? last : 0;
      const Next next = next_tiles(w, next_panel, same ? columns.begin : after);
      const int64_t lane = first * w.width;
      const int64_t lanes = std::min(last * w.width, w.rows) - lane;
      accumulate_tiles(address(x, rows.begin, lane), x.row_stride, rows.size(), lanes, width,
                       chains + (rows.begin - origin) * width, start_at_zero && first == 0, next);
    }
  }

  // The tiles that are transposed next: `count` pieces of `bytes`, `jump` apart.
  struct Next {
    const char* data = nullptr;
    int64_t bytes = 0;
    int64_t jump = 0;
    int64_t count = 0;
  };

  static Next next_tiles(const PanelView& w, int64_t panel, int64_t column) {
    const int64_t element = dtype_bytes(w.dtype);
    if (column < 0) return {};
    if (w.is_narrow()) return next_narrow_tiles(w, panel, column);
    const int64_t cols = std::min(kOutputs, w.padded_cols() - column);
    return {.data = static_cast<const char*>(w.panel(panel)) + column * w.width * element,
            .bytes = cols * w.width * element,
            .jump = w.panel_elements() * element,
            .count = std::min(kBackwardLanes / w.width, w.num_panels() - panel)};
  }

  static Next next_narrow_tiles(const PanelView& w, int64_t panel, int64_t column) {
    const NarrowLayout& layout = narrow_layout(w.form);
    const int64_t cols = std::min(kOutputs, w.cols - column);
    const int64_t begin = layout.group_at(column / kNarrowGroup, w.width);
    return {.data = static_cast<const char*>(w.panel(panel)) + begin,
            .bytes = layout.group_at((column + cols) / kNarrowGroup, w.width) - begin,
            .jump = w.panel_bytes(),
            .count = std::min(kBackwardLanes / w.width, w.num_panels() - panel)};
  }

  // Columns of panels [first, last) as one panel whose summed axis is the lanes.
  void transpose_panels(const PanelView& w, int64_t first, int64_t last, Range columns,
                        int64_t width) const {
    const int64_t stored = std::min(columns.begin + width, w.padded_cols()) - columns.begin;
    alignas(64) char unpacked[kMaxWidth * kOutputs * dtype_bytes(DType::kBF16)];
    for (int64_t p = first; p < last; ++p) {
      const bool narrow = w.is_narrow();
      if (narrow) unpack_narrow_columns(path, w, p, columns.begin, stored, unpacked);
      kernels.transpose_panel({.panel = narrow ? unpacked : w.panel(p),
                               .width = w.width,
                               .col_begin = narrow ? 0 : columns.begin,
                               .cols = stored,
                               .dst = panel + (p - first) * w.width * width * dtype_bytes(w.dtype),
                               .dst_width = width});
    }
  }

  // What a tile of rows fetches: `pieces` of the next tiles, in `piece_steps` steps each.
  struct Fetch {
    int lines = 0;
    int64_t piece_steps = 0;
    int64_t pieces = 0;
  };

  static Fetch plan_fetch(const Next& next, int64_t groups, int64_t steps, int64_t width) {
    const int lines = groups == 1 ? 4 : groups <= 3 ? 2 : 1;
    const int64_t piece_steps = next.bytes / (lines * kLine);
    return {lines, piece_steps, piece_steps > 0 && width == kMaxWidth ? steps / piece_steps : 0};
  }

  // The first line of each of the rows.
  static void prefetch_rows(const char* x, int64_t row_bytes, Range rows) {
    for (int64_t row = rows.begin; row < rows.end; ++row) __builtin_prefetch(x + row * row_bytes);
  }

  // The rows pass over the transposed panel. The first tiles fetch what is transposed next.
  void accumulate_tiles(const char* x, int64_t x_stride, int64_t num_rows, int64_t lanes,
                        int64_t width, float* acc, bool start_at_zero, const Next& next) const {
    const int64_t groups = ceil_div(num_rows, max_rows(kernels, width));
    const int64_t row_bytes = x_stride * dtype_bytes(args.w.dtype);
    const Fetch fetch = plan_fetch(next, groups, lanes / kernels.pair, width);
    for (int64_t g = 0; g < groups; ++g) {
      const Range part = part_of(num_rows, g, groups);
      prefetch_rows(x, row_bytes, part_of(num_rows, std::min(g + 1, groups - 1), groups));
      const int64_t fetched = g * fetch.pieces;
      const bool fetches = fetch.pieces > 0 && fetched < next.count;
      kernels.accumulate({.panel = panel,
                          .width = width,
                          .x = x + part.begin * row_bytes,
                          .x_stride = x_stride,
                          .rows = part.size(),
                          .cols = lanes,
                          .acc = acc + part.begin * width,
                          .acc_stride = width,
                          .start_at_zero = start_at_zero,
                          .prefetch = fetches ? next.data + fetched * next.jump : nullptr,
                          .prefetch_lines = fetches ? fetch.lines : 0,
                          .prefetch_steps = fetches ? fetch.piece_steps : INT64_MAX,
                          .prefetch_jump = next.jump});
    }
  }

  void load_chains(Range rows, Range columns, int64_t width) const {
    for (int64_t row = rows.begin; row < rows.end; ++row) {
      std::memcpy(chains + (row - rows.begin) * width, address(dx, row, columns.begin),
                  static_cast<size_t>(columns.size()) * sizeof(float));
    }
  }

  // Columns [columns.begin, columns.end) of the rows of one block.
  void multiply_block(Range rows, Range columns, int64_t after) const {
    const int64_t width = tile_width(columns.size());
    if (accumulate) load_chains(rows, columns, width);
    accumulate_product(args.x, args.w, rows, rows.begin, columns, after, !accumulate);
    finish_block(rows, columns);
  }

  // Low-rank terms and outputs of a block whose chains are complete.
  void finish_block(Range rows, Range columns) const {
    const int64_t width = tile_width(columns.size());
    for (const LowRankSegment& run : args.runs) {
      const Range part = {std::max(run.begin, rows.begin), std::min(run.end, rows.end)};
      if (part.begin < part.end) {
        accumulate_product(run.x, run.w, part, rows.begin, columns, /*after=*/-1,
                           /*start_at_zero=*/false);
      }
    }
    apply_epilogue(rows, columns, width);
  }

  // Continues the chains of all `rows`, which are packed, with a slice of panels.
  void accumulate_slice(Range rows, Range panels, Range columns) const {
    const int64_t width = tile_width(columns.size());
    const int64_t lane = panels.begin * args.w.width;
    if (accumulate && lane == 0) load_chains(rows, columns, width);
    transpose_panels(args.w, panels.begin, panels.end, columns, width);
    const bool whole = packed != nullptr;
    kernels.accumulate({.panel = panel,
                        .width = width,
                        .x = whole ? packed + lane / 32 * 1024 : slice,
                        .x_stride = packed_strip(whole ? args.w.rows : slice_columns(args.w)),
                        .x_is_packed = true,
                        .rows = rows.size(),
                        .cols = std::min(panels.end * args.w.width, args.w.rows) - lane,
                        .acc = chains,
                        .acc_stride = width,
                        .start_at_zero = !accumulate && lane == 0});
  }

  void pack_slice(Range rows, Range panels) const {
    const int64_t lane = panels.begin * args.w.width;
    kernels.pack_rows({.x = address(args.x, rows.begin, lane),
                       .x_stride = args.x.row_stride,
                       .rows = rows.size(),
                       .cols = std::min(panels.end * args.w.width, args.w.rows) - lane,
                       .dst = slice,
                       .dst_stride = packed_strip(slice_columns(args.w))});
  }

  // At most kSlicePanels blocks of columns of rows that are packed, whose chains lie one behind the
  // other.
  void multiply_packed_block(Range rows, Range columns) const {
    const int64_t slice_panels = kSliceColumns / args.w.width;
    for (int64_t first = 0; first < args.w.num_panels(); first += slice_panels) {
      const Range panels = {first, std::min(first + slice_panels, args.w.num_panels())};
      if (packed == nullptr) pack_slice(rows, panels);
      Backward own = *this;
      for (int64_t col = columns.begin; col < columns.end; col += kOutputs) {
        const Range part = {col, std::min(col + kOutputs, columns.end)};
        own.accumulate_slice(rows, panels, part);
        if (panels.end == args.w.num_panels()) own.finish_block(rows, part);
        own.chains += rows.size() * kOutputs;
      }
    }
  }

  void prefetch_dx(Range rows, Range columns) const {
    for (int64_t row = rows.begin; row < rows.end; ++row) {
      const char* end = address(dx, row, columns.end);
      for (const char* line = address(dx, row, columns.begin); line < end; line += kLine) {
        __builtin_prefetch(line, 1);
      }
    }
  }

  void apply_epilogue(Range rows, Range columns, int64_t width) const {
    constexpr int64_t kRows = 4;
    for (int64_t row = rows.begin; row < rows.end; row += kRows) {
      const Range part = {row, std::min(row + kRows, rows.end)};
      prefetch_dx({part.begin + 2 * kRows, std::min(part.end + 2 * kRows, rows.end)}, columns);
      kernels.apply_epilogue({.acc = chains + (part.begin - rows.begin) * width,
                              .acc_stride = width,
                              .rows = part.size(),
                              .cols = columns.size(),
                              .scale = args.scale,
                              .y = address(dx, part.begin, columns.begin),
                              .y_stride = dx.row_stride,
                              .y_is_bf16 = dx.dtype == DType::kBF16});
    }
  }
};

// How a product divides among workers.
struct WorkSplit {
  CpuPath path;
  const GemmKernels& kernels;
  const GemmArgs& args;
  int64_t tile_rows, num_tiles;
  int64_t unit, num_units;  // of columns, as they are dealt
  Grid grid;

  WorkSplit(CpuPath of, int64_t threads, const GemmArgs& product)
      : path(of), kernels(choose_gemm_kernels(of, product.w.dtype)), args(product) {
    tile_rows = max_rows(kernels, tile_width(std::min(args.w.cols, kOutputs)));
    num_tiles = ceil_div(args.x.rows(), tile_rows);
    const bool even = ceil_div(args.w.cols, kOutputs) % threads == 0;
    const bool worth = num_tiles >= kManyTiles && args.w.rows >= kManyLanes;
    unit = even || !worth ? kOutputs : kOutputs / 2;
    num_units = ceil_div(args.w.cols, unit);
    grid = split_grid(threads, num_units, num_tiles);
  }

  [[nodiscard]] int64_t num_parts() const { return grid.col_parts * grid.row_parts; }
  // What one worker takes: its chains, behind them its panel, then rows that are packed.
  static int64_t bytes_of_worker(const GemmKernels& kernels, const PanelView& w, int64_t rows,
                                 bool shares_packed_rows) {
    const int64_t plain = std::min(rows, kBackwardRows) * kOutputs * 4 + panel_bytes(w.dtype);
    if (kernels.pack_rows == nullptr || rows < kFewestPackedRows) return plain;
    const int64_t block = std::min(rows, kMostPackedRows);
    const int64_t slice = shares_packed_rows ? 0 : packed_bytes(block, slice_columns(w));
    return std::max(plain, slice_blocks(w) * block * kOutputs * 4 + panel_bytes(w.dtype) + slice);
  }
  // Blocks of columns whose chains wait at once: one where a slice has all lanes.
  static int64_t slice_blocks(const PanelView& w) {
    return w.rows <= kSliceColumns ? 1 : std::min(kSlicePanels, ceil_div(w.cols, kOutputs));
  }
  static int64_t panel_bytes(DType dtype) { return kBackwardLanes * kOutputs * dtype_bytes(dtype); }

  // `packed`: all rows of dy, or null.
  void multiply_part(int64_t part, const TensorView& dx, bool accumulate, const char* packed,
                     char* memory) const {
    const Range units = part_of(num_units, part % grid.col_parts, grid.col_parts);
    const Range columns = {units.begin * unit, std::min(units.end * unit, args.w.cols)};
    const Range tiles = part_of(num_tiles, part / grid.col_parts, grid.row_parts);
    const Range rows = {tiles.begin * tile_rows, std::min(tiles.end * tile_rows, args.x.rows())};
    const bool packs = kernels.pack_rows != nullptr && rows.size() >= kFewestPackedRows;
    const int64_t most = packs ? kMostPackedRows : kBackwardRows;
    for (int64_t row = rows.begin; row < rows.end; row += most) {
      const Range block = {row, std::min(row + most, rows.end)};
      if (packs) {
        multiply_packed_rows(block, columns, dx, accumulate, packed, memory);
      } else {
        multiply_rows(block, columns, dx, accumulate, memory);
      }
    }
  }

 private:
  [[nodiscard]] Backward backward(const TensorView& dx, bool accumulate, char* memory,
                                  int64_t chains) const {
    char* panel = memory + chains * kOutputs * 4;
    return {.path = path,
            .kernels = kernels,
            .args = args,
            .dx = dx,
            .accumulate = accumulate,
            .chains = reinterpret_cast<float*>(memory),
            .panel = panel,
            .packed = nullptr,
            .slice = panel + panel_bytes(args.w.dtype)};
  }

  void multiply_rows(Range rows, Range columns, const TensorView& dx, bool accumulate,
                     char* memory) const {
    const Backward block = backward(dx, accumulate, memory, rows.size());
    for (int64_t col = columns.begin; col < columns.end; col += kOutputs) {
      const Range part = {col, std::min(col + kOutputs, columns.end)};
      block.multiply_block(rows, part, part.end < columns.end ? part.end : -1);
    }
  }

  void multiply_packed_rows(Range rows, Range columns, const TensorView& dx, bool accumulate,
                            const char* packed, char* memory) const {
    const int64_t blocks = slice_blocks(args.w);
    Backward block = backward(dx, accumulate, memory, blocks * rows.size());
    if (packed != nullptr) block.packed = packed + packed_bytes(rows.begin, args.w.rows);
    for (int64_t col = columns.begin; col < columns.end; col += blocks * kOutputs) {
      block.multiply_packed_block(rows, {col, std::min(col + blocks * kOutputs, columns.end)});
    }
  }
};

// How many workers have a part, and the bytes of each.
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
    size.bytes = std::max(size.bytes, shares.bytes_of_worker(shares.kernels, args.w, args.x.rows(),
                                                             shares_packed_rows));
  }
  return size;
}

// What any division of so many rows takes at most.
WorkSize most_work_size(CpuPath path, int64_t threads, const PanelView& w, int64_t most_rows) {
  return {threads,
          WorkSplit::bytes_of_worker(choose_gemm_kernels(path, w.dtype), w, most_rows, false)};
}

// The part-th part of every product that has so many.
void multiply_part_of_each(CpuPath path, int64_t threads, std::span<const GemmArgs> products,
                           std::span<const TensorView> dx, bool accumulate, int64_t part,
                           const char* packed, char* memory) {
  for (size_t i = 0; i < products.size(); ++i) {
    const WorkSplit shares(path, threads, products[i]);
    if (part < shares.num_parts()) shares.multiply_part(part, dx[i], accumulate, packed, memory);
  }
}

void make_gradient(const GemmDwArgs& item, CpuBackend& worker) {
  if (item.x.rows() > 0) cpu::gemm_dw(worker, item.dy, item.x, item.sequence_ends, item.dw);
}

// Gradients that workers make between their parts of a product, each by who comes first.
class GradientQueue {
 public:
  GradientQueue(CpuBackend& backend, std::span<const GemmDwArgs> items)
      : backend_(backend), items_(items) {}

  void compute_at_most(size_t most, int worker) {
    for (size_t made = 0; made < most; ++made) {
      const size_t item = next_.fetch_add(1, std::memory_order_relaxed);
      if (item >= items_.size()) return;
      make_gradient(items_[item], backend_.worker(worker));
    }
  }

 private:
  CpuBackend& backend_;
  std::span<const GemmDwArgs> items_;
  std::atomic<size_t> next_ = 0;
};

// The products, part by part, and between parts the gradients. Half of the parts make theirs first,
// so that memory and multipliers are both busy.
void multiply_overlapped(CpuBackend& backend, std::span<const GemmArgs> products,
                         std::span<const TensorView> dx, bool accumulate,
                         std::span<const GemmDwArgs> overlapped, const WorkSize& size,
                         const char* packed, char* memory) {
  const auto [parts, bytes] = size;
  const CpuPath path = backend.path();
  const int64_t threads = backend.pool().num_threads();
  GradientQueue gradients(backend, overlapped);
  const auto gradients_each = static_cast<size_t>(ceil_div(std::ssize(overlapped), parts));
  backend.pool().run(parts, [&](int64_t begin, int64_t end, int worker) {
    const TileRegion region;
    for (int64_t part = begin; part < end; ++part) {
      if (part % 2 == 0) gradients.compute_at_most(gradients_each, worker);
      multiply_part_of_each(path, threads, products, dx, accumulate, part, packed,
                            memory + part * bytes);
    }
    gradients.compute_at_most(SIZE_MAX, worker);
  });
}

}  // namespace

void gemm_dx(CpuBackend& backend, std::span<const GemmArgs> products,
             std::span<const TensorView> dx, bool accumulate,
             std::span<const GemmDwArgs> overlapped, int64_t most_rows, bool is_alone) {
  const HostAccess access(backend.allocator());
  const CpuPath path = backend.path();
  const int64_t threads = backend.pool().num_threads();
  const Scratch::Mark mark(backend.scratch());
  const PackedRows packed =
      is_alone ? pack_rows_together(backend, products[0].x, products[0].w.rows) : PackedRows();
  WorkSize size = most_rows > 0 ? most_work_size(path, threads, products[0].w, most_rows)
                                : work_size_of(path, threads, products, packed.are_shared);
  if (!overlapped.empty()) size.parts = std::max(size.parts, threads);
  char* memory = static_cast<char*>(backend.scratch().take(size.parts * size.bytes));
  if (!overlapped.empty()) backend.make_missing_workers();
  if (backend.is_counting()) {  // any worker may get any item
    for (const GemmDwArgs& item : overlapped) make_gradient(item, backend.worker(0));
    return;
  }
  multiply_overlapped(backend, products, dx, accumulate, overlapped, size, packed.data, memory);
}

void gemm_dx_list(CpuBackend& backend, std::span<const GemmArgs> products,
                  std::span<const TensorView> dx, bool accumulate, int64_t most_rows) {
  gemm_dx(backend, products, dx, accumulate, {}, most_rows);
}

void gemm_dx_each(CpuBackend& backend, std::span<const GemmArgs> products,
                  std::span<const TensorView> dx) {
  if (products.empty()) return;
  const HostAccess access(backend.allocator());
  backend.run_in_workers(std::ssize(products), [&](int64_t item, CpuBackend& worker) {
    const auto i = static_cast<size_t>(item);
    if (dx[i].rows() > 0)
      cpu::gemm_dx(worker, {&products[i], 1}, {&dx[i], 1}, /*accumulate=*/false);
  });
}

}  // namespace strata::ops::cpu
