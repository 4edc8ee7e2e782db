#include "backend/file_memory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/error.h"

namespace strata {
namespace {

constexpr int64_t kHugePage = 2 << 20;
constexpr uintptr_t kPage = 4096;

struct File {
  int descriptor;
  ~File() { ::close(descriptor); }
};

int make_file(const std::string& dir) {
  const int file = ::open(dir.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (file >= 0) return file;
  // Not every file system makes files without names.
  std::string name = dir + "/strata-XXXXXX";
  const int named = ::mkostemp(name.data(), O_CLOEXEC);
  if (named >= 0) ::unlink(name.c_str());
  return named;
}

// The pages that lie in the range as a whole: those at its ends may be others' too.
std::pair<void*, size_t> whole_pages(const PageRange& range) {
  const auto begin = reinterpret_cast<uintptr_t>(range.data);
  const uintptr_t first = (begin + kPage - 1) / kPage * kPage;
  const uintptr_t last = (begin + static_cast<uintptr_t>(range.bytes)) / kPage * kPage;
  return {reinterpret_cast<void*>(first), last > first ? last - first : 0};
}

}  // namespace

FileAllocator::FileAllocator(std::string dir) : dir_(std::move(dir)) {
  struct statfs system{};
  if (::statfs(dir_.c_str(), &system) != 0 || ::access(dir_.c_str(), W_OK | X_OK) != 0) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("--offload {}: {}", dir_, std::strerror(errno)));
  }
  if (system.f_type == TMPFS_MAGIC || system.f_type == RAMFS_MAGIC) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("--offload {}: files there are held in memory; name a folder on a disk", dir_));
  }
}

void* FileAllocator::allocate(int64_t bytes) {
  const auto fail = [&](const char* what, int error) {
    throw Error(ErrorCode::kResourceExhausted, fmt::format("--offload {}: {} bytes: {}: {}", dir_,
                                                           bytes, what, std::strerror(error)));
  };
  const File file{make_file(dir_)};
  if (file.descriptor < 0) fail("no file", errno);
  // A full disk is a fault now, and not of whoever first writes there.
  const int full = ::posix_fallocate(file.descriptor, 0, bytes);
  if (full != 0) fail("no room", full);
  const auto size = static_cast<size_t>(bytes);
  const size_t slack = bytes >= kHugePage ? kHugePage : 0;
  void* room = ::mmap(nullptr, size + slack, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (room == MAP_FAILED) fail("no addresses", errno);
  const auto begin = reinterpret_cast<uintptr_t>(room);
  const uintptr_t start = slack == 0 ? begin : (begin + kHugePage - 1) / kHugePage * kHugePage;
  const uintptr_t end = (start + size + kPage - 1) / kPage * kPage;
  const uintptr_t room_end = (begin + size + slack + kPage - 1) / kPage * kPage;
  if (start > begin) ::munmap(room, start - begin);
  if (room_end > end) ::munmap(reinterpret_cast<void*>(end), room_end - end);
  void* data = ::mmap(reinterpret_cast<void*>(start), size, PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_FIXED, file.descriptor, 0);
  if (data == MAP_FAILED) {
    const int error = errno;
    ::munmap(reinterpret_cast<void*>(start), end - start);
    fail("no mapping", error);
  }
  return data;
}

void FileAllocator::release(void* data, int64_t bytes) {
  ::munmap(data, static_cast<size_t>(bytes));
}

PageMover::PageMover() : thread_([this] { run(); }) {}

PageMover::~PageMover() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
}

void PageMover::add(std::span<const PageRange> ranges, bool reads) {
  {
    const MutexLock lock(mutex_);
    for (const PageRange& range : ranges) requests_.push_back({range, reads});
  }
  changed_.notify_all();
}

void PageMover::wait() {
  const MutexLock lock(mutex_);
  while (busy_ || !requests_.empty()) changed_.wait(mutex_);
}

void PageMover::run() {
  while (true) {
    {
      const MutexLock lock(mutex_);
      busy_ = false;
      changed_.notify_all();
      while (requests_.empty() && !stopping_) changed_.wait(mutex_);
      if (stopping_) return;
      taken_.clear();
      std::swap(taken_, requests_);
      busy_ = true;
    }
    for (const Request& request : taken_) {
      const auto [data, bytes] = whole_pages(request.range);
      if (bytes == 0) continue;
      if (!request.reads) {
        ::madvise(data, bytes, MADV_DONTNEED);
      } else if (::madvise(data, bytes, MADV_POPULATE_READ) != 0) {
        ::madvise(data, bytes, MADV_WILLNEED);  // of kernels before 5.14
      }
    }
  }
}

}  // namespace strata
