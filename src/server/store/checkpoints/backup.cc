// SPDX-License-Identifier: Apache-2.0
#include "server/store/checkpoints/backup.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>
#include <vector>

#include "base/crypto.h"
#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "base/new_file.h"
#include "base/stop.h"
#include "checkpoint/tar.h"
#include "server/store/checkpoints/check.h"
#include "server/store/checkpoints/data_dir.h"
#include "server/store/checkpoints/record.h"
#include "server/store/checkpoints/row_rules.h"
#include "server/store/checkpoints/temporary_folder.h"
#include "server/store/state/stoppable_sqlite.h"
#include "server/store/state/store.h"

namespace strata::server {
namespace {

namespace fs = std::filesystem;

constexpr const char* kManifest = "MANIFEST";
constexpr const char* kSignature = "MANIFEST.hmac";
constexpr int64_t kSignatureBytes = 64;  // in hexadecimal
constexpr size_t kLeastKey = 32, kMostKey = 4096;
constexpr int64_t kMostOfLine = 512;  // of the manifest: a hash and a path
constexpr size_t kMaxFiles = 10'000'000;

[[noreturn]] void refuse(const std::string& message) {
  throw Error(ErrorCode::kInvalidArgument, message);
}

// Signs a list of files. The text before it keeps the key from meaning anything elsewhere.
std::string signature_of(const std::string& key, const std::string& manifest) {
  return to_hex(hmac_sha256(key, "strata backup 1\n" + manifest));
}

struct Folder {
  std::string id;
  std::string path;  // below the data directory
};

std::vector<Folder> read_checkpoint_folders(Sql& sql) {
  std::vector<Folder> out;
  const SqlResult rows = sql.run(
      "SELECT id, tenant, run_id, kind, name FROM checkpoints WHERE files_gone = 0 "
      "ORDER BY number",
      {});
  for (const SqlRow& values : rows.rows) {
    const auto text = [&](size_t i) { return std::get<std::string>(values[i]); };
    const RowNames row = {text(0), text(1), text(2), text(3), text(4)};
    const std::string fault = find_name_fault(row);
    if (!fault.empty()) refuse(fmt::format("strata.db: {}", fault));
    out.push_back({row.id, "checkpoints/" + folder_of_row(row)});
  }
  return out;
}

// A folder's files by name, open: a sweep that removes them takes nothing from us.
struct OpenFolder {
  CheckpointRecord record;
  std::map<std::string, ReadOnlyFile> files;
};

// Nothing where the folder, or a file of it, goes meanwhile.
std::optional<std::map<std::string, ReadOnlyFile>> open_files(const std::string& dir) {
  std::map<std::string, ReadOnlyFile> files;
  std::error_code fault;
  const fs::directory_iterator end;
  try {
    for (fs::directory_iterator at(dir, fault); !fault && at != end; at.increment(fault)) {
      files.emplace(at->path().filename().string(), ReadOnlyFile(at->path().string()));
    }
  } catch (const Error& error) {
    if (error.code != ErrorCode::kNotFound && file_exists(dir)) throw;
    return {};
  }
  if (fault) return {};
  return files;
}

// Nothing when the folder is not there whole, with every file that its record names.
std::optional<OpenFolder> open_whole_folder(const std::string& dir) {
  std::optional<std::map<std::string, ReadOnlyFile>> files = open_files(dir);
  if (!files || !files->contains(kMarkerName) || !files->contains(kRecordName)) return {};
  OpenFolder out = {.record = read_record(files->at(kRecordName)), .files = std::move(*files)};
  for (const auto& [name, hash] : out.record.hashes) {
    if (!out.files.contains(name)) return {};
  }
  return out;
}

// Where the record has the file's hash.
void check_is_as_saved(const std::string& path, const std::string& name, const std::string& hash,
                       const CheckpointRecord& record) {
  const auto known = record.hashes.find(name);
  if (known == record.hashes.end() || known->second == hash) return;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("{}: its bytes are not those that were saved; nothing was written "
                          "('strata check' names all that is damaged)",
                          path));
}

class Writer {
 public:
  Writer(const std::string& data, const std::string& out)
      : data_(data), tar_(out, check_stop_signal), now_(static_cast<int64_t>(wall_seconds())) {}

