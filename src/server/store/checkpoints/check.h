// SPDX-License-Identifier: Apache-2.0
// Check: whether a data directory is whole: its secret, its database, and the files of every
// checkpoint, byte for byte where the checkpoint has a record of them. Changes nothing, and runs
// against a running server: what is deleted meanwhile is no damage. Ends with an Error when a
// signal asks for that (base/stop.h).
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace strata::server {

class Sql;

struct CheckReport {
  std::vector<std::string> damages;  // each names the file and what is wrong
  std::vector<std::string> notes;    // what is odd and harmless
  int64_t checkpoints = 0;
  int64_t bytes = 0;     // of their files
  int64_t unhashed = 0;  // checkpoints without a record of their bytes: only their form was checked
};

// How far counters may have come. A server counts on from what is restored, and its own backups
// must be taken as well, so an archive's end sooner than those of a directory in use.
enum class Counters { kInUse, kOfArchive };

CheckReport check_data(const std::string& data, Counters counters = Counters::kInUse);

// What restoring would refuse, of a copy of its database alone.
CheckReport check_snapshot(const std::string& data, const std::string& database);

// Whether the database has this checkpoint still, so that its files must be there.
bool checkpoint_exists(Sql& sql, const std::string& id);

// Error where a signal has asked to stop.
void check_stop_signal();

}  // namespace strata::server
