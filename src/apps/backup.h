// SPDX-License-Identifier: Apache-2.0
// strata backup, restore and check: a server's data directory as one file and back, and whether it
// is whole.
#pragma once
#include <string>

namespace strata::apps {

struct BackupOptions {
  std::string data;
  std::string out;  // the backup
  std::string archive_key;
};
struct RestoreOptions {
  std::string in;  // the backup
  std::string data;
  std::string archive_key;
};
struct CheckOptions {
  std::string data;
  std::string in;  // a backup instead
  std::string archive_key;
};

// Each returns the exit code; 2 for damage that was found.
int run_backup(const BackupOptions& options);
int run_restore(const RestoreOptions& options);
int run_check(const CheckOptions& options);

}  // namespace strata::apps
