// SPDX-License-Identifier: Apache-2.0
// TemporaryFolder: where something is made before it appears: `<stem><32 hexadecimal digits>`, of
// mode 0700, locked while it lives and removed with all that is in it at its end. What a program
// that was killed left under the same stem, whose lock has gone with it, is removed first.
//   TemporaryFolder folder("/backups/state.tar.db-");
//   make_it(folder.path() + "/it");
#pragma once
#include <string>

namespace strata::server {

class TemporaryFolder {
 public:
  explicit TemporaryFolder(const std::string& stem);
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  [[nodiscard]] const std::string& path() const { return path_; }
  void keep();  // it has another name now

 private:
  std::string path_;  // empty: there is nothing to remove
  int lock_ = -1;
};

}  // namespace strata::server