  void add(const std::string& name, const ReadOnlyFile& file) {
    note(name, tar_.add(name, file, now_));
  }
  void add(const std::string& name) { add(name, ReadOnlyFile(data_ + "/" + name)); }
  // Adds all of a folder, held against its own record; gives its bytes.
  int64_t archive_folder(const std::string& folder, const OpenFolder& open) {
    int64_t bytes = 0;
    for (const auto& [name, file] : open.files) {
      const std::string path = folder + "/" + name;
      add(path, file);
      bytes += file.size();
      check_is_as_saved(file.path(), name, hashes_.at(path), open.record);
    }
    return bytes;
  }
  // Adds the manifest and, with a key, its signature; then the archive appears.
  void finish_archive(const std::string& key) {
    std::string text;
    for (const auto& [name, hash] : hashes_) text += fmt::format("{}  {}\n", hash, name);
    tar_.add(kManifest, text, now_);
    if (!key.empty()) tar_.add(kSignature, signature_of(key, text), now_);
    tar_.commit();
  }

 private:
  void note(const std::string& name, const std::string& hash) { hashes_[name] = to_hex(hash); }

  std::string data_;
  TarWriter tar_;
  int64_t now_;
  std::map<std::string, std::string> hashes_;
};

std::vector<std::string> split_path(const std::string& path) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find('/', begin), path.size());
    parts.push_back(path.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

// Only what a backup has: nothing can be written elsewhere.
bool is_backup_path(const std::string& path) {
  if (path == "secret" || path == "strata.db" || path == "checkpoints/fingerprint") return true;
  const std::vector<std::string> parts = split_path(path);
  return parts.size() == 6 && parts[0] == "checkpoints" && is_path_part(parts[5]) &&
         makes_a_folder({.id = parts[4],
                         .tenant = parts[1],
                         .run_id = parts[2],
                         .kind = parts[3],
                         .name = ""});
}

std::map<std::string, std::string> parse_manifest(const std::string& backup,
                                                  const std::string& text) {
  std::map<std::string, std::string> hashes;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = std::string_view(text).substr(begin, end - begin);
    if (line.size() < 67 || !is_hex(line.substr(0, 64), 64) || line.substr(64, 2) != "  ")
      refuse(fmt::format("{}: its list of files ({}) is damaged", backup, kManifest));
    hashes[std::string(line.substr(66))] = line.substr(0, 64);
    begin = end + 1;
  }
  return hashes;
}

struct Unpacked {
  std::map<std::string, std::string> hashes;  // of what was written, by name
  std::string manifest, signature;
  BackupCounts counts;
};

// Reads the list of files, or what authenticates it.
void read_text_entry(const std::string& backup, TarReader& tar, const TarEntry& entry, int64_t most,
                     std::string& text) {
  if (!text.empty()) refuse(fmt::format("{}: {} is there twice", backup, entry.name));
  if (entry.size > most)
    refuse(fmt::format("{}: {} is larger than a list of the files before it", backup, entry.name));
  tar.read(entry, [&](std::string_view piece) { text += piece; });
}

struct EntryCounts {
  uint64_t files = 0;
  uint64_t bytes = 0;  // no more than the archive's size
};

EntryCounts count_entries(const std::string& backup) {
  EntryCounts counts;
  TarReader tar(backup);
  while (const std::optional<TarEntry> entry = tar.next()) {
    check_stop_signal();
    counts.bytes += static_cast<uint64_t>(entry->size);
    ++counts.files;
  }
  return counts;
}

