// Reads a part of a file in pieces, for a response that is streamed. One thread.
#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

#include "server/http/message.h"

namespace strata::server {

class FileReader {
 public:
  explicit FileReader(const FilePart& part);  // a file that cannot be opened yields nothing
  ~FileReader();
  FileReader(const FileReader&) = delete;
  FileReader& operator=(const FileReader&) = delete;

  std::string_view next();  // empty at the end, or when the file is shorter than the part
  [[nodiscard]] bool complete() const { return left_ == 0; }

 private:
  int file_ = -1;
  uint64_t offset_ = 0;
  uint64_t left_ = 0;
  std::vector<char> chunk_;
};

}  // namespace strata::server
