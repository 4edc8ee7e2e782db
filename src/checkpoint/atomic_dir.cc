// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/atomic_dir.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <stdio.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "base/files.h"

namespace strata {
namespace {

[[noreturn]] void fail(const std::string& path, const char* what, int fault) {
  throw Error(ErrorCode::kIo, fmt::format("{}: {}: {}", path, what, std::strerror(fault)));
}

void remove_tree(const std::string& path) {
  std::error_code fault;
  std::filesystem::remove_all(path, fault);
  if (fault) fail(path, "remove", fault.value());
}

void rename_path(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) fail(to, "rename", errno);
}

std::string old_name(const std::string& path) { return path + ".old"; }

// False when the file system or the kernel has no such call.
bool try_exchange_paths(const std::string& a, const std::string& b) {
  if (::renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE) == 0) return true;
  if (errno == EINVAL || errno == ENOSYS || errno == EXDEV || errno == ENOTSUP) return false;
  fail(b, "exchange", errno);
}

// What recover_dir finishes, where this is killed in its midst.
void replace_by_two_renames(const std::string& temporary, const std::string& path) {
  remove_tree(old_name(path));
  rename_path(path, old_name(path));
  rename_path(temporary, path);
  sync_folder(folder_of(path));
  remove_tree(old_name(path));
}

}  // namespace

namespace internal {

void replace_dir(const std::string& temporary, const std::string& path, bool may_exchange) {
  const std::string parent = folder_of(path);
  if (!file_exists(path)) {
    rename_path(temporary, path);
    sync_folder(parent);
    return;
  }
  if (may_exchange && try_exchange_paths(temporary, path)) {
    sync_folder(parent);
    remove_tree(temporary);  // holds the old folder now
    return;
  }
  replace_by_two_renames(temporary, path);
}

}  // namespace internal

AtomicDir::AtomicDir(std::string path) : path_(std::move(path)), temporary_(path_ + ".tmp") {
  recover_dir(path_);
  remove_tree(temporary_);
  make_folders(temporary_);
}

AtomicDir::~AtomicDir() {
  if (committed_) return;
  std::error_code ignored;
  std::filesystem::remove_all(temporary_, ignored);
}

std::string AtomicDir::file(std::string_view name) const {
  return fmt::format("{}/{}", temporary_, name);
}

void AtomicDir::commit() {
  CHECK(!committed_);
  sync_folder(temporary_);
  internal::replace_dir(temporary_, path_, /*may_exchange=*/true);
  committed_ = true;
}

void recover_dir(const std::string& path) {
  if (file_exists(path) || !file_exists(old_name(path))) return;
  rename_path(old_name(path), path);
  sync_folder(folder_of(path));
}

}  // namespace strata
