// SPDX-License-Identifier: Apache-2.0
#include "model/weights/weight_shards.h"

namespace strata::model {
namespace {

constexpr int64_t kMostWritten = 16 << 20;

// What comes after the layers reads.
template <typename Take>
void for_each_end_unit(const ShardUnits& units, Take take) {
  take(units.end());
  if (units.end_has_embedding) take(units.embedding());
}

}  // namespace

ShardTurn shards_needed_at_embedding(const ShardUnits& units) {
  ShardTurn turn;
  turn.need(units.embedding());
  if (units.part.size() > 0) turn.expect(static_cast<size_t>(units.part.first));
  return turn;
}

ShardTurn shards_needed_at_layer(const ShardUnits& units, int64_t layer, int64_t next) {
  ShardTurn turn;
  turn.need(static_cast<size_t>(layer));
  // Multi-token prediction's reads what comes after the layers, too.
  if (layer >= units.num_layers) for_each_end_unit(units, [&](size_t unit) { turn.need(unit); });
  if (units.part.contains(next)) turn.expect(static_cast<size_t>(next));
  if (next == units.num_layers && units.ends())
    for_each_end_unit(units, [&](size_t unit) { turn.expect(unit); });
  return turn;
}

ShardTurn shards_needed_at_end(const ShardUnits& units) {
  ShardTurn turn;
  for_each_end_unit(units, [&](size_t unit) { turn.need(unit); });
  if (units.part.size() > 0) turn.expect(static_cast<size_t>(units.part.last - 1));
  return turn;
}

namespace {

// The most that a forward or a backward has of other ranks' parts at once.
int64_t peak_bytes_of_others(const ShardUnits& units, const WeightShare& share) {
  const auto of_others = [&](size_t unit) {
    const int64_t experts = units.expert_bytes[unit];
    return units.bytes[unit] - part_of(units.bytes[unit], share.all).size() + experts -
           part_of(experts, share.experts).size();
  };
  int64_t here = 0, most = 0;
  ShardWalk walk(units.bytes.size());
  const auto take = [&](const ShardTurn& turn) {
    walk.apply_turn(
        turn, [&](size_t unit) { here -= of_others(unit); },
        [&](size_t unit) { here += of_others(unit); });
    most = std::max(most, here);
  };
  const auto mtp = static_cast<size_t>(units.num_layers);
  const ShardPass pass = {.mtp = mtp < units.embedding()};
  for_each_forward_turn(units, pass, take);
  for_each_backward_turn(units, pass, take);
  return most;
}

// A rank's own parts of units, and what is on its way to others.
int64_t own_bytes(const std::vector<int64_t>& of_units, const MemoryShare& share) {
  int64_t own = 0, largest = 0;
  for (const int64_t bytes : of_units) {
    const int64_t part = part_of(bytes, share).size();
    own += part;
    largest = std::max(largest, part);
  }
  return own + message_bytes(largest, share);
}

}  // namespace

int64_t peak_shard_bytes(const ShardUnits& units, const WeightShare& share) {
  return units.whole_bytes + own_bytes(units.bytes, share.all) +
         own_bytes(units.expert_bytes, share.experts) + peak_bytes_of_others(units, share);
}

WeightShards::WeightShards(ShardUnits units, std::vector<std::vector<PageRange>> ranges,
                           std::vector<std::vector<PageRange>> expert_ranges,
                           const WeightShare& share, Allocator& of_work)
    : units_(std::move(units)),
      share_(share),
      walk_(units_.bytes.size()),
      is_written_(units_.bytes.size()),
      memory_(std::move(ranges), share.all, of_work) {
  if (share.experts.is_divided())
    experts_.emplace(std::move(expert_ranges), share.experts, of_work);
}

void WeightShards::apply_turn(const ShardTurn& turn) {
  walk_.apply_turn(
      turn,
      [&](size_t unit) {
        memory_.let_go(unit);
        if (has_experts(unit)) experts_->let_go(unit);
      },
      [&](size_t unit) {
        memory_.fetch(unit);
        if (has_experts(unit)) experts_->fetch(unit);
      });
  for (const size_t unit : turn.now()) {
    memory_.wait_for(unit);
    if (has_experts(unit)) experts_->wait_for(unit);
  }
}

void WeightShards::wait_until_idle() {
  memory_.wait_until_idle();
  if (experts_) experts_->wait_until_idle();
}

void WeightShards::trim() {
  memory_.trim();
  if (experts_) experts_->trim();
}

int64_t WeightShards::answered_bytes() const {
  return memory_.answered_bytes() + (experts_ ? experts_->answered_bytes() : 0);
}

int64_t WeightShards::asked_bytes() const {
  return memory_.asked_bytes() + (experts_ ? experts_->asked_bytes() : 0);
}

void WeightShards::trim_written(size_t unit, int64_t bytes) {
  is_written_[unit] = true;
  written_ += bytes;
  if (written_ < kMostWritten) return;
  written_ = 0;
  for (size_t i = 0; i < is_written_.size(); ++i) {
    if (is_written_[i]) memory_.trim(i);
    if (is_written_[i] && has_experts(i)) experts_->trim(i);
    is_written_[i] = false;
  }
}

}  // namespace strata::model
