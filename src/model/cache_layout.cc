// SPDX-License-Identifier: Apache-2.0
#include "model/cache_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "backend/arena.h"
#include "base/check.h"
#include "base/error.h"

namespace strata::model {
namespace {

CacheSpec checked_spec_of(const Sublayer& sublayer, DType dtype) {
  const CacheSpec spec = sublayer.block.ops().cache_spec(sublayer.block.config(), dtype);
  CHECK(spec.ratio >= 1 && spec.entry_bytes >= 0 && spec.sequence_bytes >= 0, spec.ratio,
        spec.entry_bytes, spec.sequence_bytes);
  return spec;
}

// A pass of drafts reads the token before them too: of so many positions no two may share a slot,
// or what is put back would be older than the last that stays.
void refuse_short_ring(const StateRing& ring, int64_t undo_tokens) {
  if (undo_tokens < ring.slots) return;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("--draft-tokens: got {}, want less than {}: a state of this model "
                          "holds no more positions, so that further drafts could not be "
                          "taken back",
                          undo_tokens, ring.slots));
}

}  // namespace

CacheLayout::CacheLayout(const ModelConfig& config, DType dtype, int64_t page_size,
                         int64_t undo_tokens)
    : undo_tokens_(undo_tokens) {
  std::vector<LayerConfig> layers = config.layers;
  if (config.use_mtp) layers.push_back(*config.mtp_layer);
  set_page_size_and_window(layers, dtype, page_size);
  for (const LayerConfig& layer : layers) {
    std::vector<CachePlace>& places = places_.emplace_back();
    for (const Sublayer& sublayer : layer) {
      places.push_back(add_place(checked_spec_of(sublayer, dtype)));
    }
  }
  if (undo_tokens > 0) lay_out_undo_log();
}

void CacheLayout::set_page_size_and_window(const std::vector<LayerConfig>& layers, DType dtype,
                                           int64_t wanted) {
  int64_t multiple = 1;
  bool reads_all = false;
  for (const LayerConfig& layer : layers) {
    for (const Sublayer& sublayer : layer) {
      const CacheSpec spec = checked_spec_of(sublayer, dtype);
      multiple = std::lcm(multiple, spec.ratio);
      if (spec.entry_bytes == 0) continue;
      reads_all = reads_all || spec.window == 0;
      window_ = std::max(window_, spec.window);
    }
  }
  if (reads_all) window_ = 0;
  page_size_ = (wanted + multiple - 1) / multiple * multiple;
}

// Behind what is there: a sublayer's part of a page and of a sequence's state.
CachePlace CacheLayout::add_place(const CacheSpec& spec) {
  CachePlace place = {.page_offset = page_bytes_, .state_offset = state_bytes_};
  page_bytes_ += page_size_ / spec.ratio * spec.entry_bytes;
  for (StateRing ring : spec.rings) {
    ring.offset += state_bytes_;
    rings_.push_back(ring);
  }
  state_bytes_ += Arena::aligned(spec.sequence_bytes);
  if (undo_tokens_ > 0 && spec.replay.chunk > 0) add_replay_log(spec.replay, place);
  return place;
}

// Behind the sublayer's part of the state.
void CacheLayout::add_replay_log(const ReplaySpec& replay, CachePlace& place) {
  chunk_ = std::lcm(std::max<int64_t>(1, chunk_), replay.chunk);
  place.log_offset = state_bytes_;
  state_bytes_ += Arena::aligned(replay.before_bytes + log_rows() * replay.row_bytes);
}

void CacheLayout::lay_out_undo_log() {
  for (const StateRing& ring : rings_) {
    refuse_short_ring(ring, undo_tokens_);
    logs_.push_back(state_bytes_);
    state_bytes_ += undo_tokens_ * ring.row_bytes;
  }
  state_bytes_ = Arena::aligned(state_bytes_);
}

CacheLayout::UndoRow CacheLayout::undo_row(size_t ring, int64_t position) const {
  const StateRing& of = rings_[ring];
  return {.state_offset = of.offset + position % of.slots * of.row_bytes,
          .log_offset = logs_[ring] + position % undo_tokens_ * of.row_bytes,
          .bytes = of.row_bytes};
}

}  // namespace strata::model
