// SPDX-License-Identifier: Apache-2.0
#include "apps/plan/plan_search.h"

#include <fmt/format.h>

#include <boost/json.hpp>
#include <optional>
#include <string_view>
#include <utility>

#include "apps/options.h"
#include "base/error.h"
#include "report/format.h"
#include "report/progress.h"
#include "report/table.h"

namespace strata::apps {
namespace {

[[noreturn]] void refuse(const std::string& what) {
  throw Error(ErrorCode::kInvalidArgument, "plan: " + what);
}

// Options of `plan train` that `train` has too, and that change what a step is.
constexpr std::string_view kOfTrain[] = {"method",  "optimizer",    "rank",  "expert-rank",
                                         "targets", "micro-tokens", "dtype", "weights",
                                         "context", "load-in-4bit", "device"};

std::string given_options_text(const PlanOptions& options) {
  PlanOptions given = options, absent;
  const PlanMode& mode = find_plan_mode("train");
  const OptionTable table = option_table_of(given, mode), defaults = option_table_of(absent, mode);
  std::string text;
  for (const std::string_view name : kOfTrain) {
    const OptionRow* row = table.find(name);
    if (row == nullptr || row->text() == defaults.find(name)->text()) continue;
    text += fmt::format(" --{}", name);
    if (row->kind != OptionKind::kFlag) text += " " + row->text();
  }
  return text;
}

// The command that trains so: with as many sequences a step as were planned.
std::string command_text(const PlanOptions& options, const FoundDivision& best) {
  const std::string tokens = options.tokens.empty() ? "8" : options.tokens;
  return fmt::format(
      "mpirun -n {} strata train --model {} --data FILE --out FOLDER --batch-size {}{} {}",
      options.search, options.model, tokens.substr(0, tokens.find('x')),
      given_options_text(options), division_options_text(best));
}

std::string counts_text(const FoundDivisions& found) {
  return fmt::format("{} divisions simulated; {} too large for a rank; {} slower by a bound\n",
                     found.num_simulated, found.num_too_large, found.num_ruled_out);
}

std::string found_table(const FoundDivisions& found) {
  using report::Align;
  report::Table table({{"ranks"},
                       {"schedule"},
                       {"micro-batches", Align::kRight},
                       {"chunks", Align::kRight},
                       {"recompute"},
                       {"a step", Align::kRight},
                       {"bubbles", Align::kRight},
                       {"memory", Align::kRight}});
  for (const FoundDivision& division : found.best) {
    const StageOptions& stages = division.stages;
    const bool has_stages = !stages.ranks.starts_with("pipeline=1,");
    table.add_row({stages.ranks, has_stages ? stages.schedule : "",
                   has_stages ? std::to_string(stages.microbatches) : "",
                   has_stages ? std::to_string(std::max(1, stages.chunks)) : "", division.recompute,
                   report::format_seconds(division.seconds),
                   fmt::format("{:.1f} %", 100.0 * division.bubble_share),
                   report::format_bytes(division.peak_bytes)});
  }
  return table.text();
}

boost::json::object found_json(const FoundDivision& division) {
  const StageOptions& stages = division.stages;
  return {{"ranks", stages.ranks},
          {"schedule", stages.schedule},
          {"microbatches", stages.microbatches},
          {"chunks", std::max(1, stages.chunks)},
          {"recompute", division.recompute},
          {"seconds_per_step", division.seconds},
          {"bubble_share", division.bubble_share},
          {"peak_bytes", division.peak_bytes}};
}

}  // namespace

void check_can_search(const PlanOptions& options) {
  if (options.cluster.empty()) refuse("--search: of a cluster; give --cluster FILE");
  StageOptions given = options.stages;
  if (options.schedule.microbatches > 0) given.microbatches = -1;
  given.chunks = options.schedule.chunks;
  given.forwarding_delay = options.schedule.forwarding_delay;
  check_division_is_open(given, "--search");
  const std::pair<std::string_view, bool> others[] = {
      {"ranks", !options.stages.ranks.empty()},
      {"memory", !options.memory.empty()},
      {"svg", !options.svg.empty()},
      {"trace", !options.schedule.trace.empty()},
      {"machine", !options.machine.empty()},
      {"save-machine", !options.save_machine.empty()}};
  for (const auto& [name, is_given] : others) {
    if (is_given) {
      refuse(
          fmt::format("--search and --{}: the search is among divisions of --cluster's ranks and "
                      "within their memory; leave it out",
                      name));
    }
  }
}

int print_found_divisions(const PlanOptions& options, const DivisionSearch& search,
                          DivisionSearch::ShapeOf shape_of) {
  std::optional<report::Progress> progress;  // of each time that it goes through divisions
  const FoundDivisions found = search_divisions(search, shape_of, [&](int64_t done, int64_t total) {
    if (!progress) progress.emplace(report::ProgressOptions{.label = "search", .total = total});
    progress->update(done);
    if (done < total) return;
    progress->finish();
    progress.reset();
  });
  check_found(found, search);
  const std::string command = command_text(options, found.best.front());
  if (!options.json) {
    fmt::print("{}{}\n{}\n", found_table(found), counts_text(found), command);
    return 0;
  }
  boost::json::array best;
  for (const FoundDivision& division : found.best) best.push_back(found_json(division));
  fmt::print("{}\n",
             boost::json::serialize(boost::json::object{{"limits", search.cluster.limits.source},
                                                        {"ranks", search.num_ranks},
                                                        {"simulated", found.num_simulated},
                                                        {"too_large", found.num_too_large},
                                                        {"ruled_out", found.num_ruled_out},
                                                        {"command", command},
                                                        {"best", std::move(best)}}));
  return 0;
}

}  // namespace strata::apps
