// Forward of the tiled paths. An item is one key/value head of a segment and a run of its tokens;
// its rows are those tokens times the heads of the group, so that each packed key block serves all
// of them. Blocks are the outer loop: memory is bounded whatever the context. T tokens, N query
// heads, M key/value heads, H head width.
#include "ops/cpu/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace strata::ops::cpu {
namespace {

// Rows of an item: enough to hide the packing of a block (about 2500 cycles against 550 a row),
// few enough that their q and accumulators stay in a 1 MiB L2 (768 bytes a row at H = 128, bf16).
constexpr int64_t kItemRows = 504;

struct Item {
  int64_t segment;
  int64_t kv_head;
  int64_t row_begin;  // tokens of the segment
  int64_t row_end;
  int64_t cost;
};

// Memory of one worker.
struct Workspace {
  uint32_t* q;         // rows form
  uint32_t* keys;      // lanes form, one block
  uint32_t* values;    // depth form, one block
  float* acc;          // [rows][lanes]
  float* max;          // [rows]
  float* sum;          // [rows]
  int64_t* positions;  // [rows]
};

struct Forward {
  const AttentionKernels& kernels;
  const AttentionArgs& args;
  AttentionLayout layout;
  TensorView out;
  TensorView lse;
  int64_t group;
  int64_t item_tokens;

  Forward(const AttentionKernels& table, const AttentionArgs& arguments, TensorView output,
          TensorView lse_output)
      : kernels(table),
        args(arguments),
        layout(table, arguments.q.shape[2]),
        out(output),
        lse(lse_output),
        group(arguments.q.shape[1] / arguments.num_kv_heads) {
    int64_t longest = 0;
    for (const AttentionSegment& s : args.segments) longest = std::max(longest, s.end - s.begin);
    item_tokens = std::clamp<int64_t>(kItemRows / group, 1, std::max<int64_t>(longest, 1));
  }

  [[nodiscard]] int64_t num_chunks(const AttentionSegment& segment) const {
    return (segment.end - segment.begin + item_tokens - 1) / item_tokens;
  }
  [[nodiscard]] int64_t num_items() const {
    int64_t count = 0;
    for (const AttentionSegment& segment : args.segments) count += num_chunks(segment);
    return count * args.num_kv_heads;
  }
  void fill_items(Item* items) const;
  [[nodiscard]] Workspace take_workspace(Scratch& scratch) const;

