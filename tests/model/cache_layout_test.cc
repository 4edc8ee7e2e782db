// SPDX-License-Identifier: Apache-2.0
// Layers that keep different things of a sequence share one page: each at its own offset, entries
// at its own ratio. The blocks here compute nothing; they only declare a cache.
#include "model/cache_layout.h"

#include <gtest/gtest.h>

#include <set>

#include "base/error.h"
#include "model/connectors/pre_norm_add.h"

namespace strata::model {
namespace {

struct Keeper {
  using Config = CacheSpec;
  struct Saved {};
  static constexpr BlockGroup kGroup = BlockGroup::kAttention;
  static std::string find_config_fault(const Config&) { return {}; }
  static std::string describe(const Config&) { return {}; }
  static void add_params(const Config&, int64_t, ParamRows&) {}
  static CacheSpec cache_spec(const Config& c, DType) { return c; }
  static BlockWork work(const Config&) { return {}; }
  static double output_flops(const Pass&, const BlockContext&) { return 0.0; }
  static void allocate_always_kept(Pass&, const BlockContext&, Saved&) {}
  static void allocate_saved(Pass&, const BlockContext&, Saved&) {}
  static void forward(Pass&, const BlockContext&, Saved&, TensorView, BlockOutput) {}
  static void backward(Pass&, const BlockContext&, const Saved&, TensorView, TensorView,
                       TensorView) {}
};

const BlockOps kKeeper = block_ops<Keeper>("keeper");

// One layer for each list of specs.
CacheLayout layout(const std::vector<std::vector<CacheSpec>>& layers, int64_t page_size,
                   int64_t undo_tokens = 0) {
  ModelConfig config;
  for (const std::vector<CacheSpec>& specs : layers) {
    LayerConfig& layer = config.layers.emplace_back();
    for (const CacheSpec& spec : specs) {
      layer.push_back(
          {Connector(kPreNormAdd, PreNormAddConfig{.norm = "n"}), Block(kKeeper, spec)});
    }
  }
  return {config, DType::kBF16, page_size, undo_tokens};
}

// Behind the state, for each ring the rows of as many positions as may be taken back.
TEST(CacheLayout, AnUndoLogHasRoomForTheRowsOfRings) {
  const std::vector<std::vector<CacheSpec>> layers = {
      {{.sequence_bytes = 100, .rings = {{.offset = 0, .slots = 8, .row_bytes = 10}}}},
      {{.sequence_bytes = 50}},
      {{.sequence_bytes = 64,
        .rings = {{.offset = 0, .slots = 8, .row_bytes = 2},
                  {.offset = 16, .slots = 4, .row_bytes = 12}}}}};
  EXPECT_EQ(layout(layers, 8).state_bytes(), 128 + 64 + 64);
  const CacheLayout cache = layout(layers, 8, /*undo_tokens=*/3);
  EXPECT_EQ(cache.state_bytes(), 256 + 128);  // 3 * (10 + 2 + 12), aligned
  ASSERT_EQ(cache.rings().size(), 3u);
  EXPECT_EQ(cache.undo_row(0, 11).state_offset, 3 * 10);
  EXPECT_EQ(cache.undo_row(1, 11).state_offset, 192 + 3 * 2);
  EXPECT_EQ(cache.undo_row(2, 11).state_offset, 192 + 16 + 3 * 12);
  // Of any three successive positions no two share a place, in the state or in the log.
  std::set<int64_t> bytes;
  for (size_t ring = 0; ring < 3; ++ring) {
    for (int64_t position = 20; position < 23; ++position) {
      const CacheLayout::UndoRow row = cache.undo_row(ring, position);
      EXPECT_LT(row.state_offset + row.bytes, 257);
      EXPECT_GE(row.log_offset, 256);
      for (int64_t i = 0; i < row.bytes; ++i) {
        EXPECT_TRUE(bytes.insert(row.state_offset + i).second);
        EXPECT_TRUE(bytes.insert(row.log_offset + i).second);
      }
    }
  }
  EXPECT_LT(*bytes.rbegin(), cache.state_bytes());
  EXPECT_THROW(layout(layers, 8, 4), Error);  // the third ring has four
}

// Behind the sublayer's own part of the state, what was before and the rows of a pass: the drafts
// and the token before them.
TEST(CacheLayout, ALogOfRowsToReplayIsThereWhereDraftsAre) {
  const std::vector<std::vector<CacheSpec>> layers = {
      {{.sequence_bytes = 100, .replay = {.before_bytes = 70, .row_bytes = 30, .chunk = 8}}},
      {{.sequence_bytes = 50}}};
  const CacheLayout without = layout(layers, 8);
  EXPECT_EQ(without.state_bytes(), 128 + 64);
  EXPECT_FALSE(without.replays());
  const CacheLayout cache = layout(layers, 8, /*undo_tokens=*/3);
  EXPECT_TRUE(cache.replays());
  EXPECT_EQ(cache.log_rows(), 4);
  EXPECT_EQ(cache.place(0, 0).log_offset, 128);
  EXPECT_EQ(cache.place(1, 0).state_offset, 128 + 192);  // 70 + 4 * 30, aligned
  EXPECT_EQ(cache.place(1, 0).log_offset, 0);
  EXPECT_EQ(cache.state_bytes(), 128 + 192 + 64);
  // The last position of a chunk is no draft's.
  EXPECT_EQ(cache.most_drafts_from(16), 7);
  EXPECT_EQ(cache.most_drafts_from(22), 1);
  EXPECT_EQ(cache.most_drafts_from(23), 0);
}

TEST(CacheLayout, PartsLieOneBehindTheOther) {
  const CacheLayout cache = layout({{{.entry_bytes = 10}, {}},
                                    {{.entry_bytes = 6, .ratio = 4}, {.sequence_bytes = 100}},
                                    {{.entry_bytes = 2, .sequence_bytes = 7}}},
                                   8);
  EXPECT_EQ(cache.page_size(), 8);
  EXPECT_EQ(cache.place(0, 0).page_offset, 0);
  EXPECT_EQ(cache.place(1, 0).page_offset, 8 * 10);
  EXPECT_EQ(cache.place(2, 0).page_offset, 8 * 10 + 2 * 6);
  EXPECT_EQ(cache.page_bytes(), 8 * 10 + 2 * 6 + 8 * 2);
  EXPECT_EQ(cache.position_bytes(), 10 + 1.5 + 2);
  EXPECT_EQ(cache.place(1, 1).state_offset, 0);
  EXPECT_EQ(cache.place(2, 0).state_offset, 128);  // 100, aligned
  EXPECT_EQ(cache.state_bytes(), 128 + 64);
  // Of a state there are copies at page borders.
  EXPECT_EQ(cache.last_shared(7), 0);
  EXPECT_EQ(cache.last_shared(8), 8);
  EXPECT_EQ(cache.last_shared(23), 16);
}

TEST(CacheLayout, APageIsAMultipleOfEveryRatio) {
  const auto size = [](int64_t page_size) {
    return layout({{{.entry_bytes = 1, .ratio = 4}}, {{.entry_bytes = 1, .ratio = 6}}}, page_size)
        .page_size();
  };
  EXPECT_EQ(size(1), 12);
  EXPECT_EQ(size(12), 12);
  EXPECT_EQ(size(64), 72);
}

TEST(CacheLayout, AWindowLetsPagesGoOnlyWhereEveryLayerHasOne) {
  const CacheLayout all =
      layout({{{.entry_bytes = 1, .window = 4}, {}}, {{.entry_bytes = 1, .window = 9}}}, 4);
  EXPECT_EQ(all.first_needed(0), 0);
  EXPECT_EQ(all.first_needed(8), 0);
  EXPECT_EQ(all.first_needed(9), 1);  // positions 1 to 9 are the last nine
  EXPECT_EQ(all.last_shared(7), 7);
  const CacheLayout some = layout({{{.entry_bytes = 1, .window = 4}}, {{.entry_bytes = 1}}}, 4);
  EXPECT_EQ(some.first_needed(1000), 0);
}

}  // namespace
}  // namespace strata::model
