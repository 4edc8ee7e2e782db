// SPDX-License-Identifier: Apache-2.0
// Backward of the tiled paths. An item owns what it writes: the d_q of a run of queries (of all
// heads of a group), or the d_k and d_v of a run of keys, or all of one key/value head of a segment
// at once (the least work: probabilities are recomputed once). Which split is taken depends on the
// number of workers and moves no bit: each output's chain has the same terms in the same order.
// Order of an item: heads of the group, query tiles, key blocks; with a window only the blocks that
// a tile sees. T tokens, N query heads, M key/value heads, H key width, U value width.
#include <algorithm>
#include <limits>

#include "ops/cpu/attention.h"
#include "ops/cpu/cpu_backend.h"
#include "ops/cpu/tiles.h"

namespace strata::ops::cpu {
namespace {

// Runs of a split item: packing costs a few percent of the products it feeds.
constexpr int64_t kQueryRun = 192;  // a multiple of every query_tile
constexpr int64_t kKeyRun = 2 * kKeyBlock;
static_assert(kTileRows % 2 == 0);

struct Item {
  int64_t segment;
  int64_t kv_head;
  int64_t query_begin;  // a multiple of query_tile
  int64_t query_end;
  int64_t key_begin;  // a multiple of kKeyBlock
  int64_t key_end;
  bool wants_queries;  // d_q
  bool wants_keys;     // d_k, d_v
  int64_t cost;
};

// Memory of one worker. All [keys] below count from the item's key_begin.
struct Workspace {
  uint32_t* key_lanes;    // [blocks] lanes form
  uint32_t* value_lanes;  // [blocks] lanes form
  uint32_t* key_depth;    // [keys] depth form
  float* d_k;             // [keys][lanes]
  float* d_v;             // [keys][lanes of values]
  uint32_t* q;            // tile, rows form
  uint32_t* d_out;        // tile, rows form
  uint32_t* q_depth;      // tile, depth form
  uint32_t* d_out_depth;  // tile, depth form
  float* d_q;             // tile [query_tile][lanes]
  float* lse;             // tile
  float* delta;           // tile
  uint32_t* out_lanes;    // kKeyBlock rows of the tile, lanes form
  uint32_t* d_out_lanes;  // likewise
  uint32_t* p;            // [query_tile / pack][kKeyBlock]
  uint32_t* d_s;          // [query_tile / pack][kKeyBlock]
  uint32_t* d_s_rows;     // [query_tile][kKeyBlock / pack]; d_s itself with pack 1
};

// How many keys of a block come up to each row's own, and before its window.
struct SeenKeys {
  int64_t visible[kMostTileRows];
  int64_t hidden[kMostTileRows];
};

// A tile of queries of one head.
struct Tile {
  int64_t begin;  // first query's position
  int64_t count;
  int64_t head;  // query head
};

// Steps of queries of a tile.
struct Steps {
  int64_t first;
  int64_t count;
};

struct Backward {
  const AttentionKernels& kernels;
  const AttentionArgs& args;
  const AttentionGradients& grads;
  TensorView deltas;                                          // [T, N], or empty
  AttentionLayout layout{kernels, args.key_width()};          // of q and keys
  AttentionLayout value_layout{kernels, args.value_width()};  // of d_out and values
  int64_t group = args.q.shape[1] / args.num_kv_heads;

