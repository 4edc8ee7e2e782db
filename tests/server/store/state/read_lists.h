// SPDX-License-Identifier: Apache-2.0
// What a database of SQLite lists, read over a connection of its own.
#pragma once
#include <string>
#include <vector>

#include "server/store/state/store_lists.h"

namespace strata::testing {

// Alive, newest first.
inline std::vector<server::CheckpointRow> checkpoints_of(const std::string& database,
                                                         const std::string& run, double now,
                                                         const std::string& tenant = "alice") {
  server::RunRow row;
  row.id = run;
  row.tenant = tenant;
  server::StoreLists lists(server::open_sqlite_reader(database));
  std::vector<server::CheckpointRow> out;
  for (auto& listed :
       lists.list_checkpoints_of(row, /*with_external=*/true, now, {.limit = 10'000}))
    out.push_back(std::move(listed.row));
  return out;
}

}  // namespace strata::testing
