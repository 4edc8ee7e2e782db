// SPDX-License-Identifier: Apache-2.0
// Panels on the CPU. A worker owns whole panels. Blocks of 16 rows x 64 bytes are transposed in
// registers where the path has a kernel; ends, and all of it on the other paths, go element by
// element in blocks of 64 bytes of each row, so that a source line is read once and the block
// written stays in L1.
#include "ops/cpu/pack.h"

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

#include "ops/cpu/cpu_backend.h"
#include "ops/cpu/narrow.h"
#include "ops/cpu/pack_kernels.h"
#include "ops/cpu/path_table.h"

namespace strata::ops::cpu {
namespace {

// Matrices larger than this are written past the caches: nothing reads them soon.
constexpr int64_t kStreamBytes = 4 << 20;

struct F16 {
  uint16_t bits;
};

inline float widen(float value) { return value; }
inline float widen(Bf16 value) { return to_float(value); }
inline float widen(F16 value) { return f16_to_float(value.bits); }

template <typename To, typename From>
inline To convert(From value) {
  if constexpr (std::is_same_v<To, From>) {
    return value;
  } else if constexpr (std::is_same_v<To, Bf16>) {
    return to_bf16(widen(value));
  } else {
    return widen(value);
  }
}

// Calls body with a value of the element type of `dtype`.
template <typename Body>
void dispatch_dtype(DType dtype, Body body) {
  switch (dtype) {
    case DType::kF32:
      return body(float{});
    case DType::kBF16:
      return body(Bf16{});
    case DType::kF16:
      return body(F16{});
  }
}

// Elements of the summed axis that a panel of E stores together.
template <typename E>
constexpr int64_t kPair = std::is_same_v<E, Bf16> ? 2 : 1;

// Columns [first_col, cols) of `count` lanes of one panel from rows of the matrix; zeroes the odd
// pair. first_col is even.
template <typename From, typename To>
void pack_lanes(const From* rows, int64_t stride, int64_t count, int64_t first_col, int64_t cols,
                To* panel, int64_t width, int64_t lane) {
  constexpr int64_t kBlock = 64 / sizeof(To);
  for (int64_t block = first_col; block < cols; block += kBlock) {
    const int64_t end = std::min(block + kBlock, cols);
    for (int64_t l = 0; l < count; ++l) {
      const From* row = rows + l * stride;
      To* out = panel + (lane + l) * kPair<To>;
      for (int64_t k = block; k < end; ++k) {
        out[k / kPair<To> * width * kPair<To> + k % kPair<To>] = convert<To>(row[k]);
      }
    }
  }
  if (cols % kPair<To> == 0) return;
  for (int64_t l = 0; l < count; ++l) panel[(cols / 2 * width + lane + l) * 2 + 1] = To{};
}

template <typename To>
void zero_lanes_from(To* panel, const PanelView& view, int64_t lane) {
  for (int64_t step = 0; step < view.padded_cols() / kPair<To>; ++step) {
    std::memset(static_cast<void*>(panel + (step * view.width + lane) * kPair<To>), 0,
                static_cast<size_t>((view.width - lane) * kPair<To>) * sizeof(To));
  }
}

template <typename E>
constexpr PackType kPackType = std::is_same_v<E, float>  ? PackType::kF32
                               : std::is_same_v<E, Bf16> ? PackType::kBF16
                                                         : PackType::kF16;

// Packs what the kernel takes of `count` lanes that start on a block, from the first column on;
// returns how many lanes and columns are done.
template <typename From, typename To>
std::pair<int64_t, int64_t> pack_blocks(PackKernel kernel, const From* rows, int64_t stride,
                                        int64_t count, int64_t cols, To* panel, int64_t width,
                                        int64_t lane, bool stream) {
  const int64_t lanes = count / kernel.block * kernel.block;
  const int64_t steps = cols / kPair<To> / kernel.block * kernel.block;
  if (kernel.run == nullptr || lane % kPackBlock != 0 || width % kPackBlock != 0 || lanes == 0 ||
      steps == 0) {
    return {0, 0};
  }
  kernel.run({.rows = rows,
              .stride = stride,
              .from = kPackType<From>,
              .steps = steps,
              .lanes = lanes,
              .dst = panel + lane * kPair<To>,
              .width = width,
              .to_bf16 = std::is_same_v<To, Bf16>,
              .stream = stream});
  return {lanes, steps * kPair<To>};
}

template <typename From, typename To>
void pack_panel(PackKernel kernel, const TensorView& rows, int64_t first_row,
                const PanelView& panel, int64_t index) {
  const int64_t origin = index * panel.width;
  const int64_t begin = std::max(first_row, origin);
  const int64_t end = std::min(first_row + rows.rows(), origin + panel.width);
  To* data = static_cast<To*>(panel.panel(index));
  const From* source = static_cast<const From*>(rows.row(begin - first_row));
  const int64_t stride = rows.row_stride;
  const int64_t lane = begin - origin;
  const bool stream = panel.num_bytes() > kStreamBytes;
  const auto [lanes, cols] =
      pack_blocks(kernel, source, stride, end - begin, panel.cols, data, panel.width, lane, stream);
  pack_lanes(source, stride, lanes, cols, panel.cols, data, panel.width, lane);
  pack_lanes(source + lanes * stride, stride, end - begin - lanes, 0, panel.cols, data, panel.width,
             lane + lanes);
  if (end == panel.rows && end < origin + panel.width) zero_lanes_from(data, panel, end - origin);
}

template <typename From, typename To>
void unpack_panel(const PanelView& panel, int64_t index, int64_t first_row,
                  const TensorView& rows) {
  const int64_t origin = index * panel.width;
  const int64_t begin = std::max(first_row, origin);
  const int64_t end = std::min(first_row + rows.rows(), origin + panel.width);
  const From* data = static_cast<const From*>(panel.panel(index));
  constexpr int64_t kBlock = 64 / sizeof(From);
  for (int64_t block = 0; block < panel.cols; block += kBlock) {
    const int64_t block_end = std::min(block + kBlock, panel.cols);
    for (int64_t row = begin; row < end; ++row) {
      To* out = static_cast<To*>(rows.row(row - first_row));
      const From* lane = data + (row - origin) * kPair<From>;
      for (int64_t k = block; k < block_end; ++k) {
        out[k] = convert<To>(lane[k / kPair<From> * panel.width * kPair<From> + k % kPair<From>]);
      }
    }
  }
}

template <typename From, typename To>
void gather_row(const PanelView& panel, int64_t row, To* out) {
  const From* lane = static_cast<const From*>(panel.data) + panel.offset(row, 0);
  const int64_t step = panel.width * kPair<From>;
  for (int64_t k = 0; k < panel.cols; ++k) {
    out[k] = convert<To>(lane[k / kPair<From> * step + k % kPair<From>]);
  }
}

// Calls body(index) for every panel that holds one of the rows.
template <typename Body>
void parallel_for_panels(CpuBackend& backend, const PanelView& panel, int64_t first_row,
                         int64_t num_rows, Body body) {
  const int64_t first = first_row / panel.width;
  const int64_t last = (first_row + num_rows + panel.width - 1) / panel.width;
  backend.pool().run(last - first, [&](int64_t begin, int64_t end, int) {
    for (int64_t index = first + begin; index < first + end; ++index) body(index);
  });
}

}  // namespace

int64_t panel_width(const CpuBackend& backend) { return backend.panel_width(); }

void pack(CpuBackend& backend, const TensorView& rows, int64_t first_row, const PanelView& panel) {
  const HostAccess access(backend.allocator());
  const PackKernel kernel = path_row(backend.path()).pack;
  dispatch_dtype(rows.dtype, [&]<typename From>(From) {
    parallel_for_panels(backend, panel, first_row, rows.rows(), [&](int64_t index) {
      if (panel.dtype == DType::kBF16) {
        pack_panel<From, Bf16>(kernel, rows, first_row, panel, index);
      } else {
        pack_panel<From, float>(kernel, rows, first_row, panel, index);
      }
    });
  });
}

void pack_list(CpuBackend& backend, std::span<const PackItem> items) {
  const HostAccess access(backend.allocator());
  backend.run_in_workers(std::ssize(items), [&](int64_t i, CpuBackend& worker) {
    const PackItem& item = items[static_cast<size_t>(i)];
    if (item.rows.rows() > 0) cpu::pack(worker, item.rows, 0, item.panel);
  });
}

void unpack(CpuBackend& backend, const PanelView& panel, int64_t first_row,
            const TensorView& rows) {
  const HostAccess access(backend.allocator());
  if (panel.is_narrow()) return unpack_narrow_rows(backend, panel, first_row, rows);
  parallel_for_panels(backend, panel, first_row, rows.rows(), [&](int64_t index) {
    if (panel.dtype == DType::kF32) {
      unpack_panel<float, float>(panel, index, first_row, rows);
    } else if (rows.dtype == DType::kF32) {
      unpack_panel<Bf16, float>(panel, index, first_row, rows);
    } else {
      unpack_panel<Bf16, Bf16>(panel, index, first_row, rows);
    }
  });
}

void gather_rows(CpuBackend& backend, const PanelView& panel, std::span<const int32_t> token_ids,
                 const TensorView& y) {
  const HostAccess access(backend.allocator());
  if (panel.is_narrow()) return gather_narrow_rows(backend, panel, token_ids, y);
  backend.pool().run(static_cast<int64_t>(token_ids.size()), [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      const int64_t row = token_ids[static_cast<size_t>(t)];
      if (panel.dtype == DType::kF32) {
        gather_row<float>(panel, row, static_cast<float*>(y.row(t)));
      } else if (y.dtype == DType::kF32) {
        gather_row<Bf16>(panel, row, static_cast<float*>(y.row(t)));
      } else {
        gather_row<Bf16>(panel, row, static_cast<Bf16*>(y.row(t)));
      }
    }
  });
}

}  // namespace strata::ops::cpu
