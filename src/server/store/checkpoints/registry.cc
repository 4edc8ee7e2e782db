// SPDX-License-Identifier: Apache-2.0
#include "server/store/checkpoints/registry.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <limits>
#include <set>
#include <utility>

#include "base/crypto.h"
#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "server/store/checkpoints/age.h"
#include "server/store/checkpoints/record.h"
#include "server/store/checkpoints/row_rules.h"

namespace strata::server {
namespace {

namespace fs = std::filesystem;

int64_t sum_file_sizes(const std::string& dir) {
  int64_t bytes = 0;
  for (const auto& entry : fs::directory_iterator(dir)) {
    bytes += static_cast<int64_t>(entry.file_size());
  }
  return bytes;
}

void encrypt_folder(const std::string& dir, const std::vector<std::string>& recipients) {
  std::vector<std::string> plain;
  for (const auto& entry : fs::directory_iterator(dir)) plain.push_back(entry.path().string());
  for (const std::string& path : plain) {
    age_encrypt_file(path, path + ".age", recipients);
    remove_file(path);
  }
}

// A copy does without what cannot be read of the source's: `strata check` tells of both.
CheckpointRecord record_for_copy(const std::string& dir) {
  try {
    return read_record(dir + "/" + kRecordName);
  } catch (const Error& error) {
    log(LogLevel::kWarning, error.what());
    return {.path = {}, .is_encrypted = !file_exists(dir + "/adapter_config.json"), .hashes = {}};
  }
}

// All but the record. Files of a checkpoint never change, so two folders may share one.
void link_files(const std::string& from, const std::string& to) {
  for (const auto& entry : fs::directory_iterator(from)) {
    const std::string name = entry.path().filename().string();
    if (name != kRecordName) fs::create_hard_link(entry.path(), to + "/" + name);
  }
}

// Links the files of a checkpoint into a new folder, which gets a record of its own.
void link_checkpoint(const std::string& from, const std::string& to, const CheckpointRow& row) {
  link_files(from, to);
  CheckpointRecord record = record_for_copy(from);
  record.path = path_of(row).text();
  write_file_atomic(to + "/" + kRecordName, record_text(row, record));
}

// A sweep may remove an empty parent at the same moment; then it is made once more.
void rename_with_parents(const std::string& dir, const std::string& target) {
  for (int attempt = 0;; ++attempt) {
    make_folders_durably(folder_of(target));
    try {
      rename_folder(dir, target);
      break;
    } catch (const Error&) {
      if (attempt == 3 || file_exists(folder_of(target))) throw;
    }
  }
}

// Without its size, which is known when its files are written.
CheckpointRow make_row_of_save(const CheckpointSave& save, double now) {
  CheckpointRow row;
  row.id = random_id();
  row.run_id = save.path.run_id;
  row.tenant = save.tenant;
  row.kind = save.path.kind;
  row.name = save.path.name;
  row.created_at = now;
  if (save.ttl_seconds) row.expires_at = now + static_cast<double>(*save.ttl_seconds);
  row.user_metadata = save.user_metadata;
  row.base_model = save.base_model;
  row.lora = save.lora;
  return row;
}

// Writes the record and the marker, behind all other files of a save.
void seal_save(const std::string& dir, const CheckpointSave& save, const CheckpointRow& row) {
  write_file_atomic(dir + "/" + kRecordName,
                    record_text(row, {.path = save.path.text(),
                                      .is_encrypted = !save.age_recipients.empty(),
                                      .hashes = hash_files(dir)}));
  write_file_atomic(dir + "/" + kMarkerName, "");
}

CheckpointRow make_row_of_copy(const CheckpointRow& source, const RunRow& run,
                               std::optional<int64_t> ttl_seconds, double now) {
  CheckpointRow row = source;
  row.id = random_id();
  row.run_id = run.id;
  row.tenant = run.tenant;
  row.created_at = now;
  row.expires_at.reset();
  if (ttl_seconds) row.expires_at = now + static_cast<double>(*ttl_seconds);
  row.is_public = false;
  return row;
}

[[noreturn]] void fail_in_use(const RunRow& run) {
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("copy_weights: model_seq_id: {} of session {} is in use, by a model or "
                          "another copy; use another number",
                          run.model_seq.value_or(0), run.session_id.value_or(run.id)));
}

[[noreturn]] void fail_fingerprint(const std::string& folder, const char* fault) {
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("{}: {}; is its disk mounted? Nothing was changed. To go on without "
                          "the checkpoints that are not there: --accept-loss",
                          folder, fault));
}

