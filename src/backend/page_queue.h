// SPDX-License-Identifier: Apache-2.0
// PageQueue: moves pieces of memory that is in files (backend/file_memory.h) out of the machine's
// memory and back, behind the work that a backend was asked for: each request waits for what was
// asked for before it, of ops and of moves, and what is asked for after it finds it done. What a
// piece holds never changes. A piece that has left may be read, or written in part, by what is
// asked for after its read_ahead alone. A kind of backend gives queues of its own
// (Backend::page_queue). Engine thread only.
#pragma once
#include <span>

#include "backend/memory.h"

namespace strata {

class PageQueue {
 public:
  PageQueue() = default;
  virtual ~PageQueue() = default;  // requests have been done, or are given up
  PageQueue(const PageQueue&) = delete;
  PageQueue& operator=(const PageQueue&) = delete;

  // Nothing here waits; the caller's list may go when a request returns.
  // What was just written leaves: the file gets it first.
  virtual void write_behind(std::span<const PageRange> ranges) = 0;
  // What the file has leaves.
  virtual void let_go(std::span<const PageRange> ranges) = 0;
  // What work still to come may touch all the same, and then waits for.
  virtual void may_leave(std::span<const PageRange> ranges) = 0;
  // Brings back what has left.
  virtual void read_ahead(std::span<const PageRange> ranges) = 0;
  // Until all requests are done.
  virtual void wait() = 0;
};

}  // namespace strata
