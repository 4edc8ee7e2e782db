// SPDX-License-Identifier: Apache-2.0
// CheckpointRegistry: checkpoints as files and rows together. A save is written into a folder below
// tmp, synced, renamed to DATA/checkpoints/<tenant>/<run>/<kind>/<random id>/, and made visible by
// one durable transaction; so a checkpoint is there whole or not at all. Replacing is a new folder
// and a switch of the row. Files go when their row is dead and nobody reads them. Any thread.
//   const std::string dir = registry.begin_save();   // its files are written there
//   const CheckpointRow row = registry.finish_save(dir, save, wall_seconds());
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "server/store/checkpoints/archive_budget.h"
#include "server/store/checkpoints/data_dir.h"
#include "server/store/checkpoints/model_merger.h"
#include "server/store/checkpoints/tinker_path.h"
#include "server/store/state/store.h"

namespace strata::server {

struct CheckpointSave {
  TinkerPath path;
  std::string tenant;
  std::optional<int64_t> ttl_seconds;
  std::optional<std::string> user_metadata;
  std::string base_model;
  api::LoraConfig lora;
  // False: a name that is used is an Error{kInvalidArgument}.
  bool overwrite = true;
  std::vector<std::string> age_recipients;  // keys as parsed; external checkpoints only
};

struct CheckpointFile {
  std::string name;
  int64_t size = 0;
};

struct RegistryOptions {
  int64_t max_disk = 0;            // bytes; 0: no limit
  bool accept_loss = false;        // forget checkpoints whose folders are missing, however many
  int64_t max_history = 10000;     // StateStore::prune_history
  int64_t keep_samplers = 131072;  // StateStore::prune_samplers
  double piece_seconds = 0.02;     // of a sweep, after which others come
  SharedLimit archives = SharedLimit(16LL << 30);  // bytes, by tenant
};

class CheckpointRegistry {
 public:
  // Moves folders without a row to DATA/lost, removes rows without a folder, and logs each. Error,
  // and nothing changed, when the folders are another server's, cannot be looked at, or more than a
  // tenth of them is missing.
  CheckpointRegistry(const DataDir& data, StateStore& store, const RegistryOptions& options);

  // A folder to write a save into; or its name alone, which touches no disk: whoever writes into it
  // makes it.
  std::string begin_save();
  [[nodiscard]] std::string name_folder() const { return data_.temporary_name(); }
  // Space for a save of about so many bytes, while the answer lives. Error{kIo} when --max-disk or
  // the disk had none left, as it was last seen, besides what is reserved. Touches no disk.
  std::shared_ptr<void> reserve_disk_space(int64_t bytes);
  // Error{kIo} when the disk or its limit (max_disk) is full; then nothing is left of the save.
  CheckpointRow finish_save(const std::string& dir, const CheckpointSave& save, double now);
  void abandon(const std::string& dir) noexcept;

  // Where the checkpoint's files lie. Error when the row's names make no such path.
  [[nodiscard]] std::string folder(const CheckpointRow& row) const;
  // What a client may download: no marker, no strata.json.
  [[nodiscard]] std::vector<CheckpointFile> list_downloadable_files(const CheckpointRow& row) const;

  // Alive and the tenant's own, or public if reading is all that is wanted; else Error{kNotFound},
  // the same for a foreign one and one that never was.
  CheckpointRow require_checkpoint(const TinkerPath& path, const std::string& tenant,
                                   bool may_be_public, double now);

  // Keeps the files while it lives, whatever happens to the row: for a load or a sampler that is
  // about to read them.
  std::shared_ptr<void> lease(const std::string& checkpoint_id);

  // Copies a readable checkpoint into a run of its own; idempotent by key. Returns the new path.
  // Error{kInvalidArgument} when there is a run of that id, Error{kResourceExhausted} when
  // --max-disk has no space for it.
  std::string copy_to_new_run(const CheckpointRow& source, RunRow run,
                              std::optional<int64_t> ttl_seconds, const Idempotency& key,
                              double now);

