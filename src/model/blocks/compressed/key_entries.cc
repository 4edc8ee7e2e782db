// SPDX-License-Identifier: Apache-2.0
#include "model/blocks/compressed/key_entries.h"

#include <algorithm>

#include "model/blocks/kv_lists.h"

namespace strata::model {
namespace {

struct EntryLists {
  std::vector<ops::SparseSegment> sparse;
  std::vector<ops::IndexerSegment> indexer;
  std::vector<ops::EntrySegment> entries;
  std::vector<int32_t> positions;
};

int64_t end_of(const PassSequence& sequence) {
  return sequence.first_position + sequence.end - sequence.begin;
}

int64_t new_entries(const PassSequence& sequence, int64_t ratio) {
  return end_of(sequence) / ratio - sequence.first_position / ratio;
}

char* page_part(const Pass& pass, const BlockContext& context, const PassSequence& sequence,
                int64_t page, int64_t offset) {
  return static_cast<char*>(sequence.kept.pages[static_cast<size_t>(page)]) +
         pass.cache.place(context.layer, context.sublayer).page_offset + offset;
}

char* ring_of(const Pass& pass, const BlockContext& context, const PassSequence& sequence) {
  return static_cast<char*>(sequence.kept.state) +
         pass.cache.place(context.layer, context.sublayer).state_offset;
}

int64_t row_bytes(const TensorView& rows) { return rows.cols() * dtype_bytes(rows.dtype); }

// Positions [begin, end) of the ring, which may lie in two pieces, and then the pass's own keys.
void append_window_ranges(const Pass& pass, const BlockContext& context,
                          const PassSequence& sequence, TensorView keys, int64_t window,
                          std::vector<ops::KvRange>& ranges) {
  const int64_t first = sequence.first_position;
  if (sequence.kept.state != nullptr) {
    char* ring = ring_of(pass, context, sequence);
    for (int64_t begin = std::max<int64_t>(0, first - window + 1); begin < first;) {
      const int64_t end = std::min(first, (begin / window + 1) * window);
      void* row = ring + begin % window * row_bytes(keys);
      ranges.push_back({row, row, begin, end});
      begin = end;
    }
  }
  if (sequence.begin < sequence.end) {
    void* row = keys.row(sequence.begin);
    ranges.push_back({row, row, first, end_of(sequence)});
  }
}

// All entries of the sequence: in its pages, or from row `first_row` of the pass's own on.
void append_entry_ranges(const Pass& pass, const BlockContext& context,
                         const PassSequence& sequence, const EntryStore& store, int64_t first_row,
                         std::vector<ops::KvRange>& ranges) {
  const int64_t count = end_of(sequence) / store.ratio;
  if (sequence.kept.pages.empty()) {
    if (count == 0) return;
    void* row = store.rows.row(first_row);
    ranges.push_back({row, row, 0, count});
    return;
  }
  const int64_t each = pass.cache.page_size() / store.ratio;
  for (int64_t begin = 0; begin < count; begin += each) {
    void* part = page_part(pass, context, sequence, begin / each, store.offset);
    ranges.push_back({part, part, begin, std::min(count, begin + each)});
  }
}

// Where the sequence's new entries go in its pages, a run for each page; they are rows `row` and on
// of the pass's own. Returns the row behind them.
int64_t append_entry_runs(const Pass& pass, const BlockContext& context,
                          const PassSequence& sequence, const EntryStore& store, int64_t row,
                          std::vector<ops::CacheSegment>& runs) {
  const int64_t each = pass.cache.page_size() / store.ratio;
  const int64_t bytes = row_bytes(store.rows);
  const int64_t end = end_of(sequence) / store.ratio;
  for (int64_t entry = sequence.first_position / store.ratio; entry < end;) {
    const int64_t count = std::min(end - entry, each - entry % each);  // of this page
    char* part = page_part(pass, context, sequence, entry / each, store.offset);
    runs.push_back({row, row + count, part + entry % each * bytes});
    entry += count;
    row += count;
  }
  return row;
}

// Where the sequence's last keys go in its ring: one run, or two around its end.
void append_ring_runs(const Pass& pass, const BlockContext& context, const PassSequence& sequence,
                      TensorView keys, int64_t window, std::vector<ops::CacheSegment>& runs) {
  char* ring = ring_of(pass, context, sequence);
  for (int64_t row = std::max(sequence.begin, sequence.end - window); row < sequence.end;) {
    const int64_t slot = (sequence.first_position + row - sequence.begin) % window;
    const int64_t end = std::min(sequence.end, row + window - slot);
    runs.push_back({row, end, ring + slot * row_bytes(keys)});
    row = end;
  }
}

// Hands out a list of ranges, which is whole and stays where it is, part by part.
class RangeParts {
 public:
  RangeParts(std::span<const ops::KvRange> ranges, int64_t position_stride)
      : ranges_(ranges), position_stride_(position_stride) {}
  ops::KvView take_up_to(size_t end) {
    const auto part = ranges_.subspan(begin_, end - begin_);
    begin_ = end;
    return {.ranges = part, .position_stride = position_stride_};
  }

