// FileAllocator: memory that lies in files without a name, so that what is not in use just now may
// leave the machine's memory and is read back from the disk when it is touched. The room on the
// disk is taken when the memory is asked for. What lies there is no memory of the process's own:
// plans and reports name it apart.
// PageMover: moves pages of such memory ahead of whoever needs them, on a thread of its own.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "backend/memory.h"
#include "base/mutex.h"

namespace strata {

// Any thread.
class FileAllocator : public Allocator {
 public:
  // `dir` is where the files are. Error{kInvalidArgument} where it is no folder that can be written
  // to, or one whose files are held in memory.
  explicit FileAllocator(std::string dir);
  [[nodiscard]] const std::string& folder() const { return dir_; }
  void* allocate(int64_t bytes) override;
  void release(void* data, int64_t bytes) override;

 private:
  std::string dir_;
};

struct PageRange {
  void* data = nullptr;
  int64_t bytes = 0;
};

// Requests are done in their order. Neither changes what the memory holds.
class PageMover {
 public:
  PageMover();
  ~PageMover();
  PageMover(const PageMover&) = delete;
  PageMover& operator=(const PageMover&) = delete;

  // Reads what is not in memory. The caller's list may go when this returns.
  void read_ahead(std::span<const PageRange> ranges) { add(ranges, true); }
  // Takes it out of the process's memory; the system keeps it as long as it has room.
  void let_go(std::span<const PageRange> ranges) { add(ranges, false); }
  // Until all requests are done.
  void wait();

 private:
  struct Request {
    PageRange range;
    bool reads = false;
  };
  void add(std::span<const PageRange> ranges, bool reads);
  void run();

  Mutex mutex_;
  CondVar changed_;
  std::vector<Request> requests_ GUARDED_BY(mutex_);
  bool busy_ GUARDED_BY(mutex_) = false;
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::vector<Request> taken_;  // the thread's own
  std::jthread thread_;         // last: it uses all of the above
};

}  // namespace strata
