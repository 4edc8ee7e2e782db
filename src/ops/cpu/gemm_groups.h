// SPDX-License-Identifier: Apache-2.0
// The CPU behind ops/gemm_groups.h: it reads where groups end and hands lists of products to the
// drivers of ops/cpu/gemm.h. Arguments are checked; there are rows.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "ops/gemm.h"
#include "ops/gemm_groups.h"

namespace strata {
class CpuBackend;
}

namespace strata::ops::cpu {

// Lists of a call, a backend's own, since another's work may break in on a call. The memory stays,
// and suffices for another division of as many rows.
struct GroupLists {
  struct Group {
    int64_t begin = 0;
    int64_t end = 0;
    int64_t group = 0;
    size_t first_run = 0;  // among the low-rank segments
  };
  std::vector<int32_t> items;  // of each sequence
  std::vector<Group> groups;
  std::vector<LowRankSegment> low_rank;
  std::vector<GemmArgs> products;
  std::vector<TensorView> outputs;
  std::vector<SegmentProduct> runs;
  std::vector<int64_t> ends;  // of a run's sequences

  void reset(const GroupedRows& rows);
};

void split_groups_by_sequence(CpuBackend& backend, IndexView<int32_t> token_of_row,
                              const GroupedRows& rows);
void gemm_groups(CpuBackend& backend, const GroupedArgs& args, TensorView y);
void gemm_groups_dx(CpuBackend& backend, const GroupedArgs& args, TensorView dx, bool accumulate);
void gemm_group_runs(CpuBackend& backend, const GroupedRows& rows, TensorView x,
                     std::span<const GroupedProduct> products, TensorView y);
void gemm_group_runs_dx(CpuBackend& backend, const GroupedRows& rows, TensorView dy,
                        std::span<const GroupedProduct> products, TensorView dx, bool accumulate);
void scale_group_runs(CpuBackend& backend, const GroupedRows& rows, TensorView x,
                      std::span<const GroupedProduct> products, TensorView y);
void gemm_dw_groups(CpuBackend& backend, const GroupedRows& rows,
                    std::span<const GroupedGradient> gradients);

}  // namespace strata::ops::cpu
