// SPDX-License-Identifier: Apache-2.0
#include "setup/division_search.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <memory>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "report/format.h"
#include "setup/engine_setup.h"
#include "setup/ranks.h"
#include "setup/simulated_step.h"
#include "setup/stage_messages.h"

namespace strata::apps {
namespace {

constexpr int kChunks[] = {1, 2, 4};
constexpr std::string_view kOneChunk[] = {"1f1b", "gpipe", "zb1p"};
constexpr std::string_view kSeveralChunks[] = {"interleaved", "circular", "zb1p"};

// Whether the generator has it for so many micro-batches.
bool has_microbatches(std::string_view schedule, int ranks, int microbatches) {
  if (schedule == "circular") return microbatches % ranks == 0;
  if (schedule == "interleaved" || schedule == "zb1p")
    return microbatches % std::max(1, microbatches / ranks) == 0;
  return true;
}

// Powers of two and such multiples of a pipeline's ranks, up to so many; 1 in any case.
std::set<int> numbers_of_microbatches(int ranks, int64_t most) {
  std::set<int> numbers = {1};
  for (int64_t number = 2; number <= most; number *= 2) numbers.insert(static_cast<int>(number));
  for (int64_t number = ranks; number <= most; number *= 2)
    numbers.insert(static_cast<int>(number));
  return numbers;
}

// Divisions that have the same stages and ranks, with the engines that plan all of them.
struct Group {
  std::vector<StageOptions> divisions = {};
  std::string layers = {};  // of each stage, as --layers-per-stage has them
  std::unique_ptr<engine::Engine> whole = nullptr;
  std::vector<std::unique_ptr<engine::Engine>> parts = {};
  std::vector<int64_t> weight_bytes = {};  // of each stage
};

// One of a group's, and what its step takes at least.
struct Candidate {
  const Group* group = nullptr;
  StageOptions stages = {};
  double bound = 0.0;
};

std::string layers_text(const engine::PipelinePlan& plan) {
  std::string text;
  for (const model::LayerRange& range : plan.layers)
    text += fmt::format("{}{}", text.empty() ? "" : ",", range.size());
  return text;
}

StageOptions options_of(const schedule::ParallelLayout& layout, int chunks,
                        std::string_view schedule, int microbatches) {
  StageOptions stages;
  stages.ranks = fmt::format("pipeline={},data={}", layout.pipeline, layout.data);
  if (layout.expert > 1) stages.ranks += fmt::format(",expert={}", layout.expert);
  if (layout.tensor > 1) stages.ranks += fmt::format(",tensor={}", layout.tensor);
  stages.chunks = chunks == 1 ? 0 : chunks;
  stages.schedule = schedule;
  stages.microbatches = microbatches;
  return stages;
}

StageOptions with_ranks(const StageOptions& stages) {
  return stages_with_layout(stages, schedule::parse_layout(stages.ranks));
}

bool is_faster(const FoundDivision& one, const FoundDivision& other) {
  const auto key = [](const FoundDivision& found) {
    return std::tuple(found.seconds, found.peak_bytes, division_options_text(found));
  };
  return key(one) < key(other);
}

class Search {
 public:
  Search(const DivisionSearch& search, DivisionSearch::ShapeOf shape_of,
         DivisionSearch::Report report)
      : search_(search), shape_of_(shape_of), report_(report), spec_(search.spec) {}

  FoundDivisions run() {
    check_layout({.data = search_.num_ranks}, spec_.parsed.config);
    search(plain_layouts());
    if (found_.best.empty()) search(layouts_that_divide_stages());
    return std::move(found_);
  }

