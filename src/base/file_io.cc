// SPDX-License-Identifier: Apache-2.0
#include "base/file_io.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace strata {

OpenFile::~OpenFile() {
  if (fd >= 0) ::close(fd);
}

void fail_io(const std::string& path, const char* what) {
  const int saved = errno;
  throw Error(saved == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo,
              fmt::format("{}: {}: {}", path, what, std::strerror(saved)));
}

void write_all(int fd, std::span<const std::byte> bytes, const std::string& path) {
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t put = ::write(fd, bytes.data() + done, bytes.size() - done);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) fail_io(path, "write");
    done += static_cast<size_t>(put);
  }
}

}  // namespace strata
