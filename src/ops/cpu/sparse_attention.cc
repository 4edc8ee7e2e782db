// SPDX-License-Identifier: Apache-2.0
// Forward of the tiled paths. An item is one token and some of its heads: these share the query's
// keys, so a packed block serves them all, and blocks are the outer loop. T tokens, N heads, H head
// width.
#include "ops/cpu/sparse_attention.h"

#include <cmath>
#include <cstring>

#include "ops/cpu/attention_sinks.h"
#include "ops/cpu/tiles.h"

namespace strata::ops::cpu {
namespace {

// Memory of one worker.
struct Workspace {
  uint32_t* q;       // rows form
  uint32_t* keys;    // lanes form, one block
  uint32_t* values;  // depth form, one block
  float* acc;        // [N][lanes]
  float* max;        // [N]
  float* sum;        // [N][16]
};

struct Forward {
  const AttentionKernels& kernels;
  const SparseAttentionArgs& args;
  AttentionLayout layout;
  TensorView out;
  TensorView lse;
  int64_t num_parts = 1;  // that the heads of a token are divided into
  int64_t part_heads = 0;

  Forward(const AttentionKernels& table, const SparseAttentionArgs& arguments, TensorView output,
          TensorView lse_output, int64_t num_tokens, int num_workers)
      : kernels(table),
        args(arguments),
        layout(table, arguments.width()),
        out(output),
        lse(lse_output),
        part_heads(arguments.num_heads()) {
    if (num_tokens >= num_workers || num_tokens == 0) return;
    num_parts = std::min(args.num_heads(), (num_workers + num_tokens - 1) / num_tokens);
    part_heads = (args.num_heads() + num_parts - 1) / num_parts;
  }

