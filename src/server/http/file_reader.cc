#include "server/http/file_reader.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>

namespace strata::server {
namespace {
constexpr size_t kChunk = 256 << 10;
}

FileReader::FileReader(const FilePart& part)
    : file_(::open(part.path.c_str(), O_RDONLY | O_CLOEXEC)),
      offset_(part.offset),
      left_(part.length),
      chunk_(kChunk) {}

FileReader::~FileReader() {
  if (file_ >= 0) ::close(file_);
}

std::string_view FileReader::next() {
  if (file_ < 0 || left_ == 0) return {};
  const size_t wanted = std::min<uint64_t>(left_, chunk_.size());
  const ssize_t count = ::pread(file_, chunk_.data(), wanted, static_cast<off_t>(offset_));
  if (count <= 0) return {};
  offset_ += static_cast<uint64_t>(count);
  left_ -= static_cast<uint64_t>(count);
  return {chunk_.data(), static_cast<size_t>(count)};
}

}  // namespace strata::server
