// SPDX-License-Identifier: Apache-2.0
// TemporaryFile: bytes that memory shall not hold, in a file without a name in the folder of
// temporary files (TMPDIR, else /tmp); it is gone when this is. One thread writes; once nobody
// does, any thread may read.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

namespace strata::data {

class TemporaryFile {
 public:
  TemporaryFile();
  ~TemporaryFile();
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  [[nodiscard]] int64_t size() const { return size_; }
  // A full disk is an Error that names the folder, and TMPDIR as the way to another.
  void append(std::span<const std::byte> bytes);
  // Fills `out` from `offset` on: offset + its size <= size().
  void read_at(int64_t offset, std::span<std::byte> out) const;

 private:
  int fd_ = -1;
  int64_t size_ = 0;
};

}  // namespace strata::data
