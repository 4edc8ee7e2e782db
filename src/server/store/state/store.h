// SPDX-License-Identifier: Apache-2.0
// StateStore: what must survive a restart, as typed rows over SQLite or PostgreSQL. Checkpoint rows
// and their files are CheckpointRegistry's business (checkpoints/registry.h); use that for them.
// Any thread: one lock inside, held for one statement or one short transaction. `now` is always
// passed in: seconds since 1970, UTC. User metadata and tags are JSON texts that nobody here reads.
#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "api/command.h"
#include "base/function_ref.h"
#include "base/mutex.h"
#include "server/store/state/sql.h"
#include "server/store/state/store_mutex.h"
#include "server/store/state/tenant_sums.h"
#include "server/store/wall_clock.h"

namespace strata::server {

struct SessionRow {
  std::string id;  // neither '/' nor ':'
  std::string tenant;
  double created_at = 0;
  std::string sdk_version;
  std::string tags = "[]";
  std::optional<std::string> user_metadata;
  std::optional<std::string> display_name;
  std::string project_id = "default";
  std::string state = "active";  // active, finished, timed_out
  std::optional<double> ended_at;
  std::optional<std::string> end_reason;
  std::optional<std::string> end_detail;
};

struct SamplerRow {
  std::string id;
  std::string session_id;
  int64_t sampling_seq = 0;
  std::string tenant;
  double created_at = 0;
  std::string base_model;  // as this client wrote it, or the checkpoint's
  std::optional<std::string> model_path;
  std::optional<std::string> checkpoint_id;  // holds the checkpoint's files while the session lives
  bool is_ephemeral = false;                 // gone after a restart
  int64_t boot = 0;                          // set by the store
};

enum class RunState {
  kLive,
  kUnloaded,  // by the client, or its session ended
  kLost,      // alive when a process ended
  kCopy       // made by copy_weights: never had a model
};

struct RunRow {
  std::string id;
  std::string tenant;
  std::optional<std::string> session_id;
  std::optional<int64_t> model_seq;
  double created_at = 0;
  double last_request_at = 0;
  std::string base_model;  // as this client wrote it
  api::LoraConfig lora;
  std::optional<std::string> user_metadata;
  std::string project_id = "default";
  RunState state = RunState::kLive;
  std::optional<double> ended_at;
};

// As the columns `state` have them, runs' in the order of RunState: first who is alive, then how
// one ended.
inline constexpr const char* kSessionStates[] = {"active", "finished", "timed_out"};
inline constexpr const char* kRunStates[] = {"live", "unloaded", "lost", "copy"};

enum class CheckpointKind { kWeights, kSampler, kExternal };

struct CheckpointRow {
  std::string id;  // random: its folder's name
  std::string run_id;
  std::string tenant;
  CheckpointKind kind = CheckpointKind::kWeights;
  std::string name;
  double created_at = 0;
  int64_t size_bytes = 0;
  std::optional<double> expires_at;
  bool is_public = false;
  std::optional<std::string> user_metadata;
  std::string base_model;
  api::LoraConfig lora;
  std::optional<double> deleted_at;  // by hand, by a newer one of its name, or by expiry
};

// What one key has used, ever. Disk bytes are a tenant's: stored_bytes().
struct UsageRow {
  std::string tenant;
  std::string key_id;
  // Requests; tokens trained, sampled, and of prompts.
  std::array<int64_t, 4> counts = {};
  bool operator==(const UsageRow&) const = default;
};

// A client's key against doing a thing twice, and the hash of the request that it came with.
struct Idempotency {
  std::string name;  // empty: none
  int64_t fingerprint = 0;
};

class StateStore {
 public:
  // Opens, migrates, counts this boot, and marks the models of the last one as lost. Throws Error
  // and changes nothing where the store belongs to another data directory than that (its
  // fingerprint): a server that still uses it may just have lost its connection.
  StateStore(std::unique_ptr<Sql> sql, double now,
             std::optional<int64_t> data_directory = std::nullopt);
  ~StateStore();
  StateStore(const StateStore&) = delete;
  StateStore& operator=(const StateStore&) = delete;

