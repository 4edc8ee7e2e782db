// SPDX-License-Identifier: Apache-2.0
// Reads a part of a file in pieces, for a response that is streamed. One thread at a time.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "server/http/message.h"

namespace strata::server {

class FileReader {
 public:
  FileReader(const FilePart& part, size_t piece_bytes);  // touches no disk
  ~FileReader();
  FileReader(const FileReader&) = delete;
  FileReader& operator=(const FileReader&) = delete;

  // Empty at the end, when the file is shorter than the part, and when it cannot be opened.
  std::string_view read_next_piece();
  [[nodiscard]] bool complete() const { return left_ == 0; }

 private:
  std::string path_;
  int file_ = -1;
  uint64_t offset_ = 0;
  uint64_t left_ = 0;
  size_t size_;
  std::unique_ptr<char[]> piece_;
};

}  // namespace strata::server