 private:
  std::span<const ops::KvRange> ranges_;
  int64_t position_stride_;
  size_t begin_ = 0;
};

// The ranges of each sequence's window, and then of its entries.
void set_window_and_entry_ranges(const KvLists& lists, int64_t position_stride,
                                 std::vector<ops::SparseSegment>& segments) {
  RangeParts parts(lists.ranges, position_stride);
  for (size_t s = 0; s < segments.size(); ++s) {
    segments[s].window = parts.take_up_to(lists.range_ends[2 * s]);
    segments[s].entries = parts.take_up_to(lists.range_ends[2 * s + 1]);
  }
}

}  // namespace

int64_t max_new_entries(const Pass& pass, int64_t ratio) {
  int64_t count = 0;
  for (const PassSequence& s : pass.sequences) count += (s.end - s.begin + ratio - 1) / ratio;
  return count;
}

int64_t num_new_entries(const Pass& pass, int64_t ratio) {
  int64_t count = 0;
  for (const PassSequence& sequence : pass.sequences) count += new_entries(sequence, ratio);
  return count;
}

std::span<const int32_t> make_entry_positions(Pass& pass, int64_t ratio) {
  std::vector<int32_t>& positions = pass.lists.blocks.ensure_lists<EntryLists>().positions;
  positions.clear();
  for (const PassSequence& sequence : pass.sequences) {
    const int64_t first = sequence.first_position / ratio;
    for (int64_t i = 0; i < new_entries(sequence, ratio); ++i) {
      positions.push_back(static_cast<int32_t>((first + i) * ratio));
    }
  }
  return positions;
}

void store_entries(Pass& pass, const BlockContext& context, const EntryStore& store) {
  if (!pass.cached()) return;
  pass.unless_counting([&] {
    std::vector<ops::CacheSegment>& runs = pass.lists.blocks.ensure_lists<KvLists>().cache_runs;
    runs.clear();
    int64_t row = 0;
    for (const PassSequence& sequence : pass.sequences) {
      row = append_entry_runs(pass, context, sequence, store, row, runs);
    }
    ops::cache_write(pass.backend, store.rows, runs);
  });
}

std::span<const ops::SparseSegment> make_sparse_segments(Pass& pass, const BlockContext& context,
                                                         TensorView keys, int64_t window,
                                                         const EntryStore& entries) {
  CHECK(keys.dense());
  auto& lists = pass.lists.blocks.ensure_lists<KvLists>();
  std::vector<ops::SparseSegment>& segments = pass.lists.blocks.ensure_lists<EntryLists>().sparse;
  lists.clear_ranges();
  segments.clear();
  int64_t first_entry = 0;
  for (const PassSequence& sequence : pass.sequences) {
    append_window_ranges(pass, context, sequence, keys, window, lists.ranges);
    lists.end_ranges();
    if (entries.ratio > 0) {
      append_entry_ranges(pass, context, sequence, entries, first_entry, lists.ranges);
    }
    lists.end_ranges();
    segments.push_back({.begin = sequence.begin,
                        .end = sequence.end,
                        .first_position = sequence.first_position,
                        .window = {},
                        .entries = {},
                        .first_entry = first_entry});
    if (entries.ratio > 0) first_entry += new_entries(sequence, entries.ratio);
  }
  set_window_and_entry_ranges(lists, keys.cols(), segments);
  return segments;
}

std::span<const ops::IndexerSegment> make_indexer_segments(Pass& pass, const BlockContext& context,
                                                           const EntryStore& entries) {
  auto& lists = pass.lists.blocks.ensure_lists<KvLists>();
  std::vector<ops::IndexerSegment>& segments = pass.lists.blocks.ensure_lists<EntryLists>().indexer;
  lists.clear_ranges();
  segments.clear();
  int64_t first_row = 0;
  for (const PassSequence& sequence : pass.sequences) {
    append_entry_ranges(pass, context, sequence, entries, first_row, lists.ranges);
    lists.end_ranges();
    segments.push_back({.begin = sequence.begin,
                        .end = sequence.end,
                        .first_position = sequence.first_position,
                        .keys = {}});
    first_row += new_entries(sequence, entries.ratio);
  }
  RangeParts parts(lists.ranges, entries.rows.cols());
  for (size_t s = 0; s < segments.size(); ++s)
    segments[s].keys = parts.take_up_to(lists.range_ends[s]);
  return segments;
}

std::span<const ops::EntrySegment> make_entry_segments(Pass& pass, int64_t ratio) {
  std::vector<ops::EntrySegment>& segments = pass.lists.blocks.ensure_lists<EntryLists>().entries;
  segments.clear();
  int64_t first_entry = 0;
  for (const PassSequence& sequence : pass.sequences) {
    segments.push_back({.begin = sequence.begin, .end = sequence.end, .first_entry = first_entry});
    first_entry += new_entries(sequence, ratio);
  }
  return segments;
}

void store_keys_in_ring(Pass& pass, const BlockContext& context, TensorView keys, int64_t window) {
  pass.unless_counting([&] {
    std::vector<ops::CacheSegment>& runs = pass.lists.blocks.ensure_lists<KvLists>().cache_runs;
    runs.clear();
    for (const PassSequence& sequence : pass.sequences) {
      if (sequence.kept.state == nullptr) continue;
      append_ring_runs(pass, context, sequence, keys, window, runs);
    }
    ops::cache_write(pass.backend, keys, runs);
  });
}

}  // namespace strata::model
