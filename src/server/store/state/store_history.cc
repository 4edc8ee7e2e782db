// SPDX-License-Identifier: Apache-2.0
// What ended goes: sessions, runs and samplers, a batch at a time.
#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <limits>
#include <span>
#include <utility>

#include "server/store/state/rows.h"
#include "server/store/state/store.h"

namespace strata::server {
namespace {

constexpr double kHistorySeconds = 30 * 86400.0;  // of ended sessions and runs without checkpoints
constexpr double kAgeSeconds = 3600;  // between two walks over all that are older, kept ones too
constexpr int64_t kScansOfATenant = 100;  // what finding them counts for, in rows,
constexpr int64_t kStatement = 10;        // and one more way to the database

struct Table {
  const char* name;
  std::span<const char* const> ended;  // states
  const char* checkpoints;             // finds one that keeps a row
};
constexpr Table kSessions{"sessions", std::span(kSessionStates).subspan(1),
                          "SELECT 1 FROM runs JOIN checkpoints ON checkpoints.run_id = runs.id "
                          "WHERE runs.session_id = sessions.id"};
constexpr Table kRuns{"runs", std::span(kRunStates).subspan(1),
                      "SELECT 1 FROM checkpoints WHERE checkpoints.run_id = runs.id"};

struct Statement {
  std::string text;
  std::vector<SqlValue> parameters;
};

// Finds the number below which rows of the tenant's that ended are too many: of each state as many
// as may be above it are looked at, `most`.
Statement oldest_kept_statement(const Table& table, const std::string& tenant, int64_t keep,
                                int64_t most) {
  std::string newest;
  std::vector<SqlValue> parameters;
  for (const char* state : table.ended) {
    newest += fmt::format(
        "{}SELECT number FROM (SELECT number FROM {} WHERE tenant = ? AND state = ? ORDER BY "
        "number DESC LIMIT ?) AS {}",
        newest.empty() ? "" : " UNION ALL ", table.name, state);
    parameters.insert(parameters.end(), {tenant, state, most});
  }
  parameters.emplace_back(keep);
  return {fmt::format("SELECT number FROM ({}) AS newest ORDER BY number DESC LIMIT 1 OFFSET ?",
                      newest),
          std::move(parameters)};
}

}  // namespace

// What a walk of prune_history() has still to look at: rows of one state, in the order of an index.
struct StateStore::HistoryWalk {
  struct Scan {
    const Table* table;
    const char* state;
    std::optional<std::string> tenant;  // none: of all tenants, by time
    SqlValue until;                     // its number, at most; or when it ended, before that
    double ended_at = -1;               // of the row that was looked at last, and its number
    int64_t number = 0;

    // Finds the rows behind that one, each with whether a checkpoint keeps it.
    [[nodiscard]] std::string statement() const {
      return fmt::format(
          "SELECT id, tenant, ended_at, number, {} FROM {} WHERE state = ? AND {} LIMIT ?",
          rows::exists(table->checkpoints), table->name,
          tenant ? "number <= ? AND number > ? AND tenant = ? ORDER BY number"
                 : "ended_at < ? AND ended_at >= ? AND (ended_at > ? OR number > ?) "
                   "ORDER BY ended_at, number");
    }
    [[nodiscard]] std::vector<SqlValue> parameters(int64_t most) const {
      if (tenant) return {state, until, number, *tenant, most};
      return {state, until, ended_at, ended_at, number, most};
    }
  };

  [[nodiscard]] bool has_more() const { return !scans.empty() || !tenants.empty() || behind; }