void check_free_inodes(const std::string& backup, const std::string& target, uint64_t files) {
  struct statvfs system = {};
  // A file system that counts no inodes says 0 of 0.
  if (::statvfs(target.c_str(), &system) == 0 && system.f_files > 0 && files > system.f_favail) {
    throw Error(ErrorCode::kResourceExhausted,
                fmt::format("{}: it has {} files, and the file system of {} takes {} more; nothing "
                            "was written",
                            backup, files, folder_of(target), system.f_favail));
  }
}

void check_free_bytes(const std::string& backup, const std::string& target, uint64_t wanted) {
  std::error_code fault;
  const fs::space_info disk = fs::space(target, fault);
  if (fault || wanted <= disk.available) return;
  throw Error(ErrorCode::kResourceExhausted,
              fmt::format("{}: its files take {} bytes, and {} are free at {}; nothing was written",
                          backup, wanted, disk.available, folder_of(target)));
}

// By the headers alone, before anything is written: a sparse archive takes next to nothing of a
// disk, and what comes out of it takes all that they say.
void check_free_space(const std::string& backup, const std::string& target) {
  const auto [files, bytes] = count_entries(backup);
  check_free_inodes(backup, target, files);
  check_free_bytes(backup, target, bytes);
}

// The hash of what was written.
std::string unpack_file(TarReader& tar, const TarEntry& entry, const std::string& path) {
  make_folders(folder_of(path));
  NewFile file(path);
  Sha256 hash;
  tar.read(entry, [&](std::string_view piece) {
    check_stop_signal();
    file.append(piece);
    hash.add(piece);
  });
  file.close();
  return to_hex(hash.finish());
}

void count_entry(const TarEntry& entry, BackupCounts& counts) {
  if (!entry.name.starts_with("checkpoints/") || entry.name.ends_with("/fingerprint")) return;
  counts.bytes += entry.size;
  counts.checkpoints += entry.name.ends_with(std::string("/") + kMarkerName) ? 1 : 0;
}

// That a backup has such a file, and this one has not had it yet.
void check_is_new_backup_file(const std::string& backup, const TarEntry& entry,
                              const std::map<std::string, std::string>& hashes) {
  if (!is_backup_path(entry.name))
    refuse(fmt::format("{}: '{}' is no file of a backup", backup, entry.name.substr(0, 200)));
  if (hashes.contains(entry.name) || hashes.size() >= kMaxFiles)
    refuse(fmt::format("{}: '{}' is there twice, or there are too many files", backup, entry.name));
}

// Writes everything below `target`; nothing of it is durable yet.
Unpacked unpack(const std::string& backup, const std::string& target) {
  check_free_space(backup, target);
  TarReader tar(backup);
  Unpacked out;
  auto& [hashes, manifest, signature, counts] = out;
  while (const std::optional<TarEntry> entry = tar.next()) {
    check_stop_signal();
    if (entry->name == kManifest) {
      const int64_t most = kMostOfLine * static_cast<int64_t>(hashes.size());
      read_text_entry(backup, tar, *entry, most, manifest);
      continue;
    }
    if (entry->name == kSignature) {
      read_text_entry(backup, tar, *entry, kSignatureBytes, signature);
      continue;
    }
    check_is_new_backup_file(backup, *entry, hashes);
    hashes[entry->name] = unpack_file(tar, *entry, target + "/" + entry->name);
    count_entry(*entry, counts);
  }
  return out;
}

// A report's first damage, without the folder's name, and how many more there are.
std::string first_damage_text(const CheckReport& report, const std::string& folder) {
  std::string what = report.damages[0];
  if (what.starts_with(folder + "/")) what = what.substr(folder.size() + 1);
  return what + (report.damages.size() > 1
                     ? fmt::format(" (and {} more faults)", report.damages.size() - 1)
                     : "");
}

}  // namespace

