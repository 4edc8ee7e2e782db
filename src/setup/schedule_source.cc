// SPDX-License-Identifier: Apache-2.0
#include "setup/schedule_source.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/files.h"
#include "base/say.h"
#include "schedule/csv.h"
#include "schedule/generate.h"
#include "schedule/verify.h"

namespace strata::apps {
namespace {

using schedule::Table;

constexpr int64_t kMaxFileBytes = 64 << 20;

[[noreturn]] void refuse(const std::string& what) {
  throw Error(ErrorCode::kInvalidArgument, what);
}

// Gives the table of a file the numbers that were asked for: what does not fit is a fault of it.
void apply_counts(const ScheduleSource& source, Table& table) {
  const std::string& path = source.schedule;
  if (table.num_ranks() != source.num_ranks) {
    refuse(fmt::format("schedule: {}: {} rows, want {} {}", path, table.num_ranks(),
                       source.ranks_option, source.num_ranks));
  }
  if (source.num_chunks > 0) {
    table.num_stages = source.num_ranks * source.num_chunks;
  } else if (table.num_stages % source.num_ranks != 0) {
    refuse(fmt::format("schedule: {}: {} stages do not divide among {} ranks; is one missing?",
                       path, table.num_stages, source.num_ranks));
  }
  table.num_microbatches = source.num_microbatches;
}

void check_file_options(const ScheduleSource& source) {
  if (!file_exists(source.schedule)) {
    refuse(fmt::format("{}: got '{}', want gpipe, circular, 1f1b, interleaved, zb1p, or a CSV file",
                       source.option, source.schedule));
  }
  if (source.forwarding_delay != 1) {
    refuse("--forwarding-delay: a file has the transfers that it has; it goes with circular");
  }
}

// Prints how many there are of each action that the file has and a run here does not take.
Table read_schedule_file(const ScheduleSource& source) {
  const std::string& path = source.schedule;
  check_file_options(source);
  auto [table, left_out] = schedule::read_csv(read_file(path, kMaxFileBytes), path);
  for (const auto& [name, count] : left_out) {
    say(fmt::format("{}: {} {} left out: weights are not sharded and sends do not wait here\n",
                    path, count, name));
  }
  apply_counts(source, table);
  return table;
}

}  // namespace

Table resolve_schedule(const ScheduleSource& source) {
  schedule::Kind kind = {};
  Table table =
      schedule::parse_kind(source.schedule, kind)
          ? schedule::generate({.kind = kind,
                                .num_ranks = source.num_ranks,
                                .num_microbatches = source.num_microbatches,
                                .num_chunks = source.num_chunks == 0 ? 1 : source.num_chunks,
                                .forwarding_delay = source.forwarding_delay})
          : read_schedule_file(source);
  check_schedule(source.schedule, table);
  return table;
}

void check_schedule(const std::string& name, const Table& table) {
  if (const auto fault = schedule::verify(table)) {
    refuse(fmt::format("schedule: {}: {}", name, to_string(*fault)));
  }
}

}  // namespace strata::apps
