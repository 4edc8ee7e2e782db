// SPDX-License-Identifier: Apache-2.0
// CacheLayout: how what blocks keep of a sequence between passes is in memory. A page holds a run
// of positions of all layers (that of multi-token prediction last), each layer's part at an offset
// of its own; what belongs to a sequence as a whole is in one state next to the pages, and behind
// it the undo log of drafts. Plain values, const after construction.
#pragma once
#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "model/config.h"

namespace strata::model {

class CacheLayout {
 public:
  // page_size is rounded up to what every layer's ratio divides. Drafts of `undo_tokens` tokens can
  // be taken back; Error where the rings are too short for it.
  CacheLayout(const ModelConfig& config, DType dtype, int64_t page_size, int64_t undo_tokens = 0);

  [[nodiscard]] int64_t page_size() const { return page_size_; }  // positions
  [[nodiscard]] int64_t page_bytes() const { return page_bytes_; }
  // Bytes of a sequence's state, the undo log included.
  [[nodiscard]] int64_t state_bytes() const { return state_bytes_; }
  [[nodiscard]] CachePlace place(int64_t layer, int sublayer) const {
    return places_[static_cast<size_t>(layer)][static_cast<size_t>(sublayer)];
  }
  // Bytes in the pages that one position takes, all layers.
  [[nodiscard]] double position_bytes() const {
    return static_cast<double>(page_bytes_) / static_cast<double>(page_size_);
  }
  // The first position that a query at `position` or later reads: pages wholly before it may go.
  [[nodiscard]] int64_t first_needed(int64_t position) const {
    return window_ == 0 ? 0 : std::max<int64_t>(0, position - window_ + 1);
  }
  // Where a sequence may begin that shares the first `position` positions of another: anywhere if
  // all that is kept is in pages; with a state only where a copy of it was made, for which page
  // borders serve.
  [[nodiscard]] int64_t last_shared(int64_t position) const {
    return state_bytes_ == 0 ? position : position / page_size_ * page_size_;
  }

  // Where rings of the state have the row of a position, and where the undo log has space for it:
  // for undo_tokens successive positions at a time.
  struct UndoRow {
    int64_t state_offset, log_offset, bytes;
  };
  [[nodiscard]] int64_t undo_tokens() const { return undo_tokens_; }
  [[nodiscard]] std::span<const StateRing> rings() const { return rings_; }
  [[nodiscard]] UndoRow undo_row(size_t ring, int64_t position) const;
  // Whether blocks have rows to replay (BlockOps::replay), and how many of one pass they log.
  [[nodiscard]] bool replays() const { return undo_tokens_ > 0 && chunk_ > 0; }
  [[nodiscard]] int64_t log_rows() const { return undo_tokens_ + 1; }
  // Tokens from a position on that may be drafts.
  [[nodiscard]] int64_t most_drafts_from(int64_t position) const {
    return chunk_ == 0 ? undo_tokens_ : chunk_ - 1 - position % chunk_;
  }

 private:
  // The multiple of what every layer's ratio divides, and the widest window.
  void set_page_size_and_window(const std::vector<LayerConfig>& layers, DType dtype,
                                int64_t wanted);
  [[nodiscard]] CachePlace add_place(const CacheSpec& spec);
  void lay_out_undo_log();
  void add_replay_log(const ReplaySpec& replay, CachePlace& place);

  int64_t page_size_ = 0;
  int64_t page_bytes_ = 0;
  int64_t state_bytes_ = 0;
  int64_t undo_tokens_ = 0;
  int64_t window_ = 0;  // the widest; 0: some layer reads every position
  int64_t chunk_ = 0;   // what every ReplaySpec's divides; 0: nothing is replayed
  std::vector<std::vector<CachePlace>> places_;  // [layer][sublayer]
  std::vector<StateRing> rings_;                 // of all layers, from the start of the state
  std::vector<int64_t> logs_;                    // [ring]: offset of its rows in the undo log
};

}  // namespace strata::model
