// SPDX-License-Identifier: Apache-2.0
#include "model/blocks/kv_segments.h"

#include <algorithm>

#include "model/blocks/kv_lists.h"

namespace strata::model {
namespace {

struct AttentionLists {
  std::vector<ops::AttentionSegment> segments;
};

// Keys or values as rows of one token each, and where they go in a page.
struct KvRows {
  char* rows = nullptr;
  int64_t row_bytes = 0;
  int64_t page_size = 0;
  int64_t page_offset = 0;

  [[nodiscard]] char* in_page(const PassSequence& sequence, int64_t page) const {
    return static_cast<char*>(sequence.kept.pages[static_cast<size_t>(page)]) + page_offset;
  }

  // Lists where the sequence's new rows go: a run for each page.
  void append_page_runs(const PassSequence& sequence, std::vector<ops::CacheSegment>& runs) const {
    for (int64_t row = sequence.begin; row < sequence.end;) {
      const int64_t position = sequence.first_position + row - sequence.begin;
      const int64_t in = position % page_size;
      const int64_t end = std::min(sequence.end, row + page_size - in);
      runs.push_back({row, end, in_page(sequence, position / page_size) + in * row_bytes});
      row = end;
    }
  }
};

KvRows kv_rows_of(const Pass& pass, const BlockContext& context, TensorView x) {
  CHECK(x.dense() && pass.num_tokens() > 0);
  const int64_t width = x.shape.num_elements() / pass.num_tokens();
  return {.rows = static_cast<char*>(x.data),
          .row_bytes = width * dtype_bytes(x.dtype),
          .page_size = pass.cache.page_size(),
          .page_offset = pass.cache.place(context.layer, context.sublayer).page_offset};
}

// Where rows of v go, behind the keys in a page; an empty v is inside the keys.
KvRows value_rows_of(const Pass& pass, const BlockContext& context, const KvRows& keys,
                     TensorView v) {
  if (v.empty()) return keys;
  KvRows values = kv_rows_of(pass, context, v);
  values.page_offset += keys.page_size * keys.row_bytes;
  return values;
}

// x [T, .., width] goes to the pages.
void write_to_pages(Pass& pass, const KvRows& rows, TensorView x) {
  std::vector<ops::CacheSegment>& runs = pass.lists.blocks.ensure_lists<KvLists>().cache_runs;
  runs.clear();
  for (const PassSequence& sequence : pass.sequences) {
    if (!sequence.kept.pages.empty()) rows.append_page_runs(sequence, runs);
  }
  const int64_t width = rows.row_bytes / dtype_bytes(x.dtype);
  ops::cache_write(pass.backend, x.reshape({pass.num_tokens(), width}), runs);
}

int64_t length_of(const PassSequence& sequence) {
  return sequence.first_position + sequence.end - sequence.begin;
}

// Appends the sequence's ranges: its pages that are still held, or the rows themselves.
void append_kv_ranges(const PassSequence& sequence, const KvRows& keys, const KvRows& values,
                      std::vector<ops::KvRange>& ranges) {
  const int64_t length = length_of(sequence);
  if (sequence.kept.pages.empty()) {
    const int64_t first = sequence.begin * keys.row_bytes;
    ranges.push_back(
        {keys.rows + first, values.rows + sequence.begin * values.row_bytes, 0, length});
    return;
  }
  for (int64_t begin = 0; begin < length; begin += keys.page_size) {
    const int64_t page = begin / keys.page_size;
    if (sequence.kept.pages[static_cast<size_t>(page)] == nullptr) continue;  // before every window
    ranges.push_back({keys.in_page(sequence, page), values.in_page(sequence, page), begin,
                      std::min(begin + keys.page_size, length)});
  }
}

// A segment for each sequence, of the ranges up to its end; they are whole and stay where they are.
std::span<const ops::AttentionSegment> make_attention_segments(Pass& pass, const KvLists& lists,
                                                               int64_t position_stride) {
  std::vector<ops::AttentionSegment>& segments =
      pass.lists.blocks.ensure_lists<AttentionLists>().segments;
  segments.clear();
  size_t first = 0;
  for (size_t s = 0; s < pass.sequences.size(); ++s) {
    const PassSequence& sequence = pass.sequences[s];
    const size_t end = lists.range_ends[s];
    segments.push_back({.begin = sequence.begin,
                        .end = sequence.end,
                        .first_position = sequence.first_position,
                        .kv = {.ranges = std::span(lists.ranges).subspan(first, end - first),
                               .position_stride = position_stride}});
    first = end;
  }
  return segments;
}

}  // namespace

void store_kv(Pass& pass, const BlockContext& context, TensorView k, TensorView v) {
  pass.unless_counting([&] {
    const KvRows keys = kv_rows_of(pass, context, k);
    write_to_pages(pass, keys, k);
    if (!v.empty()) write_to_pages(pass, value_rows_of(pass, context, keys, v), v);
  });
}

std::span<const ops::AttentionSegment> prepare_kv_segments(Pass& pass, const BlockContext& context,
                                                           TensorView k, TensorView v) {
  store_kv(pass, context, k, v);
  return make_segments_of_stored_kv(pass, context, k, v);
}

std::span<const ops::AttentionSegment> make_segments_of_stored_kv(Pass& pass,
                                                                  const BlockContext& context,
                                                                  TensorView k, TensorView v) {
  const KvRows keys = kv_rows_of(pass, context, k);
  const KvRows values = value_rows_of(pass, context, keys, v);
  KvLists& lists = pass.lists.blocks.ensure_lists<KvLists>();
  lists.clear_ranges();
  for (const PassSequence& sequence : pass.sequences) {
    append_kv_ranges(sequence, keys, values, lists.ranges);
    lists.end_ranges();
  }
  return make_attention_segments(pass, lists, keys.row_bytes / dtype_bytes(k.dtype));
}

}  // namespace strata::model
