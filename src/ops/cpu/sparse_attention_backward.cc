// SPDX-License-Identifier: Apache-2.0
// Backward of the tiled paths, in chunks of queries. First, query by query: P, dS and d_q. Then the
// sums over queries, of which each worker owns some columns: so they need no partial sums, and
// their order is the queries' own. T tokens, N heads, H head width.
#include <cmath>
#include <span>

#include "ops/cpu/cpu_backend.h"
#include "ops/cpu/sparse_attention.h"
#include "ops/cpu/tiles.h"

namespace strata::ops::cpu {
namespace {

constexpr int64_t kChunk = 16;  // queries
constexpr int64_t kSlice = 64;  // columns of a piece of the second part; a multiple of 16

// What the first part leaves of one query.
struct Query {
  uint32_t* p;      // [blocks][N / pack][kKeyBlock] depth form
  uint32_t* d_s;    // likewise
  uint32_t* q;      // [N / pack][lanes] depth form
  uint32_t* d_out;  // likewise
};

// Memory of one worker.
struct Workspace {
  uint32_t* q;            // rows form
  uint32_t* d_out;        // rows form
  uint32_t* key_lanes;    // one block
  uint32_t* key_depth;    // one block
  uint32_t* out_lanes;    // kKeyBlock heads
  uint32_t* d_out_lanes;  // likewise
  float* lse;             // [N], times log2(e)
  float* delta;           // [N], up to a multiple of kKeyBlock
  uint32_t* d_s_rows;     // tile_rows rows; none with pack 1
  float* d_q;             // [N][lanes]
  const void** rows;      // [N] or [kKeyBlock]
};

struct Backward {
  const AttentionKernels& kernels;
  const SparseAttentionArgs& args;
  const SparseGradients& grads;
  TensorView delta;  // [T, N]
  AttentionLayout layout;
  int64_t head_steps;  // N / pack, rounded up

  Backward(const AttentionKernels& table, const SparseAttentionArgs& arguments,
           const SparseGradients& gradients, TensorView deltas)
      : kernels(table),
        args(arguments),
        grads(gradients),
        delta(deltas),
        layout(table, arguments.width()),
        head_steps((arguments.num_heads() + table.pack - 1) / table.pack) {}

  [[nodiscard]] int64_t num_heads() const { return args.num_heads(); }
  [[nodiscard]] int64_t block_words() const { return head_steps * kKeyBlock; }
  [[nodiscard]] int64_t max_key_blocks() const;
  [[nodiscard]] Workspace take_workspace(Scratch& scratch) const;
  [[nodiscard]] Query take_query_workspace(Scratch& scratch) const;
  [[nodiscard]] const Query* take_query_workspaces(CpuBackend& backend, int64_t count) const;

