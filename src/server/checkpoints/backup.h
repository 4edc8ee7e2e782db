// SPDX-License-Identifier: Apache-2.0
// Backups: a data directory as one tar file, made while a server runs in it: a snapshot of the
// database and the files of every checkpoint that stands there; and the way back. Checkpoints never
// change, so the two fit; one that is deleted while it is copied is in neither. The tar ends with
// the SHA-256 of each of its files, which restoring checks before anything appears.
#pragma once
#include <cstdint>
#include <string>

namespace strata::server {

struct BackupCounts {
  int64_t checkpoints = 0;
  int64_t bytes = 0;  // of their files
};

// Writes `out` (mode 0600: it holds the directory's secret), whole or not at all. Throws Error: an
// unusable directory, a checkpoint whose files are damaged or gone although its row stands.
BackupCounts back_up(const std::string& data, const std::string& out);

// Makes the directory `data`, which is not there or empty, from a backup, whole or not at all.
BackupCounts restore(const std::string& backup, const std::string& data);

}  // namespace strata::server