[[noreturn]] void fail_unknown(const TinkerPath& path) {
  throw Error(ErrorCode::kNotFound,
              fmt::format("checkpoint '{}' does not exist or has expired", path.text()));
}

}  // namespace

CheckpointRegistry::CheckpointRegistry(const DataDir& data, StateStore& store,
                                       const RegistryOptions& options)
    : data_(data), store_(store), options_(options), archive_budget_(options.archives) {
  store_.bind_data_directory(data.fingerprint());
  ensure_fingerprint();
  reconcile_rows_with_folders();
  update_available_bytes();
}

// A file in the folder itself says that this is the folder which the store knows: an empty mount
// point, or the disk of another server, has none or another one.
void CheckpointRegistry::ensure_fingerprint() {
  const std::string path = data_.checkpoints() + "/fingerprint";
  const std::string mark = fmt::format("{}\n", data_.fingerprint());
  const bool is_there = exists_checked(path);
  const bool is_right = is_there && read_file(path, 64) == mark;
  const bool may_write = options_.accept_loss || (!is_there && !store_.was_fingerprint_written());
  if (!is_right && !may_write) {
    fail_fingerprint(data_.checkpoints(),
                     is_there ? "these are the checkpoints of another data directory"
                              : "the folder of checkpoints has lost its fingerprint file");
  }
  if (!is_right) write_file_atomic(path, mark);
  store_.set_fingerprint_written();
}

// Rows without a folder are forgotten, but only when the folder is known to be gone and few are:
// many at once mean that something else is wrong. Folders without a row are set aside, never
// removed: the database may be an older one.
void CheckpointRegistry::reconcile_rows_with_folders() {
  std::set<std::string> wanted;
  std::vector<CheckpointRow> missing;
  for (const CheckpointRow& row : store_.rows_with_files()) {
    // What was deleted or replaced is a sweep's, whatever is left of it.
    if (row.deleted_at || exists_checked(folder(row) + "/" + kMarkerName)) {
      wanted.insert(folder(row));
    } else {
      missing.push_back(row);
    }
  }
  check_few_are_missing(missing, wanted.size() + missing.size());
  forget_missing(missing);
  move_unknown_to_lost(wanted);
}

void CheckpointRegistry::forget_missing(const std::vector<CheckpointRow>& missing) {
  for (const CheckpointRow& row : missing) {
    log(LogLevel::kWarning, fmt::format("checkpoint {}: its folder {} is gone; the row is removed",
                                        path_of(row).text(), folder(row)));
    store_.forget_checkpoint(row.id);
  }
}

void CheckpointRegistry::check_few_are_missing(const std::vector<CheckpointRow>& missing,
                                               size_t all) const {
  if (missing.size() <= 1 || missing.size() * 10 <= all || options_.accept_loss) return;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("{}: the folders of {} of {} checkpoints are missing (the first: {}); "
                          "is the disk mounted, is the database the right one? Nothing was "
                          "changed. To forget them: --accept-loss",
                          data_.checkpoints(), missing.size(), all, folder(missing[0])));
}

std::vector<std::string> CheckpointRegistry::list_checkpoint_folders() const {
  std::vector<std::string> folders;
  auto entry = fs::recursive_directory_iterator(data_.checkpoints());
  for (; entry != fs::recursive_directory_iterator(); ++entry) {
    if (entry.depth() < 3) continue;  // <tenant>/<run>/<kind>/<id>
    entry.disable_recursion_pending();
    folders.push_back(entry->path().string());
  }
  return folders;
}

