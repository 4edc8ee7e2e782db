// SPDX-License-Identifier: Apache-2.0
// The tar of a checkpoint for SDK 0.35 and earlier: regular files at the root, USTAR headers.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "server/checkpoints/registry.h"
#include "server/checkpoints/tar.h"

namespace strata::server {

std::optional<std::string> CheckpointRegistry::made_archive(const CheckpointRow& row) const {
  std::string path = fmt::format("{}/{}.tar", data_.temporary(), row.id);
  if (file_exists(path)) return path;
  return std::nullopt;
}

// A download that is under way has its archive open, and one that comes back has it made again.
void CheckpointRegistry::make_room_for_archive(int64_t bytes) {
  namespace fs = std::filesystem;
  struct Made {
    fs::file_time_type time;
    std::string path;
    int64_t size;
  };
  std::vector<Made> made;
  std::error_code fault;
  for (const auto& entry : fs::directory_iterator(data_.temporary(), fault)) {
    if (entry.path().extension() != ".tar") continue;
    std::error_code gone;
    const auto size = static_cast<int64_t>(entry.file_size(gone));
    const auto time = entry.last_write_time(gone);
    if (!gone) made.push_back({time, entry.path().string(), size});
  }
  std::sort(made.begin(), made.end(), [](const Made& a, const Made& b) { return a.time < b.time; });
  int64_t all = bytes;
  for (const Made& archive : made) all += archive.size;
  for (const Made& archive : made) {
    if (all <= options_.max_archive_bytes) return;
    remove_file(archive.path);
    all -= archive.size;
  }
}

std::string CheckpointRegistry::archive(const CheckpointRow& row) {
  const MutexLock lock(archive_mutex_);
  if (const auto made = made_archive(row)) return *made;
  const std::string path = fmt::format("{}/{}.tar", data_.temporary(), row.id);
  const auto held = lease(row.id);
  const std::vector<CheckpointFile> packed = files(row);
  int64_t bytes = 0;
  for (const CheckpointFile& file : packed) bytes += file.size;
  make_room_for_archive(bytes);
  TarWriter out(path);
  const auto time = static_cast<int64_t>(row.created_at);
  for (const CheckpointFile& file : packed) {
    out.add(file.name, ReadOnlyFile(folder(row) + "/" + file.name), time);
  }
  out.add("checkpoint_complete", ReadOnlyFile(folder(row) + "/checkpoint_complete"), time);
  out.commit();
  return path;
}

}  // namespace strata::server