  [[nodiscard]] Workspace take_workspace(Scratch& scratch) const;
  void attend_item(const SparseSegment& segment, int64_t row, int64_t part,
                   const Workspace& work) const;
  // Rows first .. first + num_rows - 1 of [T, N]: those of heads from head_begin on.
  void pack_queries(int64_t first, int64_t num_rows, const Workspace& work) const;
  void reset_sums_to_sinks(int64_t head_begin, int64_t num_rows, const Workspace& work) const;
  void pack_keys(const SparseKeys& keys, int64_t first, int64_t count, const Workspace& work) const;
  void attend_block(int64_t num_rows, int64_t count, const Workspace& work) const;
  void write_out_and_lse(int64_t first, int64_t num_rows, const Workspace& work) const;
};

Workspace Forward::take_workspace(Scratch& scratch) const {
  const auto words = [&](int64_t count) { return static_cast<uint32_t*>(scratch.take(4 * count)); };
  const auto floats = [&](int64_t count) { return static_cast<float*>(scratch.take(4 * count)); };
  const int64_t rows = args.num_heads();
  return {.q = words(rows * layout.row_stride),
          .keys = words(layout.lanes_block()),
          .values = words(layout.depth_words(kKeyBlock)),
          .acc = floats(rows * layout.lanes),
          .max = floats(rows),
          .sum = floats(16 * rows)};
}

void Forward::pack_queries(int64_t first, int64_t num_rows, const Workspace& work) const {
  const int64_t row_bytes = layout.dim * dtype_bytes(args.q.dtype);
  for (int64_t r = 0; r < num_rows; ++r) {
    kernels.pack_row(static_cast<const char*>(args.q.data) + (first + r) * row_bytes, layout.dim,
                     work.q + r * layout.row_stride);
  }
}

// The sink is a key that was seen before the first, with a score and no value.
void Forward::reset_sums_to_sinks(int64_t head_begin, int64_t num_rows,
                                  const Workspace& work) const {
  for (int64_t r = 0; r < num_rows; ++r) {
    work.max[r] = args.sinks.f32()[head_begin + r] * kLog2E;
    std::fill_n(work.sum + 16 * r, 16, 0.0f);
    work.sum[16 * r] = 1.0f;
  }
  std::fill_n(work.acc, num_rows * layout.lanes, 0.0f);
}

void Forward::write_out_and_lse(int64_t first, int64_t num_rows, const Workspace& work) const {
  const int64_t row_bytes = layout.dim * dtype_bytes(out.dtype);
  for (int64_t r = 0; r < num_rows; ++r) {
    const float sum = kernels.sum_row(work.sum + 16 * r);
    kernels.write_row(work.acc + r * layout.lanes, 1.0f / sum, layout.dim,
                      static_cast<char*>(out.data) + (first + r) * row_bytes,
                      out.dtype == DType::kBF16);
    if (!lse.empty()) lse.f32()[first + r] = work.max[r] * kLn2 + std::log(sum);
  }
}

void Forward::pack_keys(const SparseKeys& keys, int64_t first, int64_t count,
                        const Workspace& work) const {
  const void* rows[kKeyBlock];
  keys.find_rows(first, count, rows);
  const PackRows from{.rows = rows, .count = count, .dim = layout.dim};
  kernels.pack_in_lanes_form(from, work.keys);
  kernels.pack_in_depth_form(from, work.values);
}

// All rows see all `count` keys of the block.
void Forward::attend_block(int64_t num_rows, int64_t count, const Workspace& work) const {
  int64_t visible[kMostForwardRows];
  std::fill_n(visible, kMostForwardRows, count);
  for (int64_t r = 0; r < num_rows; r += kernels.forward_rows) {
    kernels.forward_tile({.q = work.q + r * layout.row_stride,
                          .q_stride = layout.row_stride,
                          .keys = work.keys,
                          .values = work.values,
                          .steps = layout.steps,
                          .lanes = layout.lanes,
                          .rows = std::min(kernels.forward_rows, num_rows - r),
                          .visible = visible,
                          .hidden = nullptr,
                          .scale = args.scale * kLog2E,
                          .max = work.max + r,
                          .sum = work.sum + 16 * r,
                          .acc = work.acc + r * layout.lanes});
  }
}

void Forward::attend_item(const SparseSegment& segment, int64_t row, int64_t part,
                          const Workspace& work) const {
  const SparseKeys keys(args, segment, row);
  const int64_t head_begin = part * part_heads;
  const int64_t num_rows = std::min(part_heads, args.num_heads() - head_begin);
  const int64_t first = row * args.num_heads() + head_begin;
  pack_queries(first, num_rows, work);
  reset_sums_to_sinks(head_begin, num_rows, work);
  for (int64_t key = 0; key < keys.count(); key += kKeyBlock) {
    const int64_t count = std::min(kKeyBlock, keys.count() - key);
    pack_keys(keys, key, count, work);
    attend_block(num_rows, count, work);
  }
  write_out_and_lse(first, num_rows, work);
}

}  // namespace

void sparse_attention_tiled(CpuBackend& backend, const AttentionKernels& kernels,
                            const SparseAttentionArgs& args, TensorView out, TensorView lse) {
  const int num_workers = backend.pool().num_threads();
  const int64_t num_tokens = num_tokens_of(args);
  if (num_tokens == 0) return;
  const Forward forward(kernels, args, out, lse, num_tokens, num_workers);
  const Scratch::Mark mark(backend.scratch());
  const SparseToken* tokens = list_tokens(backend, args);
  const auto* workspaces =
      backend.take_workspaces([&] { return forward.take_workspace(backend.scratch()); });
  backend.pool().run_each(num_tokens * forward.num_parts, [&](int64_t item, int worker) {
    const TileRegion tiles;
    const SparseToken& token = tokens[item / forward.num_parts];
    forward.attend_item(*token.segment, token.row, item % forward.num_parts, workspaces[worker]);
  });
}

namespace {

// The entries listed for a query are among those that it may see, each once.
void check_selected_of_row(const SparseAttentionArgs& args, const SparseSegment& segment,
                           int64_t row) {
  int64_t last = -1;
  for (int64_t k = 0; k < args.top_k; ++k) {
    const int32_t id = args.selected.numbers()[static_cast<size_t>(row * args.top_k + k)];
    if (id < 0) break;
    DCHECK(id > last && id < args.num_entries(segment.first_position + row - segment.begin), id,
           last, row);
    last = id;
  }
}

void check_selected(const SparseAttentionArgs& args) {
  for (const SparseSegment& segment : args.segments) {
    for (int64_t row = segment.begin; row < segment.end; ++row) {
      check_selected_of_row(args, segment, row);
    }
  }
}

void fill_zero(const TensorView& view) {
  if (view.num_bytes() > 0) std::memset(view.data, 0, static_cast<size_t>(view.num_bytes()));
}

}  // namespace

void sparse_attention(CpuBackend& backend, const SparseAttentionArgs& args, TensorView out,
                      TensorView lse) {
  const HostAccess access(backend.allocator());
  if (!backend.is_counting() && !args.selected.empty()) check_selected(args);
  if (const auto* kernels = choose_attention_kernels(backend.path(), args.q.dtype)) {
    sparse_attention_tiled(backend, *kernels, args, out, lse);
  } else {
    sparse_attention_reference(backend, args, out, lse);
  }
}

void sparse_attention_backward(CpuBackend& backend, const SparseAttentionArgs& args,
                               const SparseGradients& grads, TensorView d_sinks) {
  const HostAccess access(backend.allocator());
  if (!backend.is_counting()) {
    if (!args.selected.empty()) check_selected(args);
    fill_zero(grads.d_keys);
    if (!grads.d_entries.empty()) fill_zero(grads.d_entries);
  }
  const Scratch::Mark mark(backend.scratch());
  const TensorView delta = backend.scratch().take(DType::kF32, {args.q.shape[0], args.num_heads()});
  if (const auto* kernels = choose_attention_kernels(backend.path(), args.q.dtype)) {
    sparse_attention_backward_tiled(backend, *kernels, args, grads, delta);
  } else {
    sparse_attention_backward_reference(backend, args, grads, delta);
  }
  if (d_sinks.empty()) return;
  add_d_sinks(backend, args.segments, args.sinks, grads.lse, delta, d_sinks);
}

}  // namespace strata::ops::cpu
