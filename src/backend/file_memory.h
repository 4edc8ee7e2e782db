// SPDX-License-Identifier: Apache-2.0
// FileAllocator: memory that is in files without a name, so that what is not in use just now may
// leave the machine's memory and is read back from the disk when it is touched. The space on the
// disk is taken when the memory is asked for. What is there is no memory of the process's own:
// plans and reports name it apart.
// PageMover: the queue that moves pages of such memory (backend/page_queue.h) where a backend's
// work is done when it is asked for: a thread of its own, ahead of whoever needs them.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "backend/memory.h"
#include "backend/page_queue.h"
#include "base/mutex.h"

namespace strata {

// Any thread.
class FileAllocator : public Allocator {
 public:
  // `dir` is where the files are. Error{kInvalidArgument} where it has a fault.
  explicit FileAllocator(std::string dir);
  // Why a folder is none that can be written to, or one whose files are held in memory; else empty.
  static std::string find_folder_fault(const std::string& dir);
  // What is left on the disk of a folder; 0 where nobody knows.
  static int64_t free_bytes(const std::string& dir);
  [[nodiscard]] const std::string& folder() const { return dir_; }
  void* allocate(int64_t bytes) override;
  void release(void* data, int64_t bytes) override;
  // Has the disk begin to write what was changed there, and waits for nothing: until it is written,
  // the system cannot give up its copy. Of memory that this allocator gave.
  void start_writing(const PageRange& range);

 private:
  struct Mapping {
    std::byte* data = nullptr;
    int64_t bytes = 0;
    int descriptor = -1;
  };
  std::string dir_;
  Mutex mutex_;
  std::vector<Mapping> mappings_ GUARDED_BY(mutex_);
};

// Requests are done in their order. Neither changes what the memory holds, nor does it matter when:
// a page that is touched before it is back is read by whoever touches it.
class PageMover final : public PageQueue {
 public:
  // `name` is its row's in a timeline; `files` write what is written behind.
  PageMover(const std::string& name, FileAllocator& files);
  ~PageMover() override;

  void write_behind(std::span<const PageRange> ranges) override { enqueue(ranges, Move::kWrite); }
  // Takes it out of the process's memory; the system keeps it as long as it has space.
  void let_go(std::span<const PageRange> ranges) override { enqueue(ranges, Move::kLetGo); }
  void may_leave(std::span<const PageRange> ranges) override { let_go(ranges); }
  // Reads what is not in memory.
  void read_ahead(std::span<const PageRange> ranges) override { enqueue(ranges, Move::kRead); }
  void wait() override;

 private:
  enum class Move : uint8_t { kRead, kLetGo, kWrite };
  struct Request {
    PageRange range;
    Move move = Move::kRead;
  };
  void enqueue(std::span<const PageRange> ranges, Move move);
  void move_pages(const Request& request);
  // Into taken_. False: it stops.
  bool await_requests();
  static std::string_view name_of(Move move);
  void run_requests();

  FileAllocator& files_;
  Mutex mutex_;
  CondVar changed_;
  std::vector<Request> requests_ GUARDED_BY(mutex_);
  bool busy_ GUARDED_BY(mutex_) = false;
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::vector<Request> taken_;  // the thread's own
  std::jthread thread_;         // last: it uses all of the above
};

}  // namespace strata
