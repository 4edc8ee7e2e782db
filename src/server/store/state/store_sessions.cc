// SPDX-License-Identifier: Apache-2.0
// Sessions and sampling sessions of the state store.
#include "server/store/state/rows.h"
#include "server/store/state/store.h"

namespace strata::server {
namespace {

constexpr int64_t kRunsAtOnce = 50;  // changed under the lock, each with its metadata
constexpr const char* kSessionColumns =
    "id, tenant, created_at, sdk_version, tags, user_metadata, display_name, project_id, state, "
    "ended_at, end_reason, end_detail";
constexpr const char* kSamplerColumns =
    "id, session_id, sampling_seq, tenant, created_at, base_model, model_path, checkpoint_id, "
    "is_ephemeral, boot";

SessionRow read_session(const SqlRow& row) {
  rows::Reader in(row);
  SessionRow out;
  out.id = in.text();
  out.tenant = in.text();
  out.created_at = in.real();
  out.sdk_version = in.text();
  out.tags = in.text();
  out.user_metadata = in.maybe_text();
  out.display_name = in.maybe_text();
  out.project_id = in.text();
  out.state = in.text();
  out.ended_at = in.maybe_real();
  out.end_reason = in.maybe_text();
  out.end_detail = in.maybe_text();
  return out;
}

SamplerRow read_sampler(const SqlRow& row) {
  rows::Reader in(row);
  SamplerRow out;
  out.id = in.text();
  out.session_id = in.text();
  out.sampling_seq = in.integer();
  out.tenant = in.text();
  out.created_at = in.real();
  out.base_model = in.text();
  out.model_path = in.maybe_text();
  out.checkpoint_id = in.maybe_text();
  out.is_ephemeral = in.flag();
  out.boot = in.integer();
  return out;
}

std::string select_sql(const char* columns, const char* rest) {
  return std::string("SELECT ") + columns + " FROM " + rest;
}

}  // namespace

bool StateStore::try_remember_session(const SessionRow& row, const Idempotency& key) {
  const SqlResult added =
      run("INSERT INTO idempotency (tenant, scope, name, value, created_at, fingerprint) "
          "VALUES (?, 'session', ?, ?, ?, ?) ON CONFLICT (tenant, scope, name) DO NOTHING",
          {row.tenant, key.name, row.id, row.created_at, key.fingerprint});
  return added.changed != 0;
}

void StateStore::insert_session(const SessionRow& row) {
  run("INSERT INTO sessions (id, tenant, number, created_at, sdk_version, tags, user_metadata, "
      "display_name, project_id, state) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
      {row.id, row.tenant, next_number(), row.created_at, row.sdk_version, row.tags,
       rows::nullable(row.user_metadata), rows::nullable(row.display_name), row.project_id,
       row.state});
}

std::string StateStore::ensure_session(const SessionRow& row, const Idempotency& key) {
  const StoreLock lock(mutex_);
  Transaction transaction(*sql_);
  if (!key.name.empty() && !try_remember_session(row, key))
    return find_remembered_locked(row.tenant, "session", key).value();
  insert_session(row);
  transaction.commit();
  return row.id;
}

std::optional<SessionRow> StateStore::find_session(const std::string& id) {
  const StoreLock lock(mutex_);
  return rows::read_first(run(select_sql(kSessionColumns, "sessions WHERE id = ?"), {id}),
                          read_session);
}

std::map<std::string, std::string> StateStore::read_active_sessions() {
  const StoreLock lock(mutex_);
  std::map<std::string, std::string> tenants;
  for (const SqlRow& row : run("SELECT id, tenant FROM sessions WHERE state = 'active'", {}).rows)
    tenants[std::get<std::string>(row.at(0))] = std::get<std::string>(row.at(1));
  return tenants;
}

bool StateStore::end_session(const std::string& id, const std::string& state,
                             const std::string& reason, const std::string& detail, double now) {
  const StoreLock lock(mutex_);
  Transaction transaction(*sql_);
  const SqlResult ended =
      run("UPDATE sessions SET state = ?, ended_at = ?, end_reason = ?, end_detail = ? "
          "WHERE id = ? AND state = 'active' RETURNING tenant",
          {state, now, reason, detail, id});
  if (ended.rows.empty()) return false;
  note_ended(ended);
  run("UPDATE runs SET state = 'unloaded', ended_at = ? WHERE session_id = ? AND state = 'live'",
      {now, id});
  transaction.commit();
  return true;
}

bool StateStore::set_project_batch(const std::string& session_id, const std::string& project_id,
                                   int64_t& last) {
  const StoreLock lock(mutex_);
  Transaction transaction(*sql_);
  if (last < 0) run("UPDATE sessions SET project_id = ? WHERE id = ?", {project_id, session_id});
  const SqlResult next =
      run("SELECT model_seq FROM runs WHERE session_id = ? AND model_seq > ? ORDER BY model_seq "
          "LIMIT ?",
          {session_id, last, kRunsAtOnce});
  if (!next.rows.empty()) {
    const int64_t first = std::exchange(last, std::get<int64_t>(next.rows.back().at(0)));
    run("UPDATE runs SET project_id = ? WHERE session_id = ? AND model_seq > ? AND model_seq <= ?",
        {project_id, session_id, first, last});
  }
  transaction.commit();
  return std::ssize(next.rows) == kRunsAtOnce;
}

int64_t StateStore::insert_sampler(const SamplerRow& row) {
  return run("INSERT INTO samplers (id, session_id, sampling_seq, tenant, number, created_at, "
             "base_model, model_path, checkpoint_id, is_ephemeral, boot) "
             "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) "
             "ON CONFLICT (session_id, sampling_seq) DO NOTHING",
             {row.id, row.session_id, row.sampling_seq, row.tenant, next_number(), row.created_at,
              row.base_model, rows::nullable(row.model_path), rows::nullable(row.checkpoint_id),
              static_cast<int64_t>(row.is_ephemeral), row.boot})
      .changed;
}

SamplerRow StateStore::ensure_sampler(SamplerRow row) {
  const StoreLock lock(mutex_);
  row.boot = boot_;
  Transaction transaction(*sql_);
  const int64_t added = insert_sampler(row);
  samplers_.commit_growth(transaction, {{row.tenant, added}});
  if (added > 0) return row;
  return *rows::read_first(
      run(select_sql(kSamplerColumns, "samplers WHERE session_id = ? AND sampling_seq = ?"),
          {row.session_id, row.sampling_seq}),
      read_sampler);
}

std::optional<SamplerRow> StateStore::find_sampler(const std::string& id) {
  const StoreLock lock(mutex_);
  return rows::read_first(run(select_sql(kSamplerColumns, "samplers WHERE id = ?"), {id}),
                          read_sampler);
}

bool StateStore::has_samplers(const std::string& session_id) {
  const StoreLock lock(mutex_);
  return !run("SELECT 1 FROM samplers WHERE session_id = ? LIMIT 1", {session_id}).rows.empty();
}

std::map<std::string, int64_t> StateStore::count_samplers_by_session() {
  const StoreLock lock(mutex_);
  return run("SELECT session_id, COUNT(*) FROM samplers WHERE is_ephemeral = 0 AND session_id IN "
             "(SELECT id FROM sessions WHERE state = 'active') GROUP BY session_id",
             {})
      .counts();
}

void StateStore::load_sampler_counts() {
  samplers_.set(run("SELECT tenant, COUNT(*) FROM samplers GROUP BY tenant", {}).counts());
}

int64_t StateStore::num_samplers(const std::string& tenant) {
  if (const auto known = samplers_.sum_of(tenant)) return *known;
  const StoreLock lock(mutex_);
  load_sampler_counts();
  return samplers_.sum_of(tenant).value();
}

}  // namespace strata::server
