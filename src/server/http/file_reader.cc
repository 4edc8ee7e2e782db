// SPDX-License-Identifier: Apache-2.0
#include "server/http/file_reader.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>

namespace strata::server {

FileReader::FileReader(const FilePart& part, size_t piece_bytes)
    : path_(part.path),
      offset_(part.offset),
      left_(part.length),
      size_(piece_bytes),
      piece_(std::make_unique_for_overwrite<char[]>(piece_bytes)) {}

FileReader::~FileReader() {
  if (file_ >= 0) ::close(file_);
}

std::string_view FileReader::read_next_piece() {
  if (left_ == 0) return {};
  if (file_ < 0) file_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file_ < 0) return {};
  const size_t wanted = std::min<uint64_t>(left_, size_);
  const ssize_t count = ::pread(file_, piece_.get(), wanted, static_cast<off_t>(offset_));
  if (count <= 0) return {};
  offset_ += static_cast<uint64_t>(count);
  left_ -= static_cast<uint64_t>(count);
  return {piece_.get(), static_cast<size_t>(count)};
}

}  // namespace strata::server
