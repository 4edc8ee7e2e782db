// SPDX-License-Identifier: Apache-2.0
// The undo log by itself: what is kept of a state's rings comes back where it is put back, byte by
// byte, and nowhere else.
#include "engine/sampling/undo_log.h"

#include <gtest/gtest.h>

#include <cstring>

#include "tests/engine/tiny_engine.h"

namespace strata::engine {
namespace {

constexpr int64_t kDrafts = 5;

class UndoLog : public testing::Test {
 protected:
  UndoLog()
      : engine_(tiny_engine({.model = "deepseek_v4_mtp",
                             .options = {.draft_tokens = kDrafts},
                             .mtp = model::UseMtp::kAlways})),
        memory_(backend().allocator(), cache().state_bytes()) {
    // Drafts behind the first are what is written over.
    EXPECT_GE(cache().undo_tokens(), kDrafts - 1);
    EXPECT_GT(cache().rings().size(), 1u);
  }
  Backend& backend() { return engine_->backend(); }
  const model::CacheLayout& cache() { return engine_->cache_layout(); }
  void* state() { return memory_.data(); }

  // Bytes in front of the log: the rings and all else that a state holds.
  std::string contents() {
    int64_t bytes = cache().state_bytes();
    for (size_t ring = 0; ring < cache().rings().size(); ++ring) {
      bytes = std::min(bytes, cache().undo_row(ring, 0).log_offset);
    }
    const HostAccess access(backend().allocator());
    return {static_cast<const char*>(state()), static_cast<size_t>(bytes)};
  }
  // Fills what stands in front of the log; every byte of it differs by seed and by neighbour.
  void fill(uint32_t seed) {
    const size_t bytes = contents().size();
    const HostAccess access(backend().allocator());
    for (size_t i = 0; i < bytes; ++i) {
      seed = seed * 1664525u + 1013904223u;
      static_cast<char*>(state())[i] = static_cast<char>(seed >> 24);
    }
  }

  std::unique_ptr<Engine> engine_;
  Memory memory_;
};

// From a place where rings begin anew, in the midst of them, and at the first position.
TEST_F(UndoLog, BringsBackTheRowsThatArePutBackAndNoOthers) {
  const int64_t most = cache().undo_tokens();
  for (const int64_t begin : {int64_t{0}, int64_t{6}, int64_t{13}, int64_t{4093}}) {
    for (int64_t from = begin; from <= begin + most; ++from) {
      SCOPED_TRACE(testing::Message() << begin << " from " << from);
      fill(1);
      const std::string before = contents();
      save_undo_rows(backend(), cache(), state(), begin, begin + most);
      EXPECT_EQ(contents(), before);
      fill(2);
      std::string want = contents();
      for (const model::StateRing& ring : cache().rings()) {
        for (int64_t position = from; position < begin + most; ++position) {
          const auto at = static_cast<size_t>(ring.offset + position % ring.slots * ring.row_bytes);
          want.replace(at, static_cast<size_t>(ring.row_bytes), before, at,
                       static_cast<size_t>(ring.row_bytes));
        }
      }
      restore_undo_rows(backend(), cache(), state(), from, begin + most);
      EXPECT_EQ(contents(), want);
    }
  }
}

TEST_F(UndoLog, TakesNoMorePositionsThanItHasRoomFor) {
  const int64_t most = cache().undo_tokens();
  EXPECT_DEATH(save_undo_rows(backend(), cache(), state(), 3, 4 + most), "CHECK");
  EXPECT_DEATH(restore_undo_rows(backend(), cache(), state(), -1, 0), "CHECK");
}

}  // namespace
}  // namespace strata::engine
