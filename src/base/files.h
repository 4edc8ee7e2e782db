// SPDX-License-Identifier: Apache-2.0
// Files: whole-file reads with a cap, read-only maps, and atomic writes (temporary name in the same
// folder, fsync, rename). Every operating system fault is an Error{kIo} that names the path and
// errno's text.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace strata {

// The file's bytes; kInvalidArgument when it is larger than max_bytes, kNotFound when it is not
// there.
std::string read_file(const std::string& path, int64_t max_bytes);

// Replaces `path` by `content`, whole or not at all, durable when it returns.
void write_file_atomic(const std::string& path, std::string_view content);

bool file_exists(const std::string& path);

// A regular file open for reading at any offset; any thread. Movable, not copyable.
class ReadOnlyFile {
 public:
  explicit ReadOnlyFile(std::string path);
  ~ReadOnlyFile();
  ReadOnlyFile(ReadOnlyFile&& other) noexcept;
  ReadOnlyFile& operator=(ReadOnlyFile&& other) noexcept;
  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] int64_t size() const { return size_; }  // when it was opened
  // Fills `out` from `offset` on; kIo when the file has become too short for that.
  void read_at(int64_t offset, std::span<std::byte> out) const;

 private:
  std::string path_;
  int fd_ = -1;
  int64_t size_ = 0;
};

// A read-only memory map of a whole file; empty files map to an empty span. Movable, not copyable.
class MappedFile {
 public:
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  [[nodiscard]] std::span<const std::byte> bytes() const { return {data_, size_}; }
  // Tells the kernel that these pages are not needed again, so that a loader's peak stays small.
  void drop_pages(size_t offset, size_t size) const;

 private:
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// A file being written under a temporary name of its own; commit() makes it appear under `path`,
// durable. Without commit() the destructor removes it, and `path` stays what it was. append() may
// be called any number of times. One thread.
class AtomicFile {
 public:
  explicit AtomicFile(std::string path);
  ~AtomicFile();
  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&&) = delete;
  [[nodiscard]] const std::string& path() const { return path_; }
  void append(std::span<const std::byte> bytes);
  void append(std::string_view text);
  // Makes the content durable under the temporary name and closes it: what is left of commit() is a
  // rename, so that a set of files can be completed first and then appear almost at once.
  void seal();
  void commit();

 private:
  std::string path_;
  std::string temporary_;  // empty once there is nothing to remove
  int fd_ = -1;
};

// Makes the entries of a folder (creations, renames, removals) durable.
void sync_folder(const std::string& path);
// Creates the folder and its parents; nothing happens when it is there.
void make_folders(const std::string& path);
// The descriptor of a file without a name in the folder, open to read and write, which is gone when
// that is closed; -1 with errno.
int open_nameless_file(const std::string& folder);
// Takes so many bytes for a file, whose space is a fault now and not of whoever first writes there;
// 0, or errno.
int reserve_space(int descriptor, int64_t bytes);
// Removes a file, when there is one.
void remove_file(const std::string& path);
// The folder part of a path: "." without a slash.
std::string folder_of(const std::string& path);

}  // namespace strata
