// SPDX-License-Identifier: Apache-2.0
// StoreLists: what tenants list of the state store. Lists may be long, and the store's lock is what
// the thread that serves everybody waits for: so they are read over a connection of their own, some
// rows at a time, newest first. Any thread; a call waits for the others, and for no lock of the
// store's.
//   StoreLists lists(open_sqlite_reader(path));  lists.list_runs("alice", "", {.limit = 20});
#pragma once
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "server/store/state/sql.h"
#include "server/store/state/store.h"

namespace strata::server {

// For reading alone, next to the connection of the server, which has opened the database before.
std::unique_ptr<Sql> open_sqlite_reader(const std::string& path);
std::unique_ptr<Sql> open_postgres_reader(const std::string& url);

// Which rows are wanted; `below`: of those with smaller numbers, which are older, alone.
struct ListPart {
  int64_t limit = 100;
  int64_t offset = 0;
  int64_t below = std::numeric_limits<int64_t>::max();
};

template <typename Row>
struct Listed {
  Row row;
  int64_t number = 0;  // rises with creation
};

struct LastCheckpoints {
  std::optional<CheckpointRow> weights;
  std::optional<CheckpointRow> sampler;
};

// What a run has that is alive, and the number of its newest.
struct CheckpointCount {
  int64_t count = 0;
  int64_t newest = 0;
};

struct SamplerName {
  std::string id;
  int64_t sampling_seq = 0;
};

class StoreLists {
 public:
  explicit StoreLists(std::unique_ptr<Sql> sql) : sql_(std::move(sql)) {}

  // A tenant's runs; project "": of every one. Their last requests are as the store wrote them.
  std::vector<Listed<RunRow>> list_runs(const std::string& tenant, const std::string& project,
                                        ListPart part);
  int64_t count_runs(const std::string& tenant, const std::string& project);
  LastCheckpoints find_last_checkpoints(const std::string& run_id, double now);
  std::vector<Listed<CheckpointRow>> list_checkpoints(const std::string& tenant, bool with_external,
                                                      double now, ListPart part);
  int64_t count_checkpoints(const std::string& tenant, bool with_external, double now);
  std::vector<Listed<CheckpointRow>> list_checkpoints_of(const RunRow& run, bool with_external,
                                                         double now, ListPart part);
  CheckpointCount count_checkpoints_of(const std::string& run_id, bool with_external, double now);
  std::vector<std::string> list_sessions(const std::string& tenant, ListPart part);
  std::vector<std::string> list_runs_of(const std::string& session_id);
  // Those after a number of the session's, in the order of these; -1: from the first.
  std::vector<SamplerName> list_samplers_of(const std::string& session_id, int64_t after,
                                            int64_t limit);

 private:
  SqlResult run(std::string_view statement, const std::vector<SqlValue>& parameters);

  Mutex mutex_;
  std::unique_ptr<Sql> sql_ GUARDED_BY(mutex_);
};

}  // namespace strata::server
