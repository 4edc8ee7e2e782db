// SPDX-License-Identifier: Apache-2.0
// What those who write files share: faults of the operating system, and writes as a whole.
#pragma once
#include <cstddef>
#include <span>
#include <string>

namespace strata {

// A file that is open as long as this lives; -1: none.
struct OpenFile {
  explicit OpenFile(int value) : fd(value) {}
  ~OpenFile();
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  int fd;
};

// Error{kNotFound} of ENOENT, else {kIo}: the path, what was done, and errno in words.
[[noreturn]] void fail_io(const std::string& path, const char* what);
// All of `bytes`, also where a signal comes between; `path` is for messages.
void write_all(int fd, std::span<const std::byte> bytes, const std::string& path);

}  // namespace strata
