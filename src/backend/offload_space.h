// SPDX-License-Identifier: Apache-2.0
// OffloadSpace: where a pass keeps activations that it offloads: a scratch in files
// (backend/file_memory.h), in whose memory ops read and write as in any other. What is behind a
// pass is written to the disk and leaves the memory, what is ahead of it is read, by a queue of the
// backend's kind. Engine thread only.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "backend/arena.h"
#include "backend/backend.h"
#include "backend/file_memory.h"
#include "backend/page_queue.h"

namespace strata {

class OffloadSpace {
 public:
  OffloadSpace(const Backend& backend, const std::string& dir)
      : files_(dir), scratch_(files_), queue_(backend.page_queue("activations' files", files_)) {}

  [[nodiscard]] Scratch& scratch() { return scratch_; }
  [[nodiscard]] const std::string& folder() const { return files_.folder(); }
  // Space for a pass. What moves may still be under way for the last one.
  void book(int64_t bytes) { book(scratch_, bytes); }
  // A scratch for a pass that is in flight while others run, in files of the same folder, from
  // which this one takes while it holds (Scratch::Hold).
  [[nodiscard]] std::unique_ptr<Scratch> make_scratch() {
    return std::make_unique<Scratch>(files_);
  }
  void book(Scratch& scratch, int64_t bytes) {
    queue_->wait();
    scratch.book(bytes);
  }
  [[nodiscard]] PageQueue& queue() { return *queue_; }

 private:
  FileAllocator files_;
  Scratch scratch_;
  std::unique_ptr<PageQueue> queue_;  // last: it moves what the others own
};

}  // namespace strata
