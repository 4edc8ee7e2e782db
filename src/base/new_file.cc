// SPDX-License-Identifier: Apache-2.0
#include "base/new_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <span>
#include <utility>

#include "base/check.h"
#include "base/file_io.h"

namespace strata {

NewFile::NewFile(std::string path)
    : path_(std::move(path)),
      fd_(::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644)) {
  if (fd_ < 0) fail_io(path_, "create");
}

NewFile::~NewFile() {
  if (fd_ >= 0) ::close(fd_);
}

void NewFile::append(std::string_view text) {
  CHECK(fd_ >= 0);
  write_all(fd_, std::as_bytes(std::span(text.data(), text.size())), path_);
}

void NewFile::close() {
  if (::close(std::exchange(fd_, -1)) != 0) fail_io(path_, "close");
}

void sync_file_system(const std::string& folder) {
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) fail_io(folder, "open");
  const bool done = ::syncfs(fd) == 0;
  ::close(fd);
  if (!done) fail_io(folder, "syncfs");
}

}  // namespace strata
