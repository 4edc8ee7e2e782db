// SPDX-License-Identifier: Apache-2.0
// Backward. An item is a key head of a segment. A sweep over its chunks makes the products of keys,
// the states at their starts and z = u / beta again; then the chunks come last to first, and in
// each the value heads of the group, panel by panel of their columns. d_ of a paired matrix holds
// the gradients of its even rows (k_i, the equation of u_i) and of its odd ones (q_i, o_i). T rows,
// Kh key heads, Vh value heads, dk and dv their widths.
//
// Forward of a chunk, with S its state, M and P the coefficients, e_i = e^G_i, E_j = e^D_63j:
//   z_i = v_i - e_i k_i^T S - sum_{j<i} M_ij u_j;  u = beta z
//   o_i = e_i q_i^T S + sum_{j<=i} P_ij u_j
//   S'  = e_63 S + sum_j k_j (E_j u_j)^T
#include "ops/cpu/delta_net_backward.h"

#include <algorithm>
#include <span>

#include "ops/cpu/cpu_backend.h"
#include "ops/cpu/path_table.h"

namespace strata::ops::cpu {
namespace {

constexpr int64_t kTile = 6;  // rows of a product whose chains share registers

int64_t num_chunks(const StateSegment& segment) {
  return (segment.end - segment.begin + kDeltaChunk - 1) / kDeltaChunk;
}

// The most chunks that any of the segments has.
int64_t max_chunks(std::span<const StateSegment> segments) {
  int64_t chunks = 1;
  for (const StateSegment& s : segments) chunks = std::max(chunks, num_chunks(s));
  return chunks;
}

}  // namespace

void DeltaBackward::normalise_chunk_qk(const Chunk& c, int64_t head, bool keys_only,
                                       const DeltaWorkspace& work) const {
  normalise_qk(kernels, layout,
               {.qkv = args.qkv,
                .head = head,
                .row = c.row,
                .count = c.count,
                .keys_only = keys_only,
                .rows = work.rows,
                .factors = work.factors,
                .keys = work.keys});
}

// Scores of one side, as far as each row sees the keys (whole vectors).
void DeltaBackward::compute_side_scores(const Chunk& c, Side side,
                                        const DeltaWorkspace& work) const {
  for (int64_t i = 0; i < c.count; i += kTile) {
    const int64_t rows = std::min(kTile, c.count - i);
    kernels.multiply({.x = work.rows + (2 * i + side) * layout.key_lanes,
                      .x_row = 2 * layout.key_lanes,
                      .panel = work.keys,
                      .panel_stride = kDeltaChunk,
                      .depth = layout.shape.key_dim,
                      .rows = rows,
                      .lanes = (i + rows + 15) / 16 * 16,
                      .out = scores(c, work) + (2 * i + side) * kDeltaChunk,
                      .out_stride = 2 * kDeltaChunk});
  }
}

void DeltaBackward::compute_decays_and_coefficients(const Chunk& c, int64_t value_head,
                                                    float* gamma,
                                                    const DeltaWorkspace& work) const {
  kernels.compute_decays_and_coefficients(
      {.log_decay = args.log_decay.f32() + c.row * args.log_decay.row_stride + value_head,
       .stride = args.log_decay.row_stride,
       .count = c.count,
       .scores = scores(c, work),
       .decay = work.decay,
       .total = work.total,
       .total_exp = work.total_exp,
       .coefficients = work.coefficients,
       .gamma = gamma});
  if (c.folds) kernels.exponentiate(work.decay, work.decay_exp, kDeltaChunk);
}

// k_i^T S of a panel.
void DeltaBackward::multiply_keys_by_state(const Chunk& c, const float* panel, int64_t width,
                                           const DeltaWorkspace& work) const {
  kernels.multiply({.x = work.rows,
                    .x_row = 2 * layout.key_lanes,
                    .panel = panel,
                    .panel_stride = width,
                    .depth = layout.shape.key_dim,
                    .rows = c.count,
                    .lanes = width,
                    .out = work.read,
                    .out_stride = width});
}

// z of a panel's columns, from `begin` on, and the state behind the chunk.
void DeltaBackward::recompute_panel(const Chunk& c, int64_t value_head, int64_t member,
                                    int64_t begin, int64_t width, int64_t columns,
                                    const DeltaWorkspace& work) const {
  const int64_t dim = layout.shape.key_dim;
  const float* before = c.reads ? state(work, c.index - 1, member) + dim * begin : nullptr;
  if (c.reads) multiply_keys_by_state(c, before, width, work);
  kernels.load_rows(delta_matrix_at(args.qkv, c.row, layout.v_column(value_head) + begin), c.count,
                    columns, work.d_u, width);
  kernels.solve({.coefficients = work.coefficients,
                 .total_exp = work.total_exp,
                 .beta = beta(c, value_head),
                 .beta_stride = args.beta.row_stride,
                 .count = c.count,
                 .lanes = width,
                 .read = c.reads ? work.read : nullptr,
                 .value = work.d_u,
                 .u = work.u,
                 .z = z(work, c.index, member) + kDeltaChunk * begin});
  if (!c.folds) return;
  add_chunk_to_state(kernels, layout,
                     {.keys = work.keys,
                      .decay_exp = work.decay_exp,
                      .total_exp = work.total_exp[kDeltaChunk - 1],
                      .before = before,
                      .u = work.u,
                      .behind = state(work, c.index, member) + dim * begin,
                      .width = width});
}

// z of the chunk, and the state behind it.
void DeltaBackward::recompute_value_head(const Chunk& c, int64_t head, int64_t member,
                                         const DeltaWorkspace& work) const {
  const int64_t value_head = head * layout.group + member;
  compute_decays_and_coefficients(c, value_head, nullptr, work);
  for_delta_panels(layout.shape.value_dim, [&](int64_t begin, int64_t width, int64_t columns) {
    recompute_panel(c, value_head, member, begin, width, columns, work);
  });
}

// The panel's u, and the gradient of its outputs.
void DeltaBackward::prepare_panel(const Chunk& c, int64_t value_head, const float* z_panel,
                                  int64_t begin, int64_t width, int64_t columns,
                                  const DeltaWorkspace& work) const {
  kernels.scale_rows(z_panel, width, beta(c, value_head), args.beta.row_stride, c.count, width,
                     work.u, width);
  const DeltaMatrix d_out =
      delta_matrix_at(grads.d_out, c.row * layout.shape.num_value_heads + value_head, begin);
  kernels.load_rows({d_out.data, d_out.type, layout.shape.num_value_heads * d_out.stride}, c.count,
                    columns, work.d_z + width, 2 * width);
}

// d_u of a panel by the state behind the chunk, S' = ... + k_j (E_j u_j)^T, and what it adds to
// d_fold.
void DeltaBackward::compute_d_u_and_d_fold_by_state(const Chunk& c, int64_t member, int64_t begin,
                                                    int64_t width,
                                                    const DeltaWorkspace& work) const {
  kernels.multiply({.x = work.rows,
                    .x_row = 2 * layout.key_lanes,
                    .panel = work.d_state + member * layout.state() + layout.shape.key_dim * begin,
                    .panel_stride = width,
                    .depth = layout.shape.key_dim,
                    .rows = c.count,
                    .lanes = width,
                    .out = work.d_u,
                    .out_stride = width});
  kernels.scale_rows(work.d_u, width, work.decay_exp, 1, c.count, width, work.d_u, width);
  kernels.dot_rows(work.d_u, width, work.u, width, c.count, width, /*add=*/begin > 0, work.d_fold,
                   1);
}

// Adds d_u of a panel by the outputs of its rows, o_i = ... + sum_{j<=i} P_ij u_j; it starts at
// zero where nothing follows the chunk.
void DeltaBackward::add_to_d_u_by_outputs(const Chunk& c, int64_t width,
                                          const DeltaWorkspace& work) const {
  for (int64_t j = 0; j < c.count; j += kTile) {
    kernels.multiply({.x = work.coefficients + (2 * j + 1) * kDeltaChunk + j,
                      .x_row = 1,
                      .x_step = 2 * kDeltaChunk,
                      .panel = work.d_z + (2 * j + 1) * width,
                      .panel_stride = 2 * width,
                      .depth = c.count - j,
                      .rows = std::min(kTile, c.count - j),
                      .lanes = width,
                      .init = c.folds ? work.d_u + j * width : nullptr,
                      .init_stride = width,
                      .out = work.d_u + j * width,
                      .out_stride = width});
  }
}

// What d_z of a panel and the gradient of its outputs add to those of the coefficients.
void DeltaBackward::compute_d_coefficients(const Chunk& c, int64_t width, bool add,
                                           const DeltaWorkspace& work) const {
  kernels.transpose(work.u, width, c.count, width, work.transposed, kDeltaChunk);
  for (int64_t i = 0; i < c.count; i += kTile / 2) {
    const int64_t tokens = std::min(kTile / 2, c.count - i);
    kernels.multiply({.x = work.d_z + 2 * i * width,
                      .x_row = width,
                      .panel = work.transposed,
                      .panel_stride = kDeltaChunk,
                      .depth = width,
                      .rows = 2 * tokens,
                      .lanes = (i + tokens + 15) / 16 * 16,
                      .init = add ? work.d_coefficients + 2 * i * kDeltaChunk : nullptr,
                      .init_stride = kDeltaChunk,
                      .out = work.d_coefficients + 2 * i * kDeltaChunk,
                      .out_stride = kDeltaChunk});
  }
}

// u = beta z: d_beta += d_u . z of a panel; the first panel starts it.
void DeltaBackward::add_to_d_beta(const Chunk& c, int64_t value_head, const float* z_panel,
                                  int64_t begin, int64_t width, const DeltaWorkspace& work) const {
  float* d_beta = grads.d_beta.f32() + c.row * grads.d_beta.row_stride + value_head;
  kernels.dot_rows(work.d_u, width, z_panel, width, c.count, width, /*add=*/begin > 0, d_beta,
                   grads.d_beta.row_stride);
}

// z_i = v_i - ...: d_v is d_z.
void DeltaBackward::store_d_v(const Chunk& c, int64_t value_head, int64_t begin, int64_t width,
                              int64_t columns, const DeltaWorkspace& work) const {
  const DeltaMatrix d_v = delta_matrix_at(grads.d_qkv, c.row, layout.v_column(value_head) + begin);
  kernels.store_rows(work.d_z, 2 * width, c.count, columns, -1.0f, const_cast<void*>(d_v.data),
                     d_v.type, d_v.stride);
}

// d_u, d_z and d_v of a panel, and what they add to d_beta, d_fold and the coefficients.
void DeltaBackward::solve_backward(const Chunk& c, int64_t head, int64_t member, int64_t begin,
                                   int64_t width, int64_t columns,
                                   const DeltaWorkspace& work) const {
  const int64_t value_head = head * layout.group + member;
  const float* z_panel = z(work, c.index, member) + kDeltaChunk * begin;
  prepare_panel(c, value_head, z_panel, begin, width, columns, work);
  if (c.folds) compute_d_u_and_d_fold_by_state(c, member, begin, width, work);
  add_to_d_u_by_outputs(c, width, work);
  // u = beta z;  z_i = v_i - ... - sum_{j<i} M_ij u_j
  kernels.solve_back({.coefficients = work.coefficients,
                      .beta = beta(c, value_head),
                      .beta_stride = args.beta.row_stride,
                      .count = c.count,
                      .lanes = width,
                      .d_u = work.d_u,
                      .d_z = work.d_z});
  add_to_d_beta(c, value_head, z_panel, begin, width, work);
  store_d_v(c, value_head, begin, width, columns, work);
  compute_d_coefficients(c, width, /*add=*/begin > 0, work);
}

// transposed = panel^T, itself in panels of the lanes of dk.
void DeltaBackward::transpose_state(const float* panel, int64_t width,
                                    const DeltaWorkspace& work) const {
  for_delta_panels(layout.shape.key_dim, [&](int64_t begin, int64_t lanes, int64_t columns) {
    kernels.transpose(panel + begin * width, width, columns, width, work.transposed + begin * width,
                      lanes);
  });
}

// The gradients of k_i^T S and q_i^T S.
void DeltaBackward::compute_d_reads(const Chunk& c, int64_t width,
                                    const DeltaWorkspace& work) const {
  for (int64_t side = 0; side < 2; ++side) {
    kernels.scale_rows(work.d_z + side * width, 2 * width, work.total_exp, 1, c.count, width,
                       work.d_reads + side * width, 2 * width);
  }
}

// d_rows_state += d_reads S^T of a panel, whose transpose is there; the first panel starts it.
void DeltaBackward::add_to_d_rows_state(const Chunk& c, int64_t begin, int64_t width,
                                        const DeltaWorkspace& work) const {
  for_delta_panels(layout.shape.key_dim, [&](int64_t lane, int64_t lanes, int64_t) {
    kernels.multiply({.x = work.d_reads,
                      .x_row = width,
                      .panel = work.transposed + lane * width,
                      .panel_stride = lanes,
                      .depth = width,
                      .rows = 2 * c.count,
                      .lanes = lanes,
                      .init = begin > 0 ? work.d_rows_state + lane : nullptr,
                      .init_stride = layout.key_lanes,
                      .out = work.d_rows_state + lane,
                      .out_stride = layout.key_lanes});
  });
}

// Takes the gradient of a panel of the state from behind the chunk to before it.
void DeltaBackward::update_d_state(const Chunk& c, int64_t member, int64_t begin, int64_t width,
                                   const DeltaWorkspace& work) const {
  const int64_t dim = layout.shape.key_dim;
  float* d_state = work.d_state + member * layout.state() + dim * begin;
  kernels.multiply({.x = work.rows,
                    .x_row = 1,
                    .x_step = layout.key_lanes,
                    .panel = work.d_reads,
                    .panel_stride = width,
                    .depth = 2 * c.count,
                    .rows = dim,
                    .lanes = width,
                    .init = c.folds ? d_state : nullptr,
                    .init_stride = width,
                    .keep = work.total_exp[c.count - 1],
                    .out = d_state,
                    .out_stride = width});
}

// e_i k_i^T S and e_i q_i^T S: to d_rows_state, and to the state before the chunk what the panel of
// the one behind it leaves.
void DeltaBackward::state_product_backward(const Chunk& c, int64_t member, int64_t begin,
                                           int64_t width, const DeltaWorkspace& work) const {
  compute_d_reads(c, width, work);
  transpose_state(state(work, c.index - 1, member) + layout.shape.key_dim * begin, width, work);
  add_to_d_rows_state(c, begin, width, work);
  update_d_state(c, member, begin, width, work);
}

// S' = e_63 S + sum_j k_j (E_j u_j)^T: the products with u to d_rows, <d S', S> row by row to
// d_keep.
void DeltaBackward::add_chunk_to_state_backward(const Chunk& c, int64_t member, int64_t begin,
                                                int64_t width, const DeltaWorkspace& work) const {
  const int64_t dim = layout.shape.key_dim;
  const float* d_state = work.d_state + member * layout.state() + dim * begin;
  kernels.scale_rows(work.u, width, work.decay_exp, 1, c.count, width, work.u, width);
  transpose_state(d_state, width, work);
  for_delta_panels(dim, [&](int64_t lane, int64_t lanes, int64_t) {
    kernels.multiply({.x = work.u,
                      .x_row = width,
                      .panel = work.transposed + lane * width,
                      .panel_stride = lanes,
                      .depth = width,
                      .rows = c.count,
                      .lanes = lanes,
                      .init = work.d_rows + lane,
                      .init_stride = 2 * layout.key_lanes,
                      .out = work.d_rows + lane,
                      .out_stride = 2 * layout.key_lanes});
  });
  if (c.reads) {
    kernels.dot_rows(d_state, 0, state(work, c.index - 1, member) + dim * begin, 0, 1, dim * width,
                     /*add=*/begin > 0, work.d_keep, 1);
  }
}

// Scores and g of a value head, from the coefficients and what else reads D and G.
void DeltaBackward::decay_backward(const Chunk& c, int64_t member, float* d_log_decay,
                                   const DeltaWorkspace& work) const {
  kernels.decay_backward(
      {.gamma = work.gamma,
       .scores = scores(c, work),
       .d_coefficients = work.d_coefficients,
       .count = c.count,
       .is_first = member == 0,
       .d_scores = work.d_scores,
       .d_total = work.d_total,
       .d_fold = c.folds ? work.d_fold : nullptr,
       .d_fold_total = c.reads && c.folds ? *work.d_keep * work.total_exp[c.count - 1] : 0.0f,
       .column_sums = work.column_sums,
       .d_decay = work.d_decay,
       .d_log_decay = d_log_decay,
       .stride = grads.d_log_decay.row_stride});
}

// G_i is in both rows i of what the state gives: e_i k_i^T S and e_i q_i^T S.
void DeltaBackward::total_backward(const Chunk& c, const DeltaWorkspace& work) const {
  if (!c.reads) {
    std::fill_n(work.d_total, c.count, 0.0f);
    return;
  }
  kernels.dot_rows(work.rows, 2 * layout.key_lanes, work.d_rows_state, 2 * layout.key_lanes,
                   c.count, 2 * layout.key_lanes, /*add=*/false, work.d_total, 1);
  kernels.add_into(work.d_rows_state, work.d_rows, 2 * c.count * layout.key_lanes);
}

void DeltaBackward::value_head_backward(const Chunk& c, int64_t head, int64_t member,
                                        const DeltaWorkspace& work) const {
  const int64_t value_head = head * layout.group + member;
  compute_decays_and_coefficients(c, value_head, work.gamma, work);
  for_delta_panels(layout.shape.value_dim, [&](int64_t begin, int64_t width, int64_t columns) {
    solve_backward(c, head, member, begin, width, columns, work);
    if (c.folds) add_chunk_to_state_backward(c, member, begin, width, work);
    if (c.reads) state_product_backward(c, member, begin, width, work);
  });
  total_backward(c, work);
  float* d_log_decay = grads.d_log_decay.f32() + c.row * grads.d_log_decay.row_stride + value_head;
  decay_backward(c, member, d_log_decay, work);
}

// What the keys of a panel of rows, in `packed`, give to the rows that they are multiplied by.
void DeltaBackward::add_d_rows_by_scores(const Chunk& c, int64_t begin, int64_t lanes,
                                         const DeltaWorkspace& work) const {
  for (int64_t i = 0; i < c.count; i += kTile / 2) {
    const int64_t tokens = std::min(kTile / 2, c.count - i);
    float* d_rows = work.d_rows + 2 * i * layout.key_lanes + begin;
    kernels.multiply({.x = work.d_scores + 2 * i * kDeltaChunk,
                      .x_row = kDeltaChunk,
                      .panel = work.packed,
                      .panel_stride = 2 * lanes,
                      .depth = i + tokens,
                      .rows = 2 * tokens,
                      .lanes = lanes,
                      .init = d_rows,
                      .init_stride = layout.key_lanes,
                      .out = d_rows,
                      .out_stride = layout.key_lanes});
  }
}

// And what those rows give to the keys, which are rows, too.
void DeltaBackward::add_d_keys_by_scores(const Chunk& c, int64_t begin, int64_t lanes,
                                         const DeltaWorkspace& work) const {
  for (int64_t j = 0; j < c.count; j += kTile) {
    float* d_keys = work.d_rows + 2 * j * layout.key_lanes + begin;
    kernels.multiply({.x = work.d_scores + 2 * j * kDeltaChunk + j,
                      .x_row = 1,
                      .x_step = kDeltaChunk,
                      .panel = work.packed + 2 * j * lanes,
                      .panel_stride = lanes,
                      .depth = 2 * (c.count - j),
                      .rows = std::min(kTile, c.count - j),
                      .lanes = lanes,
                      .init = d_keys,
                      .init_stride = 2 * layout.key_lanes,
                      .out = d_keys,
                      .out_stride = 2 * layout.key_lanes});
  }
}

// scores: k_i . k_j for j < i, q_i . k_j for j <= i. Adds to d_rows.
void DeltaBackward::scores_backward(const Chunk& c, const DeltaWorkspace& work) const {
  for_delta_panels(layout.shape.key_dim, [&](int64_t begin, int64_t lanes, int64_t) {
    kernels.load_rows({work.rows + begin, DType::kF32, layout.key_lanes}, 2 * c.count, lanes,
                      work.packed, lanes);
    add_d_rows_by_scores(c, begin, lanes, work);
    add_d_keys_by_scores(c, begin, lanes, work);
  });
}

void DeltaBackward::norms_backward(const Chunk& c, int64_t head, const DeltaWorkspace& work) const {
  const DeltaMatrix d_q = delta_matrix_at(grads.d_qkv, c.row, layout.q_column(head));
  const DeltaMatrix d_k = delta_matrix_at(grads.d_qkv, c.row, layout.k_column(head));
  kernels.norm_backward({.y = work.rows,
                         .d_y = work.d_rows,
                         .factors = work.factors,
                         .lanes = layout.key_lanes,
                         .count = c.count,
                         .dim = layout.shape.key_dim,
                         .q_inverse = static_cast<float>(layout.shape.key_dim),
                         .d_q = const_cast<void*>(d_q.data),
                         .d_k = const_cast<void*>(d_k.data),
                         .type = d_q.type,
                         .stride = d_q.stride});
}

// The first sweep. What it leaves of the last chunk's rows is still there for the second.
void DeltaBackward::recompute_chunks(const StateSegment& segment, int64_t head,
                                     const DeltaWorkspace& work) const {
  const int64_t chunks = num_chunks(segment);
  for (int64_t index = 0; index < chunks; ++index) {
    const Chunk c = chunk(segment, index);
    normalise_chunk_qk(c, head, /*keys_only=*/index + 1 < chunks, work);
    compute_side_scores(c, kKeys, work);
    for (int64_t member = 0; member < layout.group; ++member) {
      recompute_value_head(c, head, member, work);
    }
  }
}

void DeltaBackward::key_head_backward(const StateSegment& segment, int64_t head,
                                      const DeltaWorkspace& work) const {
  const int64_t chunks = num_chunks(segment);
  recompute_chunks(segment, head, work);
  for (int64_t index = chunks - 1; index >= 0; --index) {
    const Chunk c = chunk(segment, index);
    if (index + 1 < chunks) normalise_chunk_qk(c, head, /*keys_only=*/false, work);
    compute_side_scores(c, kQueries, work);
    std::fill_n(work.d_rows, 2 * c.count * layout.key_lanes, 0.0f);
    for (int64_t member = 0; member < layout.group; ++member) {
      value_head_backward(c, head, member, work);
    }
    scores_backward(c, work);
    norms_backward(c, head, work);
  }
}

void delta_net_backward(CpuBackend& backend, const DeltaNetArgs& args,
                        const DeltaGradients& grads) {
  const HostAccess access(backend.allocator());
  const DeltaBackward backward{*path_row(backend.path()).delta, args, grads,
                               DeltaLayout(args.shape)};
  const int64_t num_heads = args.shape.num_key_heads;
  const int64_t num_items = static_cast<int64_t>(args.segments.size()) * num_heads;
  if (num_items == 0) return;
  Scratch::Mark mark(backend.scratch());
  const int64_t chunks = max_chunks(args.segments);
  const auto* workspaces = backend.take_workspaces(
      [&] { return take_delta_workspace(backend.scratch(), backward.layout, chunks); });
  backend.pool().run_each(num_items, [&](int64_t i, int worker) {
    backward.key_head_backward(args.segments[static_cast<size_t>(i / num_heads)], i % num_heads,
                               workspaces[worker]);
  });
}

}  // namespace strata::ops::cpu