std::string read_archive_key(const std::string& path) {
  std::string key = read_file(path, kMostKey + 2);
  while (key.ends_with('\n') || key.ends_with('\r')) key.pop_back();
  if (key.size() >= kLeastKey && key.size() <= kMostKey) return key;
  refuse(
      fmt::format("--archive-key: '{}' has a key of {} bytes, want {} to {}; make one with "
                  "'openssl rand -hex 32'",
                  path, key.size(), kLeastKey, kMostKey));
}

namespace {

// A checkpoint whose files are not all there was deleted since the snapshot, from which it goes
// too; else it is refused.
void drop_deleted_checkpoint(const std::string& data, const Folder& folder, Sql& live,
                             Sql& snapshot) {
  if (checkpoint_exists(live, folder.id)) {
    refuse(
        fmt::format("{}/{}: the checkpoint's files are not all there; nothing was written ('strata "
                    "check' names all that is damaged)",
                    data, folder.path));
  }
  const SqlValue id = folder.id;
  snapshot.run("DELETE FROM checkpoints WHERE id = ?", {&id, 1});
}

// The files of every checkpoint of the snapshot; what was deleted since goes from that too.
BackupCounts back_up_checkpoints(const std::string& data, Sql& live, Sql& snapshot,
                                 Writer& writer) {
  BackupCounts counts;
  for (const Folder& folder : read_checkpoint_folders(snapshot)) {
    if (const auto open = open_whole_folder(data + "/" + folder.path)) {
      counts.bytes += writer.archive_folder(folder.path, *open);
      ++counts.checkpoints;
    } else {
      drop_deleted_checkpoint(data, folder, live, snapshot);
    }
  }
  return counts;
}

void check_is_data_directory(const std::string& data) {
  if (!file_exists(data + "/secret"))
    refuse(fmt::format("--data: '{}' is no data directory: it has no secret", data));
  if (!file_exists(data + "/strata.db")) {
    refuse(
        fmt::format("--data: '{}' has no strata.db; if its state is in PostgreSQL (--db), dump "
                    "that with pg_dump and copy the directory after it",
                    data));
  }
}

void copy_database(Sql& database, const std::string& copy) {
  const SqlValue to = copy;
  database.run("VACUUM INTO ?", {&to, 1});
}

void check_is_restorable(const std::string& data, const std::string& copy) {
  const CheckReport report = check_snapshot(data, copy);
  if (report.damages.empty()) return;
  refuse(fmt::format("{}: nothing was written, since restoring would refuse it: {}", data,
                     first_damage_text(report, data)));
}

// Without a journal next to it.
void put_into_one_file(Sql& database) { database.run("PRAGMA journal_mode=DELETE", {}); }

// Nothing is replaced: another backup to the same place may have ended meanwhile.
void move_without_replacing(const std::string& made, const std::string& out) {
  int done = ::renameat2(AT_FDCWD, made.c_str(), AT_FDCWD, out.c_str(), RENAME_NOREPLACE);
  if (done != 0 && errno == EINVAL)  // a file system that knows no such flag
    done = ::rename(made.c_str(), out.c_str());
  if (done == 0) return;
  if (errno == EEXIST) refuse(fmt::format("--out: '{}' is there already", out));
  throw Error(ErrorCode::kIo, fmt::format("{}: rename: {}", out, std::strerror(errno)));
}

}  // namespace

BackupCounts back_up(const std::string& data, const std::string& out, const std::string& key) {
  const NarrowMask mask;
  const std::string database = data + "/strata.db";
  check_is_data_directory(data);
  if (file_exists(out)) refuse(fmt::format("--out: '{}' is there already", out));
  const TemporaryFolder temporary(out + ".db-");
  const std::string copy = temporary.path() + "/strata.db", made = temporary.path() + "/backup.tar";
  const std::unique_ptr<Sql> live = open_stoppable_sqlite(database, StopSignals::asked);
  copy_database(*live, copy);
  check_is_restorable(data, copy);
  std::unique_ptr<Sql> snapshot = open_stoppable_sqlite(copy, StopSignals::asked);
  Writer writer(data, made);
  const BackupCounts counts = back_up_checkpoints(data, *live, *snapshot, writer);
  put_into_one_file(*snapshot);
  snapshot.reset();
  writer.add("checkpoints/fingerprint");
  writer.add("secret");
  writer.add("strata.db", ReadOnlyFile(copy));
  writer.finish_archive(key);
  check_stop_signal();
  move_without_replacing(made, out);
  sync_folder(folder_of(out));
  return counts;
}

