// SPDX-License-Identifier: Apache-2.0
// Forward of the tiled paths. An item is a run of tokens of a segment and one or more key/value
// heads; a head's rows are those tokens times the query heads of its group, so that each packed key
// block serves all of them. Blocks are the outer loop: memory is bounded whatever the context.
// Decode has few rows a head and is bound by memory: there an item takes neighbouring heads, whose
// keys lie side by side, and fetches the next block in the order of its addresses; where there are
// fewer key/value heads than workers (latent attention has one), a head's group is split. With a
// window an item starts at the block of the first key it sees, and zeros stand for the keys before
// that one. T tokens, N query heads, M key/value heads, H key width, U value width.
#include "ops/cpu/attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "ops/cpu/attention_sinks.h"
#include "ops/cpu/cpu_backend.h"
#include "ops/cpu/path_table.h"
#include "ops/cpu/tiles.h"

namespace strata::ops::cpu {
namespace {

// Rows of an item: enough to hide the packing of a block (about 2500 cycles against 550 a row),
// few enough that their q and accumulators stay in a 1 MiB L2 (768 bytes a row at H = 128, bf16).
constexpr int64_t kItemRows = 512;

struct Item {
  int64_t segment;
  int64_t head_begin;  // key/value heads
  int64_t head_end;
  int64_t member_begin;  // query heads of each head's group
  int64_t member_end;
  int64_t row_begin;  // tokens of the segment
  int64_t row_end;
  int64_t cost;
};

// Dearest first, so that the last items to be taken are short; ties in memory order.
bool is_taken_before(const Item& a, const Item& b) {
  if (a.cost != b.cost) return a.cost > b.cost;
  if (a.segment != b.segment) return a.segment < b.segment;
  if (a.row_begin != b.row_begin) return a.row_begin < b.row_begin;
  return a.head_begin != b.head_begin ? a.head_begin < b.head_begin
                                      : a.member_begin < b.member_begin;
}

// Asks for the cache lines of [begin, end).
void prefetch_lines(const char* begin, const char* end) {
  for (; begin < end; begin += 64) __builtin_prefetch(begin);
}

// Memory of one worker.
struct Workspace {
  uint32_t* q;         // rows form
  uint32_t* keys;      // [blocks][heads] lanes form
  uint32_t* values;    // [blocks][heads] depth form
  float* acc;          // [rows][lanes]
  float* max;          // [rows]
  float* sum;          // [rows][16]
  int64_t* positions;  // [rows]
};

// Rows of an item, at most forward_rows.
struct Rows {
  int64_t first;
  int64_t count;
};

// Where a block of keys and its values are packed, of all heads of an item.
struct PackedBlock {
  int64_t key_begin;
  uint32_t* keys;
  uint32_t* values;
};

// How many keys of a block come up to each row's own, and before its window.
struct SeenKeys {
  int64_t visible[kMostForwardRows];
  int64_t hidden[kMostForwardRows];
};

struct Forward {
  const AttentionKernels& kernels;
  const AttentionArgs& args;
  AttentionLayout layout;        // of keys
  AttentionLayout value_layout;  // of values and accumulators
  TensorView out;
  TensorView lse;
  int64_t group;
  int64_t heads_each;              // of an item, at most
  int64_t members_each;            // likewise
  const void* zero_row = nullptr;  // for keys and values that no row sees; with a window

  Forward(const AttentionKernels& table, const AttentionArgs& arguments, TensorView output,
          TensorView lse_output, int num_workers);

