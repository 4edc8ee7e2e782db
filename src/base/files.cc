// SPDX-License-Identifier: Apache-2.0
#include "base/files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "base/file_io.h"

namespace strata {
namespace {

constexpr int kMaxTemporaries = 1000;

// Without waiting for somebody who writes, should it be a pipe.
int open_to_read(const std::string& path) {
  return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
}

int64_t regular_file_size(int fd, const std::string& path) {
  struct stat info;
  if (::fstat(fd, &info) != 0) fail_io(path, "stat");
  if (!S_ISREG(info.st_mode)) {
    throw Error(ErrorCode::kInvalidArgument, fmt::format("{}: not a regular file", path));
  }
  return info.st_size;
}

// As many as fit into `out`; kIo when the file ends before.
void read_all(int fd, std::span<char> out, const std::string& path) {
  size_t done = 0;
  while (done < out.size()) {
    const ssize_t got = ::read(fd, out.data() + done, out.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_io(path, "read");
    if (got == 0) {
      throw Error(ErrorCode::kIo,
                  fmt::format("{}: ended after {} of {} bytes", path, done, out.size()));
    }
    done += static_cast<size_t>(got);
  }
}

}  // namespace

std::string folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

std::string read_file(const std::string& path, int64_t max_bytes) {
  const OpenFile file(open_to_read(path));
  if (file.fd < 0) fail_io(path, "open");
  const int64_t size = regular_file_size(file.fd, path);
  if (size > max_bytes) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{}: {} bytes, at most {} are accepted here", path, size, max_bytes));
  }
  std::string content(static_cast<size_t>(size), '\0');
  read_all(file.fd, content, path);
  return content;
}

void write_file_atomic(const std::string& path, std::string_view content) {
  AtomicFile file(path);
  file.append(content);
  file.commit();
}

bool file_exists(const std::string& path) {
  struct stat info;
  return ::stat(path.c_str(), &info) == 0;
}

ReadOnlyFile::ReadOnlyFile(std::string path) : path_(std::move(path)) {
  OpenFile file(open_to_read(path_));
  if (file.fd < 0) fail_io(path_, "open");
  size_ = regular_file_size(file.fd, path_);
  fd_ = std::exchange(file.fd, -1);
}

ReadOnlyFile::~ReadOnlyFile() {
  if (fd_ >= 0) ::close(fd_);
}

ReadOnlyFile::ReadOnlyFile(ReadOnlyFile&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)), size_(other.size_) {}

ReadOnlyFile& ReadOnlyFile::operator=(ReadOnlyFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  std::swap(size_, other.size_);
  return *this;
}

void ReadOnlyFile::read_at(int64_t offset, std::span<std::byte> out) const {
  size_t done = 0;
  while (done < out.size()) {
    const ssize_t got = ::pread(fd_, out.data() + done, out.size() - done,
                                static_cast<off_t>(offset) + static_cast<off_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_io(path_, "read");
    if (got == 0) {
      throw Error(ErrorCode::kIo, fmt::format("{}: ended before byte {}; did it change meanwhile?",
                                              path_, offset + static_cast<int64_t>(out.size())));
    }
    done += static_cast<size_t>(got);
  }
}

MappedFile::MappedFile(const std::string& path) {
  const OpenFile file(open_to_read(path));
  if (file.fd < 0) fail_io(path, "open");
  size_ = static_cast<size_t>(regular_file_size(file.fd, path));
  if (size_ == 0) return;
  void* map = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.fd, 0);
  if (map == MAP_FAILED) fail_io(path, "mmap");
  data_ = static_cast<const std::byte*>(map);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

void MappedFile::drop_pages(size_t offset, size_t size) const {
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const size_t begin = (offset + page - 1) / page * page;
  const size_t end = (offset + size) / page * page;
  if (begin < end) ::madvise(const_cast<std::byte*>(data_) + begin, end - begin, MADV_DONTNEED);
}

AtomicFile::AtomicFile(std::string path) : path_(std::move(path)) {
  // O_EXCL: never a file that another writer, or one that was killed, has under this name.
  for (int attempt = 0; fd_ < 0; ++attempt) {
    temporary_ = fmt::format("{}.tmp.{}.{}", path_, ::getpid(), attempt);
    fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (fd_ < 0 && (errno != EEXIST || attempt == kMaxTemporaries)) fail_io(temporary_, "create");
  }
}

AtomicFile::~AtomicFile() {
  if (fd_ >= 0) ::close(fd_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : path_(std::move(other.path_)),
      temporary_(std::exchange(other.temporary_, "")),
      fd_(std::exchange(other.fd_, -1)) {}

void AtomicFile::append(std::span<const std::byte> bytes) {
  CHECK(fd_ >= 0);
  write_all(fd_, bytes, temporary_);
}

void AtomicFile::append(std::string_view text) {
  append(std::as_bytes(std::span(text.data(), text.size())));
}

void AtomicFile::seal() {
  CHECK(fd_ >= 0);
  if (::fsync(fd_) != 0) fail_io(temporary_, "fsync");
  if (::close(std::exchange(fd_, -1)) != 0) fail_io(temporary_, "close");
}

void AtomicFile::commit() {
  CHECK(!temporary_.empty());
  if (fd_ >= 0) seal();
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail_io(path_, "rename");
  temporary_.clear();
  sync_folder(folder_of(path_));
}

void sync_folder(const std::string& path) {
  const OpenFile folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder.fd < 0) fail_io(path, "open");
  // EINVAL: a file system that has no such call for folders.
  if (::fsync(folder.fd) != 0 && errno != EINVAL) fail_io(path, "fsync");
}

int open_nameless_file(const std::string& folder) {
  const int file = ::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (file >= 0) return file;
  // Not every file system makes files without names.
  std::string name = folder + "/strata-XXXXXX";
  const int named = ::mkostemp(name.data(), O_CLOEXEC);
  if (named >= 0) ::unlink(name.c_str());
  return named;
}

int reserve_space(int descriptor, int64_t bytes) {
  // Little at a time: files in memory give all back where a signal comes meanwhile.
  constexpr int64_t kPiece = 64 << 20;
  int fault = 0;
  for (int64_t first = 0; first < bytes && fault == 0; first += kPiece) {
    do {
      fault = ::posix_fallocate(descriptor, first, std::min(kPiece, bytes - first));
    } while (fault == EINTR);
  }
  return fault;
}

void make_folders(const std::string& path) {
  std::error_code fault;
  std::filesystem::create_directories(path, fault);
  if (fault) throw Error(ErrorCode::kIo, fmt::format("{}: create: {}", path, fault.message()));
}

void remove_file(const std::string& path) {
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) fail_io(path, "remove");
}

}  // namespace strata
