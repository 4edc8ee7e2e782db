// SPDX-License-Identifier: Apache-2.0
// DataDir: the server's folder. One process holds it (DATA/lock); DATA/secret keys every MAC; what
// is being written is in DATA/tmp, which each start empties.
#pragma once
#include <cstdint>
#include <string>

namespace strata::server {

class DataDir {
 public:
  // Creates what is missing (mode 0700), takes the lock, empties tmp. Throws Error when another
  // process has the lock. A folder that others may read is made narrow with a warning when it is
  // ours, and is refused when it is not, but for `allow_loose`.
  explicit DataDir(std::string path, bool allow_loose = false);
  ~DataDir();
  DataDir(const DataDir&) = delete;
  DataDir& operator=(const DataDir&) = delete;

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] std::string database() const { return path_ + "/strata.db"; }
  [[nodiscard]] std::string temporary() const { return path_ + "/tmp"; }
  [[nodiscard]] std::string checkpoints() const { return path_ + "/checkpoints"; }
  // Folders of checkpoints that no row knew at a start; the operator's to look at and remove.
  [[nodiscard]] std::string lost() const { return path_ + "/lost"; }
  [[nodiscard]] const std::string& secret() const { return secret_; }  // 32 bytes
  // Tells one data directory from another; any thread may show it.
  [[nodiscard]] int64_t fingerprint() const;

  // A name below tmp that nothing has.
  [[nodiscard]] std::string temporary_name() const;

 private:
  // Reads the secret, which is made first where there is none.
  void ensure_secret();

  std::string path_;
  std::string secret_;
  int lock_ = -1;
};

// Files that the process makes are its user's alone, as long as it lives.
class NarrowMask {
 public:
  NarrowMask();
  ~NarrowMask();
  NarrowMask(const NarrowMask&) = delete;
  NarrowMask& operator=(const NarrowMask&) = delete;

 private:
  unsigned before_;
};

std::string without_trailing_slashes(std::string path);
// A number by which a data directory with this secret is known again.
int64_t fingerprint_of_secret(const std::string& secret);
// Creates `path` and its parents so that they survive a power failure.
void make_folders_durably(const std::string& path);
// Makes it with mode 0700; Error where it is there.
void make_folder(const std::string& path);
void rename_folder(const std::string& from, const std::string& to);
// Only "there is no such file" counts as absent: what cannot be looked at may well be there, and is
// an Error.
bool exists_checked(const std::string& path);
// Removes a folder with all it holds; nothing happens when it is not there.
void remove_tree(const std::string& path);

}  // namespace strata::server
