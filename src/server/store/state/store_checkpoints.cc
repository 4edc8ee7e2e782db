// SPDX-License-Identifier: Apache-2.0
// Checkpoint rows of the state store. A row dies (deleted_at) and only later loses its files, when
// no sampler of a living session reads them; a signed URL can then still say "gone".
#include <fmt/format.h>

#include <algorithm>

#include "server/store/state/rows.h"
#include "server/store/state/store.h"

namespace strata::server {
namespace {

CheckpointKind kind_of(const std::string& name) {
  if (name == kind_name(CheckpointKind::kWeights)) return CheckpointKind::kWeights;
  if (name == kind_name(CheckpointKind::kSampler)) return CheckpointKind::kSampler;
  return CheckpointKind::kExternal;
}

SqlValue kind_value(CheckpointKind kind) { return std::string(kind_name(kind)); }

std::string select_sql(const std::string& rest) {
  return fmt::format("SELECT {} FROM checkpoints WHERE {}", rows::kCheckpointColumns, rest);
}

// Without what a client may have written into it; with a further column in front of `rest`.
std::string select_sql_without_metadata(const std::string& rest, const std::string& more = "NULL") {
  std::string columns = rows::kCheckpointColumns;
  constexpr std::string_view kText = "user_metadata";
  columns.replace(columns.find(kText), kText.size(), "NULL");
  return fmt::format("SELECT {}, {} FROM checkpoints WHERE {}", columns, more, rest);
}

// A row for the run of a checkpoint that was forgotten while it was written: its session had ended.
RunRow make_forgotten_run(const CheckpointRow& row) {
  RunRow run;
  run.id = row.run_id;
  run.tenant = row.tenant;
  run.created_at = row.created_at;
  run.last_request_at = row.created_at;
  run.base_model = row.base_model;
  run.lora = row.lora;
  run.state = RunState::kUnloaded;
  run.ended_at = row.created_at;
  return run;
}

constexpr int64_t kCollectBatch = 100;     // rows that are read under the lock at once
constexpr int64_t kCollectSamplers = 500;  // and samplers of them

}  // namespace

CheckpointRow rows::read_checkpoint(const SqlRow& row) {
  Reader in(row);
  CheckpointRow out;
  out.id = in.text();
  out.run_id = in.text();
  out.tenant = in.text();
  out.kind = kind_of(in.text());
  out.name = in.text();
  out.created_at = in.real();
  out.size_bytes = in.integer();
  out.expires_at = in.maybe_real();
  out.is_public = in.flag();
  out.user_metadata = in.maybe_text();
  out.base_model = in.text();
  out.lora = parse_lora_config(in.text());
  out.deleted_at = in.maybe_real();
  return out;
}

std::string rows::last_checkpoint_sql() {
  return select_sql(
      fmt::format("id = (SELECT id FROM checkpoints WHERE run_id = ? AND kind = ? AND "
                  "{} ORDER BY number DESC LIMIT 1)",
                  kAlive));
}

void StateStore::insert_checkpoint(const CheckpointRow& row) {
  run("INSERT INTO checkpoints (id, run_id, tenant, kind, name, number, created_at, size_bytes, "
      "expires_at, is_public, user_metadata, base_model, lora, files_gone) "
      "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0)",
      {row.id, row.run_id, row.tenant, kind_value(row.kind), row.name, next_number(),
       row.created_at, row.size_bytes, rows::nullable(row.expires_at),
       static_cast<int64_t>(row.is_public), rows::nullable(row.user_metadata), row.base_model,
       lora_text(row.lora)});
}

void StateStore::delete_replaced_checkpoint(const CheckpointRow& by) {
  run("UPDATE checkpoints SET deleted_at = ? "
      "WHERE run_id = ? AND kind = ? AND name = ? AND deleted_at IS NULL",
      {by.created_at, by.run_id, kind_value(by.kind), by.name});
}

void StateStore::upsert_checkpoint(const CheckpointRow& row) {
  {
    const StoreLock lock(mutex_);
    Transaction transaction(*sql_, Durability::kLater);
    delete_replaced_checkpoint(row);
    insert_checkpoint(row);
    (void)insert_run(make_forgotten_run(row));  // it is there, as a rule
    stored_.commit_growth(transaction, {{row.tenant, row.size_bytes}});
  }
  sql_->sync();
}

void StateStore::remember_copy(const RunRow& run_row, const CheckpointRow& checkpoint,
                               const Idempotency& key) {
  run("INSERT INTO idempotency (tenant, scope, name, value, created_at, fingerprint) "
      "VALUES (?, 'copy', ?, ?, ?, ?)",
      {run_row.tenant, key.name,
       fmt::format("tinker://{}/{}/{}", run_row.id, kind_name(checkpoint.kind), checkpoint.name),
       run_row.created_at, key.fingerprint});
}

bool StateStore::add_copy(const RunRow& run_row, const CheckpointRow& checkpoint,
                          const Idempotency& key) {
  {
    const StoreLock lock(mutex_);
    Transaction transaction(*sql_, Durability::kLater);
    if (!insert_run(run_row)) return false;
    if (ended_) ended_->insert(run_row.tenant);  // a copy's run is over
    insert_checkpoint(checkpoint);
    if (!key.name.empty()) remember_copy(run_row, checkpoint, key);
    stored_.commit_growth(transaction, {{checkpoint.tenant, checkpoint.size_bytes}});
  }
  sql_->sync();
  return true;
}

std::optional<CheckpointRow> StateStore::find_checkpoint(const std::string& run_id,
                                                         CheckpointKind kind,
                                                         const std::string& name, double now) {
  const StoreLock lock(mutex_);
  return rows::read_first(
      run(select_sql(fmt::format("run_id = ? AND kind = ? AND name = ? AND {}", rows::kAlive)),
          {run_id, kind_value(kind), name, now}),
      rows::read_checkpoint);
}

std::optional<CheckpointRow> StateStore::find_checkpoint_by_id(const std::string& id) {
  const StoreLock lock(mutex_);
  return rows::read_first(run(select_sql("id = ?"), {id}), rows::read_checkpoint);
}

std::optional<CheckpointRow> StateStore::find_last_checkpoint(const std::string& run_id,
                                                              CheckpointKind kind, double now) {
  const StoreLock lock(mutex_);
  return rows::read_first(run(rows::last_checkpoint_sql(), {run_id, kind_value(kind), now}),
                          rows::read_checkpoint);
}

bool StateStore::delete_checkpoint(const std::string& id, double now) {
  int64_t changed = 0;
  {
    const StoreLock lock(mutex_);
    Transaction transaction(*sql_, Durability::kLater);
    changed =
        run(fmt::format("UPDATE checkpoints SET deleted_at = ? WHERE id = ? AND {}", rows::kAlive),
            {now, id, now})
            .changed;
    transaction.commit();
  }
  sql_->sync();
  return changed > 0;
}

void StateStore::set_expiry(const std::string& id, std::optional<double> expires_at) {
  set_checkpoint_column("expires_at", rows::nullable(expires_at), id);
}

void StateStore::set_public(const std::string& id, bool is_public) {
  set_checkpoint_column("is_public", static_cast<int64_t>(is_public), id);
}

void StateStore::set_checkpoint_column(const char* column, SqlValue value, const std::string& id) {
  {
    const StoreLock lock(mutex_);
    Transaction transaction(*sql_, Durability::kLater);
    run(fmt::format("UPDATE checkpoints SET {} = ? WHERE id = ?", column), {std::move(value), id});
    transaction.commit();
  }
  sql_->sync();
}

StateStore::Collectable StateStore::find_collectable(double now, const CollectPlace& from) {
  const StoreLock lock(mutex_);
  CollectPlace place = from;
  const SqlResult ended = read_next_ended_checkpoints(now, place);
  Collectable found;
  if (ended.rows.empty()) return found;
  int64_t left = kCollectSamplers;
  for (const SqlRow& row : ended.rows) {
    CheckpointRow checkpoint = rows::read_checkpoint(row);
    place.go_to(checkpoint.id);
    const bool has_samplers = std::get<int64_t>(row.back()) != 0;
    const auto read = has_samplers ? look_for_readers(checkpoint.tenant, place, left) : false;
    if (!read) break;
    if (!*read) found.rows.push_back(checkpoint);
    place.pass(std::move(checkpoint));
  }
  found.next = std::move(place);
  return found;
}

std::optional<bool> StateStore::look_for_readers(const std::string& tenant, CollectPlace& place,
                                                 int64_t& left) {
  if (left <= 0) return std::nullopt;
  const int64_t most = left;
  const SqlResult samplers =
      run("SELECT samplers.number, sessions.state, samplers.tenant FROM samplers JOIN sessions ON "
          "sessions.id = samplers.session_id WHERE samplers.checkpoint_id = ? AND "
          "samplers.number > ? ORDER BY samplers.number LIMIT ?",
          {place.id, place.sampler, most});
  left -= std::ssize(samplers.rows) + kCollectSamplers / 20;
  const auto keeps = [&](const SqlRow& sampler) {
    return std::get<std::string>(sampler[1]) == "active" &&
           std::get<std::string>(sampler[2]) == tenant;
  };
  if (std::ranges::any_of(samplers.rows, keeps)) return true;
  if (std::ssize(samplers.rows) < most) return false;
  place.sampler = std::get<int64_t>(samplers.rows.back()[0]);
  return std::nullopt;
}

double StateStore::find_last_deletion() {
  const SqlResult newest =
      run("SELECT MAX(deleted_at) FROM checkpoints WHERE files_gone = 0 AND deleted_at IS NOT NULL",
          {});
  return rows::Reader(newest.rows[0]).maybe_real().value_or(-1);
}

SqlResult StateStore::read_ended_by_time(const char* which, const char* when, double until,
                                         const CheckpointRow* last) {
  const std::string has_samplers =
      rows::exists("SELECT 1 FROM samplers WHERE checkpoint_id = checkpoints.id");
  double begin = -1;
  if (last != nullptr) begin = last->deleted_at ? *last->deleted_at : last->expires_at.value();
  const std::string rest =
      fmt::format("{0} AND {1} <= ? AND {1} >= ? AND ({1} > ? OR id > ?) ORDER BY {1}, id LIMIT ?",
                  which, when);
  return run(select_sql_without_metadata(rest, has_samplers),
             {until, begin, begin, last == nullptr ? "" : last->id, kCollectBatch});
}

SqlResult StateStore::read_next_ended_checkpoints(double now, CollectPlace& from) {
  if (!from.deleted_by) from.deleted_by = find_last_deletion();
  const CheckpointRow* last = from.behind ? &*from.behind : nullptr;
  // Two selects, since no index serves an OR of two columns; the plus keeps the second one from
  // checkpoints_by_end, where all that live stand together.
  if (last == nullptr || last->deleted_at) {
    SqlResult deleted = read_ended_by_time("files_gone = 0", "deleted_at", *from.deleted_by, last);
    if (!deleted.rows.empty()) return deleted;
    last = nullptr;
  }
  return read_ended_by_time("+files_gone = 0 AND deleted_at IS NULL", "expires_at", now, last);
}

std::vector<CheckpointRow> StateStore::rows_with_files() {
  const StoreLock lock(mutex_);
  return rows::read_all(run(select_sql_without_metadata("files_gone = 0"), {}),
                        rows::read_checkpoint);
}

void StateStore::expire(const std::string& id) {
  const StoreLock lock(mutex_);
  run("UPDATE checkpoints SET deleted_at = expires_at WHERE id = ? AND deleted_at IS NULL", {id});
}

void StateStore::mark_files_gone(const std::string& id) {
  const StoreLock lock(mutex_);
  free_checkpoint_bytes("UPDATE checkpoints SET files_gone = 1 WHERE id = ?", id);
}

void StateStore::forget_checkpoint(const std::string& id) {
  const StoreLock lock(mutex_);
  free_checkpoint_bytes("DELETE FROM checkpoints WHERE id = ?", id);
}

void StateStore::free_checkpoint_bytes(const char* statement, const std::string& id) {
  Transaction transaction(*sql_);
  const TenantSums::Sums more =
      run("SELECT tenant, -size_bytes FROM checkpoints WHERE id = ? AND files_gone = 0", {id})
          .counts();
  run(statement, {id});
  stored_.commit_growth(transaction, more);
}

void StateStore::load_stored_bytes() {
  stored_.set(run("SELECT tenant, CAST(SUM(size_bytes) AS BIGINT) FROM checkpoints "
                  "WHERE files_gone = 0 GROUP BY tenant",
                  {})
                  .counts());
}

int64_t StateStore::stored_bytes() {
  if (const auto known = stored_.all()) return *known;
  const StoreLock lock(mutex_);
  load_stored_bytes();
  return stored_.all().value();
}

int64_t StateStore::stored_bytes(const std::string& tenant) {
  if (const auto known = stored_.sum_of(tenant)) return *known;
  const StoreLock lock(mutex_);
  load_stored_bytes();
  return stored_.sum_of(tenant).value();
}

}  // namespace strata::server
