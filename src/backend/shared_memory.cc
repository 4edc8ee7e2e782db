// SPDX-License-Identifier: Apache-2.0
#include "backend/shared_memory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "backend/aligned_map.h"
#include "base/check.h"
#include "base/error.h"
#include "base/files.h"
#include "base/process_memory.h"

namespace strata {
namespace {

[[noreturn]] void fail(ErrorCode code, const std::string& what, int error) {
  throw Error(code, fmt::format("shared memory: {}: {}", what, std::strerror(error)));
}

void refuse_other_size(int64_t bytes, int64_t filled_bytes) {
  if (bytes == filled_bytes) return;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("shared memory: {} bytes where another process has {}: have the "
                          "model's files changed meanwhile?",
                          bytes, filled_bytes));
}

bool is_file_of(const struct stat& file, const SharedPlace& place) {
  return file.st_dev == place.device && file.st_ino == place.file && file.st_size == place.bytes;
}

// Where the file is mapped already, so that views stay.
void map_privately_in_place(void* data, int64_t bytes, int descriptor) {
  if (::mmap(data, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED,
             descriptor, 0) == MAP_FAILED)
    fail(ErrorCode::kResourceExhausted, fmt::format("{} bytes", bytes), errno);
}

void seal(int descriptor) {
  if (::fcntl(descriptor, F_ADD_SEALS,
              F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) != 0)
    fail(ErrorCode::kIo, "seals", errno);
}

}  // namespace

SharedMemory::SharedMemory(const SharedPlace& place) : is_filled_(true), bytes_(place.bytes) {
  const std::string path = fmt::format("/proc/{}/fd/{}", place.process, place.descriptor);
  descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor_ < 0) fail(ErrorCode::kIo, path, errno);
  struct stat file = {};
  if (::fstat(descriptor_, &file) == 0 && is_file_of(file, place)) return;
  ::close(descriptor_);
  throw Error(ErrorCode::kIo,
              fmt::format("shared memory: {}: not what that process has published", path));
}

SharedMemory::~SharedMemory() {
  CHECK(data_ == nullptr);
  if (descriptor_ >= 0) ::close(descriptor_);
}

// In memory, with space for so many.
void SharedMemory::make_file(int64_t bytes) {
  CHECK(descriptor_ < 0, bytes);
  // Asked for more than there is, the system would look for it until it ends some process.
  if (bytes > read_usable_memory())
    fail(ErrorCode::kResourceExhausted, fmt::format("{} bytes", bytes), ENOMEM);
  bytes_ = bytes;
  descriptor_ = ::memfd_create("strata", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (descriptor_ < 0) fail(ErrorCode::kResourceExhausted, "no file", errno);
  const int full = reserve_space(descriptor_, bytes);
  if (full != 0) fail(ErrorCode::kResourceExhausted, fmt::format("{} bytes", bytes), full);
}

void* SharedMemory::allocate(int64_t bytes) {
  CHECK(data_ == nullptr, bytes);
  if (is_filled_) {
    refuse_other_size(bytes, bytes_);
    data_ = map_aligned(descriptor_, bytes, MAP_PRIVATE);
  } else {
    make_file(bytes);
    data_ = map_aligned(descriptor_, bytes, MAP_SHARED);
  }
  if (data_ == nullptr) fail(ErrorCode::kResourceExhausted, fmt::format("{} bytes", bytes), errno);
  return data_;
}

void SharedMemory::release(void* data, int64_t bytes) {
  CHECK(data == data_ && bytes == bytes_, bytes, bytes_);
  ::munmap(data_, static_cast<size_t>(bytes_));
  data_ = nullptr;
}

SharedPlace SharedMemory::publish() {
  CHECK(data_ != nullptr && !is_filled_);
  map_privately_in_place(data_, bytes_, descriptor_);
  seal(descriptor_);
  struct stat file = {};
  CHECK(::fstat(descriptor_, &file) == 0);
  return {.process = ::getpid(),
          .descriptor = descriptor_,
          .device = file.st_dev,
          .file = file.st_ino,
          .bytes = bytes_};
}

}  // namespace strata