  [[nodiscard]] int64_t boot() const { return boot_; }
  [[nodiscard]] double boot_time() const { return boot_time_; }

  // The calling thread serves everybody: it never waits for long (state/store_mutex.h).
  void hurry_this_thread() { mutex_.hurry_this_thread(); }
  // Whether the database was lost; revive() looks for it, and is an Error as long as it is away.
  [[nodiscard]] bool is_away() const { return sql_->is_away(); }
  void revive();

  // Refuses a database that belongs to another data directory: reconciling with the wrong folder
  // would remove every row.
  void bind_data_directory(int64_t fingerprint);

  // Whether the folder of checkpoints was given its mark, which must be there from then on.
  bool was_fingerprint_written();
  void set_fingerprint_written();

  // Tenants have small numbers, so that a URL need not show their names.
  int64_t intern_tenant(const std::string& tenant, double now);
  std::optional<std::string> find_tenant(int64_t number);

  // Adds the session unless this idempotency key ("": none) made one before; returns its id.
  // Conflict when that one was for another request.
  std::string ensure_session(const SessionRow& row, const Idempotency& key);
  std::optional<SessionRow> find_session(const std::string& id);
  std::map<std::string, std::string> read_active_sessions();  // ids, and whose they are
  // False when it had ended before; the first reason stays.
  bool end_session(const std::string& id, const std::string& state, const std::string& reason,
                   const std::string& detail, double now);
  // The session's, and some of its runs', behind the one of number `last` (-1: from the first);
  // true when there may be more.
  bool set_project_batch(const std::string& session_id, const std::string& project_id,
                         int64_t& last);

  // Adds the sampler unless (session, sampling_seq) has one; returns what is there.
  SamplerRow ensure_sampler(SamplerRow row);
  std::optional<SamplerRow> find_sampler(const std::string& id);
  bool has_samplers(const std::string& session_id);
  // How many samplers each active session has that has any, ephemeral ones apart.
  std::map<std::string, int64_t> count_samplers_by_session();
  // A tenant's rows, of sessions that ended too. Asks no database, as stored_bytes().
  int64_t num_samplers(const std::string& tenant);

  // Adds the run unless its id is there; true when it was added.
  [[nodiscard]] bool add_run(const RunRow& row);
  std::optional<RunRow> find_run(const std::string& id);
  void end_run(const std::string& id, RunState state, double now);
  void forget_run(const std::string& id);  // of a model whose creation failed
  // Written with the next flush_touches(), at most every few seconds. Waits for no database.
  void touch_run(const std::string& id, double now);
  void flush_touches();

  // Replaces a checkpoint of the same run, kind and name, if there is one, in one durable
  // transaction. Where its run was forgotten meanwhile, there is one of that id again.
  void upsert_checkpoint(const CheckpointRow& row);
  // Adds the checkpoint with a run of its own (copy_weights), remembered under the idempotency key.
  // False, and nothing is added, when the run's id is there.
  [[nodiscard]] bool add_copy(const RunRow& run, const CheckpointRow& checkpoint,
                              const Idempotency& key);
  // Alive: neither deleted nor expired at `now`.
  std::optional<CheckpointRow> find_checkpoint(const std::string& run_id, CheckpointKind kind,
                                               const std::string& name, double now);
  std::optional<CheckpointRow> find_checkpoint_by_id(const std::string& id);  // also a dead one
  std::optional<CheckpointRow> find_last_checkpoint(const std::string& run_id, CheckpointKind kind,
                                                    double now);
  bool delete_checkpoint(const std::string& id, double now);  // false when it was dead
  void set_expiry(const std::string& id, std::optional<double> expires_at);
  void set_public(const std::string& id, bool is_public);

