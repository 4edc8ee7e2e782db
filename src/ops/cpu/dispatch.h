// SPDX-License-Identifier: Apache-2.0
// Choice of the kernels of a CPU path, and the split of an op's work over the team.
#pragma once
#include <algorithm>

#include "ops/cpu/cpu_backend.h"
#include "ops/cpu/path_table.h"
#include "ops/cpu/simd.h"
#include "tensor/view.h"

namespace strata::ops::cpu {

// Calls body.operator()<V>() with the tag of the path's registers.
template <typename Body>
decltype(auto) with_path(CpuPath path, Body&& body) {
  switch (path_row(path).simd) {
    case Simd::kAvx512:
      return body.template operator()<Avx512>();
    case Simd::kAvx2:
      return body.template operator()<Avx2>();
    case Simd::kScalar:
      break;
  }
  return body.template operator()<Scalar>();
}

// Below this many elements a region of threads costs more than it saves (about a microsecond).
constexpr int64_t kInlineElements = 16384;

// Calls body(begin, end) over parts of [0, count); on the calling thread alone when there is little
// to do.
template <typename Body>
void parallel_for(CpuBackend& backend, int64_t count, int64_t elements_each, Body&& body) {
  if (count <= 0 || backend.is_counting()) return;
  if (count * std::max<int64_t>(1, elements_each) < kInlineElements) {
    body(int64_t{0}, count);
    return;
  }
  backend.pool().run(count, [&](int64_t begin, int64_t end, int) { body(begin, end); });
}

// For ops whose elements are independent: calls body(row, begin, end) for column ranges that cover
// [rows, cols]. With `dense` (no view has gaps between rows) the tensor is taken as one long row.
template <typename Body>
void parallel_for_pieces(CpuBackend& backend, int64_t rows, int64_t cols, bool dense, Body&& body) {
  constexpr int64_t kPiece = 4096;  // elements; a multiple of the vector width
  if (rows <= 0 || cols <= 0) return;
  if (dense) {
    cols *= rows;
    rows = 1;
  }
  const int64_t pieces = (cols + kPiece - 1) / kPiece;
  parallel_for(backend, rows * pieces, std::min(cols, kPiece), [&](int64_t begin, int64_t end) {
    for (int64_t piece = begin; piece < end; ++piece) {
      const int64_t first = piece % pieces * kPiece;
      body(piece / pieces, first, std::min(cols, first + kPiece));
    }
  });
}

// For sums over rows: calls body(begin, end) for column ranges that start at multiples of kLanes.
template <typename Body>
void parallel_for_columns(CpuBackend& backend, int64_t rows, int64_t cols, Body&& body) {
  const int64_t blocks = (cols + kLanes - 1) / kLanes;
  parallel_for(backend, blocks, rows * kLanes, [&](int64_t begin, int64_t end) {
    body(begin * kLanes, std::min(cols, end * kLanes));
  });
}

// Calls body(begin, end) for the blocks of `block` columns that cover [0, cols), the last of which
// may be narrower; each block is one piece of work.
template <typename Body>
void parallel_for_column_blocks(CpuBackend& backend, int64_t cols, int64_t block,
                                int64_t elements_each, Body&& body) {
  const int64_t num_blocks = (cols + block - 1) / block;
  parallel_for(backend, num_blocks, elements_each, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) body(b * block, std::min(cols, (b + 1) * block));
  });
}

}  // namespace strata::ops::cpu
