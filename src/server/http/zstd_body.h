// SPDX-License-Identifier: Apache-2.0
// A zstd body, decompressed as it arrives. What comes out counts, never the size the frame
// declares, so a small body cannot make the server allocate a large one. One request.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace strata::server {

class ZstdBody {
 public:
  // kMore: there is more to come out of what was fed; feed() again, with what is left of it.
  enum class Progress : uint8_t { kOk, kMore, kCorrupt, kTooLarge };

  explicit ZstdBody(uint64_t max_bytes);
  ~ZstdBody();
  ZstdBody(const ZstdBody&) = delete;
  ZstdBody& operator=(const ZstdBody&) = delete;

  // Appends to `out` what `bytes` yields, 128 KiB at most: a tenth of a millisecond's work, but
  // where `out` must grow. Takes what it has read off `bytes`.
  [[nodiscard]] Progress feed(std::string_view& bytes, std::string& out);
  // Bytes that the decoder holds: its window above all, which the peer chooses, up to 16 MiB.
  [[nodiscard]] uint64_t memory() const;
  // Whether the body ended at the end of a frame.
  [[nodiscard]] bool complete() const { return complete_; }

 private:
  struct Context;
  // Whether the body's next byte agrees with a frame's magic number, where it is part of one.
  [[nodiscard]] bool matches_magic(char byte);
  // Where the next input ends: behind one byte while it may be of a frame's header, else at `size`.
  [[nodiscard]] size_t end_of_next_input(size_t begin, size_t size) const;
  // So many bytes were read, to the end of a frame or not.
  void note_consumed(size_t count, bool ends_frame);

  std::unique_ptr<Context> context_;
  uint64_t max_bytes_;
  size_t num_header_ = 0;  // bytes of the frame that were read, as far as its header may go
  uint32_t magic_ = 0;     // the number its first byte promises
  bool complete_ = false;
  bool more_ = false;  // the last feed() ended early
};

}  // namespace strata::server
