// SPDX-License-Identifier: Apache-2.0
#include "backend/arena.h"

#include <algorithm>

#include "backend/scratch_release.h"
#include "base/check.h"

namespace strata {
namespace {
constexpr int64_t kHugePage = 2 << 20;  // of the machine's; a block is no smaller
}

void* Arena::take(int64_t bytes) {
  CHECK(bytes >= 0 && used_ + aligned(bytes) <= size(), bytes, used_, size());
  void* data = static_cast<char*>(memory_.data()) + used_;
  used_ += aligned(bytes);
  return data;
}

TensorView Arena::take(DType dtype, const Shape& shape) {
  return {take(shape.num_elements() * dtype_bytes(dtype)), dtype, shape};
}

Scratch::~Scratch() = default;

size_t Scratch::ensure_tag(ScratchTag tag) {
  size_t t = 0;
  while (t < num_tags_ && live_[t].tag != tag) ++t;
  if (t == num_tags_) {
    CHECK(num_tags_ < kMaxTags, tag);
    live_[num_tags_++] = {tag, 0};
  }
  return t;
}

void Scratch::record_take(int64_t size, ScratchTag tag) {
  const size_t t = ensure_tag(tag);
  live_[t].bytes += size;
  takes_.push_back({static_cast<uint32_t>(t), size});
  total_ += size;
  if (total_ <= high_water_) return;
  high_water_ = total_;
  std::copy_n(live_, num_tags_, peak_);
  num_peak_tags_ = num_tags_;
}

// Adds a block of at least `size`. Geometric growth: a few blocks reach any size.
void Scratch::add_block(int64_t size) {
  CHECK(num_blocks_ < kMaxBlocks, num_blocks_);
  const int64_t block_bytes = std::max({size, kHugePage, high_water_ / 2});
  blocks_[num_blocks_].memory = Memory(*allocator_, block_bytes);
  blocks_[num_blocks_].used = 0;
  grown_ += block_bytes;
  ++num_blocks_;
}

// Where there is no memory.
void* Scratch::next_counted_address() const {
  const uintptr_t nowhere = uintptr_t{1} << (44 + static_cast<int>(counted_));
  return reinterpret_cast<void*>(nowhere + static_cast<uintptr_t>(total_));
}

Scratch::Block& Scratch::move_on_to_block_with(int64_t size) {
  while (current_ < num_blocks_ &&
         blocks_[current_].used + size > blocks_[current_].memory.size()) {
    // Blocks behind the current one are free; one too small for this take is skipped.
    if (++current_ < num_blocks_) blocks_[current_].used = 0;
  }
  if (current_ == num_blocks_) {
    add_block(size);
  }
  return blocks_[current_];
}

void* Scratch::take_from_blocks(int64_t size) {
  Block& block = move_on_to_block_with(size);
  void* data = static_cast<char*>(block.memory.data()) + block.used;
  block.used += size;
  return data;
}

void* Scratch::take(int64_t bytes, ScratchTag tag) {
  if (held_ != nullptr && num_marks_ == 0) return held_->take(bytes, tag);
  const int64_t size = Arena::aligned(std::max<int64_t>(bytes, 1));
  void* data = allocator_ == nullptr ? next_counted_address() : take_from_blocks(size);
  record_take(size, tag);
  return data;
}

void Scratch::book(int64_t bytes, int64_t most) {
  CHECK(total_ == 0, total_);
  high_water_ = 0;
  num_tags_ = num_peak_tags_ = 0;
  takes_.reserve(kUsualTakes);
  if (allocator_ == nullptr ||
      (num_blocks_ == 1 && booked() >= bytes && booked() <= std::max(bytes, most)))
    return;
  for (Block& block : blocks_) block = Block();
  blocks_[0].memory = Memory(*allocator_, bytes);
  num_blocks_ = 1;
  current_ = 0;
}

TensorView Scratch::take(DType dtype, const Shape& shape, ScratchTag tag) {
  return {take(shape.num_elements() * dtype_bytes(dtype), tag), dtype, shape};
}

Scratch::Mark::Mark(Scratch& scratch)
    : scratch_(scratch),
      block_(std::min(scratch.current_, std::max(scratch.num_blocks_ - 1, 0))),
      used_(scratch.num_blocks_ == 0 ? 0 : scratch.blocks_[block_].used),
      total_(scratch.total_),
      first_take_(scratch.takes_.size()) {
  ++scratch.num_marks_;
}

// Announces the release of all that was taken behind the first `used` bytes of a block.
void Scratch::announce_release_behind(int block, int64_t used) {
  for (int i = block; i <= current_ && i < num_blocks_; ++i) {
    const Block& released = blocks_[i];
    const int64_t begin = i == block ? used : 0;
    if (released.used == begin) continue;
    scratch_released(static_cast<char*>(released.memory.data()) + begin, released.used - begin);
  }
}

void Scratch::forget_takes_from(size_t first) {
  while (takes_.size() > first) {
    const Take& take = takes_.back();
    live_[take.tag].bytes -= take.bytes;
    takes_.pop_back();
  }
}

Scratch::Mark::~Mark() {
  --scratch_.num_marks_;
  scratch_.announce_release_behind(block_, used_);
  scratch_.current_ = block_;
  if (scratch_.num_blocks_ > 0) scratch_.blocks_[block_].used = used_;
  scratch_.total_ = total_;
  scratch_.forget_takes_from(first_take_);
}

Scratch::Hold::Hold(Scratch& scratch, Scratch& held) : scratch_(scratch) {
  CHECK(&scratch != &held && scratch.held_ == nullptr && scratch.num_marks_ == 0);
  scratch.held_ = &held;
}

Scratch::Hold::~Hold() {
  CHECK(scratch_.total_ == 0 && scratch_.num_marks_ == 0, scratch_.total_, scratch_.num_marks_);
  scratch_.held_ = nullptr;
}

}  // namespace strata
