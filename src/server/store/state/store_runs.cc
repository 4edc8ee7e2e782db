// SPDX-License-Identifier: Apache-2.0
// Runs of the state store: a model's record, which outlives the model.
#include <fmt/format.h>

#include "base/error.h"
#include "server/store/state/rows.h"
#include "server/store/state/store.h"

namespace strata::server {
namespace {

std::string state_name(RunState state) { return kRunStates[static_cast<size_t>(state)]; }

RunState parse_run_state(const std::string& name) {
  for (const RunState state : {RunState::kLive, RunState::kUnloaded, RunState::kLost}) {
    if (state_name(state) == name) return state;
  }
  return RunState::kCopy;
}

}  // namespace

RunRow rows::read_run(const SqlRow& row) {
  Reader in(row);
  RunRow out;
  out.id = in.text();
  out.tenant = in.text();
  out.session_id = in.maybe_text();
  out.model_seq = in.maybe_integer();
  out.created_at = in.real();
  out.last_request_at = in.real();
  out.base_model = in.text();
  out.lora = parse_lora_config(in.text());
  out.user_metadata = in.maybe_text();
  out.project_id = in.text();
  out.state = parse_run_state(in.text());
  out.ended_at = in.maybe_real();
  return out;
}

bool StateStore::insert_run(const RunRow& row) {
  const SqlResult added = run(
      "INSERT INTO runs (id, tenant, session_id, model_seq, number, created_at, last_request_at, "
      "base_model, lora, user_metadata, project_id, state, ended_at) "
      "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO NOTHING",
      {row.id, row.tenant, rows::nullable(row.session_id), rows::nullable(row.model_seq),
       next_number(), row.created_at, row.last_request_at, row.base_model, lora_text(row.lora),
       rows::nullable(row.user_metadata), row.project_id, state_name(row.state),
       rows::nullable(row.ended_at)});
  return added.changed > 0;
}

bool StateStore::add_run(const RunRow& row) {
  const StoreLock lock(mutex_);
  Transaction transaction(*sql_);
  if (!insert_run(row)) return false;
  transaction.commit();
  return true;
}

std::optional<RunRow> StateStore::find_run(const std::string& id) {
  const StoreLock lock(mutex_);
  std::optional<RunRow> row = rows::read_first(
      run(fmt::format("SELECT {} FROM runs WHERE id = ?", rows::kRunColumns), {id}),
      rows::read_run);
  const MutexLock lock_touched(touched_mutex_);
  const auto touched = touched_.find(id);
  if (row.has_value() && touched != touched_.end()) row->last_request_at = touched->second;
  return row;
}

void StateStore::end_run(const std::string& id, RunState state, double now) {
  const StoreLock lock(mutex_);
  note_ended(
      run("UPDATE runs SET state = ?, ended_at = ? "
          "WHERE id = ? AND (state = 'live' OR ended_at = ?) RETURNING tenant",
          {state_name(state), now, id, now}));
}

void StateStore::forget_run(const std::string& id) {
  const StoreLock lock(mutex_);
  run("DELETE FROM runs WHERE id = ?", {id});
}

void StateStore::touch_run(const std::string& id, double now) {
  const MutexLock lock(touched_mutex_);
  touched_[id] = now;
}

void StateStore::flush_touches() {
  std::map<std::string, double> touched;
  {
    const MutexLock lock(touched_mutex_);
    touched = touched_;
  }
  const std::vector<std::pair<std::string, double>> rows(touched.begin(), touched.end());
  run_in_batches(
      "WITH touched (id, at) AS (VALUES {}) UPDATE runs SET last_request_at = touched.at "
      "FROM touched WHERE runs.id = touched.id",
      "(CAST(? AS TEXT), CAST(? AS DOUBLE PRECISION))", rows.size(),
      [&](size_t i) -> std::vector<SqlValue> { return {rows[i].first, rows[i].second}; });
  forget_written_touches(touched);
}

void StateStore::forget_written_touches(const std::map<std::string, double>& written) {
  const MutexLock lock(touched_mutex_);
  std::erase_if(touched_, [&](const auto& item) {
    const auto found = written.find(item.first);
    return found != written.end() && found->second == item.second;
  });
}

}  // namespace strata::server