 private:
  // The bounds of all are found first, and then, from the least one on, what there is in truth.
  void search(const std::vector<schedule::ParallelLayout>& layouts) {
    const std::vector<Group> groups = make_groups(layouts);
    std::vector<Candidate> candidates = find_candidates(groups);
    std::ranges::stable_sort(candidates, {}, &Candidate::bound);
    const auto total = std::ssize(candidates);
    for (int64_t i = 0; i < total; ++i) {
      const Candidate& candidate = candidates[static_cast<size_t>(i)];
      if (candidate.bound >= slowest_kept()) {
        found_.num_ruled_out = total - i;
        break;
      }
      report_(i, total);
      try_candidate(candidate);
    }
    report_(total, total);
  }

  // What is slower than this is not kept.
  [[nodiscard]] double slowest_kept() const {
    return found_.best.size() < kMostFound ? std::numeric_limits<double>::infinity()
                                           : found_.best.back().seconds;
  }

  // With the layers that its group has.
  [[nodiscard]] planner::Division division_of(const Group& group, const StageOptions& asked) const {
    StageOptions stages = with_ranks(asked);
    stages.layers_per_stage = group.layers;
    return plan_division(group.whole->config(), stages, spec_);
  }

  [[nodiscard]] std::vector<schedule::ParallelLayout> plain_layouts() const {
    std::vector<schedule::ParallelLayout> layouts;
    for (int pipeline = 1; pipeline <= search_.num_ranks; ++pipeline) {
      if (search_.num_ranks % pipeline == 0)
        layouts.push_back({.pipeline = pipeline, .data = search_.num_ranks / pipeline});
    }
    return layouts;
  }
  // Those of them with some of the data ranks as expert ranks or as tensor ranks.
  [[nodiscard]] std::vector<schedule::ParallelLayout> layouts_that_divide_stages() const {
    std::vector<schedule::ParallelLayout> layouts;
    for (const schedule::ParallelLayout& plain : plain_layouts()) {
      for (int alike = 2; alike <= plain.data; ++alike) {
        if (plain.data % alike != 0) continue;
        for (const bool expert : {true, false}) {
          schedule::ParallelLayout layout = plain;
          layout.data /= alike;
          (expert ? layout.expert : layout.tensor) = alike;
          if (is_allowed(layout)) layouts.push_back(layout);
        }
      }
    }
    return layouts;
  }
  // Whether the program runs it.
  [[nodiscard]] bool is_allowed(const schedule::ParallelLayout& layout) const {
    if (layout.tensor > 1 && search_.how && search_.how->muon) return false;
    try {
      check_layout(layout, spec_.parsed.config);
    } catch (const Error&) {
      return false;
    }
    return true;
  }

  [[nodiscard]] std::vector<Group> make_groups(
      const std::vector<schedule::ParallelLayout>& layouts) {
    std::vector<Group> groups;
    for (const schedule::ParallelLayout& layout : layouts) {
      for (const int chunks : kChunks) {
        if (int64_t{layout.pipeline} * chunks > spec_.parsed.config.num_layers()) break;
        if (chunks > 1 && (layout.pipeline == 1 || !search_.tries_chunks)) break;
        groups.push_back(make_group(layout, chunks));
      }
    }
    return groups;
  }

  // Has one division at least: a step of one micro-batch.
  [[nodiscard]] Group make_group(const schedule::ParallelLayout& layout, int chunks) {
    const StageOptions one = layout.pipeline == 1
                                 ? options_of(layout, 1, StageOptions().schedule, 1)
                                 : options_of(layout, chunks, chunks == 1 ? "gpipe" : "zb1p", 1);
    Group group = {.whole = make_planning_engine(with_planned_share(spec_, with_ranks(one)))};
    group.whole->set_share({.num_owners = layout.data * layout.expert});
    const planner::Division division = plan_division(group.whole->config(), with_ranks(one), spec_);
    group.layers = layers_text(division.told);
    group.parts = make_part_engines(spec_, *group.whole, division, search_.how);
    for (const auto& part : group.parts)
      group.weight_bytes.push_back(part->model().weights->num_bytes());
    if (group.parts.empty()) group.weight_bytes = {group.whole->model().weights->num_bytes()};
    if (!batch_) {
      const planner::RunShape shape = shape_of_(*group.whole, division);
      num_sequences_ = std::ssize(shape.lengths);
      batch_.emplace(shape, api::AdapterSlot::kBase);
    }
    if (layout.pipeline == 1) {
      group.divisions = {one};
    } else {
      group.divisions = divisions_in_stages(layout, chunks);
    }
    return group;
  }