  // Index of the item's row `r` in [T, N].
  [[nodiscard]] int64_t index_of(const Item& item, int64_t r) const {
    const int64_t begin = args.segments[static_cast<size_t>(item.segment)].begin;
    return (begin + item.row_begin + r / group) * args.q.shape[1] + item.kv_head * group +
           r % group;
  }
  void run(const Item& item, const Workspace& work) const;
  void start_rows(const Item& item, int64_t num_rows, const Workspace& work) const;
  void pack_block(const Item& item, int64_t key_begin, int64_t key_end,
                  const Workspace& work) const;
  void run_block(int64_t key_begin, int64_t num_rows, const Workspace& work) const;
  void finish_rows(const Item& item, int64_t num_rows, const Workspace& work) const;
};

// Dearest first, so that the last items to be taken are short; ties in memory order.
void Forward::fill_items(Item* items) const {
  int64_t count = 0;
  for (int64_t s = 0; s < static_cast<int64_t>(args.segments.size()); ++s) {
    const AttentionSegment& segment = args.segments[static_cast<size_t>(s)];
    for (int64_t chunk = 0; chunk < num_chunks(segment); ++chunk) {
      for (int64_t head = 0; head < args.num_kv_heads; ++head) {
        const int64_t begin = chunk * item_tokens;
        const int64_t end = std::min(begin + item_tokens, segment.end - segment.begin);
        const int64_t keys = segment.first_position + (begin + end) / 2;
        items[count++] = {s, head, begin, end, (end - begin) * keys};
      }
    }
  }
  std::sort(items, items + count, [](const Item& a, const Item& b) {
    if (a.cost != b.cost) return a.cost > b.cost;
    if (a.segment != b.segment) return a.segment < b.segment;
    return a.row_begin != b.row_begin ? a.row_begin < b.row_begin : a.kv_head < b.kv_head;
  });
}

Workspace Forward::take_workspace(Scratch& scratch) const {
  const int64_t rows = item_tokens * group;
  const auto words = [&](int64_t count) { return static_cast<uint32_t*>(scratch.take(4 * count)); };
  const auto floats = [&](int64_t count) { return static_cast<float*>(scratch.take(4 * count)); };
  Workspace work{};
  work.q = words(rows * layout.row_stride);
  work.keys = words(layout.lanes_block());
  work.values = words(layout.depth_words(kKeyBlock));
  work.acc = floats(rows * layout.lanes);
  work.max = floats(rows);
  work.sum = floats(rows);
  work.positions = static_cast<int64_t*>(scratch.take(8 * rows));
  return work;
}

void Forward::start_rows(const Item& item, int64_t num_rows, const Workspace& work) const {
  const auto& segment = args.segments[static_cast<size_t>(item.segment)];
  for (int64_t r = 0; r < num_rows; ++r) {
    const char* q = static_cast<const char*>(args.q.data) +
                    index_of(item, r) * layout.dim * dtype_bytes(args.q.dtype);
    kernels.copy_row(q, layout.dim, work.q + r * layout.row_stride);
    work.positions[r] = segment.first_position + item.row_begin + r / group;
  }
  std::fill_n(work.acc, num_rows * layout.lanes, 0.0f);
  std::fill_n(work.max, num_rows, std::numeric_limits<float>::lowest());
  std::fill_n(work.sum, num_rows, 0.0f);
}

void Forward::pack_block(const Item& item, int64_t key_begin, int64_t key_end,
                         const Workspace& work) const {
  const KvView& kv = args.segments[static_cast<size_t>(item.segment)].kv;
  const int64_t count = std::min(kKeyBlock, key_end - key_begin);
  // The same rows of the next block, to be fetched meanwhile; at the end the last row stands in.
  const int64_t next_begin = key_begin + count;
  const int64_t next_count = std::min(kKeyBlock, key_end - next_begin);
  const void* rows[kKeyBlock];
  const void* next[kKeyBlock];
  for (const bool values : {false, true}) {
    const auto pages = values ? kv.v_pages : kv.k_pages;
    const auto addresses = [&](int64_t begin, int64_t n, const void** to) {
      kv_rows(pages, kv, begin, n, item.kv_head, layout.dim, dtype_bytes(args.q.dtype), to);
    };
    addresses(key_begin, count, rows);
    if (next_count > 0) addresses(next_begin, next_count, next);
    std::fill(next + std::max<int64_t>(next_count, 0), next + kKeyBlock, rows[count - 1]);
    const auto pack = values ? kernels.pack_depth : kernels.pack_lanes;
    pack(rows, count, layout.dim, next_count > 0 ? next : nullptr,
         values ? work.values : work.keys);
  }
}

void Forward::run_block(int64_t key_begin, int64_t num_rows, const Workspace& work) const {
  for (int64_t r = 0; r < num_rows; r += kTileRows) {
    const int64_t rows = std::min(kTileRows, num_rows - r);
    if (work.positions[r + rows - 1] < key_begin) continue;
    int64_t visible[kTileRows];
    for (int64_t i = 0; i < rows; ++i) visible[i] = work.positions[r + i] + 1 - key_begin;
    kernels.forward_tile({.q = work.q + r * layout.row_stride,
                          .q_stride = layout.row_stride,
                          .keys = work.keys,
                          .values = work.values,
                          .steps = layout.steps,
                          .lanes = layout.lanes,
                          .rows = rows,
                          .visible = visible,
                          .scale = args.scale * kLog2E,
                          .max = work.max + r,
                          .sum = work.sum + r,
                          .acc = work.acc + r * layout.lanes});
  }
}

void Forward::finish_rows(const Item& item, int64_t num_rows, const Workspace& work) const {
  for (int64_t r = 0; r < num_rows; ++r) {
    const int64_t index = index_of(item, r);
    char* to = static_cast<char*>(out.data) + index * layout.dim * dtype_bytes(out.dtype);
    kernels.write_row(work.acc + r * layout.lanes, 1.0f / work.sum[r], layout.dim, to,
                      out.dtype == DType::kBF16);
    if (!lse.empty()) lse.f32()[index] = work.max[r] * kLn2 + std::log(work.sum[r]);
  }
}

void Forward::run(const Item& item, const Workspace& work) const {
  const auto& segment = args.segments[static_cast<size_t>(item.segment)];
  const int64_t num_rows = (item.row_end - item.row_begin) * group;
  const int64_t key_end = segment.first_position + item.row_end;
  start_rows(item, num_rows, work);
  for (int64_t key = 0; key < key_end; key += kKeyBlock) {
    pack_block(item, key, key_end, work);
    run_block(key, num_rows, work);
  }
  finish_rows(item, num_rows, work);
}

}  // namespace

void attention_tiled(Backend& backend, const AttentionKernels& kernels, const AttentionArgs& args,
                     TensorView out, TensorView lse) {
  const Forward forward(kernels, args, out, lse);
  const int64_t num_items = forward.num_items();
  if (num_items == 0) return;
  Scratch::Mark mark(backend.scratch());
  Item* items =
      static_cast<Item*>(backend.scratch().take(num_items * static_cast<int64_t>(sizeof(Item))));
  forward.fill_items(items);
  const int num_workers = backend.pool().num_threads();
  auto* workspaces = static_cast<Workspace*>(
      backend.scratch().take(num_workers * static_cast<int64_t>(sizeof(Workspace))));
  for (int w = 0; w < num_workers; ++w) workspaces[w] = forward.take_workspace(backend.scratch());
  backend.pool().run_each(
      num_items, [&](int64_t i, int worker) { forward.run(items[i], workspaces[worker]); });
}

}  // namespace strata::ops::cpu
