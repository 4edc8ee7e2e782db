// SPDX-License-Identifier: Apache-2.0
// Arena: one zeroed, 64-byte-aligned, huge-page-backed block that hands out pieces front to back;
// freed as a whole. Tensor: one owned, zeroed, 64-byte-aligned dense tensor. Scratch: a stack of
// bytes whose size is booked beforehand and whose high-water mark can be read, so that a plan can
// be compared with what happened. Engine thread only.
#pragma once
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "backend/memory.h"
#include "tensor/view.h"

namespace strata {

class Arena {
 public:
  static constexpr int64_t kAlignment = 64;
  static int64_t aligned(int64_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }

  Arena() = default;
  Arena(Allocator& allocator, int64_t bytes) : memory_(allocator, bytes) {}
  // CHECKs that the booked size suffices.
  void* take(int64_t bytes);
  TensorView take(DType dtype, const Shape& shape);
  [[nodiscard]] int64_t used() const { return used_; }
  [[nodiscard]] int64_t size() const { return memory_.size(); }

 private:
  Memory memory_;
  int64_t used_ = 0;
};

class Tensor {
 public:
  Tensor() = default;
  Tensor(Allocator& allocator, DType dtype, const Shape& shape)
      : memory_(allocator, shape.num_elements() * dtype_bytes(dtype)),
        view_(memory_.data(), dtype, shape) {}
  [[nodiscard]] TensorView view() const { return view_; }
  [[nodiscard]] int64_t bytes() const { return memory_.size(); }
  operator TensorView() const { return view_; }  // NOLINT: an owner is used where a view is wanted

 private:
  Memory memory_;
  TensorView view_;
};

// What a take is for. Static texts, compared by content: the field's names of activations
// (recompute policies name these), or one of those below.
using ScratchTag = std::string_view;
constexpr ScratchTag kTemporaryTag = "temporary";

// Last in, first out: a Mark gives back everything taken after it. Contents are not zeroed on take.
// A take beyond the booked size grows the stack by another block (and is counted): a plan that was
// too small is visible in grown(), never a crash. Blocks never move, so views stay valid. A
// counting scratch has no memory: it hands out addresses that nothing may touch, and counts.
class Scratch {
 public:
  struct Use {
    ScratchTag tag;
    int64_t bytes = 0;
  };

  explicit Scratch(Allocator& allocator) : allocator_(&allocator) {}
  Scratch(Allocator& allocator, int64_t bytes) : Scratch(allocator) { book(bytes); }
  // Those that a pass is counted with: the addresses of each are its own.
  enum class Counted : uint8_t { kPass, kFiles, kHeld, kBorders, kDeferred };
  static Scratch counting(Counted what) { return Scratch(what); }
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  void* take(int64_t bytes, ScratchTag tag = kTemporaryTag);
  TensorView take(DType dtype, const Shape& shape, ScratchTag tag = kTemporaryTag);
  // Call when nothing is taken: books space for `bytes`, in one block; what was measured starts
  // again. More memory than that is given back when it is more than `most`.
  void book(int64_t bytes, int64_t most = INT64_MAX);
  [[nodiscard]] int64_t booked() const { return num_blocks_ == 0 ? 0 : blocks_[0].memory.size(); }
  // The most that was taken at once since book(), and by what, in the order of first takes.
  [[nodiscard]] int64_t high_water() const { return high_water_; }
  [[nodiscard]] std::span<const Use> peak_uses() const { return {peak_, num_peak_tags_}; }
  [[nodiscard]] int64_t grown() const { return grown_; }

  class Mark {
   public:
    explicit Mark(Scratch& scratch);
    ~Mark();
    Mark(const Mark&) = delete;
    Mark& operator=(const Mark&) = delete;

   private:
    Scratch& scratch_;
    int block_;
    int64_t used_;
    int64_t total_;
    size_t first_take_;
  };

  // While one lives, what is taken under no Mark of this scratch comes from `held`, where it stays:
  // what work keeps for later is apart from what it only works with, and this scratch, empty
  // before and after, may serve other work between.
  class Hold {
   public:
    Hold(Scratch& scratch, Scratch& held);
    ~Hold();
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;

   private:
    Scratch& scratch_;
  };

 private:
  explicit Scratch(Counted what) : counted_(what) {}
  [[nodiscard]] void* next_counted_address() const;
  struct Block {
    Memory memory;
    int64_t used = 0;
  };
  // A block of `size` free bytes at least: the current one, a later one or a new one, which is
  // current then.
  Block& move_on_to_block_with(int64_t size);
  void* take_from_blocks(int64_t size);
  size_t ensure_tag(ScratchTag tag);
  void record_take(int64_t size, ScratchTag tag);
  void add_block(int64_t size);
  void announce_release_behind(int block, int64_t used);
  void forget_takes_from(size_t first);

  // A take still held, so that a Mark knows what it gives back.
  struct Take {
    uint32_t tag;
    int64_t bytes;
  };
  static constexpr int kMaxBlocks = 64;
  static constexpr size_t kMaxTags = 48;
  static constexpr size_t kUsualTakes = 64;  // held at once by a worker; a pass's list grows beyond
  Allocator* allocator_ = nullptr;           // null: counts
  Scratch* held_ = nullptr;                  // of a Hold
  int num_marks_ = 0;                        // that live
  Counted counted_ = Counted::kPass;         // of those that count
  Block blocks_[kMaxBlocks];
  int num_blocks_ = 0;
  int current_ = 0;
  int64_t total_ = 0;
  int64_t high_water_ = 0;
  int64_t grown_ = 0;
  std::vector<Take> takes_;
  Use live_[kMaxTags];
  Use peak_[kMaxTags];
  size_t num_tags_ = 0;
  size_t num_peak_tags_ = 0;
};

}  // namespace strata
