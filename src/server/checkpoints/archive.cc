// The tar of a checkpoint for SDK 0.35 and earlier: regular files at the root, USTAR headers.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "base/error.h"
#include "base/files.h"
#include "server/checkpoints/registry.h"

namespace strata::server {
namespace {

constexpr size_t kBlock = 512;
constexpr int64_t kCopyBytes = 1 << 20;

void octal(std::span<char> field, int64_t value) {
  // The last byte stays NUL.
  for (size_t i = field.size() - 1; i-- > 0; value >>= 3) {
    field[i] = static_cast<char>('0' + (value & 7));
  }
}

std::string tar_header(const std::string& name, int64_t size, int64_t time) {
  std::string block(kBlock, '\0');
  const std::span<char> bytes(block);
  std::copy(name.begin(), name.end(), block.begin());
  octal(bytes.subspan(100, 8), 0644);
  octal(bytes.subspan(108, 8), 0);
  octal(bytes.subspan(116, 8), 0);
  octal(bytes.subspan(124, 12), size);
  octal(bytes.subspan(136, 12), time);
  block[156] = '0';
  block.replace(257, 8,
                std::string_view("ustar\0"
                                 "00",
                                 8));
  block.replace(148, 8, "        ");  // the sum counts its own field as spaces
  int64_t sum = 0;
  for (const char c : block) sum += static_cast<unsigned char>(c);
  octal(bytes.subspan(148, 7), sum);
  return block;
}

void append_file(AtomicFile& out, const std::string& path, const std::string& name, int64_t time) {
  const ReadOnlyFile file(path);
  // 11 octal digits: 8 GiB. No adapter comes near.
  if (file.size() >= 1LL << 33) {
    throw Error(ErrorCode::kUnsupported, name +
                                             ": too large for an archive; use "
                                             "save_weights_external");
  }
  out.append(tar_header(name, file.size(), time));
  std::string buffer;
  for (int64_t done = 0; done < file.size();) {
    const int64_t size = std::min(kCopyBytes, file.size() - done);
    buffer.resize(static_cast<size_t>(size));
    file.read_at(done, std::as_writable_bytes(std::span(buffer)));
    out.append(std::string_view(buffer));
    done += size;
  }
  out.append(std::string((kBlock - file.size() % kBlock) % kBlock, '\0'));
}

}  // namespace

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
  AtomicFile out(path);
  const auto time = static_cast<int64_t>(row.created_at);
  for (const CheckpointFile& file : files(row)) {
    append_file(out, folder(row) + "/" + file.name, file.name, time);
  }
  append_file(out, folder(row) + "/checkpoint_complete", "checkpoint_complete", time);
  out.append(std::string(2 * kBlock, '\0'));
  out.commit();
  return path;
}

}  // namespace strata::server
