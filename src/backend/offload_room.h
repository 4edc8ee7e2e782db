// SPDX-License-Identifier: Apache-2.0
// OffloadRoom: where a pass keeps activations that it offloads: a scratch in files
// (backend/file_memory.h), in whose memory ops read and write as in any other. What is behind a
// pass is written to the disk and leaves the memory, what is ahead of it is read, on a thread that
// does nothing else. Engine thread only.
#pragma once
#include <cstdint>
#include <span>
#include <string>

#include "backend/arena.h"
#include "backend/file_memory.h"

namespace strata {

class OffloadRoom {
 public:
  explicit OffloadRoom(const std::string& dir) : files_(dir), scratch_(files_) {}

  [[nodiscard]] Scratch& scratch() { return scratch_; }
  [[nodiscard]] const std::string& folder() const { return files_.folder(); }
  // Room for a pass. What moves may still be under way for the last one.
  void book(int64_t bytes) {
    mover_.wait();
    scratch_.reserve(bytes);
  }
  void write_behind(std::span<const PageRange> ranges) { mover_.write_behind(files_, ranges); }
  void read_ahead(std::span<const PageRange> ranges) { mover_.read_ahead(ranges); }
  void let_go(std::span<const PageRange> ranges) { mover_.let_go(ranges); }

 private:
  FileAllocator files_;
  Scratch scratch_;
  PageMover mover_{"activations' files"};  // last: it moves what the others own
};

}  // namespace strata
