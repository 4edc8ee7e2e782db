// SPDX-License-Identifier: Apache-2.0
// The input gradient of a projection whose rows have adapters of their own, and of a head in f32,
// whose outputs are summed in blocks (ops/gemm.h).
#include <algorithm>

#include "ops/cpu/cpu_backend.h"
#include "ops/cpu/elementwise.h"
#include "ops/cpu/gemm.h"

namespace strata::ops::cpu {
namespace {

// Whether workers do better with a run each than with all runs in turn, each cut among them: no run
// is more than a worker's share, and no two write the same gradients.
bool divides_over(int64_t threads, const RunProducts& runs) {
  return threads > 1 && runs.distinct && runs.longest_run * threads <= runs.num_rows;
}

void compute_run_products_one_by_one(CpuBackend& backend, const RunProducts& runs) {
  for (size_t i = 0; i < runs.inputs.size(); ++i) {
    if (runs.d_h[i].rows() > 0)
      gemm_dx(backend, {&runs.inputs[i], 1}, {&runs.d_h[i], 1}, /*accumulate=*/false);
  }
  for (const GemmDwArgs& g : runs.gradients) {
    if (g.x.rows() > 0) gemm_dw(backend, g.dy, g.x, g.sequence_ends, g.dw);
  }
}

// Outputs [begin, end) of a product; its low-rank terms are with the last.
GemmArgs product_of_outputs(const GemmArgs& args, int64_t begin, int64_t end) {
  GemmArgs block = {.x = args.x.slice_cols(begin, end), .w = args.w.slice_rows(begin, end)};
  if (end == args.w.rows) block.runs = args.runs;
  return block;
}

// dx in blocks of kChainOutputs outputs, one chain each, the later ones added to the first.
void sum_dx_over_output_blocks(CpuBackend& backend, const GemmArgs& args, TensorView dx,
                               bool accumulate, std::span<const GemmDwArgs> overlapped) {
  const Scratch::Mark mark(backend.scratch());
  const TensorView part = backend.scratch().take(DType::kF32, {dx.rows(), dx.cols()});
  for (int64_t begin = 0; begin < args.w.rows; begin += kChainOutputs) {
    const GemmArgs block =
        product_of_outputs(args, begin, std::min(args.w.rows, begin + kChainOutputs));
    const bool first = begin == 0 && !accumulate;
    const TensorView to = first ? dx : part;
    gemm_dx(backend, {&block, 1}, {&to, 1}, /*accumulate=*/false,
            begin == 0 ? overlapped : std::span<const GemmDwArgs>(), /*most_rows=*/0,
            /*is_alone=*/true);
    if (!first) add_into(backend, part, dx);
  }
}

}  // namespace

void gemm_dx_blocked_with_runs(CpuBackend& backend, const GemmArgs& args, TensorView dx,
                               bool accumulate, const RunProducts& runs) {
  std::span<const GemmDwArgs> overlapped;
  if (!dx.empty() && divides_over(backend.pool().num_threads(), runs)) {
    gemm_dx_each(backend, runs.inputs, runs.d_h);
    overlapped = runs.gradients;
  } else {
    compute_run_products_one_by_one(backend, runs);
  }
  if (dx.empty() || dx.rows() == 0) return;
  if (args.w.dtype != DType::kF32 || args.w.rows <= kChainOutputs) {
    return gemm_dx(backend, {&args, 1}, {&dx, 1}, accumulate, overlapped, /*most_rows=*/0,
                   /*is_alone=*/true);
  }
  sum_dx_over_output_blocks(backend, args, dx, accumulate, overlapped);
}

}  // namespace strata::ops::cpu