  [[nodiscard]] const AttentionSegment& segment(const Item& item) const {
    return args.segments[static_cast<size_t>(item.segment)];
  }
  [[nodiscard]] int64_t length(const AttentionSegment& s) const { return s.end - s.begin; }
  // The place in [T, N] of the i-th query of a tile.
  [[nodiscard]] int64_t query_index(const Item& item, const Tile& tile, int64_t i) const {
    return (segment(item).begin + tile.begin + i) * args.q.shape[1] + tile.head;
  }
  [[nodiscard]] const char* query_row(const TensorView& view, const Item& item, const Tile& tile,
                                      int64_t i) const {
    return static_cast<const char*>(view.data) +
           query_index(item, tile, i) * view.shape[2] * dtype_bytes(view.dtype);
  }
  // Keys that a query of [begin, end) sees, about.
  [[nodiscard]] int64_t keys_seen(int64_t begin, int64_t end) const {
    const int64_t middle = (begin + end) / 2;
    return middle - args.first_key(middle);
  }
  [[nodiscard]] bool worth_splitting(int num_workers) const;
  [[nodiscard]] Item whole_item(int64_t segment_index, int64_t head) const;
  [[nodiscard]] Item item_of_queries(int64_t segment_index, int64_t head, int64_t begin) const;
  [[nodiscard]] Item item_of_keys(int64_t segment_index, int64_t head, int64_t begin) const;
  template <typename Body>
  void for_items(bool split, Body&& body) const;
  [[nodiscard]] int64_t num_items(bool split) const;
  void list_items_costliest_first(bool split, Item* items) const;
  [[nodiscard]] Workspace take_workspace(Scratch& scratch) const;

