// SPDX-License-Identifier: Apache-2.0
// AtomicDir: a folder written under a temporary name and then put in the place of another one,
// whole or not at all, durable when commit() returns. One writer a path; a reader calls recover_dir
// first.
//   AtomicDir dir(path);
//   write_file_atomic(dir.file("state.json"), text);
//   dir.commit();
#pragma once
#include <string>
#include <string_view>

namespace strata {

class AtomicDir {
 public:
  // Creates `path`.tmp, empty: what a killed writer left there is removed. Creates the parents of
  // `path`.
  explicit AtomicDir(std::string path);
  ~AtomicDir();
  AtomicDir(const AtomicDir&) = delete;
  AtomicDir& operator=(const AtomicDir&) = delete;

  // Where a file of the new folder is to be written; its writer makes it durable.
  [[nodiscard]] std::string file(std::string_view name) const;
  // Replaces `path`. The old folder is removed afterwards.
  void commit();

 private:
  std::string path_;
  std::string temporary_;
  bool committed_ = false;
};

// Finishes what a killed commit left: where the file system cannot exchange two folders, there is a
// moment in which `path` is absent and the old folder is called `path`.old.
void recover_dir(const std::string& path);

namespace internal {
// The last step of commit, with either way of doing it.
void replace_dir(const std::string& temporary, const std::string& path, bool may_exchange);
}  // namespace internal

}  // namespace strata
