// The tar of a checkpoint for SDK 0.35 and earlier: regular files at the root, USTAR headers.
#include <fmt/format.h>

#include "server/checkpoints/registry.h"
#include "server/checkpoints/tar.h"

namespace strata::server {

std::optional<std::string> CheckpointRegistry::made_archive(const CheckpointRow& row) const {
  std::string path = fmt::format("{}/{}.tar", data_.temporary(), row.id);
  if (file_exists(path)) return path;
  return std::nullopt;
}

std::string CheckpointRegistry::archive(const CheckpointRow& row) {
  const std::lock_guard lock(archive_mutex_);
  if (const auto made = made_archive(row)) return *made;
  const std::string path = fmt::format("{}/{}.tar", data_.temporary(), row.id);
  const auto held = lease(row.id);
  TarWriter out(path);
  const auto time = static_cast<int64_t>(row.created_at);
  for (const CheckpointFile& file : files(row)) {
    out.add(file.name, ReadOnlyFile(folder(row) + "/" + file.name), time);
  }
  out.add("checkpoint_complete", ReadOnlyFile(folder(row) + "/checkpoint_complete"), time);
  out.commit();
  return path;
}

}  // namespace strata::server