  // For the registry, without user metadata: rows whose files may go (dead or expired, and no
  // sampler of a living session of its tenant reads them), some at a time, those from a place on;
  // rows whose files are there; and the steps between. expire() makes expiry final.
  struct CollectPlace {
    std::optional<double> deleted_by = {};     // what is deleted meanwhile is the next walk's
    std::optional<CheckpointRow> behind = {};  // this row
    std::string id = {};                       // of the next one, whose samplers
    int64_t sampler = -1;                      // behind this number are still to be looked at
    void go_to(const std::string& checkpoint) {
      if (std::exchange(id, checkpoint) != checkpoint) sampler = -1;
    }
    void pass(CheckpointRow row) { *this = {deleted_by, std::move(row)}; }
  };
  struct Collectable {
    std::vector<CheckpointRow> rows;
    std::optional<CollectPlace> next;  // none: there are no more
  };
  Collectable find_collectable(double now, const CollectPlace& from);
  Collectable find_collectable(double now) { return find_collectable(now, CollectPlace()); }
  std::vector<CheckpointRow> rows_with_files();
  void expire(const std::string& id);
  void mark_files_gone(const std::string& id);
  void forget_checkpoint(const std::string& id);
  // What the checkpoints take whose files are there. Asks no database, unless it failed to say
  // whether it had done what it was told.
  int64_t stored_bytes();
  int64_t stored_bytes(const std::string& tenant);

  // What every key has used; and rows of it as they are now.
  std::vector<UsageRow> read_usage_rows();
  void upsert_usage(const std::vector<UsageRow>& rows);

  // What was remembered under this key; Conflict when it was for another request.
  std::optional<std::string> find_remembered(const std::string& tenant, const std::string& scope,
                                             const Idempotency& key);

  // Records of stable_reinforce, opaque here; find_stability() counts as a use. Of a
  // tenant's that take more than `quota` bytes, those go that were not used for longest.
  struct StabilityRecord {
    std::string sequence_id;
    std::string record;
  };
  struct StabilityRequest {
    std::string tenant;
    std::string session;
    std::string id;  // of the request, in its session
    std::string prompt;
    std::vector<StabilityRecord> records;
  };
  static constexpr int64_t kStabilityRowBytes = 300;  // on disk, but for its values
  void save_stability_within_quota(const StabilityRequest& request, int64_t quota, double now);
  struct StabilityFound {
    std::optional<std::string> prompt;  // none: a record of before there were any
    std::string record;
  };
  // The record of a sequence, which counts as used now.
  std::optional<StabilityFound> find_stability(const std::string& session,
                                               const std::string& sequence_id, double now);

  // Drops what nobody can ask for any more: day-old idempotency keys and stability records, and
  // week-old dead checkpoints; a batch of them. True: there may be more.
  bool prune_old_rows(double now);
  // Drops sessions and runs that ended 30 days ago, and a tenant's beyond the newest `keep`, unless
  // a checkpoint is theirs; a batch of them. True when there may be more.
  bool prune_history(double now, int64_t keep);
  // Drops samplers of a tenant that has more than `keep`, those of the sessions that ended first; a
  // batch of them. True when there may be more.
  bool prune_samplers(int64_t keep);