void CheckpointRegistry::move_unknown_to_lost(const std::set<std::string>& known) {
  for (const std::string& stray : list_checkpoint_folders()) {
    if (known.contains(stray)) continue;
    const std::string target =
        data_.lost() + "/" + fs::path(stray).filename().string() + "-" + random_id();
    make_folders_durably(data_.lost());
    log(LogLevel::kWarning,
        fmt::format("{}: no checkpoint is known here; moved to {}", stray, target));
    rename_folder(stray, target);
  }
}

std::string CheckpointRegistry::folder(const CheckpointRow& row) const {
  const RowNames names = {row.id, row.tenant, row.run_id, std::string(kind_name(row.kind)), ""};
  if (!makes_a_folder(names)) {
    throw Error(ErrorCode::kIo, fmt::format("state store: {}; nothing is touched; 'strata check' "
                                            "names all such rows",
                                            find_name_fault(names)));
  }
  return fmt::format("{}/{}", data_.checkpoints(), folder_of_row(names));
}

namespace {

// A sweep may remove a checkpoint while its files are listed; any other fault would hide files.
void check_list_fault(const std::error_code& fault, const fs::path& path) {
  if (!fault || fault == std::errc::no_such_file_or_directory) return;
  throw Error(ErrorCode::kIo, fmt::format("{}: list: {}", path.string(), fault.message()));
}

}  // namespace

std::vector<CheckpointFile> CheckpointRegistry::list_downloadable_files(
    const CheckpointRow& row) const {
  std::vector<CheckpointFile> out;
  const std::string dir = folder(row);
  std::error_code fault;
  const fs::directory_iterator end;
  for (fs::directory_iterator at(dir, fault); !fault && at != end; at.increment(fault)) {
    const std::string name = at->path().filename().string();
    if (name == kMarkerName || name == kRecordName) continue;
    std::error_code gone;
    const auto size = static_cast<int64_t>(at->file_size(gone));
    check_list_fault(gone, at->path());
    if (!gone) out.push_back({name, size});
  }
  check_list_fault(fault, dir);
  std::sort(out.begin(), out.end(),
            [](const CheckpointFile& a, const CheckpointFile& b) { return a.name < b.name; });
  return out;
}

// `in_line`: of saves that come before this one.
void CheckpointRegistry::check_max_disk(int64_t more, int64_t in_line, ErrorCode code) const {
  if (options_.max_disk == 0) return;
  const int64_t used = store_.stored_bytes();
  if (used + in_line + more <= options_.max_disk) return;
  const std::string others =
      in_line == 0 ? "" : fmt::format(" besides {} of others in line", in_line);
  throw Error(code,
              fmt::format("checkpoints take {} bytes, this one {}{}, and --max-disk is {}; delete "
                          "some or let them expire (ttl_seconds)",
                          used, more, others, options_.max_disk));
}

std::shared_ptr<void> CheckpointRegistry::reserve_disk_space(int64_t bytes) {
  check_max_disk(bytes, *reserved_, ErrorCode::kIo);
  const int64_t available = available_;
  if (available < bytes + *reserved_) {
    throw Error(
        ErrorCode::kIo,
        fmt::format("the disk has {} bytes left, and this save takes about {} besides {} of "
                    "others in line",
                    available, bytes, reserved_->load()));
  }
  *reserved_ += bytes;
  return {nullptr, [reserved = reserved_, bytes](void*) { *reserved -= bytes; }};
}

void CheckpointRegistry::update_available_bytes() {
  std::error_code fault;
  const fs::space_info disk = fs::space(data_.temporary(), fault);
  constexpr auto kMost = std::numeric_limits<int64_t>::max();
  const bool is_known = !fault && std::cmp_less(disk.available, kMost);
  available_ = is_known ? static_cast<int64_t>(disk.available) : kMost;
}

std::string CheckpointRegistry::begin_save() {
  std::string dir = name_folder();
  make_folder(dir);
  return dir;
}

CheckpointRow CheckpointRegistry::finish_save(const std::string& dir, const CheckpointSave& save,
                                              double now) {
  CheckpointRow row = make_row_of_save(save, now);
  try {
    if (!save.overwrite) check_name_is_free(row, now);
    if (!save.age_recipients.empty()) encrypt_folder(dir, save.age_recipients);
    seal_save(dir, save, row);
    row.size_bytes = sum_file_sizes(dir);
    check_max_disk(row.size_bytes, 0, ErrorCode::kIo);
    move_into_place(dir, row);
  } catch (...) {
    abandon(dir);
    throw;
  }
  commit_row(row, [&] { store_.upsert_checkpoint(row); });
  update_available_bytes();
  return row;
}

