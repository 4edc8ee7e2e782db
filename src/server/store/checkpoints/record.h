// SPDX-License-Identifier: Apache-2.0
// The record of a checkpoint: strata.json in its folder, for readers without the database, with the
// hashes of the other files.
#pragma once
#include <map>
#include <string>

#include "base/files.h"
#include "server/store/state/store.h"

namespace strata::server {

struct CheckpointRecord {
  std::string path;  // tinker://...
  bool is_encrypted = false;
  std::map<std::string, std::string> hashes;  // SHA-256 by file, hexadecimal; old records have none
};

constexpr const char* kRecordName = "strata.json";
constexpr const char* kMarkerName = "checkpoint_complete";

std::string record_text(const CheckpointRow& row, const CheckpointRecord& record);
// Error when the file is not there or is no record.
CheckpointRecord read_record(const std::string& path);
CheckpointRecord read_record(const ReadOnlyFile& file);
// SHA-256 of every file in a folder, in hexadecimal.
std::map<std::string, std::string> hash_files(const std::string& dir);
// Calls `before_piece` for each MiB.
std::string hash_file(const std::string& path, void (*before_piece)() = nullptr);

}  // namespace strata::server