  [[nodiscard]] std::vector<StageOptions> divisions_in_stages(
      const schedule::ParallelLayout& layout, int chunks) const {
    const int pipeline = layout.pipeline, dealing = layout.data * layout.expert;
    const auto schedules = chunks == 1 ? std::span(kOneChunk) : std::span(kSeveralChunks);
    std::vector<StageOptions> divisions;
    for (const int microbatches : numbers_of_microbatches(pipeline, num_sequences_ / dealing)) {
      for (const std::string_view schedule : schedules) {
        // Training refuses it, too (check_deferred_weight_grads).
        if (search_.how && dealing > 1 && schedule == "zb1p") continue;
        if (has_microbatches(schedule, pipeline, microbatches))
          divisions.push_back(options_of(layout, chunks, schedule, microbatches));
      }
    }
    return divisions;
  }

  // All but those of which a stage's weights alone are too large.
  [[nodiscard]] std::vector<Candidate> find_candidates(const std::vector<Group>& groups) {
    std::vector<Candidate> candidates;
    for (const Group& group : groups) {
      const int64_t largest = std::ranges::max(group.weight_bytes);
      for (const StageOptions& stages : group.divisions) {
        if (largest > search_.cluster.memory) {
          note_too_large(largest);
        } else {
          candidates.push_back({&group, stages, bound_of(group, stages)});
        }
      }
    }
    return candidates;
  }

  [[nodiscard]] double bound_of(const Group& group, const StageOptions& stages) {
    const planner::Division division = division_of(group, stages);
    const planner::RunShape shape = shape_of_(*group.whole, division);
    const engine::RunPlan plan = {.pipeline = division.told, .micro_tokens = shape.micro_tokens};
    return least_step_seconds({plan, *group.whole, shape, batch_->batch()}, group.weight_bytes,
                              search_.cluster);
  }

  // A division with what is recomputed in it.
  struct Planned {
    planner::Division division;
    planner::RunShape shape;
    engine::RunPlan plan;
    [[nodiscard]] int64_t most_bytes() const { return std::ranges::max(plan.bytes_of_ranks()); }
    [[nodiscard]] bool fits(const Cluster& cluster) const {
      return fits_cluster(plan.bytes_of_ranks(), cluster);
    }
  };
  [[nodiscard]] Planned plan_recomputing(const Candidate& candidate, const std::string& recompute) {
    const Group& group = *candidate.group;
    spec_.recompute = parse_recompute(recompute);
    Planned planned;
    planned.division = division_of(group, candidate.stages);
    planned.shape = shape_of_(*group.whole, planned.division);
    planner::TrainRun run = {.whole = *group.whole,
                             .division = planned.division,
                             .shape = planned.shape,
                             .recompute = spec_.recompute.policy};
    for (const auto& part : group.parts) run.stages.push_back(part.get());
    planned.plan = planner::plan_run(run);
    return planned;
  }

  // Most that are too large are so with all that can be recomputed: that is planned first.
  void try_candidate(const Candidate& candidate) {
    const std::string& last = search_.recompute.back();
    const Planned smallest = plan_recomputing(candidate, last);
    if (!smallest.fits(search_.cluster)) return note_too_large(smallest.most_bytes());
    for (const std::string& recompute : search_.recompute) {
      if (recompute == last) break;
      const Planned planned = plan_recomputing(candidate, recompute);
      if (planned.fits(search_.cluster)) return simulate(candidate, planned, recompute);
    }
    spec_.recompute = parse_recompute(last);
    simulate(candidate, smallest, last);
  }

