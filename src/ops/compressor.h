// SPDX-License-Identifier: Apache-2.0
// What DeepSeek-V4's compressors do: each run of m tokens (a window, aligned to position 0 of its
// sequence) becomes one entry, channel by channel a mean of its tokens' values weighted by the
// softmax of gate + bias[position in the window]. With `overlap` a token has two halves of
// channels: the second counts in its own window's entry, the first in the next window's, so that an
// entry has 2 m terms (window 0: m). Tokens of a window that is not full belong to no entry yet.
// Source: HF modeling_deepseek_v4.py, DeepseekV4HCACompressor and DeepseekV4CSACompressor.
// T tokens, m ratio, W channels of a token, C of an entry (W, with overlap W / 2), E entries.
// fp32; sums over an entry's terms are chains, earlier positions first. Between passes a state
// holds the last tokens' raw rows, so that any split of a sequence has the same bits. Engine thread
// only.
#pragma once
#include <span>

#include "backend/backend.h"
#include "ops/state_segment.h"
#include "tensor/view.h"

namespace strata::ops {

constexpr int64_t kMaxCompressRatio = 256;

// A segment's state is [span, 2, W] f32, dense: the value and gate rows of the last `span` tokens,
// each at its position modulo span. A pass reads those of earlier positions that its entries need,
// and then writes those of its own.
struct CompressorArgs {
  TensorView kv;    // [T, W] f32
  TensorView gate;  // [T, W] f32
  TensorView bias;  // [m, W] f32
  bool overlap = false;
  std::span<const StateSegment> segments;  // ascending

  [[nodiscard]] int64_t ratio() const { return bias.rows(); }
  [[nodiscard]] int64_t channels() const { return overlap ? kv.cols() / 2 : kv.cols(); }
};

// Tokens whose rows a state holds.
constexpr int64_t compressor_span(int64_t ratio, bool overlap) {
  return overlap ? 2 * ratio : ratio;
}

// Entries that the rows of a segment complete.
inline int64_t entries_of(const StateSegment& segment, int64_t ratio) {
  const int64_t end = segment.first_position + segment.end - segment.begin;
  return end / ratio - segment.first_position / ratio;
}

// Writes entries [E, C] f32, segment after segment: of windows first_position / m and on.
void compress(Backend& backend, const CompressorArgs& args, TensorView entries);

// Segments start at position 0 (training); states are neither read nor written. Writes d_kv and
// d_gate [T, W] f32 or bf16, zero where a token belongs to no entry. Adds to d_bias [m, W] f32
// unless it is empty: one chain over ascending entries from the stored value.
void compress_backward(Backend& backend, const CompressorArgs& args, TensorView d_entries,
                       TensorView d_kv, TensorView d_gate, TensorView d_bias);

}  // namespace strata::ops
