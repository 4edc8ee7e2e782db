#include "model/kv_segments.h"

#include <cstring>

namespace strata::model {
namespace {

// Keys or values as rows of one token each, and where they go in a page.
struct Side {
  char* rows = nullptr;
  int64_t row_bytes = 0;
  int64_t page_size = 0;
  int64_t page_offset = 0;

  [[nodiscard]] char* in_page(const PassSequence& sequence, int64_t page) const {
    return static_cast<char*>(sequence.kv.pages[static_cast<size_t>(page)]) + page_offset;
  }

  // Writes the sequence's new rows to its pages.
  void store(const PassSequence& sequence) const {
    for (int64_t row = sequence.begin; row < sequence.end; ++row) {
      const int64_t position = sequence.first_position + row - sequence.begin;
      std::memcpy(in_page(sequence, position / page_size) + position % page_size * row_bytes,
                  rows + row * row_bytes, static_cast<size_t>(row_bytes));
    }
  }

  // Appends the sequence's pages, or the rows themselves as one long page.
  void list(const PassSequence& sequence, int64_t num_pages, std::vector<void*>& pages) const {
    for (int64_t page = 0; page < num_pages; ++page) {
      pages.push_back(sequence.kv.pages.empty() ? rows + sequence.begin * row_bytes
                                                : in_page(sequence, page));
    }
  }
};

Side side_of(const Pass& pass, const BlockContext& context, TensorView x) {
  CHECK(x.dense() && pass.num_tokens() > 0);
  const int64_t width = x.shape.num_elements() / pass.num_tokens();
  return {.rows = static_cast<char*>(x.data),
          .row_bytes = width * dtype_bytes(x.dtype),
          .page_size = pass.cache.page_size(),
          .page_offset = pass.cache.place(context.layer, context.sublayer).page_offset};
}

int64_t length_of(const PassSequence& sequence) {
  return sequence.first_position + sequence.end - sequence.begin;
}

}  // namespace

std::span<const ops::AttentionSegment> kv_segments(Pass& pass, const BlockContext& context,
                                                   TensorView k, TensorView v) {
  const Side keys = side_of(pass, context, k);
  Side values = keys;
  if (!v.empty()) {
    values = side_of(pass, context, v);
    values.page_offset += keys.page_size * keys.row_bytes;
  }
  std::vector<void*>& key_pages = pass.lists.key_pages;
  std::vector<void*>& value_pages = pass.lists.value_pages;
  std::vector<ops::AttentionSegment>& segments = pass.lists.segments;
  key_pages.clear();
  value_pages.clear();
  segments.clear();
  for (const PassSequence& sequence : pass.sequences) {
    const bool cached = !sequence.kv.pages.empty();
    if (cached && !pass.backend.is_counting()) {
      keys.store(sequence);
      if (!v.empty()) values.store(sequence);
    }
    const int64_t length = length_of(sequence);
    const int64_t page_size = cached ? keys.page_size : length;
    const int64_t num_pages = (length + page_size - 1) / page_size;
    keys.list(sequence, num_pages, key_pages);
    values.list(sequence, num_pages, value_pages);
    segments.push_back({.begin = sequence.begin,
                        .end = sequence.end,
                        .first_position = sequence.first_position,
                        .kv = {.k_pages = {},
                               .v_pages = {},
                               .page_size = page_size,
                               .position_stride = keys.row_bytes / dtype_bytes(k.dtype)}});
  }
  // The lists are whole now and stay where they are.
  size_t first = 0;
  for (ops::AttentionSegment& segment : segments) {
    const int64_t length = segment.first_position + segment.end - segment.begin;
    const auto count =
        static_cast<size_t>((length + segment.kv.page_size - 1) / segment.kv.page_size);
    segment.kv.k_pages = std::span(key_pages).subspan(first, count);
    segment.kv.v_pages = std::span(value_pages).subspan(first, count);
    first += count;
  }
  return segments;
}

}  // namespace strata::model
