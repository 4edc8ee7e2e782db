// SPDX-License-Identifier: Apache-2.0
// FuzzDir: a folder in memory whose files a fuzz target rewrites for every input.
#pragma once
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <cstdio>
#include <string>
#include <string_view>

namespace strata::fuzz {

class FuzzDir {
 public:
  FuzzDir() {
    char name[] = "/dev/shm/strata-fuzz-XXXXXX";
    if (::mkdtemp(name) == nullptr) fail("mkdtemp");
    path_ = name;
  }
  [[nodiscard]] const std::string& path() const { return path_; }
  void write(const std::string& name, std::string_view bytes) const {
    const int fd =
        ::open((path_ + "/" + name).c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0) fail("open");
    if (::write(fd, bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size()))
      fail("write");
    ::close(fd);
  }

 private:
  [[noreturn]] static void fail(const char* what) {
    std::perror(what);
    std::abort();
  }
  std::string path_;
};

}  // namespace strata::fuzz
