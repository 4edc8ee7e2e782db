// SPDX-License-Identifier: Apache-2.0
#include "server/store/state/store.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/conflict.h"
#include "base/error.h"
#include "base/log.h"
#include "server/store/state/rows.h"
#include "server/store/state/schema.h"
#include "server/store/wall_clock.h"
#include "text/json_reader.h"
#include "text/unicode/unicode.h"

namespace strata::server {
namespace {

constexpr double kDay = 86400;

// Clients are told it: no statement in it.
void check_text(const SqlValue& value) {
  const auto* text = std::get_if<std::string>(&value);
  if (text == nullptr) return;
  if (text->find('\0') == std::string::npos && text::is_valid_utf8(*text)) return;
  throw Error(ErrorCode::kInvalidArgument, "a text with a NUL, or one that is not UTF-8");
}

size_t size_of(const SqlValue& value) {
  if (const auto* text = std::get_if<std::string>(&value)) return text->size();
  const auto* blob = std::get_if<Blob>(&value);
  return blob == nullptr ? sizeof(int64_t) : blob->bytes.size();
}

// Rows from `next` on, as many as are sent at once.
std::vector<std::vector<SqlValue>> make_batch(
    size_t next, size_t count, FunctionRef<std::vector<SqlValue>(size_t index)> values) {
  constexpr size_t kMost = 64, kMostBytes = 1 << 20;
  std::vector<std::vector<SqlValue>> batch;
  for (size_t bytes = 0; batch.size() < std::min(kMost, count - next) && bytes < kMostBytes;) {
    batch.push_back(values(next + batch.size()));
    for (const SqlValue& value : batch.back()) bytes += size_of(value);
  }
  // Batches have few sizes, since a database keeps each statement that it was told.
  batch.resize(batch.size() == kMost ? kMost : batch.size() >= 8 ? 8 : 1);
  return batch;
}

std::vector<SqlValue> joined(std::vector<std::vector<SqlValue>> rows) {
  std::vector<SqlValue> values;
  for (auto& row : rows) std::ranges::move(row, std::back_inserter(values));
  return values;
}

// Deletes rows of before some time: the first so many.
std::string delete_older_sql(const char* table, const char* key, const char* time) {
  return fmt::format("DELETE FROM {0} WHERE ({1}) IN (SELECT {1} FROM {0} WHERE {2} < ? LIMIT ?)",
                     table, key, time);
}

// Rows of a tenant and bytes, off the sums of the tenants that have one.
void subtract_known(const SqlResult& dropped, std::map<std::string, int64_t>& sums) {
  for (const SqlRow& row : dropped.rows) {
    const auto known = sums.find(std::get<std::string>(row[0]));
    if (known != sums.end()) known->second -= std::get<int64_t>(row[1]);
  }
}

void check_bound_fingerprint(Sql& sql, int64_t fingerprint) {
  const SqlResult bound = sql.run("SELECT value FROM meta WHERE name = 'data_directory'", {});
  if (bound.rows.empty() || std::get<int64_t>(bound.rows[0][0]) == fingerprint) return;
  throw Error(ErrorCode::kInvalidArgument,
              "--data: the state store belongs to another data directory; give that one, or an "
              "empty database (--db)");
}

// In a transaction that is rolled back: a new database has no table to look into.
void check_data_directory(Sql& sql, int64_t fingerprint) {
  const Transaction looked(sql);
  read_schema_version(sql);
  check_bound_fingerprint(sql, fingerprint);
}

}  // namespace

std::string_view kind_name(CheckpointKind kind) {
  switch (kind) {
    case CheckpointKind::kWeights:
      return "weights";
    case CheckpointKind::kSampler:
      return "sampler_weights";
    case CheckpointKind::kExternal:
      return "external_weights";
  }
  return "";
}

std::string lora_text(const api::LoraConfig& lora) {
  // The seed is a text: JSON readers elsewhere would round 64 bits.
  return fmt::format(
      R"({{"rank":{},"seed":"{}","train_attn":{},"train_mlp":{},"train_unembed":{}}})", lora.rank,
      lora.seed, lora.train_attn, lora.train_mlp, lora.train_unembed);
}

api::LoraConfig parse_lora_config(std::string_view text) {
  api::LoraConfig lora;
  text::JsonReader json(text, "lora");
  json.begin_object();
  for (std::string key; json.next_key(key);) {
    if (key == "rank") {
      lora.rank = json.read_integer();
    } else if (key == "seed") {
      lora.seed = std::stoull(json.read_string());
    } else if (key == "train_attn") {
      lora.train_attn = json.read_boolean();
    } else if (key == "train_mlp") {
      lora.train_mlp = json.read_boolean();
    } else if (key == "train_unembed") {
      lora.train_unembed = json.read_boolean();
    } else {
      json.skip();
    }
  }
  json.end();
  return lora;
}

StateStore::StateStore(std::unique_ptr<Sql> sql, double now, std::optional<int64_t> data_directory)
    : sql_(std::move(sql)), boot_time_(now) {
  if (data_directory) check_data_directory(*sql_, *data_directory);
  migrate(*sql_);
  Transaction transaction(*sql_, Durability::kFull);
  const std::string warning = clock_warning(now, find_newest_time());
  if (!warning.empty()) log(LogLevel::kWarning, warning);
  count_boot();
  mark_live_runs_lost(now);
  load_highest_number();
  load_stored_bytes();
  load_sampler_counts();
  transaction.commit();
}

// When the newest of what is stored was made or touched; 0 where nothing is.
double StateStore::find_newest_time() {
  double newest = 0;
  constexpr std::pair<const char*, const char*> kTimes[] = {{"sessions", "created_at"},
                                                            {"checkpoints", "created_at"},
                                                            {"runs", "created_at"},
                                                            {"runs", "last_request_at"}};
  for (const auto& [table, column] : kTimes) {
    const SqlResult found =
        run(fmt::format("SELECT COALESCE(MAX({}), 0.0) FROM {}", column, table), {});
    newest = std::max(newest, std::get<double>(found.rows[0][0]));
  }
  return newest;
}

void StateStore::count_boot() {
  run("UPDATE meta SET value = value + 1 WHERE name = 'boot'", {});
  boot_ = rows::only_number(run("SELECT value FROM meta WHERE name = 'boot'", {}));
}

void StateStore::mark_live_runs_lost(double now) {
  run("UPDATE runs SET state = 'lost', ended_at = ? WHERE state = 'live'", {now});
}

void StateStore::load_highest_number() {
  for (const char* table : {"tenants", "sessions", "samplers", "runs", "checkpoints"}) {
    number_ = std::max(
        number_,
        rows::only_number(run(fmt::format("SELECT COALESCE(MAX(number), 0) FROM {}", table), {})));
  }
}

StateStore::~StateStore() {
  try {
    flush_touches();
  } catch (const Error&) {
    // The times of the last few seconds are lost; the database has said why to those who asked.
  }
}

SqlResult StateStore::run(std::string_view statement, std::vector<SqlValue> parameters) {
  for (const SqlValue& parameter : parameters) check_text(parameter);
  return sql_->run(statement, parameters);
}

void StateStore::revive() {
  const StoreLock lock(mutex_);
  run("SELECT value FROM meta WHERE name = 'boot'", {});
}

void StateStore::bind_data_directory(int64_t fingerprint) {
  const StoreLock lock(mutex_);
  run("INSERT INTO meta (name, value) VALUES ('data_directory', ?) "
      "ON CONFLICT (name) DO NOTHING",
      {fingerprint});
  check_bound_fingerprint(*sql_, fingerprint);
}

bool StateStore::was_fingerprint_written() {
  const StoreLock lock(mutex_);
  return !run("SELECT value FROM meta WHERE name = 'checkpoints_marked'", {}).rows.empty();
}

void StateStore::set_fingerprint_written() {
  const StoreLock lock(mutex_);
  run("INSERT INTO meta (name, value) VALUES ('checkpoints_marked', 1) "
      "ON CONFLICT (name) DO NOTHING",
      {});
}

int64_t StateStore::intern_tenant(const std::string& tenant, double now) {
  const StoreLock lock(mutex_);
  const SqlResult found = run("SELECT number FROM tenants WHERE name = ?", {tenant});
  if (!found.rows.empty()) return rows::only_number(found);
  const int64_t number = next_number();
  run("INSERT INTO tenants (name, number, created_at) VALUES (?, ?, ?) "
      "ON CONFLICT (name) DO NOTHING",
      {tenant, number, now});
  return number;
}

std::optional<std::string> StateStore::find_tenant(int64_t number) {
  const StoreLock lock(mutex_);
  const SqlResult found = run("SELECT name FROM tenants WHERE number = ?", {number});
  if (found.rows.empty()) return std::nullopt;
  return std::get<std::string>(found.rows[0][0]);
}

void StateStore::run_in_batches(std::string_view statement, std::string_view row, size_t count,
                                FunctionRef<std::vector<SqlValue>(size_t index)> values) {
  for (size_t next = 0; next < count;) {
    std::vector<std::vector<SqlValue>> batch = make_batch(next, count, values);
    const std::vector<std::string_view> places(batch.size(), row);
    std::vector<SqlValue> parameters = joined(std::move(batch));
    const StoreLock lock(mutex_);
    Transaction transaction(*sql_);
    run(fmt::format(fmt::runtime(statement), fmt::join(places, ", ")), std::move(parameters));
    transaction.commit();
    next += places.size();
  }
}

std::optional<std::string> StateStore::find_remembered(const std::string& tenant,
                                                       const std::string& scope,
                                                       const Idempotency& key) {
  const StoreLock lock(mutex_);
  return find_remembered_locked(tenant, scope, key);
}

std::optional<std::string> StateStore::find_remembered_locked(const std::string& tenant,
                                                              const std::string& scope,
                                                              const Idempotency& key) {
  const SqlResult found =
      run("SELECT value, fingerprint FROM idempotency "
          "WHERE tenant = ? AND scope = ? AND name = ?",
          {tenant, scope, key.name});
  if (found.rows.empty()) return std::nullopt;
  const auto* fingerprint = std::get_if<int64_t>(&found.rows[0][1]);
  if (fingerprint != nullptr && *fingerprint != key.fingerprint) {
    throw Conflict("X-Idempotency-Key: this key was used for another request; use a new one");
  }
  return std::get<std::string>(found.rows[0][0]);
}

int64_t StateStore::delete_older(const char* table, const char* key, const char* time,
                                 double before, int64_t most) {
  return run(delete_older_sql(table, key, time), {before, most}).changed;
}

SqlResult StateStore::delete_older_prompts(double before, int64_t most) {
  return run(delete_older_sql("stability_prompts", "session_id, id", "last_used") +
                 " RETURNING tenant, bytes",
             {before, most});
}

SqlResult StateStore::delete_dead_checkpoints(double before, int64_t most) {
  return run(
      "DELETE FROM checkpoints WHERE id IN (SELECT id FROM checkpoints WHERE files_gone = 1 "
      "AND deleted_at < ? LIMIT ?) RETURNING tenant",
      {before, most});
}

void StateStore::commit_dropped_stability(Transaction& transaction, const SqlResult& dropped) {
  std::map<std::string, int64_t> bytes = std::exchange(stability_bytes_, {});
  transaction.commit();
  subtract_known(dropped, bytes);
  stability_bytes_ = std::move(bytes);
}

bool StateStore::prune_old_rows(double now) {
  constexpr int64_t kLarge = 10;  // what a row counts for that may have hundreds of pages
  const StoreLock lock(mutex_);
  Transaction transaction(*sql_);
  int64_t left = rows::kAtOnce;
  left -= delete_older("idempotency", "tenant, scope, name", "created_at", now - kDay, left);
  left -= kLarge * delete_older("stability", "session_id, sequence_id", "last_used", now - kDay,
                                left / kLarge);
  const SqlResult prompts = delete_older_prompts(now - kDay, left / kLarge);
  left -= kLarge * std::ssize(prompts.rows);
  const SqlResult checkpoints = delete_dead_checkpoints(now - 7 * kDay, left);
  left -= std::ssize(checkpoints.rows);
  note_ended(checkpoints);  // what kept a session or run is gone
  commit_dropped_stability(transaction, prompts);
  return left < kLarge;
}

}  // namespace strata::server