namespace {

// All that serve will believe of it, before it stands where serve looks for it: its hashes come
// from the same archive, and say nothing of who wrote it.
void check_restored(const std::string& backup, const std::string& folder) {
  const CheckReport report = check_data(folder, Counters::kOfArchive);
  if (report.damages.empty()) return;
  refuse(fmt::format("{}: nothing was restored: {}", backup, first_damage_text(report, folder)));
}

// Before anything in it is believed.
void check_signature(const std::string& backup, const Unpacked& what, const std::string& key) {
  if (key.empty()) return;
  if (what.signature.empty()) {
    refuse(
        fmt::format("{}: it is not authenticated: it was made without --archive-key, or what "
                    "it had was taken out",
                    backup));
  }
  if (equal_constant_time(what.signature, signature_of(key, what.manifest))) return;
  refuse(fmt::format("{}: it was changed, or made with another key (--archive-key)", backup));
}

// What was unpacked against the list of files.
void check_hashes(const std::string& backup, const Unpacked& what) {
  const auto wanted = parse_manifest(backup, what.manifest);
  for (const auto& [name, hash] : wanted) {
    const auto found = what.hashes.find(name);
    if (found == what.hashes.end()) refuse(fmt::format("{}: '{}' is missing", backup, name));
    if (found->second != hash)
      refuse(fmt::format("{}: '{}' is damaged: its bytes are not those that were backed up", backup,
                         name));
  }
  if (wanted.size() != what.hashes.size() || !wanted.contains("strata.db"))
    refuse(fmt::format("{}: its list of files is not of what it holds", backup));
}

// What restore() makes of a backup, below `folder`, checked whole.
BackupCounts unpack_checked(const std::string& backup, const std::string& key,
                            const std::string& folder) {
  const Unpacked what = unpack(backup, folder);
  check_signature(backup, what, key);
  check_hashes(backup, what);
  make_folders(folder + "/checkpoints");
  check_restored(backup, folder);
  return what.counts;
}

// What has happened since the backup had request ids, which must not name anything new.
void skip_used_request_ids(const std::string& path) {
  const std::unique_ptr<Sql> database = open_sqlite(path);
  database->run("UPDATE meta SET value = value + 1000000 WHERE name = 'boot'", {});
  put_into_one_file(*database);
}

}  // namespace

BackupCounts check_backup(const std::string& backup, const std::string& key) {
  const NarrowMask mask;
  const TemporaryFolder temporary(fs::temp_directory_path().string() + "/strata-check-");
  return unpack_checked(backup, key, temporary.path());
}

BackupCounts restore(const std::string& backup, const std::string& data, const std::string& key) {
  const NarrowMask mask;
  const std::string target = without_trailing_slashes(data);
  std::error_code fault;
  if (file_exists(target) && !fs::is_empty(target, fault))
    refuse(fmt::format("--data: '{}' is not empty; restore to a directory of its own", data));
  TemporaryFolder temporary(target + ".restoring-");
  const BackupCounts counts = unpack_checked(backup, key, temporary.path());
  skip_used_request_ids(temporary.path() + "/strata.db");
  sync_file_system(temporary.path());  // once, not for each of its files
  check_stop_signal();
  rename_folder(temporary.path(), target);
  temporary.keep();
  sync_folder(folder_of(target));
  return counts;
}

}  // namespace strata::server
