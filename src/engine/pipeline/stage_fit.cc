// SPDX-License-Identifier: Apache-2.0
#include "engine/pipeline/stage_fit.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "engine/plan/recompute_plan.h"

namespace strata::engine {
namespace {

constexpr int kHalvings = 40;  // of what ranks may recompute
constexpr int kTries = 4;      // of what is over once all is counted together

// Of points by rising bytes, the least bytes that cost so much at most.
int64_t bytes_at(const std::vector<RecomputePlanner::Point>& front, double cost) {
  int64_t least = front.back().bytes;
  for (const RecomputePlanner::Point& point : front) {
    if (point.cost <= cost) least = std::min(least, point.bytes);
  }
  return least;
}

using Planners = std::vector<std::unique_ptr<RecomputePlanner>>;

// What ranks may recompute. Stages of one rank share what it leaves in proportion to what they
// would recompute in full.
struct Levels {
  const PipelinePlan& plan;
  std::span<const double> work;  // besides that, by stage
  std::vector<std::vector<RecomputePlanner::Point>> fronts = {};

  [[nodiscard]] double all_again(size_t stage) const { return fronts[stage].front().cost; }

  // Bytes of each stage where no rank does more than `level`.
  [[nodiscard]] std::vector<int64_t> shares_at(double level) const {
    std::vector<double> left(static_cast<size_t>(plan.num_ranks()), level), again(left.size());
    for (size_t stage = 0; stage < fronts.size(); ++stage) {
      const auto rank = static_cast<size_t>(plan.ranks[stage]);
      left[rank] -= work[stage];
      again[rank] += all_again(stage);
    }
    std::vector<int64_t> shares;
    for (size_t stage = 0; stage < fronts.size(); ++stage) {
      const auto rank = static_cast<size_t>(plan.ranks[stage]);
      const double share = again[rank] > 0.0 ? std::clamp(left[rank] / again[rank], 0.0, 1.0) : 1.0;
      shares.push_back(bytes_at(fronts[stage], share * all_again(stage)));
    }
    return shares;
  }

