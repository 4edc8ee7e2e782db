// SPDX-License-Identifier: Apache-2.0
// Tar files with USTAR headers and regular files alone: written for downloads and backups, and read
// back from backups. What is read is hostile: every length is held against the file's, every header
// against its sum.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "base/files.h"

namespace strata {

// Bytes that no file of a tar has: their number takes 11 octal digits.
constexpr int64_t kTarFileLimit = int64_t{1} << 33;

class TarWriter {
 public:
  // Calls `before_piece` for each MiB of a file.
  explicit TarWriter(std::string path, void (*before_piece)() = nullptr)
      : out_(std::move(path)), before_piece_(before_piece) {}

  // `name` has at most 100 bytes after a '/' of its first 156, `time` is in seconds since 1970.
  // Returns the SHA-256 of the content, 32 bytes. Error{kUnsupported} for a file of 8 GiB.
  std::string add(const std::string& name, const ReadOnlyFile& file, int64_t time);
  std::string add(const std::string& name, std::string_view content, int64_t time);
  // The file appears, whole and durable; without it there is none.
  void commit();

 private:
  AtomicFile out_;
  void (*before_piece_)();
};

struct TarEntry {
  std::string name;
  int64_t size = 0;
  int64_t offset = 0;  // of the content in the file
};

class TarReader {
 public:
  explicit TarReader(std::string path) : file_(std::move(path)) {}

  // The next file, or nothing after the last. Error{kInvalidArgument} for what is no tar of ours.
  std::optional<TarEntry> next();
  // Hands over the content in pieces.
  void read(const TarEntry& entry, const std::function<void(std::string_view)>& take) const;

 private:
  [[noreturn]] void fail(const std::string& what) const;

  ReadOnlyFile file_;
  int64_t at_ = 0;
};

// Whether there is a file at the path that begins as a tar file does.
bool is_tar_file(const std::string& path);

}  // namespace strata