 private:
  SqlResult run(std::string_view statement, std::vector<SqlValue> parameters) REQUIRES(mutex_);
  // Runs `statement`, in which "{}" stands for rows of values such as `row`, some rows at a time,
  // each time under the lock anew.
  void run_in_batches(std::string_view statement, std::string_view row, size_t count,
                      FunctionRef<std::vector<SqlValue>(size_t index)> values);
  std::optional<std::string> find_remembered_locked(const std::string& tenant,
                                                    const std::string& scope,
                                                    const Idempotency& key) REQUIRES(mutex_);
  // prune_old_rows(): of before some time, `most` at most; how many, or whose they were.
  int64_t delete_older(const char* table, const char* key, const char* time, double before,
                       int64_t most) REQUIRES(mutex_);
  SqlResult delete_older_prompts(double before, int64_t most) REQUIRES(mutex_);
  SqlResult delete_dead_checkpoints(double before, int64_t most) REQUIRES(mutex_);
  int64_t next_number() REQUIRES(mutex_) { return ++number_; }
  int64_t sum_stability_bytes(const std::string& tenant) REQUIRES(mutex_);
  void upsert_stability_records(const StabilityRequest& request, double now);
  // The request's prompt, with the `bytes` that all of it takes.
  void insert_stability_prompt(const StabilityRequest& request, int64_t bytes, double now);
  void touch_stability(const std::string& session, const std::string& sequence_id,
                       const SqlValue& prompt_id, double now) REQUIRES(mutex_);
  // The requests up to one in the order of their use, with some of their records; true when those
  // were not all: then they stay.
  bool delete_stability_up_to(const std::string& tenant, const SqlRow& last) REQUIRES(mutex_);
  // `last`: the tenant, and what orders that one; how many records went.
  int64_t delete_some_records_up_to(std::vector<SqlValue> last) REQUIRES(mutex_);
  SqlResult read_oldest_stability(const std::string& tenant) REQUIRES(mutex_);
  // `dropped`: rows of a tenant and bytes.
  void commit_dropped_stability(Transaction& transaction, const SqlResult& dropped)
      REQUIRES(mutex_);
  // Commits; from then on the tenant's records take `bytes`.
  void commit_stability(Transaction& transaction, const std::string& tenant, int64_t bytes)
      REQUIRES(mutex_);
  // A request whose number came before, and was forgotten.
  void delete_stability(const StabilityRequest& request);
  // A batch of those that a tenant has beyond so many bytes; true when there are more.
  bool delete_oldest_stability(const std::string& tenant, int64_t most);
  // Synced when it returns: what a client was told stays true.
  void set_checkpoint_column(const char* column, SqlValue value, const std::string& id);
  // Forgets the touches of runs that were not touched again meanwhile.
  void forget_written_touches(const std::map<std::string, double>& written);
  // False where its id is there.
  [[nodiscard]] bool insert_run(const RunRow& row) REQUIRES(mutex_);
  void insert_checkpoint(const CheckpointRow& row) REQUIRES(mutex_);
  void delete_replaced_checkpoint(const CheckpointRow& by) REQUIRES(mutex_);
  void remember_copy(const RunRow& run_row, const CheckpointRow& checkpoint, const Idempotency& key)
      REQUIRES(mutex_);
  // False where a session was remembered under this key before.
  [[nodiscard]] bool try_remember_session(const SessionRow& row, const Idempotency& key)
      REQUIRES(mutex_);
  void insert_session(const SessionRow& row) REQUIRES(mutex_);
  // How many rows were added: none where the session has one of this number.
  int64_t insert_sampler(const SamplerRow& row) REQUIRES(mutex_);
  // Runs a statement that takes the files of a checkpoint, or its row with them.
  void free_checkpoint_bytes(const char* statement, const std::string& id) REQUIRES(mutex_);
  // Whether a sampler of the tenant's living sessions reads the place's checkpoint; nothing: `left`
  // samplers were not all, and the place is behind those.
  std::optional<bool> look_for_readers(const std::string& tenant, CollectPlace& place,
                                       int64_t& left) REQUIRES(mutex_);
  // When the last checkpoint was deleted whose files are there; -1: none was.
  double find_last_deletion() REQUIRES(mutex_);
  // Rows of checkpoints and whether there are samplers of them, a batch: those behind `last`, in
  // the order of their time `when`, up to `until`.
  SqlResult read_ended_by_time(const char* which, const char* when, double until,
                               const CheckpointRow* last) REQUIRES(mutex_);
  // The next checkpoints that were deleted or have expired.
  SqlResult read_next_ended_checkpoints(double now, CollectPlace& from) REQUIRES(mutex_);
  void count_boot() REQUIRES(mutex_);
  double find_newest_time() REQUIRES(mutex_);
  void mark_live_runs_lost(double now) REQUIRES(mutex_);
  void load_highest_number() REQUIRES(mutex_);
  void load_stored_bytes() REQUIRES(mutex_);
  void load_sampler_counts() REQUIRES(mutex_);
  // Tenants, of a statement that ended rows or took what kept them.
  void note_ended(const SqlResult& tenants) REQUIRES(mutex_);
  // prune_history() walks over what ended, kept rows too: `ended` are the tenants to look at, none:
  // all.
  struct HistoryWalk;
  std::shared_ptr<HistoryWalk> begin_history_walk(double now,
                                                  const std::optional<std::set<std::string>>& ended)
      REQUIRES(mutex_);
  void add_next_tenant(HistoryWalk& walk) REQUIRES(mutex_);
  void add_scans_of_next_tenant(HistoryWalk& walk, int64_t keep, int64_t& left) REQUIRES(mutex_);
  void add_scans(HistoryWalk& walk, const std::string& tenant, int64_t keep) REQUIRES(mutex_);
  // Goes on by `left` rows, those that it drops counted; with what it drops of `samplers`.
  void prune_rows(HistoryWalk& walk, int64_t& left, TenantSums::Sums& samplers) REQUIRES(mutex_);
  // A row of the walk's first scan, with what is a session's: false where of that there may be
  // more, and it stays.
  bool try_delete_ended(HistoryWalk& walk, const std::string& id, const std::string& tenant,
                        int64_t most, int64_t& left, TenantSums::Sums& samplers) REQUIRES(mutex_);
  // Samplers and runs of a session, `most` at most of each; false where there may be more.
  bool delete_samplers_and_runs(const std::string& session, const std::string& tenant, int64_t most,
                                int64_t& left, TenantSums::Sums& samplers) REQUIRES(mutex_);
  // prune_samplers(): tenants that have too many, and the number of the session that was looked at
  // last of the last of them.
  struct SamplerWalk {
    std::vector<std::string> tenants;
    int64_t number = -1;
  };
  // Goes on by `left` rows with the walk's last tenant; with what it drops in `more`.
  void prune_samplers_of_tenant(SamplerWalk& walk, int64_t keep, int64_t& left,
                                TenantSums::Sums& more) REQUIRES(mutex_);
  // Those of a row of read_ended_sessions(), `most` at most; how many there were.
  int64_t delete_samplers_of(const SqlRow& ended_session, int64_t most, int64_t& left)
      REQUIRES(mutex_);
  // Ids and numbers of a tenant's, and whether samplers are theirs, in order.
  SqlResult read_ended_sessions(const std::string& tenant, int64_t behind, int64_t most)
      REQUIRES(mutex_);
  // Deletes at most `most` rows of one session; how many there were.
  int64_t delete_by_session(const char* table, const std::string& session, int64_t most)
      REQUIRES(mutex_);