  // The tar of a checkpoint, below tmp, in the space of this tenant: made on the first call, which
  // takes a while. Busy when there is no space for it now; `steady` as for sweep().
  std::string ensure_archive(const CheckpointRow& row, const std::string& tenant, double steady);
  // False for one that is larger than any space.
  [[nodiscard]] bool fits_archive(const CheckpointRow& row) const;
  enum class Archive { kCheckpoint, kMerged };
  // Where it is, if it has been made, for somebody who reads it; or that of the checkpoint merged
  // into its model.
  [[nodiscard]] std::optional<std::string> touch_archive(const CheckpointRow& row, double steady,
                                                         Archive of = Archive::kCheckpoint);
  // The tar of the model that the checkpoint was trained on, its adapter merged: as
  // ensure_archive(), but minutes. False where the server is to end. Error as
  // ModelMerger::write has them; where no space is large enough for it kInvalidArgument, where the
  // disk has none kResourceExhausted.
  bool ensure_merged_archive(const CheckpointRow& row, const ModelMerger& merger, size_t model,
                             const std::string& tenant, double steady);

  // Removes what was deleted or expired and nobody reads; every few seconds, one thread at a time.
  // `now` is wall_seconds(), `steady` now_seconds(). Each step is tried, then the Error of one that
  // failed is thrown. A piece is some milliseconds of one sweep, whose times are those of its
  // first: true when there is more.
  bool sweep_piece(double now, double steady);
  // Checkpoints whose files went since the last call; the sweeping thread's.
  std::vector<std::string> take_gone() { return std::exchange(gone_, {}); }
  void sweep(double now, double steady) {
    while (sweep_piece(now, steady)) {
    }
  }

 private:
  struct Sweep;
  bool run_sweep_step(Sweep& sweep);
  bool remove_dead_batch(Sweep& sweep);
  void ensure_fingerprint();
  void reconcile_rows_with_folders();
  void check_few_are_missing(const std::vector<CheckpointRow>& missing, size_t all) const;
  // On the disk, whatever the store knows.
  [[nodiscard]] std::vector<std::string> list_checkpoint_folders() const;
  void forget_missing(const std::vector<CheckpointRow>& missing);
  void move_unknown_to_lost(const std::set<std::string>& known);
  void commit_row(const CheckpointRow& row, const std::function<void()>& add);
  void check_name_is_free(const CheckpointRow& row, double now);
  void check_max_disk(int64_t more, int64_t in_line, ErrorCode code) const;
  void update_available_bytes();
  // Links a copy's files and moves them into place; leaves nothing where that fails.
  void link_copy(const CheckpointRow& source, const CheckpointRow& copy);
  void move_into_place(const std::string& dir, const CheckpointRow& row);
  bool is_leased(const std::string& id);
  // Removes a checkpoint's files, and notes in the store that they are gone.
  void remove_checkpoint_files(const CheckpointRow& row);
  void remove_archives(const CheckpointRow& row);
  [[nodiscard]] std::string archive_path(const CheckpointRow& row, Archive of) const;
  struct BookedArchive {  // for as long as it is being packed
    ArchiveBudget& budget;
    std::string path;
    ~BookedArchive() { budget.finish_packing(path); }
  };
  BookedArchive reserve_space_evicting_archives(const std::string& path, const std::string& tenant,
                                                int64_t bytes, double steady);

  const DataDir& data_;
  StateStore& store_;
  const RegistryOptions options_;
  std::shared_ptr<std::atomic<int64_t>> reserved_ = std::make_shared<std::atomic<int64_t>>(0);
  // Bytes of the disk: at the start, behind a save or a sweep. Where it does not say, no limit.
  std::atomic<int64_t> available_ = std::numeric_limits<int64_t>::max();

  struct Leases {
    Mutex mutex;
    std::map<std::string, int> counts GUARDED_BY(mutex);
  };
  std::shared_ptr<Leases> leases_ = std::make_shared<Leases>();
  Mutex archive_mutex_;  // one archive is packed at a time
  Mutex merge_mutex_;    // likewise
  ArchiveBudget archive_budget_;
  // The sweeping thread's own.
  std::shared_ptr<Sweep> sweep_;  // that has begun
  std::vector<std::string> gone_;
};

}  // namespace strata::server
