// SPDX-License-Identifier: Apache-2.0
// The tar of a checkpoint for SDK 0.35 and earlier, and that of a merged model: regular files at
// the root, USTAR headers.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/error.h"
#include "server/checkpoints/registry.h"
#include "server/checkpoints/tar.h"

namespace strata::server {

std::string CheckpointRegistry::archive_path(const CheckpointRow& row, Archive of) const {
  const char* ending = of == Archive::kMerged ? "merged.tar" : "tar";
  return fmt::format("{}/{}.{}", data_.temporary(), row.id, ending);
}

std::optional<std::string> CheckpointRegistry::made_archive(const CheckpointRow& row,
                                                            Archive of) const {
  std::string path = archive_path(row, of);
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
  const std::string path = archive_path(row, Archive::kCheckpoint);
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

namespace {

[[noreturn]] void refuse_size(ErrorCode code, int64_t bytes, const std::string& room) {
  throw Error(
      code, fmt::format("a merged model of {} bytes: {}; download the adapter's archive and merge "
                        "it where there is room: strata merge --adapter FILE.tar",
                        bytes, room));
}

// The files of a folder as a tar; each is removed once it is in it, so that the disk holds little
// more than one of both.
void move_into_tar(const std::string& folder, const std::string& path, int64_t time) {
  namespace fs = std::filesystem;
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  TarWriter out(path);
  for (const std::string& name : names) {
    out.add(name, ReadOnlyFile(folder + "/" + name), time);
    remove_file(folder + "/" + name);
  }
  out.commit();
}

}  // namespace

bool CheckpointRegistry::archive_merged(const CheckpointRow& row, const ModelMerger& merger,
                                        size_t model) {
  const MutexLock lock(merge_mutex_);
  if (made_archive(row, Archive::kMerged)) return true;
  const auto held = lease(row.id);
  const int64_t bytes = merger.bytes.at(model);
  if (bytes > options_.max_archive_bytes) {
    refuse_size(ErrorCode::kInvalidArgument, bytes,
                fmt::format("--max-archive-bytes is {}", options_.max_archive_bytes));
  }
  make_room_for_archive(bytes);
  std::error_code fault;
  const std::filesystem::space_info disk = std::filesystem::space(data_.temporary(), fault);
  if (!fault && std::cmp_less(disk.available, bytes)) {
    refuse_size(ErrorCode::kResourceExhausted, bytes,
                fmt::format("the disk has {} left", disk.available));
  }
  struct Folder {  // gone at the end, whatever happens
    CheckpointRegistry& registry;
    std::string path;
    ~Folder() { registry.abandon(path); }
  };
  const Folder to{*this, begin()};
  if (!merger.write(model, folder(row), to.path)) return false;
  move_into_tar(to.path, archive_path(row, Archive::kMerged), static_cast<int64_t>(row.created_at));
  return true;
}

}  // namespace strata::server