  [[nodiscard]] const AttentionSegment& segment(const Item& item) const {
    return args.segments[static_cast<size_t>(item.segment)];
  }
  // Tokens and key/value heads of an item of a segment; its items are about equally long.
  [[nodiscard]] int64_t item_tokens(const AttentionSegment& s) const {
    const int64_t length = std::max<int64_t>(s.end - s.begin, 1);
    const int64_t most = std::max<int64_t>(kItemRows / group, 1);
    const int64_t num_items = (length + most - 1) / most;
    return (length + num_items - 1) / num_items;
  }
  [[nodiscard]] int64_t item_heads(const AttentionSegment& s) const {
    return std::clamp<int64_t>(kItemRows / (item_tokens(s) * group), 1, heads_each);
  }
  // Blocks that are packed at a time: with many rows several, so that a tile's q and accumulators
  // stay in L1 for as long. Decode wants each block while it is in a cache.
  [[nodiscard]] int64_t item_blocks(const AttentionSegment& s) const {
    if (item_tokens(s) * group <= kernels.forward_rows) return 1;
    return std::max<int64_t>(1, kernels.key_blocks / item_heads(s));
  }
  [[nodiscard]] int64_t rows_of_head(const Item& item) const {
    return (item.row_end - item.row_begin) * (item.member_end - item.member_begin);
  }
  [[nodiscard]] int64_t rows_of(const Item& item) const {
    return (item.head_end - item.head_begin) * rows_of_head(item);
  }
  // About the products of the item: its rows times the keys that one of them sees.
  [[nodiscard]] int64_t cost_of(const Item& item) const {
    const int64_t middle = segment(item).first_position + (item.row_begin + item.row_end + 1) / 2;
    return rows_of(item) * (middle - args.first_key(middle));
  }
  // Calls body(r, index, position) for the item's rows, in the order heads, tokens, query heads of
  // the group: row r is row `index` of [T, N] and stands at `position`.
  template <typename Body>
  void for_rows(const Item& item, Body&& body) const {
    int64_t r = 0;
    for (int64_t head = item.head_begin; head < item.head_end; ++head) {
      for (int64_t token = item.row_begin; token < item.row_end; ++token) {
        const int64_t first = (segment(item).begin + token) * args.q.shape[1] + head * group;
        for (int64_t member = item.member_begin; member < item.member_end; ++member) {
          body(r++, first + member, segment(item).first_position + token);
        }
      }
    }
  }