void CheckpointRegistry::check_name_is_free(const CheckpointRow& row, double now) {
  if (!store_.find_checkpoint(row.run_id, row.kind, row.name, now)) return;
  throw Error(
      ErrorCode::kInvalidArgument,
      fmt::format("checkpoint '{}' already exists; save with overwrite=True or another name",
                  path_of(row).text()));
}

// A commit that fails may have been done all the same: its answer was lost. The folder goes only
// when the store says that it knows nothing of it; when it does not say, the next start finds out.
void CheckpointRegistry::commit_row(const CheckpointRow& row, const std::function<void()>& add) {
  try {
    add();
  } catch (const std::exception& error) {
    log(LogLevel::kError, fmt::format("checkpoint {}: {}", path_of(row).text(), error.what()));
    if (store_.find_checkpoint_by_id(row.id)) return;  // throws: the folder stays
    abandon(folder(row));
    throw;
  }
}

void CheckpointRegistry::move_into_place(const std::string& dir, const CheckpointRow& row) {
  sync_folder(dir);
  const std::string target = folder(row);
  rename_with_parents(dir, target);
  sync_folder(folder_of(target));
}

void CheckpointRegistry::abandon(const std::string& dir) noexcept {
  std::error_code ignored;  // the next start empties tmp and removes strays
  fs::remove_all(dir, ignored);
}

CheckpointRow CheckpointRegistry::require_checkpoint(const TinkerPath& path,
                                                     const std::string& tenant, bool may_be_public,
                                                     double now) {
  const auto row = store_.find_checkpoint(path.run_id, path.kind, path.name, now);
  const bool readable = row && (row->tenant == tenant || (may_be_public && row->is_public));
  if (!readable) fail_unknown(path);
  return *row;
}

std::shared_ptr<void> CheckpointRegistry::lease(const std::string& checkpoint_id) {
  const MutexLock lock(leases_->mutex);
  ++leases_->counts[checkpoint_id];
  return {nullptr, [leases = leases_, checkpoint_id](void*) {
            const MutexLock release(leases->mutex);
            if (--leases->counts[checkpoint_id] == 0) leases->counts.erase(checkpoint_id);
          }};
}

bool CheckpointRegistry::is_leased(const std::string& id) {
  const MutexLock lock(leases_->mutex);
  return leases_->counts.contains(id);
}

void CheckpointRegistry::link_copy(const CheckpointRow& source, const CheckpointRow& copy) {
  const std::string dir = begin_save();
  try {
    check_max_disk(source.size_bytes, *reserved_, ErrorCode::kResourceExhausted);
    link_checkpoint(folder(source), dir, copy);
    move_into_place(dir, copy);
  } catch (const fs::filesystem_error& fault) {
    abandon(dir);
    throw Error(ErrorCode::kIo, fmt::format("copy: {}", fault.what()));
  } catch (...) {
    abandon(dir);
    throw;
  }
}

std::string CheckpointRegistry::copy_to_new_run(const CheckpointRow& source, RunRow run,
                                                std::optional<int64_t> ttl_seconds,
                                                const Idempotency& key, double now) {
  if (!key.name.empty()) {
    if (const auto known = store_.find_remembered(run.tenant, "copy", key)) return *known;
  }
  if (store_.find_run(run.id)) fail_in_use(run);
  const CheckpointRow row = make_row_of_copy(source, run, ttl_seconds, now);
  run.state = RunState::kCopy;
  run.ended_at = now;
  const auto held = lease(source.id);
  link_copy(source, row);
  bool is_in_use = false;  // a model was made of that number meanwhile
  commit_row(row, [&] { is_in_use = !store_.add_copy(run, row, key); });
  if (is_in_use) {
    abandon(folder(row));
    fail_in_use(run);
  }
  return path_of(row).text();
}

}  // namespace strata::server
