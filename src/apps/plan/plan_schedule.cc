// SPDX-License-Identifier: Apache-2.0
#include "apps/plan/plan_schedule.h"

#include <fmt/format.h>

#include <boost/json.hpp>
#include <cmath>
#include <deque>

#include "base/error.h"
#include "base/files.h"
#include "report/table.h"
#include "report/trace_file.h"
#include "schedule/csv.h"
#include "schedule/lower.h"
#include "schedule/walk.h"
#include "setup/schedule_source.h"

namespace strata::apps {
namespace {

namespace json = boost::json;
using schedule::Table;

[[noreturn]] void refuse(const std::string& what) {
  throw Error(ErrorCode::kInvalidArgument, what);
}

void check_given(const PlanScheduleOptions& options) {
  if (options.pipeline == 0) refuse("--pipeline: --schedule needs the number of ranks");
  if (options.microbatches == 0) refuse("--microbatches: --schedule needs their number");
}

int64_t num_actions(const std::vector<schedule::Slot>& row) {
  int64_t count = 0;
  for (const schedule::Slot& slot : row) count += slot.count;
  return count;
}

double bubble_share(const schedule::Walk& walk, const schedule::RankUse& rank) {
  return 1 - rank.busy / walk.time;
}

json::array ranks_json(const Table& table, const schedule::Walk& walk) {
  json::array ranks;
  for (size_t i = 0; i < walk.ranks.size(); ++i) {
    ranks.push_back({{"rank", i},
                     {"actions", num_actions(table.rows[i])},
                     {"bubble_share", bubble_share(walk, walk.ranks[i])},
                     {"peak_live_microbatches", walk.ranks[i].peak_live}});
  }
  return ranks;
}

void print_json(const PlanScheduleOptions& options, const Table& table,
                const schedule::Walk& walk) {
  const json::object out = {{"schedule", options.schedule},
                            {"pipeline", table.num_ranks()},
                            {"microbatches", table.num_microbatches},
                            {"chunks", table.num_stages / table.num_ranks()},
                            {"time", walk.time},
                            {"bubble_share", walk.bubble_share},
                            {"ranks", ranks_json(table, walk)}};
  fmt::print("{}\n", json::serialize(out));
}

std::string ranks_table(const Table& table, const schedule::Walk& walk) {
  report::Table rows({{"rank", report::Align::kRight},
                      {"actions", report::Align::kRight},
                      {"bubbles", report::Align::kRight},
                      {"peak of live micro-batches", report::Align::kRight}});
  for (size_t i = 0; i < walk.ranks.size(); ++i) {
    rows.add_row({std::to_string(i), std::to_string(num_actions(table.rows[i])),
                  fmt::format("{:.2f} %", 100 * bubble_share(walk, walk.ranks[i])),
                  std::to_string(walk.ranks[i].peak_live)});
  }
  return rows.text();
}

void print_text(const PlanScheduleOptions& options, const Table& table,
                const schedule::Walk& walk) {
  fmt::print("schedule {}: {} ranks, {} micro-batches, {} chunks a rank; verified\n",
             options.schedule, table.num_ranks(), table.num_microbatches,
             table.num_stages / table.num_ranks());
  fmt::print("bubbles {:.9f} of all time, where a forward takes 1, a backward 2{}\n",
             walk.bubble_share,
             options.forwarding_delay > 1 ? ", and a transfer as long as what it carries took"
                                          : " and a transfer nothing");
  fmt::print("{}", ranks_table(table, walk));
}

// A forward as one millisecond; gaps are bubbles. Spans borrow what is added to `names`.
TracedThread trace_rank(size_t rank, const Table& table, const schedule::Walk& walk,
                        std::deque<std::string>& names) {
  constexpr double kNanoseconds = 1e6;
  TracedThread row = {.name = fmt::format("rank {}", rank)};
  for (const schedule::TimedSlot& slot : walk.ranks[rank].slots) {
    names.push_back(to_string(table.rows[rank][slot.slot]));
    row.spans.push_back({.name = names.back(),
                         .key = "slot",
                         .number = static_cast<int64_t>(slot.slot),
                         .start_ns = std::llround(slot.start * kNanoseconds),
                         .end_ns = std::llround(slot.end * kNanoseconds)});
  }
  return row;
}

void write_timeline(const std::string& path, const Table& table, const schedule::Walk& walk) {
  std::deque<std::string> names;
  std::vector<TracedThread> rows;
  for (size_t rank = 0; rank < walk.ranks.size(); ++rank)
    rows.push_back(trace_rank(rank, table, walk, names));
  write_file_atomic(path, report::trace_json(rows));
}

// The table with its transfers, checked.
Table lower_schedule(const PlanScheduleOptions& options, const Table& table) {
  Table out = schedule::has_transfers(table)
                  ? table
                  : schedule::lower(schedule::without_transfers(table), options.forwarding_delay);
  check_schedule(options.schedule, out);
  return out;
}

}  // namespace

int run_plan_schedule(const PlanScheduleOptions& options, bool as_json) {
  check_given(options);
  const Table table = resolve_schedule({.schedule = options.schedule,
                                        .num_ranks = options.pipeline,
                                        .ranks_option = "--pipeline",
                                        .num_microbatches = options.microbatches,
                                        .num_chunks = options.chunks,
                                        .forwarding_delay = options.forwarding_delay});
  const Table computation = schedule::without_transfers(table);
  const Table out = options.with_transfers ? lower_schedule(options, table) : computation;
  if (!options.schedule_out.empty()) write_file_atomic(options.schedule_out, csv_text(out));
  const schedule::Walk walk =
      schedule::walk(computation, schedule::ideal_costs(options.forwarding_delay));
  if (!options.trace.empty()) write_timeline(options.trace, computation, walk);
  as_json ? print_json(options, out, walk) : print_text(options, out, walk);
  return 0;
}

}  // namespace strata::apps
