// SPDX-License-Identifier: Apache-2.0
// Backups: a data directory as one tar file, made while a server runs in it: a snapshot of the
// database and the files of every checkpoint that stands there; and the way back. Checkpoints never
// change, so the two fit; one that is deleted while it is copied is in neither. The tar ends with
// the SHA-256 of each of its files, which restoring checks before anything appears, and, where a
// key is given, with the HMAC-SHA256 of that list: who has not the key can neither change nor make
// one. Each is made in a temporary_folder next to its place; a signal that asks to stop
// (base/stop.h) ends it with an Error and leaves nothing.
#pragma once
#include <cstdint>
#include <string>

namespace strata::server {

struct BackupCounts {
  int64_t checkpoints = 0;
  int64_t bytes = 0;  // of their files
};

// The key of archives in a file: its bytes without a newline at the end, 32 to 4,096.
std::string read_archive_key(const std::string& path);

// `key`: of read_archive_key(), or empty: archives are not authenticated.
// Writes `out` (mode 0600: it holds the directory's secret), whole or not at all. Throws Error: an
// unusable directory, a checkpoint whose files are damaged or gone although its row stands.
BackupCounts back_up(const std::string& data, const std::string& out, const std::string& key = {});

// Makes the directory `data`, which is not there or empty, from a backup, whole or not at all.
BackupCounts restore(const std::string& backup, const std::string& data,
                     const std::string& key = {});

// Throws what restore() would, from a copy below the folder of temporary files; nothing stays.
BackupCounts check_backup(const std::string& backup, const std::string& key = {});

}  // namespace strata::server
