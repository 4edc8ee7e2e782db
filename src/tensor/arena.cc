#include "tensor/arena.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace strata {
namespace {
constexpr int64_t kHugePage = 2 << 20;
}

Memory::Memory(int64_t bytes) : size_(bytes) {
  CHECK(bytes >= 0, bytes);
  if (bytes == 0) return;
  // mmap gives zeroed pages that cost nothing until they are touched.
  const int64_t slack = bytes >= kHugePage ? kHugePage : 0;
  void* map = ::mmap(nullptr, static_cast<size_t>(bytes + slack), PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (map == MAP_FAILED) {
    throw Error(ErrorCode::kResourceExhausted,
                fmt::format("memory: {} bytes could not be had", bytes));
  }
  if (slack > 0) {
    const auto address = reinterpret_cast<uintptr_t>(map);
    const uintptr_t start = (address + kHugePage - 1) / kHugePage * kHugePage;
    if (start > address) ::munmap(map, start - address);
    const uintptr_t end = start + static_cast<uintptr_t>(bytes);
    const uintptr_t page_end = (end + 4095) / 4096 * 4096;
    const uintptr_t map_end = address + static_cast<uintptr_t>(bytes + slack);
    if (map_end / 4096 * 4096 > page_end) {
      ::munmap(reinterpret_cast<void*>(page_end), map_end / 4096 * 4096 - page_end);
    }
    map = reinterpret_cast<void*>(start);
    ::madvise(map, static_cast<size_t>(bytes), MADV_HUGEPAGE);
  }
  data_ = map;
}

Memory::~Memory() {
  if (data_ != nullptr) ::munmap(data_, static_cast<size_t>(size_));
}

Memory::Memory(Memory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

Memory& Memory::operator=(Memory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
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

void Scratch::count(int64_t size, ScratchTag tag) {
  size_t t = 0;
  while (t < num_tags_ && live_[t].tag != tag) ++t;
  if (t == num_tags_) {
    CHECK(num_tags_ < kMaxTags, tag);
    live_[num_tags_++] = {tag, 0};
  }
  live_[t].bytes += size;
  takes_.push_back({static_cast<uint32_t>(t), size});
  total_ += size;
  if (total_ <= high_water_) return;
  high_water_ = total_;
  std::copy_n(live_, num_tags_, peak_);
  num_peak_tags_ = num_tags_;
}

void* Scratch::take(int64_t bytes, ScratchTag tag) {
  const int64_t size = Arena::aligned(std::max<int64_t>(bytes, 1));
  if (is_counting_) {
    constexpr uintptr_t kNowhere = uintptr_t{1} << 44;
    void* data = reinterpret_cast<void*>(kNowhere + static_cast<uintptr_t>(total_));
    count(size, tag);
    return data;
  }
  while (current_ < num_blocks_ &&
         blocks_[current_].used + size > blocks_[current_].memory.size()) {
    // Blocks behind the current one are free; one too small for this take is skipped.
    if (++current_ < num_blocks_) blocks_[current_].used = 0;
  }
  if (current_ == num_blocks_) {
    CHECK(num_blocks_ < kMaxBlocks, num_blocks_);
    // Geometric growth: a few blocks reach any size.
    const int64_t block_bytes = std::max({size, kHugePage, high_water_ / 2});
    blocks_[num_blocks_].memory = Memory(block_bytes);
    blocks_[num_blocks_].used = 0;
    grown_ += block_bytes;
    ++num_blocks_;
  }
  Block& block = blocks_[current_];
  void* data = static_cast<char*>(block.memory.data()) + block.used;
  block.used += size;
  count(size, tag);
  return data;
}

void Scratch::reserve(int64_t bytes, int64_t most) {
  CHECK(total_ == 0, total_);
  high_water_ = 0;
  num_tags_ = num_peak_tags_ = 0;
  takes_.reserve(kUsualTakes);
  if (is_counting_ || (num_blocks_ == 1 && booked() >= bytes && booked() <= std::max(bytes, most)))
    return;
  for (Block& block : blocks_) block = Block();
  blocks_[0].memory = Memory(bytes);
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
      first_take_(scratch.takes_.size()) {}

Scratch::Mark::~Mark() {
  scratch_.current_ = block_;
  if (scratch_.num_blocks_ > 0) scratch_.blocks_[block_].used = used_;
  scratch_.total_ = total_;
  while (scratch_.takes_.size() > first_take_) {
    const Take& take = scratch_.takes_.back();
    scratch_.live_[take.tag].bytes -= take.bytes;
    scratch_.takes_.pop_back();
  }
}

}  // namespace strata