  std::deque<Scan> scans;
  std::vector<std::string> tenants;   // whose scans are not known yet
  std::optional<std::string> behind;  // and those behind this one
  std::optional<double> age;          // when it began, where it looks at all that are old
};

void StateStore::note_ended(const SqlResult& tenants) {
  for (const std::string& tenant : tenants.texts())
    if (ended_) ended_->insert(tenant);
}

std::shared_ptr<StateStore::HistoryWalk> StateStore::begin_history_walk(
    double now, const std::optional<std::set<std::string>>& ended) {
  auto walk = std::make_shared<HistoryWalk>();
  // Also when the clock was put back since.
  if (now < looked_at_age_ || now >= looked_at_age_ + kAgeSeconds) walk->age = now;
  for (const Table* table : {&kSessions, &kRuns}) {
    for (const char* state : table->ended) {
      if (walk->age) walk->scans.push_back({table, state, {}, now - kHistorySeconds});
    }
  }
  if (ended) {
    walk->tenants.assign(ended->begin(), ended->end());
  } else {
    walk->behind = "";
  }
  return walk;
}

void StateStore::add_next_tenant(HistoryWalk& walk) {
  const SqlResult next =
      run("SELECT MIN(tenant) FROM (SELECT MIN(tenant) AS tenant FROM sessions WHERE tenant > ? "
          "UNION ALL SELECT MIN(tenant) FROM runs WHERE tenant > ?) AS found",
          {*walk.behind, *walk.behind});
  if (next.rows[0][0].index() == 0) return walk.behind.reset();
  walk.behind = std::get<std::string>(next.rows[0][0]);
  walk.tenants.push_back(*walk.behind);
}

void StateStore::add_scans(HistoryWalk& walk, const std::string& tenant, int64_t keep) {
  const int64_t most = std::min(keep, std::numeric_limits<int64_t>::max() - 1) + 1;
  for (const Table* table : {&kSessions, &kRuns}) {
    const auto [statement, parameters] = oldest_kept_statement(*table, tenant, keep, most);
    const SqlResult oldest = run(statement, parameters);
    if (oldest.rows.empty()) continue;
    for (const char* state : table->ended)
      walk.scans.push_back({table, state, tenant, oldest.rows[0][0]});
  }
}

void StateStore::add_scans_of_next_tenant(HistoryWalk& walk, int64_t keep, int64_t& left) {
  if (walk.tenants.empty()) add_next_tenant(walk);
  left -= kStatement;
  if (walk.tenants.empty()) return;
  const std::string tenant = std::move(walk.tenants.back());
  walk.tenants.pop_back();
  add_scans(walk, tenant, keep);
  left -= kScansOfATenant;
}

bool StateStore::try_delete_ended(HistoryWalk& walk, const std::string& id,
                                  const std::string& tenant, int64_t most, int64_t& left,
                                  TenantSums::Sums& samplers) {
  const Table* table = walk.scans.front().table;
  left -= (table == &kSessions ? 3 : 1) * kStatement;
  if (table == &kSessions && !delete_samplers_and_runs(id, tenant, most, left, samplers))
    return false;
  run(fmt::format("DELETE FROM {} WHERE id = ?", table->name), {id});
  return true;
}

void StateStore::prune_rows(HistoryWalk& walk, int64_t& left, TenantSums::Sums& samplers) {
  HistoryWalk::Scan& scan = walk.scans.front();
  const int64_t most = left;
  const SqlResult found = run(scan.statement(), scan.parameters(most));
  for (const SqlRow& row : found.rows) {
    rows::Reader in(row);
    const std::string id = in.text(), tenant = in.text();
    const double ended_at = in.maybe_real().value_or(0);
    const int64_t number = in.integer();
    const bool is_kept = in.flag();
    if (!is_kept && !try_delete_ended(walk, id, tenant, most, left, samplers)) return;
    scan.ended_at = ended_at;
    scan.number = number;
    if (--left <= 0) return;
  }
  if (std::ssize(found.rows) < most) walk.scans.pop_front();
}

bool StateStore::delete_samplers_and_runs(const std::string& session, const std::string& tenant,
                                          int64_t most, int64_t& left, TenantSums::Sums& samplers) {
  const int64_t dropped = delete_by_session("samplers", session, most);
  samplers[tenant] -= dropped;
  const int64_t runs = delete_by_session("runs", session, most);
  left -= dropped + runs;
  return dropped < most && runs < most;
}

bool StateStore::prune_history(double now, int64_t keep) {
  const StoreLock lock(mutex_);
  // A fault on the way leaves nothing known, and the next call begins anew.
  std::shared_ptr<HistoryWalk> walk = std::move(history_);
  std::optional<std::set<std::string>> ended = std::exchange(ended_, std::nullopt);
  if (!walk) {
    walk = begin_history_walk(now, ended);
    ended.emplace();
  }
  int64_t left = rows::kAtOnce;
  TenantSums::Sums samplers;
  Transaction transaction(*sql_);
  while (left > 0 && walk->has_more()) {
    if (!walk->scans.empty()) {
      prune_rows(*walk, left, samplers);
    } else {
      add_scans_of_next_tenant(*walk, keep, left);
    }
  }
  samplers_.commit_growth(transaction, samplers);
  ended_ = std::move(ended);
  if (walk->has_more()) {
    history_ = std::move(walk);
    return true;
  }
  if (walk->age) looked_at_age_ = *walk->age;
  return false;
}

int64_t StateStore::delete_by_session(const char* table, const std::string& session, int64_t most) {
  return run(fmt::format("DELETE FROM {0} WHERE id IN (SELECT id FROM {0} WHERE session_id = ? "
                         "LIMIT ?)",
                         table),
             {session, most})
      .changed;
}

bool StateStore::prune_samplers(int64_t keep) {
  const StoreLock lock(mutex_);
  if (!samplers_.all()) load_sampler_counts();
  SamplerWalk walk =
      sampler_walk_ ? std::move(*sampler_walk_) : SamplerWalk{samplers_.tenants_above(keep)};
  sampler_walk_.reset();
  int64_t left = rows::kAtOnce;
  TenantSums::Sums more;
  Transaction transaction(*sql_);
  while (!walk.tenants.empty()) {
    prune_samplers_of_tenant(walk, keep, left, more);
    if (left <= 0) break;
    walk.tenants.pop_back();
    walk.number = -1;
  }
  samplers_.commit_growth(transaction, more);
  if (walk.tenants.empty()) return false;
  sampler_walk_ = std::move(walk);
  return true;
}

int64_t StateStore::delete_samplers_of(const SqlRow& ended_session, int64_t most, int64_t& left) {
  const bool has_samplers = std::get<int64_t>(ended_session[2]) != 0;
  if (!has_samplers) return 0;
  left -= kStatement;
  return delete_by_session("samplers", std::get<std::string>(ended_session[0]), most);
}

void StateStore::prune_samplers_of_tenant(SamplerWalk& walk, int64_t keep, int64_t& left,
                                          TenantSums::Sums& more) {
  const std::string tenant = walk.tenants.back();
  int64_t excess = samplers_.sum_of(tenant).value_or(0) + more[tenant] - keep;
  const SqlResult ended = excess > 0 ? read_ended_sessions(tenant, walk.number, left) : SqlResult();
  for (const SqlRow& row : ended.rows) {
    const int64_t count = delete_samplers_of(row, std::min(left, excess), left);
    more[tenant] -= count;
    excess -= count;
    left -= count + 1;
    if (left <= 0 || excess <= 0) break;
    walk.number = std::get<int64_t>(row[1]);
  }
  left -= kStatement;
}

SqlResult StateStore::read_ended_sessions(const std::string& tenant, int64_t behind, int64_t most) {
  constexpr std::string_view kOfState =
      "SELECT id, number FROM (SELECT id, number FROM sessions WHERE tenant = ? AND state = '{0}' "
      "AND number > ? ORDER BY number LIMIT ?) AS {0}";
  return run(fmt::format("SELECT id, number, {} FROM ({} UNION ALL {}) AS ended ORDER BY number "
                         "LIMIT ?",
                         rows::exists("SELECT 1 FROM samplers WHERE session_id = ended.id"),
                         fmt::format(kOfState, "finished"), fmt::format(kOfState, "timed_out")),
             {tenant, behind, most, tenant, behind, most, most});
}

}  // namespace strata::server
