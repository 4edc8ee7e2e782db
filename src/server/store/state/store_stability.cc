// SPDX-License-Identifier: Apache-2.0
// Records of stable_reinforce: one prompt a request, which the records of its sequences name. What
// a tenant's take is bounded: the requests that were not used for longest go first.
#include <fmt/format.h>

#include "server/store/state/rows.h"
#include "server/store/state/store.h"

namespace strata::server {
namespace {

constexpr double kTouch = 3600;  // a use is written down when the last one is older
// Dropped under the store's lock.
constexpr int64_t kRecordsAtOnce = 500;
constexpr int64_t kBytesAtOnce = 16 << 20;

// A tenant's prompts up to one, in the order of their use.
constexpr const char* kFromPromptsUpTo =
    "FROM stability_prompts WHERE tenant = ? AND (last_used, stability_prompts.session_id, id) "
    "<= (?, ?, ?)";

int64_t bytes_of(const StateStore::StabilityRequest& request) {
  constexpr int64_t kRow = StateStore::kStabilityRowBytes;
  int64_t bytes = kRow + std::ssize(request.prompt);
  for (const StateStore::StabilityRecord& record : request.records)
    bytes += kRow + std::ssize(record.sequence_id) + std::ssize(record.record);
  return bytes;
}

// The row up to which requests go, so that `taken` bytes are `most`, or so many that it is a batch;
// `taken` is then what is left.
const SqlRow& find_eviction_end(const SqlResult& oldest, int64_t most, int64_t& taken) {
  const int64_t before = taken;
  auto row = oldest.rows.begin();
  for (;; ++row) {
    taken -= std::get<int64_t>(row->at(3));
    const bool is_large = before - taken >= kBytesAtOnce;
    if (taken <= most || is_large || row + 1 == oldest.rows.end()) return *row;
  }
}

// Whether a row (record, last_used, prompt, prompt_id) was written in part: it names a prompt, and
// there is none.
bool lacks_prompt(const SqlRow& row) { return row[2].index() == 0 && row[3].index() != 0; }

double read_last_used(const SqlRow& row) {
  rows::Reader in(row);
  in.skip();
  return in.real();
}

StateStore::StabilityFound read_record_and_prompt(const SqlRow& row) {
  StateStore::StabilityFound out;
  out.record = std::get<Blob>(row[0]).bytes;
  if (row[2].index() != 0) out.prompt = std::get<Blob>(row[2]).bytes;
  return out;
}

}  // namespace

void StateStore::save_stability_within_quota(const StabilityRequest& request, int64_t quota,
                                             double now) {
  const int64_t bytes = bytes_of(request);
  delete_stability(request);
  while (delete_oldest_stability(request.tenant, quota - bytes)) {
  }
  upsert_stability_records(request, now);
  insert_stability_prompt(request, bytes, now);  // last: records without their prompt are none
}

void StateStore::upsert_stability_records(const StabilityRequest& request, double now) {
  run_in_batches(
      "INSERT INTO stability (session_id, sequence_id, last_used, record, prompt_id) VALUES {} "
      "ON CONFLICT (session_id, sequence_id) DO UPDATE SET last_used = excluded.last_used, "
      "record = excluded.record, prompt_id = excluded.prompt_id",
      "(?, ?, ?, ?, ?)", request.records.size(), [&](size_t i) -> std::vector<SqlValue> {
        const StabilityRecord& record = request.records[i];
        return {request.session, record.sequence_id, now, Blob{record.record}, request.id};
      });
}

void StateStore::commit_stability(Transaction& transaction, const std::string& tenant,
                                  int64_t bytes) {
  stability_bytes_.erase(tenant);  // until the commit is known
  transaction.commit();
  stability_bytes_[tenant] = bytes;
}

void StateStore::insert_stability_prompt(const StabilityRequest& request, int64_t bytes,
                                         double now) {
  const StoreLock lock(mutex_);
  Transaction transaction(*sql_);
  const int64_t taken = sum_stability_bytes(request.tenant);
  run("INSERT INTO stability_prompts (session_id, id, tenant, last_used, bytes, prompt) "
      "VALUES (?, ?, ?, ?, ?, ?)",
      {request.session, request.id, request.tenant, now, bytes, Blob{request.prompt}});
  commit_stability(transaction, request.tenant, taken + bytes);
}

void StateStore::delete_stability(const StabilityRequest& request) {
  const StoreLock lock(mutex_);
  const SqlResult known = run("SELECT bytes FROM stability_prompts WHERE session_id = ? AND id = ?",
                              {request.session, request.id});
  if (known.rows.empty()) return;
  const int64_t taken = sum_stability_bytes(request.tenant);
  Transaction transaction(*sql_);
  for (const char* rows : {"stability WHERE session_id = ? AND prompt_id = ?",
                           "stability_prompts WHERE session_id = ? AND id = ?"})
    run(fmt::format("DELETE FROM {}", rows), {request.session, request.id});
  commit_stability(transaction, request.tenant, taken - rows::only_number(known));
}

SqlResult StateStore::read_oldest_stability(const std::string& tenant) {
  return run(
      "SELECT last_used, session_id, id, bytes FROM stability_prompts WHERE tenant = ? "
      "ORDER BY last_used, session_id, id LIMIT ?",
      {tenant, rows::kAtOnce});
}

bool StateStore::delete_oldest_stability(const std::string& tenant, int64_t most) {
  const StoreLock lock(mutex_);
  const int64_t before = sum_stability_bytes(tenant);
  int64_t taken = before;
  if (taken == 0 || taken <= most) return false;
  const SqlResult oldest = read_oldest_stability(tenant);
  if (oldest.rows.empty()) return false;
  const SqlRow& last = find_eviction_end(oldest, most, taken);
  Transaction transaction(*sql_);
  const bool may_be_more = delete_stability_up_to(tenant, last);
  commit_stability(transaction, tenant, may_be_more ? before : taken);
  return may_be_more || taken > most;
}

int64_t StateStore::delete_some_records_up_to(std::vector<SqlValue> last) {
  last.emplace_back(kRecordsAtOnce);
  return run(fmt::format("DELETE FROM stability WHERE (session_id, sequence_id) IN "
                         "(SELECT stability.session_id, sequence_id FROM (SELECT session_id, id "
                         "{}) AS oldest JOIN stability ON stability.session_id = "
                         "oldest.session_id AND stability.prompt_id = oldest.id LIMIT ?)",
                         kFromPromptsUpTo),
             std::move(last))
      .changed;
}

bool StateStore::delete_stability_up_to(const std::string& tenant, const SqlRow& last) {
  const std::vector<SqlValue> up_to = {tenant, last.at(0), last.at(1), last.at(2)};
  const bool may_be_more = delete_some_records_up_to(up_to) == kRecordsAtOnce;
  if (!may_be_more) run(fmt::format("DELETE {}", kFromPromptsUpTo), up_to);
  return may_be_more;
}

int64_t StateStore::sum_stability_bytes(const std::string& tenant) {
  const auto known = stability_bytes_.find(tenant);
  if (known != stability_bytes_.end()) return known->second;
  return rows::only_number(
      run("SELECT CAST(COALESCE(SUM(bytes), 0) AS BIGINT) FROM stability_prompts WHERE tenant = ?",
          {tenant}));
}

std::optional<StateStore::StabilityFound> StateStore::find_stability(const std::string& session,
                                                                     const std::string& sequence_id,
                                                                     double now) {
  const StoreLock lock(mutex_);
  const SqlResult found = run(
      "SELECT stability.record, stability.last_used, stability_prompts.prompt, stability.prompt_id "
      "FROM stability LEFT JOIN stability_prompts ON stability_prompts.session_id = "
      "stability.session_id AND stability_prompts.id = stability.prompt_id "
      "WHERE stability.session_id = ? AND stability.sequence_id = ?",
      {session, sequence_id});
  if (found.rows.empty()) return std::nullopt;
  const SqlRow& row = found.rows[0];
  if (lacks_prompt(row)) return std::nullopt;
  if (read_last_used(row) < now - kTouch) touch_stability(session, sequence_id, row[3], now);
  return read_record_and_prompt(row);
}

void StateStore::touch_stability(const std::string& session, const std::string& sequence_id,
                                 const SqlValue& prompt_id, double now) {
  Transaction transaction(*sql_);
  run("UPDATE stability SET last_used = ? WHERE session_id = ? AND sequence_id = ?",
      {now, session, sequence_id});
  if (prompt_id.index() != 0) {
    run("UPDATE stability_prompts SET last_used = ? WHERE session_id = ? AND id = ?",
        {now, session, prompt_id});
  }
  transaction.commit();
}

}  // namespace strata::server