  // The lowest level whose shares fit.
  [[nodiscard]] double lowest(double low, double high, int64_t budget) const {
    const auto fits = [&](double level) {
      const std::vector<int64_t> shares = shares_at(level);
      return std::accumulate(shares.begin(), shares.end(), int64_t{0}) <= budget;
    };
    if (fits(low)) return low;
    // A higher level never needs more bytes, so what fits is an interval that ends at `high`.
    for (int halving = 0; halving < kHalvings && high > low; ++halving) {
      const double middle = (low + high) / 2;
      (fits(middle) ? high : low) = middle;
    }
    return high;
  }
};

// What each stage's plan keeps, for the stage's own layers.
model::Recompute together(std::span<const RecomputePlan> plans, int64_t num_layers) {
  const auto keeps_all = [](const RecomputePlan& plan) { return plan.recompute.keeps_all(); };
  if (std::all_of(plans.begin(), plans.end(), keeps_all)) return model::Recompute::kNone;
  std::vector<std::string> tags;
  std::vector<uint64_t> masks(static_cast<size_t>(num_layers));
  for (const RecomputePlan& plan : plans) {
    for (const RecomputePlan::Row& row : plan.rows) {
      auto tag = std::find(tags.begin(), tags.end(), row.tag);
      if (tag == tags.end()) tag = tags.insert(tag, std::string(row.tag));
      for (const int64_t layer : row.layers) {
        if (!plan.recompute.keeps(layer, row.tag)) continue;
        masks[static_cast<size_t>(layer)] |= uint64_t{1} << (tag - tags.begin());
      }
    }
  }
  return model::Recompute::keeping(std::move(tags), std::move(masks));
}

// Bytes of choices were but about right: what is left is for stages of the busiest rank.
void use_what_is_left(const Planners& planners, std::span<const double> work, int64_t budget,
                      std::span<RecomputePlan> plans,
                      FunctionRef<std::vector<double>(std::span<const double>)> by_rank,
                      std::span<const int> ranks) {
  std::vector<double> works(work.begin(), work.end());
  int64_t left = budget;
  for (size_t stage = 0; stage < plans.size(); ++stage) {
    works[stage] += plans[stage].cost();
    left -= plans[stage].bytes;
  }
  const auto improve_one = [&] {
    const std::vector<double> of_ranks = by_rank(works);
    const double most = *std::max_element(of_ranks.begin(), of_ranks.end());
    for (size_t stage = 0; stage < plans.size(); ++stage) {
      // Bytes of any other rank's stage would shorten no step.
      if (of_ranks[static_cast<size_t>(ranks[stage])] < most) continue;
      RecomputePlan more = planners[stage]->plan(plans[stage].bytes + left);
      if (more.cost() >= plans[stage].cost()) continue;
      left += plans[stage].bytes - more.bytes;
      works[stage] += more.cost() - plans[stage].cost();
      plans[stage] = std::move(more);
      return true;
    }
    return false;
  };
  while (left > 0 && improve_one()) {
  }
}

}  // namespace

int64_t StagesChoice::bytes() const {
  return std::accumulate(stages.begin(), stages.end(), int64_t{0},
                         [](int64_t sum, const StagePlan& stage) { return sum + stage.total(); });
}

std::vector<double> StageFitter::by_rank(std::span<const double> of_stages) const {
  std::vector<double> of_ranks(static_cast<size_t>(plan_.num_ranks()));
  for (size_t stage = 0; stage < of_stages.size(); ++stage) {
    of_ranks[static_cast<size_t>(plan_.ranks[stage])] += of_stages[stage];
  }
  return of_ranks;
}

double StageFitter::busiest(std::span<const double> of_stages) const {
  const std::vector<double> of_ranks = by_rank(of_stages);
  return *std::max_element(of_ranks.begin(), of_ranks.end());
}

PlanShape StageFitter::shape_of(int stage, const model::RecomputeRegions& regions) const {
  PlanShape shape = shape_;
  shape.in_stages = true;
  shape.defers = plan_.defers(stage);
  shape.in_flight = peak_live(plan_, stage);
  shape.regions = regions;
  return shape;
}

StagesChoice StageFitter::count(const model::RecomputeRegions& regions,
                                const model::Recompute& recompute) {
  StagesChoice choice = {.regions = regions,
                         .recompute = regions.any() ? recompute : model::Recompute::kNone};
  for (int stage = 0; stage < plan_.num_stages(); ++stage) {
    PlanShape shape = shape_of(stage, regions);
    shape.recompute = choice.recompute;
    choice.stages.push_back(plan_stage(plan_, stage, *engines_[static_cast<size_t>(stage)], shape));
  }
  return choice;
}

std::vector<double> StageFitter::again(const StagesChoice& choice) {
  for (int stage = 0; std::ssize(saved_) < plan_.num_stages(); ++stage) {
    PlanShape shape = shape_of(stage, {});
    shape.recompute = model::Recompute::kNone;
    saved_.push_back(plan_pass(*engines_[static_cast<size_t>(stage)], shape).saved);
  }
  std::vector<double> again;
  for (const std::vector<model::SavedCost>& saved : saved_) {
    double& flops = again.emplace_back(0.0);
    double all = 0.0;
    for (const model::SavedCost& saved_cost : saved) {
      const double cost =
          Price().of({.flops = saved_cost.flops,
                      .bytes = kAgainMoves * static_cast<double>(saved_cost.bytes)});
      all += cost;
      if (!choice.recompute.keeps(saved_cost.layer, saved_cost.tag)) flops += cost;
    }
    // Its layers' inputs are made before them.
    if (choice.regions.makes_stage() && choice.regions.layers) flops += all;
  }
  return again;
}

double StageFitter::cost(const StagesChoice& choice) {
  std::vector<double> of_stages = again(choice);
  for (size_t stage = 0; stage < of_stages.size(); ++stage) of_stages[stage] += work_[stage];
  return busiest(of_stages);
}

std::optional<StagesChoice> StageFitter::fit(std::span<const model::RecomputeRegions> regions,
                                             int64_t bytes) {
  std::vector<model::Recompute> presets = {model::Recompute::kFull};
  for (const model::RecomputePreset& preset : model::recompute_presets()) {
    const model::Recompute value = preset.value();
    if (!value.offloads_any()) presets.push_back(value);
  }
  std::optional<StagesChoice> best;
  const auto consider = [&](std::optional<StagesChoice> choice) {
    if (!choice) return;
    least_ = std::min(least_, choice->bytes());
    if (choice->bytes() > bytes || (best && cost(*choice) >= cost(*best))) return;
    best = std::move(choice);
  };
  for (const model::RecomputeRegions& region : regions) {
    if (!region.any()) {
      consider(count(region, model::Recompute::kNone));
    } else if (!region.makes_stage()) {
      consider(fit_layers(region, bytes));
    } else if (!best) {  // since these make no less again than those that are layers alone
      for (const model::Recompute& preset : presets) consider(count(region, preset));
    }
  }
  return best;
}

// Ranks wait for the busiest one: a level of work is looked for that no rank goes beyond, the
// lowest at which the stages' fewest bytes fit.
std::optional<StagesChoice> StageFitter::fit_layers(const model::RecomputeRegions& regions,
                                                    int64_t bytes) {
  const StagesChoice full = count(regions, model::Recompute::kFull);
  least_ = std::min(least_, full.bytes());
  if (full.bytes() > bytes) return {};
  Planners planners;
  Levels levels = {.plan = plan_, .work = work_};
  int64_t others = full.bytes();  // activations
  for (int stage = 0; stage < plan_.num_stages(); ++stage) {
    planners.push_back(std::make_unique<RecomputePlanner>(*engines_[static_cast<size_t>(stage)],
                                                          shape_of(stage, regions)));
    levels.fronts.push_back(planners.back()->front());
    others -= full.stages[static_cast<size_t>(stage)].activation_bytes();
  }
  const int64_t num_layers = engines_.front()->model().weights->layers().num_layers();
  std::vector<double> most_work(work_.begin(), work_.end());
  for (size_t stage = 0; stage < most_work.size(); ++stage)
    most_work[stage] += levels.all_again(stage);
  int64_t budget = bytes - others;
  for (int i = 0; i < kTries && budget > 0; ++i) {
    const double level = levels.lowest(busiest(work_), busiest(most_work), budget);
    std::vector<RecomputePlan> plans;
    for (size_t stage = 0; stage < planners.size(); ++stage)
      plans.push_back(planners[stage]->plan(levels.shares_at(level)[stage]));
    use_what_is_left(
        planners, work_, budget, plans,
        [this](std::span<const double> works) { return by_rank(works); }, plan_.ranks);
    StagesChoice choice = count(regions, together(plans, num_layers));
    if (choice.bytes() <= bytes) return choice;
    // Counted together, stages take more than each planner said; what was over is taken off.
    budget -= choice.bytes() - bytes;
  }
  return full;
}

}  // namespace strata::engine