  void simulate(const Candidate& candidate, const Planned& planned, const std::string& recompute) {
    const std::vector<StageMessages> messages =
        plan_stage_messages(spec_, planned.division, planned.plan, planned.shape,
                            search_.how.value_or(train::BaseStep()));
    const schedule::Simulation simulation = simulate_step(
        {planned.plan, *candidate.group->whole, planned.shape, batch_->batch(), messages},
        search_.cluster, /*keeps_spans=*/false);
    ++found_.num_simulated;
    keep({.stages = candidate.stages,
          .recompute = recompute,
          .seconds = simulation.seconds,
          .bubble_share = simulation.bubble_share,
          .peak_bytes = planned.most_bytes()});
  }

  void note_too_large(int64_t bytes) {
    if (found_.num_too_large++ == 0 || bytes < found_.least_bytes) found_.least_bytes = bytes;
  }

  void keep(FoundDivision found) {
    std::vector<FoundDivision>& best = found_.best;
    best.insert(std::ranges::upper_bound(best, found, is_faster), std::move(found));
    if (best.size() > kMostFound) best.pop_back();
  }

  const DivisionSearch& search_;
  DivisionSearch::ShapeOf shape_of_;
  DivisionSearch::Report report_;
  LoadSpec spec_;
  std::optional<PlannedBatch> batch_;  // of a step
  int64_t num_sequences_ = 0;          // in it
  FoundDivisions found_;
};

}  // namespace

FoundDivisions search_divisions(const DivisionSearch& search, DivisionSearch::ShapeOf shape_of,
                                DivisionSearch::Report report) {
  return Search(search, shape_of, report).run();
}

void check_found(const FoundDivisions& found, const DivisionSearch& search) {
  if (!found.best.empty()) return;
  throw Error(
      ErrorCode::kInvalidArgument,
      fmt::format("no division among {} ranks of {} fits: a rank has {}, and the smallest of {} "
                  "divisions takes {} with --recompute {}; give more ranks, a smaller --rank, or "
                  "shorter sequences",
                  search.num_ranks, search.cluster.limits.source,
                  report::format_bytes(search.cluster.memory), found.num_too_large,
                  report::format_bytes(found.least_bytes), search.recompute.back()));
}

std::string division_options_text(const FoundDivision& division) {
  const StageOptions& stages = division.stages;
  std::string text = fmt::format("--ranks {}", stages.ranks);
  if (!stages.ranks.starts_with("pipeline=1,")) {
    text += fmt::format(" --pipeline-schedule {} --microbatches {}", stages.schedule,
                        stages.microbatches);
  }
  if (stages.chunks > 0) text += fmt::format(" --chunks {}", stages.chunks);
  if (division.recompute != "none") text += fmt::format(" --recompute {}", division.recompute);
  return text;
}

void check_division_is_open(const StageOptions& given, const std::string& chooser) {
  const StageOptions absent;
  const std::pair<std::string_view, bool> chosen[] = {
      {"stages", given.stages != absent.stages},
      {"pipeline-schedule", given.schedule != absent.schedule},
      {"microbatches", given.microbatches != absent.microbatches},
      {"chunks", given.chunks != absent.chunks},
      {"forwarding-delay", given.forwarding_delay != absent.forwarding_delay},
      {"layers-per-stage", given.layers_per_stage != absent.layers_per_stage},
      {"leftovers", given.leftovers != absent.leftovers},
      {"recompute-iterations", given.recompute_iterations != absent.recompute_iterations},
      {"recompute-layers", given.recompute_layers != absent.recompute_layers},
      {"shard-weights", given.shard_weights}};
  for (const auto& [name, is_given] : chosen) {
    if (!is_given) continue;
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{} and --{}: give one; {} chooses how the model is divided", chooser,
                            name, chooser));
  }
}

}  // namespace strata::apps
