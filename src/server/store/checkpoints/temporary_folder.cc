// SPDX-License-Identifier: Apache-2.0
#include "server/store/checkpoints/temporary_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <utility>
#include <vector>

#include "base/crypto.h"
#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "server/store/checkpoints/data_dir.h"
#include "server/store/checkpoints/row_rules.h"

namespace strata::server {
namespace {

namespace fs = std::filesystem;

constexpr size_t kIdDigits = 32;
constexpr std::time_t kOld = 86400;  // longer than anybody makes one

enum class Lock { kTaken, kOfAnother, kUnknown };

Lock lock(int folder) {
  if (::flock(folder, LOCK_EX | LOCK_NB) == 0) return Lock::kTaken;
  return errno == EWOULDBLOCK ? Lock::kOfAnother : Lock::kUnknown;
}

int open_folder(const std::string& path) {
  return ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

// Older versions made a file of the name, and SQLite its journal.
bool is_leftover(std::string_view name, std::string_view stem) {
  if (!name.starts_with(stem) || name.size() < stem.size() + kIdDigits) return false;
  const std::string_view end = name.substr(stem.size() + kIdDigits);
  return is_hex(name.substr(stem.size(), kIdDigits), kIdDigits) &&
         (end.empty() || end == "-journal" || end == "-wal" || end == "-shm");
}

// Removes what a killed run left where that is certain; else a line in the log names it.
void clear_leftover(const std::string& path, bool is_certain) {
  std::error_code fault;
  if (is_certain) fs::remove_all(path, fault);
  if (is_certain && !fault) {
    log(LogLevel::kWarning, fmt::format("{}: removed; a run that was killed left it", path));
    return;
  }
  log(LogLevel::kWarning,
      fmt::format("{}: left by a run that was killed, if none runs now: remove it then{}", path,
                  fault ? fmt::format(" ({})", fault.message()) : ""));
}

std::vector<std::string> find_leftovers(const std::string& stem) {
  const std::string folder = folder_of(stem);
  const std::string start = stem.substr(stem.rfind('/') + 1);
  std::vector<std::string> found;
  std::error_code fault;
  const fs::directory_iterator end;
  for (fs::directory_iterator at(folder, fault); !fault && at != end; at.increment(fault)) {
    if (is_leftover(at->path().filename().string(), start)) found.push_back(at->path().string());
  }
  return found;
}

// Removes a leftover folder or logs it; one that is locked is in use, and stays.
void clean_unused_folder(const std::string& path) {
  const int fd = open_folder(path);
  if (fd < 0) return;
  const Lock state = lock(fd);
  if (state != Lock::kOfAnother) clear_leftover(path, state == Lock::kTaken);
  ::close(fd);
}

// Ours alone: anybody may write to a folder of temporary files.
void remove_leftovers(const std::string& stem) {
  for (const std::string& path : find_leftovers(stem)) {
    struct stat info = {};
    if (::lstat(path.c_str(), &info) != 0 || info.st_uid != ::geteuid()) continue;
    if (S_ISREG(info.st_mode)) clear_leftover(path, info.st_mtime < std::time(nullptr) - kOld);
    if (S_ISDIR(info.st_mode)) clean_unused_folder(path);
  }
}

// Makes a folder and opens it; -1 where another run took it for a leftover meanwhile.
int open_new_folder(const std::string& path) {
  if (::mkdir(path.c_str(), 0700) != 0)
    throw Error(ErrorCode::kIo, fmt::format("{}: create: {}", path, std::strerror(errno)));
  const int fd = open_folder(path);
  if (fd >= 0 || errno == ENOENT) return fd;
  const int why = errno;
  ::rmdir(path.c_str());
  throw Error(ErrorCode::kIo, fmt::format("{}: open: {}", path, std::strerror(why)));
}

// False where another run has the lock, or has removed the folder before it was ours.
bool lock_in_place(int folder, const std::string& path) {
  struct stat named = {};
  return lock(folder) != Lock::kOfAnother && ::lstat(path.c_str(), &named) == 0 &&
         S_ISDIR(named.st_mode);
}

}  // namespace

TemporaryFolder::TemporaryFolder(const std::string& stem) {
  make_folders_durably(folder_of(stem));
  remove_leftovers(stem);
  // Another run may take it for a leftover before it is locked; then it is gone.
  while (lock_ < 0) {
    const std::string path = stem + random_id();
    lock_ = open_new_folder(path);
    path_ = path;
    const bool is_ours = lock_ >= 0 && lock_in_place(lock_, path);
    if (!is_ours && lock_ >= 0) ::close(std::exchange(lock_, -1));
  }
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  if (!path_.empty()) fs::remove_all(path_, ignored);
  ::close(lock_);
}

void TemporaryFolder::keep() { path_.clear(); }

}  // namespace strata::server
