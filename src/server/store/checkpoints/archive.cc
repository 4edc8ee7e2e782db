// SPDX-License-Identifier: Apache-2.0
// The tar of a checkpoint for SDK 0.35 and earlier, and that of a merged model: regular files at
// the root, USTAR headers.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/busy.h"
#include "base/error.h"
#include "checkpoint/tar.h"
#include "server/store/checkpoints/registry.h"

namespace strata::server {
namespace {

constexpr int64_t kTarBytes = 16 << 10;  // headers and padding of a checkpoint's few files, at most

void check_files_fit_tar(const std::vector<CheckpointFile>& files) {
  for (const CheckpointFile& file : files) {
    if (file.size < kTarFileLimit) continue;
    throw Error(ErrorCode::kUnsupported,
                fmt::format("archive: {} has {} bytes, 8 GiB or more: too large for an archive; of "
                            "external weights (save_weights_external) each file is fetched by "
                            "itself",
                            file.name, file.size));
  }
}

void write_checkpoint_tar(const std::string& folder, const std::vector<CheckpointFile>& files,
                          const std::string& path, int64_t time) {
  TarWriter out(path);
  for (const CheckpointFile& file : files) {
    out.add(file.name, ReadOnlyFile(folder + "/" + file.name), time);
  }
  out.add("checkpoint_complete", ReadOnlyFile(folder + "/checkpoint_complete"), time);
  out.commit();
}

}  // namespace

std::string CheckpointRegistry::archive_path(const CheckpointRow& row, Archive of) const {
  const char* ending = of == Archive::kMerged ? "merged.tar" : "tar";
  return fmt::format("{}/{}.{}", data_.temporary(), row.id, ending);
}

std::optional<std::string> CheckpointRegistry::touch_archive(const CheckpointRow& row,
                                                             double steady, Archive of) {
  std::string path = archive_path(row, of);
  if (!file_exists(path)) return std::nullopt;
  archive_budget_.touch(path, steady);
  return path;
}

CheckpointRegistry::BookedArchive CheckpointRegistry::reserve_space_evicting_archives(
    const std::string& path, const std::string& tenant, int64_t bytes, double steady) {
  if (!archive_budget_.take_evicting(path, tenant, bytes + kTarBytes, steady)) {
    throw Busy(
        fmt::format("archive: others' archives, which are being downloaded, leave no space "
                    "for {} bytes (--max-archive-bytes {}); ask again later",
                    bytes + kTarBytes, archive_budget_.limit()));
  }
  return {archive_budget_, path};
}

bool CheckpointRegistry::fits_archive(const CheckpointRow& row) const {
  return row.size_bytes + kTarBytes <= archive_budget_.most();
}

std::string CheckpointRegistry::ensure_archive(const CheckpointRow& row, const std::string& tenant,
                                               double steady) {
  const MutexLock lock(archive_mutex_);
  if (const auto made = touch_archive(row, steady)) return *made;
  const std::string path = archive_path(row, Archive::kCheckpoint);
  const auto held = lease(row.id);
  const std::vector<CheckpointFile> all = list_downloadable_files(row);
  check_files_fit_tar(all);
  const BookedArchive booked =
      reserve_space_evicting_archives(path, tenant, row.size_bytes, steady);
  write_checkpoint_tar(folder(row), all, path, static_cast<int64_t>(row.created_at));
  return path;
}

namespace {

[[noreturn]] void refuse_merged_size(ErrorCode code, int64_t bytes, const std::string& limit) {
  throw Error(
      code, fmt::format("a merged model of {} bytes: {}; download the adapter's archive and merge "
                        "it where there is space: strata merge --adapter FILE.tar",
                        bytes, limit));
}

void check_tenant_may_have(int64_t bytes, int64_t most) {
  if (bytes + kTarBytes <= most) return;
  refuse_merged_size(ErrorCode::kInvalidArgument, bytes,
                     fmt::format("a tenant may have {} (--max-archive-bytes)", most));
}

void check_disk_has_space(const std::string& folder, int64_t bytes) {
  std::error_code fault;
  const std::filesystem::space_info disk = std::filesystem::space(folder, fault);
  if (!fault && std::cmp_less(disk.available, bytes)) {
    refuse_merged_size(ErrorCode::kResourceExhausted, bytes,
                       fmt::format("the disk has {} left", disk.available));
  }
}

struct MergeFolder {  // gone at the end, whatever happens
  CheckpointRegistry& registry;
  std::string path;
  ~MergeFolder() { registry.abandon(path); }
};

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

bool CheckpointRegistry::ensure_merged_archive(const CheckpointRow& row, const ModelMerger& merger,
                                               size_t model, const std::string& tenant,
                                               double steady) {
  const MutexLock lock(merge_mutex_);
  if (touch_archive(row, steady, Archive::kMerged)) return true;
  const std::string path = archive_path(row, Archive::kMerged);
  const auto held = lease(row.id);
  const int64_t bytes = merger.bytes.at(model);
  check_tenant_may_have(bytes, archive_budget_.most());
  const BookedArchive booked = reserve_space_evicting_archives(path, tenant, bytes, steady);
  check_disk_has_space(data_.temporary(), bytes);
  const MergeFolder to{*this, begin_save()};
  if (!merger.write(model, folder(row), to.path)) return false;
  move_into_tar(to.path, path, static_cast<int64_t>(row.created_at));
  return true;
}

}  // namespace strata::server
