// SPDX-License-Identifier: Apache-2.0
#include "server/store/checkpoints/data_dir.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/crypto.h"
#include "base/error.h"
#include "base/files.h"
#include "base/log.h"

namespace strata::server {
namespace {

constexpr size_t kSecretBytes = 32;

[[noreturn]] void fail(const std::string& path, const char* what) {
  throw Error(ErrorCode::kIo, fmt::format("{}: {}: {}", path, what, std::strerror(errno)));
}

// Opens and locks the file; Error where another server holds it.
int lock_file(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) fail(path, "open");
  if (::flock(fd, LOCK_EX | LOCK_NB) == 0) return fd;
  const bool is_held = errno == EWOULDBLOCK;
  ::close(fd);
  if (!is_held) fail(path, "lock");
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("{}: another strata serve uses this data directory", path));
}

// A file alone: what stands behind a link is somebody else's.
void restrict_file_mode(const std::string& file) {
  const int fd = ::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
  if (fd < 0) return;
  struct stat info;
  const bool is_loose =
      ::fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && (info.st_mode & 0077) != 0;
  const bool is_narrow = !is_loose || ::fchmod(fd, 0600) == 0;
  const int fault = errno;
  ::close(fd);
  errno = fault;
  if (!is_narrow) fail(file, "chmod");
  if (is_loose)
    log(LogLevel::kWarning, fmt::format("{}: others could read it; it is 0600 now", file));
}

void restrict_folder_mode(const std::string& folder) {
  struct stat info;
  if (::stat(folder.c_str(), &info) != 0) fail(folder, "stat");
  if ((info.st_mode & 0077) == 0) return;
  const auto mode = static_cast<unsigned>(info.st_mode & 07777);
  if (info.st_uid != ::geteuid()) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{}: mode {:04o} lets others read tenants, names and records, and it "
                            "is another user's; chmod 700 it, or give --allow-loose-modes",
                            folder, mode));
  }
  if (::chmod(folder.c_str(), 0700) != 0) fail(folder, "chmod");
  log(LogLevel::kWarning,
      fmt::format("{}: mode {:04o} let others read it; it is 0700 now (--allow-loose-modes "
                  "leaves it)",
                  folder, mode));
}

// AtomicFile creates with 0666 less the umask; a secret may not be readable even for a moment.
void create_secret(const std::string& file) {
  const NarrowMask mask;
  write_file_atomic(file, random_bytes(kSecretBytes));
  if (::chmod(file.c_str(), 0600) != 0) fail(file, "chmod");
}

// An older version made the database with the umask's mode, and an operator or a package the
// folder.
void restrict_modes(const std::string& folder) {
  restrict_folder_mode(folder);
  for (const char* name : {"/strata.db", "/strata.db-wal", "/strata.db-shm"}) {
    restrict_file_mode(folder + name);
  }
}

}  // namespace

std::string without_trailing_slashes(std::string path) {
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  return path;
}

void make_folders_durably(const std::string& path) {
  if (::mkdir(path.c_str(), 0700) == 0) {
    sync_folder(folder_of(path));
    return;
  }
  if (errno == EEXIST) return;
  if (errno != ENOENT || folder_of(path) == path) fail(path, "create");
  make_folders_durably(folder_of(path));
  make_folders_durably(path);
}

void make_folder(const std::string& path) {
  if (::mkdir(path.c_str(), 0700) != 0) fail(path, "create");
}

void rename_folder(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) == 0) return;
  throw Error(ErrorCode::kIo, fmt::format("{}: rename: {}", to, std::strerror(errno)));
}

bool exists_checked(const std::string& path) {
  struct stat info;
  if (::stat(path.c_str(), &info) == 0) return true;
  if (errno == ENOENT) return false;
  throw Error(ErrorCode::kIo,
              fmt::format("{}: {}; nothing was changed", path, std::strerror(errno)));
}

void remove_tree(const std::string& path) {
  std::error_code fault;
  std::filesystem::remove_all(path, fault);
  if (fault) throw Error(ErrorCode::kIo, fmt::format("{}: remove: {}", path, fault.message()));
}

NarrowMask::NarrowMask() : before_(::umask(0077)) {}

NarrowMask::~NarrowMask() { ::umask(before_); }

DataDir::DataDir(std::string path, bool allow_loose)
    : path_(without_trailing_slashes(std::move(path))) {
  make_folders_durably(path_);
  if (!allow_loose) restrict_modes(path_);
  lock_ = lock_file(path_ + "/lock");
  try {
    ensure_secret();
    remove_tree(temporary());
    make_folders_durably(temporary());
    make_folders_durably(checkpoints());
  } catch (...) {
    ::close(lock_);
    throw;
  }
}

DataDir::~DataDir() { ::close(lock_); }

void DataDir::ensure_secret() {
  const std::string file = path_ + "/secret";
  if (!file_exists(file)) create_secret(file);
  secret_ = read_file(file, kSecretBytes);
  if (secret_.size() != kSecretBytes) {
    throw Error(ErrorCode::kIo, fmt::format("{}: {} bytes, want {}; removing it makes every signed "
                                            "URL and request id of before invalid",
                                            file, secret_.size(), kSecretBytes));
  }
}

int64_t DataDir::fingerprint() const { return fingerprint_of_secret(secret_); }

int64_t fingerprint_of_secret(const std::string& secret) {
  const std::string hash = sha256("strata data directory" + secret);
  uint64_t value = 0;
  for (int i = 0; i < 8; ++i) value = value << 8 | static_cast<unsigned char>(hash[i]);
  return static_cast<int64_t>(value >> 1);
}

std::string DataDir::temporary_name() const {
  return fmt::format("{}/{}", temporary(), random_id());
}

}  // namespace strata::server
