// SPDX-License-Identifier: Apache-2.0
// The registry's sweep: what was deleted or has expired goes, in pieces.
#include <fmt/format.h>
#include <unistd.h>

#include <exception>
#include <memory>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/files.h"
#include "server/store/checkpoints/registry.h"

namespace strata::server {
namespace {

constexpr double kOldArchive = 7200;  // s without a reader
constexpr int kSweepSteps = 6;

// rmdir refuses those that are not empty.
void remove_empty_parents(const std::string& path, const std::string& top) {
  for (std::string parent = folder_of(path); parent != top; parent = folder_of(parent)) {
    if (::rmdir(parent.c_str()) != 0) break;
  }
}

}  // namespace

struct CheckpointRegistry::Sweep {
  double now, steady;
  double until = 0;  // of the piece: now_seconds()
  int step = 0;
  StateStore::CollectPlace place = {};  // behind what was collected, or may not go yet
  std::string fault = {};               // of one step; the others are done all the same

  template <typename Body>
  void run_noting_fault(Body body) {
    try {
      body();
    } catch (const std::exception& error) {
      fault = error.what();
    }
  }
};

bool CheckpointRegistry::sweep_piece(double now, double steady) {
  if (!sweep_) sweep_ = std::make_shared<Sweep>(Sweep{now, steady});
  sweep_->until = now_seconds() + options_.piece_seconds;
  do {
    bool has_more = false;
    sweep_->run_noting_fault([&] { has_more = run_sweep_step(*sweep_); });
    if (!has_more) ++sweep_->step;
  } while (sweep_->step < kSweepSteps && now_seconds() < sweep_->until);
  if (sweep_->step < kSweepSteps) return true;
  const std::shared_ptr<Sweep> swept = std::move(sweep_);
  update_available_bytes();
  if (!swept->fault.empty()) throw Error(ErrorCode::kIo, swept->fault);
  return false;
}

bool CheckpointRegistry::run_sweep_step(Sweep& sweep) {
  switch (sweep.step) {
    case 0:
      store_.flush_touches();
      return false;
    case 1:
      return remove_dead_batch(sweep);
    case 2:
      return store_.prune_old_rows(sweep.now);
    case 3:
      return store_.prune_history(sweep.now, options_.max_history);
    case 4:
      return store_.prune_samplers(options_.keep_samplers);
    default:
      archive_budget_.remove_idle(sweep.steady, kOldArchive);  // packed anew when asked for
      return false;
  }
}

bool CheckpointRegistry::remove_dead_batch(Sweep& sweep) {
  StateStore::Collectable batch = store_.find_collectable(sweep.now, sweep.place);
  for (CheckpointRow& row : batch.rows) {
    sweep.run_noting_fault([&] {
      if (is_leased(row.id)) return;
      if (!row.deleted_at) store_.expire(row.id);
      remove_checkpoint_files(row);
    });
    if (now_seconds() > sweep.until) {
      batch.next->pass(std::move(row));
      break;
    }
  }
  if (!batch.next) return false;
  sweep.place = std::move(*batch.next);
  return true;
}

void CheckpointRegistry::remove_checkpoint_files(const CheckpointRow& row) {
  const std::string dir = folder(row);
  // First out of sight in one step: a kill leaves all of it or nothing, and the next start empties
  // the folder that it goes to.
  const std::string going = fmt::format("{}/{}.gone", data_.temporary(), row.id);
  if (exists_checked(dir)) rename_folder(dir, going);
  remove_tree(going);
  remove_archives(row);
  store_.mark_files_gone(row.id);
  gone_.push_back(row.id);
  remove_empty_parents(dir, data_.checkpoints());
}

void CheckpointRegistry::remove_archives(const CheckpointRow& row) {
  for (const Archive of : {Archive::kCheckpoint, Archive::kMerged}) {
    remove_file(archive_path(row, of));
    archive_budget_.drop(archive_path(row, of));
  }
}

}  // namespace strata::server
