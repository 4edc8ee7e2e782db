// SPDX-License-Identifier: Apache-2.0
#include "backend/file_memory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "backend/aligned_map.h"
#include "base/check.h"
#include "base/error.h"
#include "base/file_io.h"
#include "base/files.h"
#include "base/trace.h"

namespace strata {
namespace {

constexpr uintptr_t kPage = 4096;
constexpr size_t kUsualRequests = 1024;

// The pages that lie in the range as a whole: those at its ends may be others' too.
std::pair<void*, size_t> whole_pages(const PageRange& range) {
  const auto begin = reinterpret_cast<uintptr_t>(range.data);
  const uintptr_t first = (begin + kPage - 1) / kPage * kPage;
  const uintptr_t last = (begin + static_cast<uintptr_t>(range.bytes)) / kPage * kPage;
  return {reinterpret_cast<void*>(first), last > first ? last - first : 0};
}

}  // namespace

FileAllocator::FileAllocator(std::string dir) : dir_(std::move(dir)) {
  const std::string text = find_folder_fault(dir_);
  if (text.empty()) return;
  throw Error(ErrorCode::kInvalidArgument, fmt::format("--offload {}: {}", dir_, text));
}

std::string FileAllocator::find_folder_fault(const std::string& dir) {
  struct statfs system{};
  if (::statfs(dir.c_str(), &system) != 0 || ::access(dir.c_str(), W_OK | X_OK) != 0) {
    return std::strerror(errno);
  }
  const bool in_memory = system.f_type == TMPFS_MAGIC || system.f_type == RAMFS_MAGIC;
  return in_memory ? "files there are held in memory; name a folder on a disk" : "";
}

int64_t FileAllocator::free_bytes(const std::string& dir) {
  struct statfs system{};
  if (::statfs(dir.c_str(), &system) != 0) return 0;
  return static_cast<int64_t>(system.f_bavail) * static_cast<int64_t>(system.f_bsize);
}

void* FileAllocator::allocate(int64_t bytes) {
  const auto fail = [&](const char* what, int error) {
    throw Error(ErrorCode::kResourceExhausted, fmt::format("--offload {}: {} bytes: {}: {}", dir_,
                                                           bytes, what, std::strerror(error)));
  };
  OpenFile file(open_nameless_file(dir_));
  if (file.fd < 0) fail("no file", errno);
  const int full = reserve_space(file.fd, bytes);
  if (full != 0) fail("no space", full);
  void* data = map_aligned(file.fd, bytes, MAP_SHARED);
  if (data == nullptr) fail("no mapping", errno);
  const MutexLock lock(mutex_);
  mappings_.push_back({static_cast<std::byte*>(data), bytes, std::exchange(file.fd, -1)});
  return data;
}

void FileAllocator::release(void* data, int64_t bytes) {
  ::munmap(data, static_cast<size_t>(bytes));
  const MutexLock lock(mutex_);
  const auto mapping = std::find_if(mappings_.begin(), mappings_.end(),
                                    [&](const Mapping& m) { return m.data == data; });
  CHECK(mapping != mappings_.end());
  ::close(mapping->descriptor);
  mappings_.erase(mapping);
}

void FileAllocator::start_writing(const PageRange& range) {
  const auto* data = static_cast<const std::byte*>(range.data);
  const MutexLock lock(mutex_);
  for (const Mapping& m : mappings_) {
    if (data < m.data || data >= m.data + m.bytes) continue;
    ::sync_file_range(m.descriptor, data - m.data, range.bytes, SYNC_FILE_RANGE_WRITE);
  }
}

PageMover::PageMover(const std::string& name, FileAllocator& files) : files_(files) {
  // A warm step allocates nothing, however far behind this thread is.
  requests_.reserve(kUsualRequests);
  taken_.reserve(kUsualRequests);
  thread_ = std::jthread([this, name] {
    name_thread(name);
    run_requests();
  });
}

PageMover::~PageMover() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
}

void PageMover::enqueue(std::span<const PageRange> ranges, Move move) {
  {
    const MutexLock lock(mutex_);
    for (const PageRange& range : ranges) requests_.push_back({range, move});
  }
  changed_.notify_all();
}

void PageMover::wait() {
  const MutexLock lock(mutex_);
  while (busy_ || !requests_.empty()) changed_.wait(mutex_);
}

bool PageMover::await_requests() {
  const MutexLock lock(mutex_);
  busy_ = false;
  changed_.notify_all();
  while (requests_.empty() && !stopping_) changed_.wait(mutex_);
  if (stopping_) return false;
  taken_.clear();
  std::swap(taken_, requests_);
  busy_ = true;
  return true;
}

void PageMover::run_requests() {
  while (await_requests()) {
    for (const Request& request : taken_) move_pages(request);
  }
}

std::string_view PageMover::name_of(Move move) {
  if (move == Move::kRead) return "read ahead";
  return move == Move::kWrite ? "write behind" : "let go";
}

void PageMover::move_pages(const Request& request) {
  const auto [data, bytes] = whole_pages(request.range);
  if (bytes == 0) return;
  const TraceSpan span(name_of(request.move), "bytes", static_cast<int64_t>(bytes));
  if (request.move != Move::kRead) {
    ::madvise(data, bytes, MADV_DONTNEED);
    // After that: what the page tables knew of changes is now the file's.
    if (request.move == Move::kWrite) files_.start_writing({data, static_cast<int64_t>(bytes)});
  } else if (::madvise(data, bytes, MADV_POPULATE_READ) != 0) {
    ::madvise(data, bytes, MADV_WILLNEED);  // of kernels before 5.14
  }
}

}  // namespace strata