  [[nodiscard]] int64_t num_token_runs() const;
  void choose_heads_of_items(int num_workers);
  template <typename Body>
  void for_items(Body&& body) const;
  [[nodiscard]] int64_t num_items() const;
  void list_items_costliest_first(Item* items) const;
  [[nodiscard]] Workspace take_workspace(Scratch& scratch) const;
  void take_zero_row(CpuBackend& backend);
  void attend_item(const Item& item, const Workspace& work) const;
  void pack_query_rows(const Item& item, const Workspace& work) const;
  void reset_sums(const Item& item, const Workspace& work) const;
  void find_padded_rows(const Item& item, void* KvRange::* side, int64_t key_begin, int64_t count,
                        int64_t dim, const void** rows) const;
  [[nodiscard]] PackedBlock packed_block(const Item& item, int64_t index, int64_t key_begin,
                                         const Workspace& work) const {
    const int64_t first = index * (item.head_end - item.head_begin);
    return {.key_begin = key_begin,
            .keys = work.keys + first * layout.lanes_block(),
            .values = work.values + first * value_layout.depth_words(kKeyBlock)};
  }
  void pack_kv(const Item& item, int64_t count, const PackedBlock& block) const;
  [[nodiscard]] bool sees_block(Rows tile, int64_t key_begin, const Workspace& work) const {
    const int64_t* positions = work.positions + tile.first;
    return positions[tile.count - 1] >= key_begin &&
           args.first_key(positions[0]) < key_begin + kKeyBlock;
  }
  [[nodiscard]] SeenKeys find_seen_keys(Rows tile, int64_t key_begin, const Workspace& work) const;
  void attend_tile(Rows tile, int64_t member, const PackedBlock& block,
                   const Workspace& work) const;
  void attend_blocks(const Item& item, int64_t head, int64_t key_begin, int64_t key_end,
                     const Workspace& work) const;
  void write_out_and_lse(const Item& item, const Workspace& work) const;
};

Forward::Forward(const AttentionKernels& table, const AttentionArgs& arguments, TensorView output,
                 TensorView lse_output, int num_workers)
    : kernels(table),
      args(arguments),
      layout(table, arguments.key_width()),
      value_layout(table, arguments.value_width()),
      out(output),
      lse(lse_output),
      group(arguments.q.shape[1] / arguments.num_kv_heads),
      heads_each(arguments.num_kv_heads),
      members_each(group) {
  choose_heads_of_items(num_workers);
}

// The runs of tokens that items have, over all segments.
int64_t Forward::num_token_runs() const {
  int64_t runs = 0;
  for (const AttentionSegment& s : args.segments) {
    runs += (s.end - s.begin + item_tokens(s) - 1) / item_tokens(s);
  }
  return runs;
}

// Heads are split over items until these share out evenly among the workers, or are many; then
// groups, if some workers would have nothing.
void Forward::choose_heads_of_items(int num_workers) {
  const int64_t runs = num_token_runs();
  int64_t split = 1;
  while (split < args.num_kv_heads && runs * split % num_workers != 0 &&
         runs * split < 4 * num_workers) {
    ++split;
  }
  heads_each = (args.num_kv_heads + split - 1) / split;
  if (runs > 0 && runs * split < num_workers) {
    const int64_t parts = std::min(group, (num_workers + runs * split - 1) / (runs * split));
    members_each = (group + parts - 1) / parts;
  }
}

// Calls body(item) in memory order.
template <typename Body>
void Forward::for_items(Body&& body) const {
  for (int64_t s = 0; s < static_cast<int64_t>(args.segments.size()); ++s) {
    const AttentionSegment& whole = args.segments[static_cast<size_t>(s)];
    const int64_t length = whole.end - whole.begin;
    for (int64_t begin = 0; begin < length; begin += item_tokens(whole)) {
      const int64_t end = std::min(begin + item_tokens(whole), length);
      for (int64_t head = 0; head < args.num_kv_heads; head += item_heads(whole)) {
        const int64_t head_end = std::min(head + item_heads(whole), args.num_kv_heads);
        for (int64_t member = 0; member < group; member += members_each) {
          const int64_t member_end = std::min(member + members_each, group);
          Item item{s, head, head_end, member, member_end, begin, end, 0};
          item.cost = cost_of(item);
          body(item);
        }
      }
    }
  }
}

int64_t Forward::num_items() const {
  int64_t count = 0;
  for_items([&](const Item&) { ++count; });
  return count;
}

void Forward::list_items_costliest_first(Item* items) const {
  int64_t count = 0;
  for_items([&](const Item& item) { items[count++] = item; });
  std::sort(items, items + count, is_taken_before);
}

Workspace Forward::take_workspace(Scratch& scratch) const {
  int64_t rows = 0;
  int64_t heads = 1;  // of all blocks
  for (const AttentionSegment& s : args.segments) {
    rows = std::max(rows, item_tokens(s) * members_each * item_heads(s));
    heads = std::max(heads, item_heads(s) * item_blocks(s));
  }
  const auto words = [&](int64_t count) { return static_cast<uint32_t*>(scratch.take(4 * count)); };
  const auto floats = [&](int64_t count) { return static_cast<float*>(scratch.take(4 * count)); };
  Workspace work{};
  work.q = words(rows * layout.row_stride);
  work.keys = words(heads * layout.lanes_block());
  work.values = words(heads * value_layout.depth_words(kKeyBlock));
  work.acc = floats(rows * value_layout.lanes);
  work.max = floats(rows);
  work.sum = floats(16 * rows);
  work.positions = static_cast<int64_t*>(scratch.take(8 * rows));
  return work;
}

// Where there is a window.
void Forward::take_zero_row(CpuBackend& backend) {
  const int64_t bytes =
      heads_each * std::max(layout.dim, value_layout.dim) * dtype_bytes(args.q.dtype);
  void* zeros = backend.scratch().take(bytes);
  if (!backend.is_counting()) std::memset(zeros, 0, static_cast<size_t>(bytes));
  zero_row = zeros;
}

void Forward::pack_query_rows(const Item& item, const Workspace& work) const {
  const int64_t row_bytes = layout.dim * dtype_bytes(args.q.dtype);
  const char* q = static_cast<const char*>(args.q.data);
  const int64_t token_bytes = args.q.shape[1] * row_bytes;
  const char* end = q + args.q.shape[0] * token_bytes;
  for_rows(item, [&](int64_t r, int64_t index, int64_t position) {
    const char* row = q + index * row_bytes;
    // Rows of tokens are far apart: no prefetcher follows them.
    const char* ahead = row + 4 * token_bytes;
    prefetch_lines(ahead, std::min(ahead + row_bytes, end));
    kernels.pack_row(row, layout.dim, work.q + r * layout.row_stride);
    work.positions[r] = position;
  });
}

void Forward::reset_sums(const Item& item, const Workspace& work) const {
  constexpr float kLowest = std::numeric_limits<float>::lowest();
  std::fill_n(work.acc, rows_of(item) * value_layout.lanes, 0.0f);
  std::fill_n(work.max, rows_of(item), kLowest);
  std::fill_n(work.sum, 16 * rows_of(item), 0.0f);
  if (args.sinks.empty()) return;
  // The sink is a key that was seen before the first, with a score and no value.
  for_rows(item, [&](int64_t r, int64_t index, int64_t) {
    work.max[r] = std::max(args.sinks.f32()[index % args.q.shape[1]] * kLog2E, kLowest);
    work.sum[16 * r] = 1.0f;
  });
}

// rows[i] = address of the key or the value of position key_begin + i, of the item's first head;
// zeros stand for those before the first that the item sees.
void Forward::find_padded_rows(const Item& item, void* KvRange::* side, int64_t key_begin,
                               int64_t count, int64_t dim, const void** rows) const {
  const AttentionSegment& s = segment(item);
  const int64_t hidden =
      std::max<int64_t>(0, args.first_key(s.first_position + item.row_begin) - key_begin);
  std::fill_n(rows, hidden, zero_row);
  find_kv_rows(s.kv, side, key_begin + hidden, count - hidden, item.head_begin, dim,
               dtype_bytes(args.q.dtype), rows + hidden);
}

void Forward::pack_kv(const Item& item, int64_t count, const PackedBlock& block) const {
  const void* rows[kKeyBlock];
  const int64_t num_heads = item.head_end - item.head_begin;
  find_padded_rows(item, &KvRange::keys, block.key_begin, count, layout.dim, rows);
  kernels.pack_in_lanes_form({.rows = rows,
                              .count = count,
                              .dim = layout.dim,
                              .num_heads = num_heads,
                              .head_words = layout.lanes_block()},
                             block.keys);
  find_padded_rows(item, &KvRange::values, block.key_begin, count, value_layout.dim, rows);
  kernels.pack_in_depth_form({.rows = rows,
                              .count = count,
                              .dim = value_layout.dim,
                              .num_heads = num_heads,
                              .head_words = value_layout.depth_words(kKeyBlock)},
                             block.values);
}

// Those of the rows of a tile, for the block that starts at key_begin.
SeenKeys Forward::find_seen_keys(Rows tile, int64_t key_begin, const Workspace& work) const {
  SeenKeys seen{};
  for (int64_t i = 0; i < tile.count; ++i) {
    const int64_t position = work.positions[tile.first + i];
    seen.visible[i] = position + 1 - key_begin;
    seen.hidden[i] = args.first_key(position) - key_begin;
  }
  return seen;
}

// Rows `tile` of the item and the block of the member-th of its heads.
void Forward::attend_tile(Rows tile, int64_t member, const PackedBlock& block,
                          const Workspace& work) const {
  const SeenKeys seen = find_seen_keys(tile, block.key_begin, work);
  const ScoreScales scales(args);
  kernels.forward_tile({.q = work.q + tile.first * layout.row_stride,
                        .q_stride = layout.row_stride,
                        .keys = block.keys + member * layout.lanes_block(),
                        .values = block.values + member * value_layout.depth_words(kKeyBlock),
                        .steps = layout.steps,
                        .lanes = value_layout.lanes,
                        .rows = tile.count,
                        .visible = seen.visible,
                        .hidden = args.window == 0 ? nullptr : seen.hidden,
                        .scale = scales.scale,
                        .tanh_scale = scales.tanh_scale,
                        .max = work.max + tile.first,
                        .sum = work.sum + 16 * tile.first,
                        .acc = work.acc + tile.first * value_layout.lanes});
}

// The packed blocks of keys [key_begin, key_end).
void Forward::attend_blocks(const Item& item, int64_t head, int64_t key_begin, int64_t key_end,
                            const Workspace& work) const {
  const int64_t member = head - item.head_begin;
  const int64_t row_begin = member * rows_of_head(item);
  const int64_t row_end = row_begin + rows_of_head(item);
  for (int64_t r = row_begin; r < row_end; r += kernels.forward_rows) {
    const Rows tile{.first = r, .count = std::min(kernels.forward_rows, row_end - r)};
    for (int64_t key = key_begin; key < key_end; key += kKeyBlock) {
      if (!sees_block(tile, key, work)) continue;
      attend_tile(tile, member, packed_block(item, (key - key_begin) / kKeyBlock, key, work), work);
    }
  }
}

void Forward::write_out_and_lse(const Item& item, const Workspace& work) const {
  const int64_t row_bytes = value_layout.dim * dtype_bytes(out.dtype);
  for_rows(item, [&](int64_t r, int64_t index, int64_t) {
    const float sum = kernels.sum_row(work.sum + 16 * r);
    kernels.write_row(work.acc + r * value_layout.lanes, 1.0f / sum, value_layout.dim,
                      static_cast<char*>(out.data) + index * row_bytes, out.dtype == DType::kBF16);
    if (!lse.empty()) lse.f32()[index] = work.max[r] * kLn2 + std::log(sum);
  });
}

void Forward::attend_item(const Item& item, const Workspace& work) const {
  const int64_t first_key = args.first_key(segment(item).first_position + item.row_begin);
  const int64_t key_end = segment(item).first_position + item.row_end;
  pack_query_rows(item, work);
  reset_sums(item, work);
  const int64_t step = item_blocks(segment(item)) * kKeyBlock;
  for (int64_t begin = first_key / kKeyBlock * kKeyBlock; begin < key_end; begin += step) {
    const int64_t end = std::min(begin + step, key_end);
    for (int64_t key = begin; key < end; key += kKeyBlock) {
      pack_kv(item, std::min(kKeyBlock, end - key),
              packed_block(item, (key - begin) / kKeyBlock, key, work));
    }
    for (int64_t head = item.head_begin; head < item.head_end; ++head) {
      attend_blocks(item, head, begin, end, work);
    }
  }
  write_out_and_lse(item, work);
}

}  // namespace

void attention_tiled(CpuBackend& backend, const AttentionKernels& kernels,
                     const AttentionArgs& args, TensorView out, TensorView lse) {
  const int num_workers = backend.pool().num_threads();
  Forward forward(kernels, args, out, lse, num_workers);
  const int64_t num_items = forward.num_items();
  if (num_items == 0) return;
  Scratch::Mark mark(backend.scratch());
  Item* items =
      static_cast<Item*>(backend.scratch().take(num_items * static_cast<int64_t>(sizeof(Item))));
  if (!backend.is_counting()) forward.list_items_costliest_first(items);
  if (args.window > 0) forward.take_zero_row(backend);
  const auto* workspaces =
      backend.take_workspaces([&] { return forward.take_workspace(backend.scratch()); });
  backend.pool().run_each(num_items, [&](int64_t i, int worker) {
    const TileRegion tiles;
    forward.attend_item(items[i], workspaces[worker]);
  });
}

const AttentionKernels* choose_attention_kernels(CpuPath path, DType dtype) {
  const PathRow& row = path_row(path);
  return dtype == DType::kF32 ? row.attention_f32 : row.attention_bf16;
}

void attention(CpuBackend& backend, const AttentionArgs& args, TensorView out, TensorView lse) {
  const HostAccess access(backend.allocator());
  if (const AttentionKernels* kernels = choose_attention_kernels(backend.path(), args.q.dtype)) {
    attention_tiled(backend, *kernels, args, out, lse);
  } else {
    attention_reference(backend, args, out, lse);
  }
}

void attention_backward(CpuBackend& backend, const AttentionArgs& args,
                        const AttentionGradients& grads) {
  const HostAccess access(backend.allocator());
  const Scratch::Mark mark(backend.scratch());
  const bool wants_sinks = !grads.d_sinks.empty();
  const TensorView delta =
      wants_sinks ? backend.scratch().take(DType::kF32, {args.q.shape[0], args.q.shape[1]})
                  : TensorView();
  if (const AttentionKernels* kernels = choose_attention_kernels(backend.path(), args.q.dtype)) {
    attention_backward_tiled(backend, *kernels, args, grads, delta);
  } else {
    attention_backward_reference(backend, args, grads, delta);
  }
  if (!wants_sinks) return;
  add_d_sinks(backend, args.segments, args.sinks, grads.lse, delta, grads.d_sinks);
}

}  // namespace strata::ops::cpu
