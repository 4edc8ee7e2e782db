// SPDX-License-Identifier: Apache-2.0
#include "server/store/state/store_lists.h"

#include <fmt/format.h>

#include <utility>

#include "server/store/state/rows.h"

namespace strata::server {
namespace {

constexpr const char* kNewestFirst = "ORDER BY number DESC LIMIT ? OFFSET ?";

const char* unless_external(bool with_external) {
  return with_external ? "" : " AND kind <> 'external_weights'";
}

// Its number is the last column.
template <typename Row>
std::vector<Listed<Row>> read_listed(const SqlResult& result, Row (*read)(const SqlRow&)) {
  std::vector<Listed<Row>> out;
  for (const SqlRow& row : result.rows) {
    out.push_back({read(row), std::get<int64_t>(row.back())});
  }
  return out;
}

std::string only_text(const SqlRow& row) { return std::get<std::string>(row[0]); }

SamplerName read_sampler_name(const SqlRow& row) {
  rows::Reader in(row);
  SamplerName out;
  out.id = in.text();
  out.sampling_seq = in.integer();
  return out;
}

}  // namespace

SqlResult StoreLists::run(std::string_view statement, const std::vector<SqlValue>& parameters) {
  const MutexLock lock(mutex_);
  return sql_->run(statement, parameters);
}

std::vector<Listed<RunRow>> StoreLists::list_runs(const std::string& tenant,
                                                  const std::string& project, ListPart part) {
  std::vector<SqlValue> parameters = {tenant, part.below};
  if (!project.empty()) parameters.emplace_back(project);
  parameters.emplace_back(part.limit);
  parameters.emplace_back(part.offset);
  return read_listed(
      run(fmt::format("SELECT {}, number FROM runs WHERE tenant = ? AND number < ?{} {}",
                      rows::kRunColumns, project.empty() ? "" : " AND project_id = ?",
                      kNewestFirst),
          parameters),
      rows::read_run);
}

int64_t StoreLists::count_runs(const std::string& tenant, const std::string& project) {
  return rows::only_number(
      project.empty() ? run("SELECT COUNT(*) FROM runs WHERE tenant = ?", {tenant})
                      : run("SELECT COUNT(*) FROM runs WHERE tenant = ? AND project_id = ?",
                            {tenant, project}));
}

LastCheckpoints StoreLists::find_last_checkpoints(const std::string& run_id, double now) {
  const auto newest = [&](CheckpointKind kind) {
    return rows::read_first(
        run(rows::last_checkpoint_sql(), {run_id, std::string(kind_name(kind)), now}),
        rows::read_checkpoint);
  };
  return {newest(CheckpointKind::kWeights), newest(CheckpointKind::kSampler)};
}

std::vector<Listed<CheckpointRow>> StoreLists::list_checkpoints(const std::string& tenant,
                                                                bool with_external, double now,
                                                                ListPart part) {
  return read_listed(run(fmt::format("SELECT {}, number FROM checkpoints WHERE tenant = ? AND "
                                     "number < ? AND {}{} {}",
                                     rows::kCheckpointColumns, rows::kAlive,
                                     unless_external(with_external), kNewestFirst),
                         {tenant, part.below, now, part.limit, part.offset}),
                     rows::read_checkpoint);
}

int64_t StoreLists::count_checkpoints(const std::string& tenant, bool with_external, double now) {
  return rows::only_number(
      run(fmt::format("SELECT COUNT(*) FROM checkpoints WHERE tenant = ? AND {}{}", rows::kAlive,
                      unless_external(with_external)),
          {tenant, now}));
}

// In the order of the tenant's, which has an index: by the run's own, which has no order, all of
// them would be sorted for each part.
std::vector<Listed<CheckpointRow>> StoreLists::list_checkpoints_of(const RunRow& run_row,
                                                                   bool with_external, double now,
                                                                   ListPart part) {
  return read_listed(run(fmt::format("SELECT {}, number FROM checkpoints WHERE tenant = ? AND "
                                     "number < ? AND run_id || '' = ? AND {}{} {}",
                                     rows::kCheckpointColumns, rows::kAlive,
                                     unless_external(with_external), kNewestFirst),
                         {run_row.tenant, part.below, run_row.id, now, part.limit, part.offset}),
                     rows::read_checkpoint);
}

CheckpointCount StoreLists::count_checkpoints_of(const std::string& run_id, bool with_external,
                                                 double now) {
  const SqlResult found =
      run(fmt::format("SELECT COUNT(*), COALESCE(MAX(number), 0) FROM checkpoints "
                      "WHERE run_id = ? AND {}{}",
                      rows::kAlive, unless_external(with_external)),
          {run_id, now});
  rows::Reader in(found.rows[0]);
  CheckpointCount out;
  out.count = in.integer();
  out.newest = in.integer();
  return out;
}

std::vector<std::string> StoreLists::list_sessions(const std::string& tenant, ListPart part) {
  return rows::read_all(
      run(fmt::format("SELECT id FROM sessions WHERE tenant = ? AND number < ? {}", kNewestFirst),
          {tenant, part.below, part.limit, part.offset}),
      only_text);
}

std::vector<std::string> StoreLists::list_runs_of(const std::string& session_id) {
  return rows::read_all(
      run("SELECT id FROM runs WHERE session_id = ? ORDER BY number", {session_id}), only_text);
}

std::vector<SamplerName> StoreLists::list_samplers_of(const std::string& session_id, int64_t after,
                                                      int64_t limit) {
  return rows::read_all(run("SELECT id, sampling_seq FROM samplers WHERE session_id = ? AND "
                            "sampling_seq > ? ORDER BY sampling_seq LIMIT ?",
                            {session_id, after, limit}),
                        read_sampler_name);
}

}  // namespace strata::server