  std::unique_ptr<Sql> sql_;  // statements under the mutex; sync() on any thread
  StoreMutex mutex_{*sql_};
  int64_t boot_ = 0;
  double boot_time_ = 0;
  int64_t number_ GUARDED_BY(mutex_) = 0;  // the highest in use
  Mutex touched_mutex_;  // its own: requests touch their run, whether the database hangs or not
  std::map<std::string, double> touched_ GUARDED_BY(touched_mutex_);
  std::map<std::string, int64_t> stability_bytes_ GUARDED_BY(mutex_);  // by tenant, where known
  // Changed under the mutex.
  TenantSums stored_;                                // bytes of checkpoints whose files are there
  TenantSums samplers_;                              // rows
  double looked_at_age_ GUARDED_BY(mutex_) = -1e18;  // prune_history(), at all that is old
  std::shared_ptr<HistoryWalk> history_ GUARDED_BY(mutex_);  // not at its end
  std::optional<SamplerWalk> sampler_walk_ GUARDED_BY(mutex_);
  // Tenants of whom a session or run ended, or lost what kept it, since prune_history() began;
  // nothing: of whom, nobody knows.
  std::optional<std::set<std::string>> ended_ GUARDED_BY(mutex_);
};

std::string_view kind_name(CheckpointKind kind);  // weights, sampler_weights, external_weights
std::string lora_text(const api::LoraConfig& lora);
api::LoraConfig parse_lora_config(std::string_view text);

}  // namespace strata::server
