// SPDX-License-Identifier: Apache-2.0
#include "data/input_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "base/error.h"

namespace strata::data {
namespace {

constexpr size_t kPiece = 1 << 20;
constexpr size_t kMagic = 4;  // bytes that say how a file is packed

// A file, pipe or stdin, read from its begin to its end.
class Stream {
 public:
  explicit Stream(const std::string& path) : path_(path), is_own_(path != "-") {
    fd_ = is_own_ ? ::open(path.c_str(), O_RDONLY | O_CLOEXEC) : STDIN_FILENO;
    if (fd_ < 0) fail("open");
  }
  ~Stream() {
    if (is_own_ && fd_ >= 0) ::close(fd_);
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  // Up to so many bytes; fewer at the end alone.
  size_t read(std::span<char> out) {
    size_t done = 0;
    while (done < out.size()) {
      const ssize_t got = ::read(fd_, out.data() + done, out.size() - done);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) fail("read");
      if (got == 0) break;
      done += static_cast<size_t>(got);
    }
    return done;
  }

  void check_no_directory() const {
    if (!S_ISDIR(mode())) return;
    throw Error(ErrorCode::kInvalidArgument, path_ + ": this is a directory; want a file");
  }
  [[nodiscard]] bool is_regular() const { return S_ISREG(mode()); }

 private:
  [[nodiscard]] mode_t mode() const {
    struct stat info;
    if (::fstat(fd_, &info) != 0) fail("stat");
    return info.st_mode;
  }

  [[noreturn]] void fail(const char* what) const {
    const int saved = errno;
    throw Error(
        saved == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo,
        fmt::format("{}: {}: {}", path_ == "-" ? "stdin" : path_, what, std::strerror(saved)));
  }

  std::string path_;
  bool is_own_;
  int fd_ = -1;
};

}  // namespace

InputFile::InputFile(const std::string& path) : path_(path) {
  Stream stream(path);
  if (path != "-") stream.check_no_directory();
  const bool is_regular = path != "-" && stream.is_regular();
  std::string begin(kMagic, '\0');
  begin.resize(stream.read(begin));
  packing_ = packing_of(begin);
  if (is_regular && packing_ == Packing::kNone) {
    plain_.emplace(path);
    return;
  }
  unpack_stream(std::move(begin), [&](std::span<char> out) { return stream.read(out); });
}

void InputFile::unpack_stream(std::string begin, PackedBytes read_rest) {
  unpacked_ = std::make_unique<TemporaryFile>();
  const auto read = [&](std::span<char> out) {
    const size_t first = std::min(begin.size(), out.size());
    std::copy_n(begin.begin(), first, out.begin());
    begin.erase(0, first);
    return first + read_rest(out.subspan(first));
  };
  try {
    unpack(packing_, read, [&](std::span<const std::byte> bytes) { unpacked_->append(bytes); });
  } catch (const Error& error) {
    if (error.code != ErrorCode::kInvalidArgument) throw;  // of a file, which it names
    throw Error(error.code, fmt::format("{}: {}", shown(), error.what()));
  }
}

int64_t InputFile::size() const { return plain_ ? plain_->size() : unpacked_->size(); }

size_t InputFile::read_some(int64_t offset, std::span<char> out) const {
  const int64_t left = std::max<int64_t>(0, size() - offset);
  out = out.first(static_cast<size_t>(std::min<int64_t>(left, std::ssize(out))));
  if (out.empty()) return 0;
  if (plain_) {
    plain_->read_at(offset, std::as_writable_bytes(out));
  } else {
    unpacked_->read_at(offset, std::as_writable_bytes(out));
  }
  return out.size();
}

void InputFile::for_each_piece(FunctionRef<void(std::string_view)> use) const {
  std::vector<char> piece(kPiece);
  int64_t offset = 0;
  for (size_t got = 0; (got = read_some(offset, piece)) > 0;) {
    use({piece.data(), got});
    offset += static_cast<int64_t>(got);
  }
}

uint64_t hash_content(const InputFile& file) {
  uint64_t hash = 0xcbf29ce484222325ull;
  file.for_each_piece([&](std::string_view piece) {
    for (const char c : piece) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  });
  return hash;
}

}  // namespace strata::data