  void backward_item(const Item& item, const Workspace& work) const;
  void pack_kv(const Item& item, const Workspace& work) const;
  void find_query_rows(const TensorView& view, const Item& item, const Tile& tile,
                       const void** rows) const {
    for (int64_t i = 0; i < tile.count; ++i) rows[i] = query_row(view, item, tile, i);
  }
  void pack_q_and_d_out(const Item& item, const Tile& tile, const Workspace& work) const;
  void load_scaled_lse(const Item& item, const Tile& tile, const Workspace& work) const;
  void compute_delta(const Item& item, const Tile& tile, const Workspace& work) const;
  [[nodiscard]] SeenKeys find_seen_keys(const Tile& tile, int64_t key, int64_t r,
                                        int64_t rows) const;
  void compute_p_and_d_s(const SeenKeys& seen, int64_t r, int64_t rows, int64_t block,
                         const Workspace& work) const;
  void backward_block(const Item& item, const Tile& tile, int64_t key, const Workspace& work) const;
  void backward_tile(const Item& item, const Tile& tile, const Workspace& work) const;
  void add_d_q(const int64_t* visible, int64_t r, int64_t rows, int64_t block,
               const Workspace& work) const;
  void add_transposed_product(const uint32_t* x, const uint32_t* panel, const AttentionLayout& of,
                              Steps steps, int64_t rows, float* acc) const;
  void add_d_kv(const Item& item, const Tile& tile, int64_t key, int64_t first_row, int64_t end_row,
                const Workspace& work) const;
  void write_d_q(const Item& item, const Tile& tile, const Workspace& work) const;
  void write_d_kv(const Item& item, const Workspace& work) const;
};

// Whole items make 5 products, split ones 7 (scores and d_p twice).
bool Backward::worth_splitting(int num_workers) const {
  double largest = 0;
  double total = 0;
  for (const AttentionSegment& s : args.segments) {
    const auto queries = static_cast<double>(length(s));
    const double keys = args.window == 0 ? queries : 2.0 * static_cast<double>(args.window);
    const double area = queries * std::min(queries, keys);
    largest = std::max(largest, area);
    total += area * static_cast<double>(args.num_kv_heads);
  }
  const double whole = 5 * std::max(largest, total / num_workers);
  return whole > 7 * total / num_workers;
}

Item Backward::whole_item(int64_t segment_index, int64_t head) const {
  const int64_t n = length(args.segments[static_cast<size_t>(segment_index)]);
  return {.segment = segment_index,
          .kv_head = head,
          .query_begin = 0,
          .query_end = n,
          .key_begin = 0,
          .key_end = n,
          .wants_queries = true,
          .wants_keys = true,
          .cost = 5 * n * keys_seen(0, n)};
}

// A run of queries from `begin` on, and the keys that they see.
Item Backward::item_of_queries(int64_t segment_index, int64_t head, int64_t begin) const {
  const int64_t n = length(args.segments[static_cast<size_t>(segment_index)]);
  const int64_t end = std::min(n, begin + kQueryRun);
  return {.segment = segment_index,
          .kv_head = head,
          .query_begin = begin,
          .query_end = end,
          .key_begin = args.first_key(begin) / kKeyBlock * kKeyBlock,
          .key_end = end,
          .wants_queries = true,
          .wants_keys = false,
          .cost = 3 * (end - begin) * keys_seen(begin, end)};
}

// A run of keys from `begin` on, and the queries that see them.
Item Backward::item_of_keys(int64_t segment_index, int64_t head, int64_t begin) const {
  const int64_t n = length(args.segments[static_cast<size_t>(segment_index)]);
  const int64_t end = std::min(n, begin + kKeyRun);
  const int64_t last = std::min(n, args.first_query_beyond(end));
  return {.segment = segment_index,
          .kv_head = head,
          .query_begin = begin / kernels.query_tile * kernels.query_tile,
          .query_end = last,
          .key_begin = begin,
          .key_end = end,
          .wants_queries = false,
          .wants_keys = true,
          .cost = 4 * (end - begin) * (last - begin)};
}

// Calls body(item) in memory order.
template <typename Body>
void Backward::for_items(bool split, Body&& body) const {
  for (int64_t s = 0; s < static_cast<int64_t>(args.segments.size()); ++s) {
    const int64_t n = length(args.segments[static_cast<size_t>(s)]);
    for (int64_t head = 0; n > 0 && head < args.num_kv_heads; ++head) {
      if (split) {
        for (int64_t q = 0; q < n; q += kQueryRun) body(item_of_queries(s, head, q));
        for (int64_t key = 0; key < n; key += kKeyRun) body(item_of_keys(s, head, key));
      } else {
        body(whole_item(s, head));
      }
    }
  }
}

int64_t Backward::num_items(bool split) const {
  int64_t count = 0;
  for_items(split, [&](const Item&) { ++count; });
  return count;
}

// Dearest first, so that the last items to be taken are short.
void Backward::list_items_costliest_first(bool split, Item* items) const {
  int64_t count = 0;
  for_items(split, [&](const Item& item) { items[count++] = item; });
  std::sort(items, items + count, [](const Item& a, const Item& b) { return a.cost > b.cost; });
}

Workspace Backward::take_workspace(Scratch& scratch) const {
  int64_t longest = 0;
  for (const AttentionSegment& s : args.segments) longest = std::max(longest, length(s));
  const int64_t blocks = (longest + kKeyBlock - 1) / kKeyBlock;
  const auto words = [&](int64_t count) { return static_cast<uint32_t*>(scratch.take(4 * count)); };
  const auto floats = [&](int64_t count) { return static_cast<float*>(scratch.take(4 * count)); };
  Workspace work{};
  work.key_lanes = words(blocks * layout.lanes_block());
  work.value_lanes = words(blocks * value_layout.lanes_block());
  work.key_depth = words(layout.depth_words(blocks * kKeyBlock));
  work.d_k = floats(blocks * kKeyBlock * layout.lanes);
  work.d_v = floats(blocks * kKeyBlock * value_layout.lanes);
  work.q = words(kernels.query_tile * layout.row_stride);
  work.d_out = words(kernels.query_tile * value_layout.row_stride);
  work.q_depth = words(layout.depth_words(kernels.query_tile));
  work.d_out_depth = words(value_layout.depth_words(kernels.query_tile));
  work.d_q = floats(kernels.query_tile * layout.lanes);
  work.lse = floats(kernels.query_tile);
  work.delta = floats((kernels.query_tile + kKeyBlock - 1) / kKeyBlock * kKeyBlock);
  work.out_lanes = words(value_layout.lanes_block());
  work.d_out_lanes = words(value_layout.lanes_block());
  work.p = words(kernels.query_tile / layout.pack * kKeyBlock);
  work.d_s = words(kernels.query_tile / layout.pack * kKeyBlock);
  work.d_s_rows = layout.pack == 1 ? work.d_s : words(kernels.query_tile * kKeyBlock / layout.pack);
  return work;
}

void Backward::pack_kv(const Item& item, const Workspace& work) const {
  const KvView& kv = segment(item).kv;
  const void* rows[kKeyBlock];
  for (int64_t key = item.key_begin; key < item.key_end; key += kKeyBlock) {
    const int64_t count = std::min(kKeyBlock, item.key_end - key);
    const int64_t block = (key - item.key_begin) / kKeyBlock;
    const int64_t bytes = dtype_bytes(args.q.dtype);
    PackRows from{.rows = rows, .count = count, .dim = layout.dim};
    find_kv_rows(kv, &KvRange::keys, key, count, item.kv_head, layout.dim, bytes, rows);
    kernels.pack_in_lanes_form(from, work.key_lanes + block * layout.lanes_block());
    if (item.wants_queries) {
      kernels.pack_in_depth_form(from, work.key_depth + block * layout.depth_words(kKeyBlock));
    }
    from.dim = value_layout.dim;
    find_kv_rows(kv, &KvRange::values, key, count, item.kv_head, value_layout.dim, bytes, rows);
    kernels.pack_in_lanes_form(from, work.value_lanes + block * value_layout.lanes_block());
  }
}

void Backward::pack_q_and_d_out(const Item& item, const Tile& tile, const Workspace& work) const {
  const void* q[kMostQueryTile];
  const void* d_out[kMostQueryTile];
  find_query_rows(args.q, item, tile, q);
  find_query_rows(grads.d_out, item, tile, d_out);
  for (int64_t i = 0; i < tile.count; ++i) {
    kernels.pack_row(q[i], layout.dim, work.q + i * layout.row_stride);
    kernels.pack_row(d_out[i], value_layout.dim, work.d_out + i * value_layout.row_stride);
  }
  if (!item.wants_keys) return;
  kernels.pack_in_depth_form({.rows = q, .count = tile.count, .dim = layout.dim}, work.q_depth);
  kernels.pack_in_depth_form({.rows = d_out, .count = tile.count, .dim = value_layout.dim},
                             work.d_out_depth);
}

// work.lse: that of the tile's queries, in units of log 2.
void Backward::load_scaled_lse(const Item& item, const Tile& tile, const Workspace& work) const {
  for (int64_t i = 0; i < tile.count; ++i) {
    work.lse[i] = grads.lse.f32()[query_index(item, tile, i)] * kLog2E;
  }
}

// By the chain that d_p has, so that d_s of a query that sees one key is exactly zero. An item that
// has the queries writes them to `deltas` too.
void Backward::compute_delta(const Item& item, const Tile& tile, const Workspace& work) const {
  const void* out[kMostQueryTile];
  const void* d_out[kMostQueryTile];
  find_query_rows(grads.out, item, tile, out);
  find_query_rows(grads.d_out, item, tile, d_out);
  for (int64_t i = 0; i < tile.count; i += kKeyBlock) {
    const int64_t count = std::min(kKeyBlock, tile.count - i);
    kernels.pack_in_lanes_form({.rows = out + i, .count = count, .dim = value_layout.dim},
                               work.out_lanes);
    kernels.pack_in_lanes_form({.rows = d_out + i, .count = count, .dim = value_layout.dim},
                               work.d_out_lanes);
    kernels.dot_lanes(work.d_out_lanes, work.out_lanes, value_layout.steps, work.delta + i);
  }
  for (int64_t i = 0; item.wants_queries && !deltas.empty() && i < tile.count; ++i) {
    deltas.f32()[query_index(item, tile, i)] = work.delta[i];
  }
}

// s = scale * q k^T: d_q += dS k, over the keys of the block that the rows see.
void Backward::add_d_q(const int64_t* visible, int64_t r, int64_t rows, int64_t block,
                       const Workspace& work) const {
  const int64_t seen = std::min(*std::max_element(visible, visible + rows), kKeyBlock);
  const int64_t row_words = kKeyBlock / layout.pack;
  kernels.accumulate_product({.x = work.d_s_rows + r * row_words,
                              .x_row = row_words,
                              .x_step = 1,
                              .panel = work.key_depth + block * layout.depth_words(kKeyBlock),
                              .panel_width = layout.lanes,
                              .steps = (seen + layout.pack - 1) / layout.pack,
                              .rows = rows,
                              .lanes = layout.lanes,
                              .acc = work.d_q + r * layout.lanes,
                              .acc_stride = layout.lanes});
}

// acc [rows][lanes] += x^T panel, over `steps`: x [.][kKeyBlock] in depth form. A tile's steps are
// whole groups.
void Backward::add_transposed_product(const uint32_t* x, const uint32_t* panel,
                                      const AttentionLayout& of, Steps steps, int64_t rows,
                                      float* acc) const {
  kernels.accumulate_product({.x = x + steps.first * kKeyBlock,
                              .x_row = 1,
                              .x_step = kKeyBlock,
                              .panel = panel + steps.first * of.lanes,
                              .panel_width = of.lanes,
                              .steps = steps.count,
                              .rows = rows,
                              .lanes = of.lanes,
                              .acc = acc,
                              .acc_stride = of.lanes,
                              .phase = steps.first % kGroupSteps});
}

// out = p v: d_v += P^T d_out. s = scale * q k^T: d_k += dS^T q. Queries before a tile of keys add
// nothing and are left out, as are those whose windows begin after it; rows before first_row and
// from end_row on have no P and dS.
void Backward::add_d_kv(const Item& item, const Tile& tile, int64_t key, int64_t first_row,
                        int64_t end_row, const Workspace& work) const {
  const int64_t count = std::min(kKeyBlock, item.key_end - key);
  for (int64_t k = 0; k < count; k += kernels.tile_rows) {
    const int64_t rows = std::min(kernels.tile_rows, count - k);
    const int64_t first = std::max(first_row, key + k - tile.begin) / layout.pack;
    const int64_t end = std::min(end_row, args.first_query_beyond(key + k + rows) - tile.begin);
    const Steps steps{first, (end + layout.pack - 1) / layout.pack - first};
    if (steps.count <= 0) continue;
    const int64_t at = key - item.key_begin + k;
    add_transposed_product(work.p + k, work.d_out_depth, value_layout, steps, rows,
                           work.d_v + at * value_layout.lanes);
    add_transposed_product(work.d_s + k, work.q_depth, layout, steps, rows,
                           work.d_k + at * layout.lanes);
  }
}

// Those of rows r .. r + rows - 1 of a tile, for the block of keys that starts at `key`.
SeenKeys Backward::find_seen_keys(const Tile& tile, int64_t key, int64_t r, int64_t rows) const {
  SeenKeys seen{};
  for (int64_t i = 0; i < rows; ++i) {
    seen.visible[i] = tile.begin + r + i + 1 - key;
    seen.hidden[i] = args.first_key(tile.begin + r + i) - key;
  }
  return seen;
}

// P and dS of rows r .. r + rows - 1 of a tile and a block of keys.
void Backward::compute_p_and_d_s(const SeenKeys& seen, int64_t r, int64_t rows, int64_t block,
                                 const Workspace& work) const {
  const ScoreScales scales(args);
  kernels.backward_tile({.q = work.q + r * layout.row_stride,
                         .q_stride = layout.row_stride,
                         .d_out = work.d_out + r * value_layout.row_stride,
                         .d_out_stride = value_layout.row_stride,
                         .keys = work.key_lanes + block * layout.lanes_block(),
                         .key_steps = layout.steps,
                         .values = work.value_lanes + block * value_layout.lanes_block(),
                         .value_steps = value_layout.steps,
                         .rows = rows,
                         .visible = seen.visible,
                         .hidden = args.window == 0 ? nullptr : seen.hidden,
                         .scale = scales.scale,
                         .tanh_scale = scales.tanh_scale,
                         .lse = work.lse + r,
                         .delta = work.delta + r,
                         .p = work.p + r / layout.pack * kKeyBlock,
                         .d_s = work.d_s + r / layout.pack * kKeyBlock,
                         .d_s_rows = work.d_s_rows + r * (kKeyBlock / layout.pack)});
}

void Backward::backward_block(const Item& item, const Tile& tile, int64_t key,
                              const Workspace& work) const {
  const int64_t block = (key - item.key_begin) / kKeyBlock;
  const int64_t first_row =
      std::max<int64_t>(0, key - tile.begin) / kernels.tile_rows * kernels.tile_rows;
  const int64_t end_row =
      std::min(tile.count, args.first_query_beyond(key + kKeyBlock) - tile.begin);
  for (int64_t r = first_row; r < end_row; r += kernels.tile_rows) {
    const int64_t rows = std::min(kernels.tile_rows, end_row - r);
    const SeenKeys seen = find_seen_keys(tile, key, r, rows);
    compute_p_and_d_s(seen, r, rows, block, work);
    if (item.wants_queries) add_d_q(seen.visible, r, rows, block, work);
  }
  if (item.wants_keys) add_d_kv(item, tile, key, first_row, end_row, work);
}

void Backward::write_d_q(const Item& item, const Tile& tile, const Workspace& work) const {
  for (int64_t i = 0; i < tile.count; ++i) {
    kernels.write_row(work.d_q + i * layout.lanes, args.scale, layout.dim,
                      const_cast<char*>(query_row(grads.d_q, item, tile, i)),
                      grads.d_q.dtype == DType::kBF16);
  }
}

void Backward::write_d_kv(const Item& item, const Workspace& work) const {
  const auto write = [&](const TensorView& view, const AttentionLayout& of, int64_t key,
                         const float* acc, float scale) {
    const int64_t index = (segment(item).begin + key) * args.num_kv_heads + item.kv_head;
    char* to = static_cast<char*>(view.data) + index * of.dim * dtype_bytes(view.dtype);
    kernels.write_row(acc + (key - item.key_begin) * of.lanes, scale, of.dim, to,
                      view.dtype == DType::kBF16);
  };
  for (int64_t key = item.key_begin; key < item.key_end; ++key) {
    write(grads.d_k, layout, key, work.d_k, args.scale);
    write(grads.d_v, value_layout, key, work.d_v, 1.0f);
  }
}

// Adds what the keys that the tile sees give: to its d_q, which is written, and to their d_k, d_v.
void Backward::backward_tile(const Item& item, const Tile& tile, const Workspace& work) const {
  pack_q_and_d_out(item, tile, work);
  load_scaled_lse(item, tile, work);
  compute_delta(item, tile, work);
  if (item.wants_queries) std::fill_n(work.d_q, tile.count * layout.lanes, 0.0f);
  const int64_t key_end = std::min(item.key_end, tile.begin + tile.count);
  const int64_t first_key = args.first_key(tile.begin) / kKeyBlock * kKeyBlock;
  for (int64_t key = std::max(item.key_begin, first_key); key < key_end; key += kKeyBlock) {
    backward_block(item, tile, key, work);
  }
  if (item.wants_queries) write_d_q(item, tile, work);
}

void Backward::backward_item(const Item& item, const Workspace& work) const {
  pack_kv(item, work);
  if (item.wants_keys) {
    std::fill_n(work.d_k, (item.key_end - item.key_begin) * layout.lanes, 0.0f);
    std::fill_n(work.d_v, (item.key_end - item.key_begin) * value_layout.lanes, 0.0f);
  }
  for (int64_t member = 0; member < group; ++member) {
    for (int64_t q = item.query_begin; q < item.query_end; q += kernels.query_tile) {
      const int64_t count = std::min(kernels.query_tile, item.query_end - q);
      const int64_t head = item.kv_head * group + member;
      backward_tile(item, {.begin = q, .count = count, .head = head}, work);
    }
  }
  if (item.wants_keys) write_d_kv(item, work);
}

}  // namespace

void attention_backward_tiled(CpuBackend& backend, const AttentionKernels& kernels,
                              const AttentionArgs& args, const AttentionGradients& grads,
                              TensorView delta) {
  const Backward backward{kernels, args, grads, delta};
  const int num_workers = backend.pool().num_threads();
  const bool split = backward.worth_splitting(num_workers);
  const int64_t num_items = backward.num_items(split);
  if (num_items == 0) return;
  Scratch::Mark mark(backend.scratch());
  Item* items =
      static_cast<Item*>(backend.scratch().take(num_items * static_cast<int64_t>(sizeof(Item))));
  if (!backend.is_counting()) backward.list_items_costliest_first(split, items);
  const auto* workspaces =
      backend.take_workspaces([&] { return backward.take_workspace(backend.scratch()); });
  backend.pool().run_each(num_items, [&](int64_t i, int worker) {
    const TileRegion tiles;
    backward.backward_item(items[i], workspaces[worker]);
  });
}

}  // namespace strata::ops::cpu
