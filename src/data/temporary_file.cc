// SPDX-License-Identifier: Apache-2.0
#include "data/temporary_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>

#include "base/check.h"
#include "base/env.h"
#include "base/error.h"
#include "base/files.h"

namespace strata::data {
namespace {

[[noreturn]] void fail(const char* what) {
  throw Error(ErrorCode::kIo,
              fmt::format("{}: {}: {}; TMPDIR names another folder for temporary files",
                          env_temporary_folder(), what, std::strerror(errno)));
}

}  // namespace

TemporaryFile::TemporaryFile() {
  fd_ = open_nameless_file(env_temporary_folder());
  if (fd_ < 0) fail("create a temporary file");
}

TemporaryFile::~TemporaryFile() {
  if (fd_ >= 0) ::close(fd_);
}

void TemporaryFile::append(std::span<const std::byte> bytes) {
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t put = ::pwrite(fd_, bytes.data() + done, bytes.size() - done, size_);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) fail("write to a temporary file");
    done += static_cast<size_t>(put);
    size_ += put;
  }
}

void TemporaryFile::read_at(int64_t offset, std::span<std::byte> out) const {
  CHECK(offset >= 0 && offset + std::ssize(out) <= size_, offset, out.size(), size_);
  for (size_t done = 0; done < out.size();) {
    const ssize_t got = ::pread(fd_, out.data() + done, out.size() - done,
                                static_cast<off_t>(offset) + static_cast<off_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) fail("read a temporary file");
    done += static_cast<size_t>(got);
  }
}

}  // namespace strata::data
