// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/group_bias.h"

#include <algorithm>

#include "ops/cpu/dispatch.h"

namespace strata::ops::cpu {
namespace {

// Calls body(row, its group) for rows [begin, end).
template <typename Body>
void for_rows(const GroupedRows& rows, int64_t begin, int64_t end, Body&& body) {
  const std::span<const int64_t> ends = rows.group_ends.numbers();
  auto group = std::upper_bound(ends.begin(), ends.end(), begin) - ends.begin();
  for (int64_t row = begin; row < end; ++row) {
    while (ends[static_cast<size_t>(group)] <= row) ++group;
    body(row, static_cast<int64_t>(group));
  }
}

const char* columns_from(const TensorView& x, int64_t row, int64_t first) {
  return static_cast<const char*>(x.row(row)) + first * dtype_bytes(x.dtype);
}

}  // namespace

void add_group_bias(CpuBackend& backend, const GroupedRows& rows, TensorStack bias,
                    TensorView scales, TensorView y) {
  const HostAccess access(backend.allocator());
  with_path(backend.path(), [&]<typename V>() {
    parallel_for(backend, y.rows(), y.cols(), [&](int64_t begin, int64_t end) {
      for_rows(rows, begin, end, [&](int64_t row, int64_t group) {
        add_scaled_row<V>(DType::kF32, bias.at(group).data, scales.f32()[row],
                          static_cast<float*>(y.row(row)), y.cols());
      });
    });
  });
}

void group_bias_backward(CpuBackend& backend, const GroupedRows& rows,
                         const GroupBiasGradients& grads, TensorView d_y) {
  const HostAccess access(backend.allocator());
  with_path(backend.path(), [&]<typename V>() {
    if (!grads.d_scales.empty()) {
      parallel_for(backend, d_y.rows(), d_y.cols(), [&](int64_t begin, int64_t end) {
        for_rows(rows, begin, end, [&](int64_t row, int64_t group) {
          grads.d_scales.f32()[row] +=
              dot_rows<V>(d_y.dtype, d_y.row(row), grads.bias.at(group).f32(), d_y.cols());
        });
      });
    }
    if (grads.d_bias.first.empty()) return;
    parallel_for_columns(backend, d_y.rows(), d_y.cols(), [&](int64_t begin, int64_t end) {
      for_rows(rows, 0, d_y.rows(), [&](int64_t row, int64_t group) {
        const float factor = grads.scales.empty() ? 1.0f : grads.scales.f32()[row];
        add_scaled_row<V>(d_y.dtype, columns_from(d_y, row, begin), factor,
                          grads.d_bias.at(group).f32() + begin, end - begin);
      });
    });
  });
}

}  // namespace strata::ops::cpu
