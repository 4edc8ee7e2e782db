// SPDX-License-Identifier: Apache-2.0
// WeightShards: of weights that ranks have divided among themselves (backend/divided_memory.h), the
// layer at hand and the next one are here as a whole, in whichever direction a pass walks, and of
// all others this rank's part. Units are the layers, the embedding, and what comes after the
// layers. Where other ranks have a unit's experts, these are memory of their own, which comes and
// goes with it. A ShardWalk says which a pass needs where, for passes and for plans of them alike.
// Engine thread only.
#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "backend/divided_memory.h"
#include "model/weights/layer_table.h"
#include "model/weights/weight_share.h"

namespace strata::model {

// The units of a stage, which may be a whole model.
struct ShardUnits {
  LayerRange part;
  int64_t num_layers = 0;           // of the model, without multi-token prediction's
  bool end_has_embedding = false;   // which is the head, or what multi-token prediction reads
  std::vector<int64_t> bytes = {};  // of each unit; 0: another stage's
  std::vector<int64_t> expert_bytes = {};  // of those of its experts that fewer ranks divide
  int64_t whole_bytes = 0;                 // of what is whole on every rank

  [[nodiscard]] bool begins() const { return part.first == 0; }
  [[nodiscard]] bool ends() const { return part.last == num_layers; }
  [[nodiscard]] size_t embedding() const { return bytes.size() - 2; }
  [[nodiscard]] size_t end() const { return bytes.size() - 1; }
};

// What a pass needs where it is, and what it will need next.
class ShardTurn {
 public:
  ShardTurn() = default;  // nothing
  // What is needed comes before what is expected.
  void need(size_t unit) {
    add(unit);
    num_now_ = num_;
  }
  void expect(size_t unit) { add(unit); }
  [[nodiscard]] std::span<const size_t> now() const { return std::span(units_).first(num_now_); }
  [[nodiscard]] std::span<const size_t> all() const { return std::span(units_).first(num_); }
  [[nodiscard]] bool has(size_t unit) const {
    return std::find(all().begin(), all().end(), unit) != all().end();
  }

 private:
  void add(size_t unit) {
    if (!has(unit)) units_[num_++] = unit;
  }
  std::array<size_t, 6> units_ = {};
  size_t num_now_ = 0, num_ = 0;
};

// At the embedding; at a layer, with the next one (num_layers: what comes after the layers); and
// after the layers, with the layer where a backward begins.
ShardTurn shards_needed_at_embedding(const ShardUnits& units);
ShardTurn shards_needed_at_layer(const ShardUnits& units, int64_t layer, int64_t next);
ShardTurn shards_needed_at_end(const ShardUnits& units);

// What a pass runs of a stage: with no tokens the layers alone, of which it has the experts;
// multi-token prediction; and the stage once more before its backward, where it is recomputed as
// one.
struct ShardPass {
  bool has_tokens = true;
  bool mtp = false;
  bool again = false;
};

// Calls take(turn) with a stage's turns of a forward, with its loss, and of a backward, in their
// order.
template <typename Take>
void for_each_forward_turn(const ShardUnits& units, const ShardPass& pass, Take take) {
  if (units.begins() && pass.has_tokens) take(shards_needed_at_embedding(units));
  for (int64_t layer = units.part.first; layer < units.part.last; ++layer)
    take(shards_needed_at_layer(units, layer, layer + 1));
  if (!units.ends()) return;
  if (pass.has_tokens) take(shards_needed_at_end(units));
  if (pass.mtp) take(shards_needed_at_layer(units, units.num_layers, units.num_layers + 1));
}
template <typename Take>
void for_each_backward_turn(const ShardUnits& units, const ShardPass& pass, Take take) {
  const LayerRange& part = units.part;
  if (units.ends() && pass.has_tokens) take(shards_needed_at_end(units));
  for (int64_t layer = part.first; pass.again && layer < part.last; ++layer)
    take(shards_needed_at_layer(units, layer, layer + 1 < part.last ? layer + 1 : layer - 1));
  for (int64_t layer = part.last - 1; layer >= part.first; --layer)
    take(shards_needed_at_layer(units, layer, layer - 1));
}

class ShardWalk {
 public:
  explicit ShardWalk(size_t num_units) : here_(num_units) {}
  // Calls let_go(unit) with what is here and not needed, then fetch(unit) with what is not here.
  template <typename LetGo, typename Fetch>
  void apply_turn(const ShardTurn& turn, LetGo let_go, Fetch fetch) {
    for (size_t unit = 0; unit < here_.size(); ++unit) {
      if (!here_[unit] || turn.has(unit)) continue;
      here_[unit] = false;
      let_go(unit);
    }
    for (const size_t unit : turn.all()) {
      if (here_[unit]) continue;
      here_[unit] = true;
      fetch(unit);
    }
  }

 private:
  std::vector<bool> here_;
};

// The most bytes that a rank has at once: its parts, what passes have of the others, and what is on
// its way to others.
int64_t peak_shard_bytes(const ShardUnits& units, const WeightShare& share);

class WeightShards {
 public:
  // Ranges of each unit: of all but its experts, and of these, of which none are where all ranks
  // divide them or this one has all that it holds.
  WeightShards(ShardUnits units, std::vector<std::vector<PageRange>> ranges,
               std::vector<std::vector<PageRange>> expert_ranges, const WeightShare& share,
               Allocator& of_work);

  [[nodiscard]] const ShardUnits& units() const { return units_; }
  [[nodiscard]] DividedMemory& memory() { return memory_; }
  // Null where there is none.
  [[nodiscard]] DividedMemory* expert_memory() { return experts_ ? &*experts_ : nullptr; }
  [[nodiscard]] int64_t num_bytes() const { return peak_shard_bytes(units_, share_); }
  // What it needs is here when it returns.
  void apply_turn(const ShardTurn& turn);
  // While weights are written, so that they do not fill the memory.
  void trim_written(size_t unit, int64_t bytes);
  // Around weights being written anew (DividedMemory).
  void wait_until_idle();
  void trim();
  // What this rank has sent: pieces, and questions.
  [[nodiscard]] int64_t answered_bytes() const;
  [[nodiscard]] int64_t asked_bytes() const;

 private:
  [[nodiscard]] bool has_experts(size_t unit) const {
    return experts_ && units_.expert_bytes[unit] > 0;
  }

  const ShardUnits units_;
  const WeightShare share_;
  ShardWalk walk_;
  std::vector<bool> is_written_;  // since a unit was trimmed
  int64_t written_ = 0;
  DividedMemory memory_;
  std::optional<DividedMemory> experts_;
};

}  // namespace strata::model