  void find_head_rows(const TensorView& view, int64_t row, const void** rows) const {
    const int64_t row_bytes = layout.dim * dtype_bytes(args.q.dtype);
    const char* data = static_cast<const char*>(view.data);
    for (int64_t n = 0; n < num_heads(); ++n) rows[n] = data + (row * num_heads() + n) * row_bytes;
  }
  void pack_q_and_d_out(int64_t row, const Workspace& work, const Query& query) const;
  void load_scaled_lse(int64_t row, const Workspace& work) const;
  void compute_delta(int64_t row, const Workspace& work) const;
  void pack_keys(const SparseKeys& keys, int64_t first, int64_t count, const Workspace& work) const;
  void add_d_q(const uint32_t* d_s_rows, int64_t r, int64_t rows, int64_t count,
               const Workspace& work) const;
  // Goes through `count` keys, whose packed forms are in `work`; P and dS go to word first_word on.
  void backward_block(int64_t first_word, int64_t count, const Workspace& work,
                      const Query& query) const;
  void write_d_q(int64_t row, const Workspace& work) const;
  void backward_query(const SparseToken& token, const Workspace& work, const Query& query) const;
  void add_transposed_product(const uint32_t* x, const uint32_t* panel, int64_t rows,
                              int64_t num_lanes, float* acc) const;
  void compute_d_keys(const Query& query, int64_t key, int64_t rows, int64_t lane,
                      int64_t num_lanes, float* acc) const;
  void add_d_keys(const SparseToken& token, const Query& query, int64_t lane, int64_t num_lanes,
                  float* acc) const;
  void add_d_keys_of_slice(std::span<const SparseToken> tokens, const Query* queries, int64_t slice,
                           float* acc) const;
};

int64_t Backward::max_key_blocks() const {
  int64_t most = 0;
  for (const SparseSegment& s : args.segments) {
    const int64_t length = s.end - s.begin;
    const int64_t entries = args.num_entries(length - 1);
    most = std::max(most, std::min(length, args.window) +
                              (args.selected.empty() ? entries : std::min(entries, args.top_k)));
  }
  return (most + kKeyBlock - 1) / kKeyBlock;
}

uint32_t* take_words(Scratch& scratch, int64_t count) {
  return static_cast<uint32_t*>(scratch.take(4 * count));
}
float* take_floats(Scratch& scratch, int64_t count) {
  return static_cast<float*>(scratch.take(4 * count));
}

Workspace Backward::take_workspace(Scratch& scratch) const {
  const int64_t heads = num_heads();
  const int64_t rounded = (heads + kKeyBlock - 1) / kKeyBlock * kKeyBlock;
  return {.q = take_words(scratch, heads * layout.row_stride),
          .d_out = take_words(scratch, heads * layout.row_stride),
          .key_lanes = take_words(scratch, layout.lanes_block()),
          .key_depth = take_words(scratch, layout.depth_words(kKeyBlock)),
          .out_lanes = take_words(scratch, layout.lanes_block()),
          .d_out_lanes = take_words(scratch, layout.lanes_block()),
          .lse = take_floats(scratch, heads),
          .delta = take_floats(scratch, rounded),
          .d_s_rows = take_words(scratch, kernels.tile_rows * kKeyBlock),
          .d_q = take_floats(scratch, heads * layout.lanes),
          .rows = static_cast<const void**>(
              scratch.take(3 * rounded * static_cast<int64_t>(sizeof(void*))))};
}

Query Backward::take_query_workspace(Scratch& scratch) const {
  const int64_t blocks = max_key_blocks() * block_words();
  return {.p = take_words(scratch, blocks),
          .d_s = take_words(scratch, blocks),
          .q = take_words(scratch, layout.depth_words(num_heads())),
          .d_out = take_words(scratch, layout.depth_words(num_heads()))};
}

// Those of a chunk, of which `count` get memory.
const Query* Backward::take_query_workspaces(CpuBackend& backend, int64_t count) const {
  Scratch& scratch = backend.scratch();
  auto* queries = static_cast<Query*>(scratch.take(kChunk * static_cast<int64_t>(sizeof(Query))));
  for (int64_t i = 0; i < count; ++i) {
    const Query taken = take_query_workspace(scratch);
    if (!backend.is_counting()) queries[i] = taken;
  }
  return queries;
}

void Backward::pack_q_and_d_out(int64_t row, const Workspace& work, const Query& query) const {
  const int64_t heads = num_heads();
  const void** q = work.rows;
  const void** d_out = q + heads;
  find_head_rows(args.q, row, q);
  find_head_rows(grads.d_out, row, d_out);
  for (int64_t n = 0; n < heads; ++n) {
    kernels.pack_row(q[n], layout.dim, work.q + n * layout.row_stride);
    kernels.pack_row(d_out[n], layout.dim, work.d_out + n * layout.row_stride);
  }
  kernels.pack_in_depth_form({.rows = q, .count = heads, .dim = layout.dim}, query.q);
  kernels.pack_in_depth_form({.rows = d_out, .count = heads, .dim = layout.dim}, query.d_out);
}

// work.lse: that of the query's heads, in units of log 2.
void Backward::load_scaled_lse(int64_t row, const Workspace& work) const {
  const float* lse = grads.lse.f32() + row * num_heads();
  for (int64_t n = 0; n < num_heads(); ++n) work.lse[n] = lse[n] * kLog2E;
}

// By the chain that d_p has; also to `delta`.
void Backward::compute_delta(int64_t row, const Workspace& work) const {
  const int64_t heads = num_heads();
  const void** out = work.rows;
  const void** d_out = out + heads;
  find_head_rows(grads.out, row, out);
  find_head_rows(grads.d_out, row, d_out);
  for (int64_t n = 0; n < heads; n += kKeyBlock) {
    const int64_t count = std::min(kKeyBlock, heads - n);
    kernels.pack_in_lanes_form({.rows = out + n, .count = count, .dim = layout.dim},
                               work.out_lanes);
    kernels.pack_in_lanes_form({.rows = d_out + n, .count = count, .dim = layout.dim},
                               work.d_out_lanes);
    kernels.dot_lanes(work.d_out_lanes, work.out_lanes, layout.steps, work.delta + n);
  }
  std::copy_n(work.delta, heads, delta.f32() + row * heads);
}

// d_q += dS k, over `count` keys, of heads r .. r + rows - 1.
void Backward::add_d_q(const uint32_t* d_s_rows, int64_t r, int64_t rows, int64_t count,
                       const Workspace& work) const {
  kernels.accumulate_product({.x = d_s_rows,
                              .x_row = kKeyBlock / layout.pack,
                              .x_step = 1,
                              .panel = work.key_depth,
                              .panel_width = layout.lanes,
                              .steps = (count + layout.pack - 1) / layout.pack,
                              .rows = rows,
                              .lanes = layout.lanes,
                              .acc = work.d_q + r * layout.lanes,
                              .acc_stride = layout.lanes});
}

void Backward::backward_block(int64_t first_word, int64_t count, const Workspace& work,
                              const Query& query) const {
  int64_t visible[kMostTileRows];
  std::fill_n(visible, kMostTileRows, count);
  for (int64_t r = 0; r < num_heads(); r += kernels.tile_rows) {
    const int64_t rows = std::min(kernels.tile_rows, num_heads() - r);
    uint32_t* d_s = query.d_s + first_word + r / layout.pack * kKeyBlock;
    uint32_t* d_s_rows = layout.pack == 1 ? d_s : work.d_s_rows;
    kernels.backward_tile({.q = work.q + r * layout.row_stride,
                           .q_stride = layout.row_stride,
                           .d_out = work.d_out + r * layout.row_stride,
                           .d_out_stride = layout.row_stride,
                           .keys = work.key_lanes,
                           .key_steps = layout.steps,
                           .values = work.key_lanes,
                           .value_steps = layout.steps,
                           .rows = rows,
                           .visible = visible,
                           .hidden = nullptr,
                           .scale = args.scale * kLog2E,
                           .lse = work.lse + r,
                           .delta = work.delta + r,
                           .p = query.p + first_word + r / layout.pack * kKeyBlock,
                           .d_s = d_s,
                           .d_s_rows = d_s_rows});
    add_d_q(d_s_rows, r, rows, count, work);
  }
}

void Backward::write_d_q(int64_t row, const Workspace& work) const {
  const int64_t row_bytes = layout.dim * dtype_bytes(grads.d_q.dtype);
  for (int64_t n = 0; n < num_heads(); ++n) {
    kernels.write_row(work.d_q + n * layout.lanes, args.scale, layout.dim,
                      static_cast<char*>(grads.d_q.data) + (row * num_heads() + n) * row_bytes,
                      grads.d_q.dtype == DType::kBF16);
  }
}

void Backward::pack_keys(const SparseKeys& keys, int64_t first, int64_t count,
                         const Workspace& work) const {
  keys.find_rows(first, count, work.rows);
  const PackRows from{.rows = work.rows, .count = count, .dim = layout.dim};
  kernels.pack_in_lanes_form(from, work.key_lanes);
  kernels.pack_in_depth_form(from, work.key_depth);
}

// s = scale * q k^T: P, dS and d_q = dS k of one query.
void Backward::backward_query(const SparseToken& token, const Workspace& work,
                              const Query& query) const {
  const SparseKeys keys(args, *token.segment, token.row);
  pack_q_and_d_out(token.row, work, query);
  load_scaled_lse(token.row, work);
  compute_delta(token.row, work);
  std::fill_n(work.d_q, num_heads() * layout.lanes, 0.0f);
  for (int64_t key = 0; key < keys.count(); key += kKeyBlock) {
    const int64_t count = std::min(kKeyBlock, keys.count() - key);
    pack_keys(keys, key, count, work);
    backward_block(key / kKeyBlock * block_words(), count, work, query);
  }
  write_d_q(token.row, work);
}

// acc [rows, num_lanes] += x^T panel, over all heads: x [N / pack][kKeyBlock] in depth form.
void Backward::add_transposed_product(const uint32_t* x, const uint32_t* panel, int64_t rows,
                                      int64_t num_lanes, float* acc) const {
  kernels.accumulate_product({.x = x,
                              .x_row = 1,
                              .x_step = kKeyBlock,
                              .panel = panel,
                              .panel_width = layout.lanes,
                              .steps = head_steps,
                              .rows = rows,
                              .lanes = num_lanes,
                              .acc = acc,
                              .acc_stride = num_lanes});
}

// acc [rows, num_lanes] = columns [lane, lane + num_lanes) of scale dS^T q + P^T d_out of one
// query, of keys key .. key + rows - 1 of one block.
void Backward::compute_d_keys(const Query& query, int64_t key, int64_t rows, int64_t lane,
                              int64_t num_lanes, float* acc) const {
  const int64_t at = key / kKeyBlock * block_words() + key % kKeyBlock;
  std::fill_n(acc, rows * num_lanes, 0.0f);
  add_transposed_product(query.d_s + at, query.q + lane, rows, num_lanes, acc);
  for (int64_t i = 0; i < rows * num_lanes; ++i) acc[i] *= args.scale;
  add_transposed_product(query.p + at, query.d_out + lane, rows, num_lanes, acc);
}

// Columns [lane, lane + num_lanes) of the gradients of a query's keys += what the query gives.
void Backward::add_d_keys(const SparseToken& token, const Query& query, int64_t lane,
                          int64_t num_lanes, float* acc) const {
  const SparseKeys keys(args, *token.segment, token.row);
  const int64_t columns = std::min(num_lanes, layout.dim - lane);
  // A tile of rows stays within one block of P and dS.
  for (int64_t key = 0, rows = 0; key < keys.count(); key += rows) {
    rows = std::min({kernels.tile_rows, keys.count() - key, kKeyBlock - key % kKeyBlock});
    compute_d_keys(query, key, rows, lane, num_lanes, acc);
    for (int64_t r = 0; r < rows; ++r) {
      float* to = d_key_row(grads, keys, key + r) + lane;
      for (int64_t c = 0; c < columns; ++c) to[c] += acc[r * num_lanes + c];
    }
  }
}

// The slice-th of the slices of columns, over a chunk's queries.
void Backward::add_d_keys_of_slice(std::span<const SparseToken> tokens, const Query* queries,
                                   int64_t slice, float* acc) const {
  const int64_t lane = slice * kSlice;
  const int64_t num_lanes = std::min(kSlice, layout.lanes - lane);
  for (size_t i = 0; i < tokens.size(); ++i) {
    add_d_keys(tokens[i], queries[i], lane, num_lanes, acc);
  }
}

// The gradients of a chunk's queries, and what they add to those of their keys.
void backward_chunk(ThreadPool& pool, const Backward& backward, std::span<const SparseToken> tokens,
                    const Workspace* workspaces, const Query* queries, float* acc) {
  pool.run_each(std::ssize(tokens), [&](int64_t i, int worker) {
    const TileRegion tiles;
    backward.backward_query(tokens[static_cast<size_t>(i)], workspaces[worker], queries[i]);
  });
  const int64_t num_slices = (backward.layout.lanes + kSlice - 1) / kSlice;
  pool.run_each(num_slices, [&](int64_t slice, int worker) {
    const TileRegion tiles;
    backward.add_d_keys_of_slice(tokens, queries, slice,
                                 acc + worker * backward.kernels.tile_rows * kSlice);
  });
}

}  // namespace

void sparse_attention_backward_tiled(CpuBackend& backend, const AttentionKernels& kernels,
                                     const SparseAttentionArgs& args, const SparseGradients& grads,
                                     TensorView delta) {
  const Backward backward(kernels, args, grads, delta);
  const int64_t num_tokens = num_tokens_of(args);
  if (num_tokens == 0) return;
  Scratch& scratch = backend.scratch();
  const Scratch::Mark mark(scratch);
  const SparseToken* tokens = list_tokens(backend, args);
  float* acc = take_floats(scratch, backend.pool().num_threads() * kernels.tile_rows * kSlice);
  const auto* workspaces =
      backend.take_workspaces([&] { return backward.take_workspace(scratch); });
  const Query* queries = backward.take_query_workspaces(backend, std::min(kChunk, num_tokens));
  if (backend.is_counting()) return;
  for (int64_t begin = 0; begin < num_tokens; begin += kChunk) {
    const int64_t count = std::min(kChunk, num_tokens - begin);
    backward_chunk(backend.pool(), backward, {tokens + begin, static_cast<size_t>(count)},
                   workspaces, queries, acc);
  }
}

}  // namespace strata::ops::cpu
