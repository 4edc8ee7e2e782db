// SPDX-License-Identifier: Apache-2.0
// Sessions and sampling sessions of the state store.
#include "server/state/rows.h"
#include "server/state/store.h"

namespace strata::server {
namespace {

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

std::string select(const char* columns, const char* rest) {
  return std::string("SELECT ") + columns + " FROM " + rest;
}

}  // namespace

std::string StateStore::add_session(const SessionRow& row, const Idempotency& key) {
  const StoreLock lock(mutex_);
  Transaction transaction(*sql_);
  if (!key.name.empty()) {
    const SqlResult added =
        run("INSERT INTO idempotency (tenant, scope, name, value, created_at, fingerprint) "
            "VALUES (?, 'session', ?, ?, ?, ?) ON CONFLICT (tenant, scope, name) DO NOTHING",
            {row.tenant, key.name, row.id, row.created_at, key.fingerprint});
    if (added.changed == 0) return known_value(row.tenant, "session", key).value();
  }
  run("INSERT INTO sessions (id, tenant, number, created_at, sdk_version, tags, user_metadata, "
      "display_name, project_id, state) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
      {row.id, row.tenant, next_number(), row.created_at, row.sdk_version, row.tags,
       rows::nullable(row.user_metadata), rows::nullable(row.display_name), row.project_id,
       row.state});
  transaction.commit();
  return row.id;
}

std::optional<SessionRow> StateStore::find_session(const std::string& id) {
  const StoreLock lock(mutex_);
  return rows::first(run(select(kSessionColumns, "sessions WHERE id = ?"), {id}), read_session);
}

std::map<std::string, std::string> StateStore::active_sessions() {
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

void StateStore::set_project(const std::string& session_id, const std::string& project_id) {
  {
    const StoreLock lock(mutex_);
    run("UPDATE sessions SET project_id = ? WHERE id = ?", {project_id, session_id});
  }
  for (bool is_over = false; !is_over;) {  // others come in between
    const StoreLock lock(mutex_);
    const SqlResult moved =
        run("UPDATE runs SET project_id = ? WHERE id IN (SELECT id FROM runs WHERE session_id = ? "
            "AND project_id <> ? LIMIT ?)",
            {project_id, session_id, project_id, rows::kAtOnce});
    is_over = moved.changed < rows::kAtOnce;
  }
}

SamplerRow StateStore::add_sampler(SamplerRow row) {
  const StoreLock lock(mutex_);
  row.boot = boot_;
  Transaction transaction(*sql_);
  const SqlResult added =
      run("INSERT INTO samplers (id, session_id, sampling_seq, tenant, number, created_at, "
          "base_model, model_path, checkpoint_id, is_ephemeral, boot) "
          "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) "
          "ON CONFLICT (session_id, sampling_seq) DO NOTHING",
          {row.id, row.session_id, row.sampling_seq, row.tenant, next_number(), row.created_at,
           row.base_model, rows::nullable(row.model_path), rows::nullable(row.checkpoint_id),
           static_cast<int64_t>(row.is_ephemeral), row.boot});
  samplers_.commit(transaction, {{row.tenant, added.changed}});
  if (added.changed > 0) return row;
  return *rows::first(
      run(select(kSamplerColumns, "samplers WHERE session_id = ? AND sampling_seq = ?"),
          {row.session_id, row.sampling_seq}),
      read_sampler);
}

std::optional<SamplerRow> StateStore::find_sampler(const std::string& id) {
  const StoreLock lock(mutex_);
  return rows::first(run(select(kSamplerColumns, "samplers WHERE id = ?"), {id}), read_sampler);
}

bool StateStore::has_samplers(const std::string& session_id) {
  const StoreLock lock(mutex_);
  return !run("SELECT 1 FROM samplers WHERE session_id = ? LIMIT 1", {session_id}).rows.empty();
}

std::map<std::string, int64_t> StateStore::samplers_by_session() {
  const StoreLock lock(mutex_);
  return run("SELECT session_id, COUNT(*) FROM samplers WHERE is_ephemeral = 0 AND session_id IN "
             "(SELECT id FROM sessions WHERE state = 'active') GROUP BY session_id",
             {})
      .counts();
}

void StateStore::read_samplers() {
  samplers_.set(run("SELECT tenant, COUNT(*) FROM samplers GROUP BY tenant", {}).counts());
}

int64_t StateStore::num_samplers(const std::string& tenant) {
  if (const auto known = samplers_.of(tenant)) return *known;
  const StoreLock lock(mutex_);
  read_samplers();
  return samplers_.of(tenant).value();
}

}  // namespace strata::server
