// SPDX-License-Identifier: Apache-2.0
#include "engine/pipeline/stage_fit.h"

#include <algorithm>
#include <numeric>
#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "engine/plan/recompute_plan.h"

namespace strata::engine {
namespace {

constexpr size_t kStagePoints = 256;  // choices of a stage
constexpr size_t kCorrected = 4;      // of them that are counted beforehand
constexpr size_t kRankPoints = 512;   // choices of a rank's stages together

using model::RecomputeRegions;

// What a rank's stages keep, by rising bytes and falling cost.
struct RankPoint {
  int64_t bytes = 0;
  double cost = 0.0;
  std::vector<size_t> choices = {};  // of each of its stages
};

// What each stage keeps, for its own layers.
model::Recompute merge_recompute_policies(std::span<const model::Recompute> of_stages,
                                          std::span<const std::vector<model::SavedCost>> saved,
                                          int64_t num_layers) {
  std::vector<std::string> tags;
  std::vector<uint64_t> masks(static_cast<size_t>(num_layers));
  for (size_t stage = 0; stage < of_stages.size(); ++stage) {
    for (const model::SavedCost& cost : saved[stage]) {
      auto tag = std::find(tags.begin(), tags.end(), cost.tag);
      if (tag == tags.end()) tag = tags.insert(tag, std::string(cost.tag));
      if (!of_stages[stage].keeps(cost.layer, cost.tag)) continue;
      masks[static_cast<size_t>(cost.layer)] |= uint64_t{1} << (tag - tags.begin());
    }
  }
  return model::Recompute::keeping(std::move(tags), std::move(masks));
}

int64_t fullest_process_bytes(std::vector<int64_t> of_ranks, const Processes& processes) {
  of_ranks.front() += processes.of_first;
  std::span<const int64_t> rest = of_ranks;
  int64_t most = 0;
  for (; !rest.empty(); rest = rest.subspan(static_cast<size_t>(processes.ranks_each))) {
    const auto own = rest.first(static_cast<size_t>(processes.ranks_each));
    most = std::max(most, std::accumulate(own.begin(), own.end(), int64_t{0}));
  }
  return most;
}

// Leaves about `most` of the points, which rise in bytes and fall in cost, evenly over their bytes:
// both ends, and between them the cheapest of each share.
template <typename P>
void thin_out(std::vector<P>& points, size_t most) {
  if (points.size() <= most) return;
  const auto first = static_cast<double>(points.front().bytes);
  const double share =
      (static_cast<double>(points.back().bytes) - first) / static_cast<double>(most);
  const auto share_of = [&](const P& point) {
    return static_cast<int64_t>((static_cast<double>(point.bytes) - first) / share);
  };
  std::vector<P> kept = {points.front()};
  for (size_t i = 1; i < points.size(); ++i) {
    const bool is_last = i + 1 == points.size() || share_of(points[i + 1]) != share_of(points[i]);
    if (is_last) kept.push_back(std::move(points[i]));
  }
  points = std::move(kept);
}

// Strikes points that another is no worse than in both; the rest by rising bytes.
template <typename P>
void keep_pareto_front(std::vector<P>& points) {
  std::stable_sort(points.begin(), points.end(), [](const P& a, const P& b) {
    return a.bytes != b.bytes ? a.bytes < b.bytes : a.cost < b.cost;
  });
  std::vector<P> best;
  for (P& point : points) {
    if (best.empty() || point.cost < best.back().cost) best.push_back(std::move(point));
  }
  points = std::move(best);
}

}  // namespace

// What one stage can keep of its activations where each layer is recomputed alone: choices by
// rising bytes and falling work, none of which is better in both. None depends on a number of bytes
// that is to hold it, so that more bytes only add choices.
class StageFront {
 public:
  // `shape`: of a micro-batch on this stage.
  StageFront(const PipelinePlan& plan, int stage, Engine& engine, const PlanShape& shape,
             const Price& price)
      : plan_(plan),
        stage_(stage),
        engine_(engine),
        shape_(shape),
        planner_(engine, shape, /*offloads=*/false, price) {
    size_t choice = 0;
    for (const RecomputePlanner::Point& point : planner_.pareto_front())
      points_.push_back({point.bytes, point.cost, choice++});
    thin_out(points_, kStagePoints);
    correct_bytes();
  }

  struct Point {
    int64_t bytes = 0;  // of the stage, about
    double cost = 0.0;  // of what is recomputed of a micro-batch, in floating-point operations
    size_t choice = 0;  // for recompute() and count_stage()
  };
  [[nodiscard]] const std::vector<Point>& points() const { return points_; }
  [[nodiscard]] model::Recompute recompute(size_t choice) const { return planner_.at(choice); }
  // What the stage takes with it, as its passes are counted: once.
  const StagePlan& count_stage(size_t choice) {
    const auto found = counted_.find(choice);
    if (found != counted_.end()) return found->second;
    PlanShape shape = shape_;
    shape.recompute = recompute(choice);
    return counted_.emplace(choice, plan_stage(plan_, stage_, engine_, shape)).first->second;
  }

 private:
  // Bytes of choices are but about right, and those of a pass: some are counted, and what they are
  // off by is spread over those between them.
  void correct_bytes() {
    const size_t step = std::max<size_t>(1, points_.size() / kCorrected);
    std::vector<size_t> at;
    for (size_t i = 0; i + 1 < points_.size(); i += step) at.push_back(i);
    at.push_back(points_.size() - 1);
    std::vector<double> off;
    for (const size_t i : at)
      off.push_back(static_cast<double>(count_stage(points_[i].choice).total() - points_[i].bytes));
    add_interpolated(at, off);
    // What was off may fall from one counted choice to the next, and with it the sum: behind this
    // bytes need not rise any more, so what is then worse in both goes.
    keep_pareto_front(points_);
  }
  // To the bytes of points: `off` of those `at` these places, and what is between two of them.
  void add_interpolated(std::span<const size_t> at, std::span<const double> off) {
    for (size_t k = 0; k < at.size(); ++k) {
      const size_t end = k + 1 < at.size() ? at[k + 1] : at[k] + 1;
      for (size_t i = at[k]; i < end; ++i) {
        const double share = static_cast<double>(i - at[k]) / static_cast<double>(end - at[k]);
        const double own = k + 1 < at.size() ? off[k] + share * (off[k + 1] - off[k]) : off[k];
        points_[i].bytes += static_cast<int64_t>(own);
      }
    }
  }

  const PipelinePlan& plan_;
  const int stage_;
  Engine& engine_;
  const PlanShape shape_;
  RecomputePlanner planner_;
  std::vector<Point> points_;
  std::unordered_map<size_t, StagePlan> counted_;
};

namespace {

// Choices of stages whose layers are regions of their own. Ranks wait for the busiest one: at each
// level of work every rank has the fewest bytes that keep it there. A lower level takes no fewer.
class LayerChoices {
 public:
  LayerChoices(const PipelinePlan& plan, std::span<const std::unique_ptr<StageFront>> fronts,
               std::vector<double> work_of_ranks, const Processes& processes)
      : plan_(plan), fronts_(fronts), work_(std::move(work_of_ranks)), processes_(processes) {
    for (int rank = 0; rank < plan.num_ranks(); ++rank) ranks_.push_back(points_of(rank));
    list_levels();
  }

  // Choices of each stage at the lowest level that fits, as stages are counted. Where the search
  // begins is about right; from there each level is counted, so that with more bytes it never ends
  // at a higher one.
  [[nodiscard]] std::optional<std::vector<size_t>> fit(int64_t bytes) {
    for (size_t i = std::min(first_estimated_within(bytes), levels_.size() - 1); i < levels_.size();
         ++i) {
      std::vector<size_t> choices = choices_at(levels_[i]);
      if (measure_choices(choices) <= bytes) return choices;
    }
    return {};
  }
  [[nodiscard]] int64_t least() const { return least_; }

 private:
  // Those that no rank has to exceed.
  void list_levels() {
    double lowest = 0.0;
    for (size_t rank = 0; rank < ranks_.size(); ++rank)
      lowest = std::max(lowest, work_[rank] + ranks_[rank].back().cost);
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      for (const RankPoint& point : ranks_[rank]) {
        const double level = work_[rank] + point.cost;
        if (level >= lowest) levels_.push_back(level);
      }
    }
    // Between two of these no rank keeps anything else, so others need not be tried.
    std::sort(levels_.begin(), levels_.end());
    levels_.erase(std::unique(levels_.begin(), levels_.end()), levels_.end());
  }

  // The first of levels_ that fits. Every rank takes fewer bytes, or as many, at a higher level: so
  // does the fullest process.
  [[nodiscard]] size_t first_estimated_within(int64_t bytes) const {
    const auto found = std::partition_point(levels_.begin(), levels_.end(), [&](double level) {
      return estimate_bytes(level) > bytes;
    });
    return static_cast<size_t>(found - levels_.begin());
  }

  // All pairs of what two stages of a rank keep, but for those that are too near to each other.
  [[nodiscard]] std::vector<RankPoint> points_of(int rank) const {
    std::vector<RankPoint> points(1);
    for (const int stage : plan_.stages_of(rank)) {
      std::vector<RankPoint> grown;
      for (const RankPoint& before : points) {
        for (const StageFront::Point& own : fronts_[static_cast<size_t>(stage)]->points()) {
          RankPoint& point = grown.emplace_back(before);
          point.bytes += own.bytes;
          point.cost += own.cost;
          point.choices.push_back(own.choice);
        }
      }
      points = std::move(grown);
      // First what is worse in both: thinning counts on falling costs, and keeps both ends.
      keep_pareto_front(points);
      thin_out(points, kRankPoints);
    }
    return points;
  }

  // The first, since those behind it take more.
  [[nodiscard]] const RankPoint& point_at_level(size_t rank, double level) const {
    const std::vector<RankPoint>& points = ranks_[rank];
    const auto found = std::partition_point(
        points.begin(), points.end(),
        [&](const RankPoint& point) { return work_[rank] + point.cost > level; });
    return found == points.end() ? points.back() : *found;
  }
  [[nodiscard]] int64_t estimate_bytes(double level) const {
    std::vector<int64_t> bytes;
    for (size_t rank = 0; rank < ranks_.size(); ++rank)
      bytes.push_back(point_at_level(rank, level).bytes);
    return fullest_process_bytes(std::move(bytes), processes_);
  }
  [[nodiscard]] std::vector<size_t> choices_at(double level) const {
    std::vector<size_t> choices(fronts_.size());
    for (int rank = 0; rank < plan_.num_ranks(); ++rank) {
      const RankPoint& point = point_at_level(static_cast<size_t>(rank), level);
      size_t own = 0;
      for (const int stage : plan_.stages_of(rank))
        choices[static_cast<size_t>(stage)] = point.choices[own++];
    }
    return choices;
  }
  // Bytes of the fullest process with these choices; keeps the least so far.
  [[nodiscard]] int64_t measure_choices(const std::vector<size_t>& choices) {
    std::vector<int64_t> of_ranks(ranks_.size());
    for (size_t stage = 0; stage < fronts_.size(); ++stage) {
      of_ranks[static_cast<size_t>(plan_.ranks[stage])] +=
          fronts_[stage]->count_stage(choices[stage]).total();
    }
    const int64_t bytes = fullest_process_bytes(std::move(of_ranks), processes_);
    least_ = std::min(least_, bytes);
    return bytes;
  }

  const PipelinePlan& plan_;
  std::span<const std::unique_ptr<StageFront>> fronts_;
  const std::vector<double> work_;
  std::vector<std::vector<RankPoint>> ranks_;
  const Processes processes_;
  std::vector<double> levels_;  // rising
  int64_t least_ = INT64_MAX;
};

}  // namespace

int64_t StagesChoice::bytes() const {
  return std::accumulate(stages.begin(), stages.end(), int64_t{0},
                         [](int64_t sum, const StagePlan& stage) { return sum + stage.total(); });
}

int64_t StagesChoice::file_bytes() const {
  return std::accumulate(
      stages.begin(), stages.end(), int64_t{0},
      [](int64_t sum, const StagePlan& stage) { return sum + stage.activation_file_bytes(); });
}

StageFitter::StageFitter(const PipelinePlan& plan, std::span<Engine* const> engines,
                         const PlanShape& shape, const Price& price, const Processes& processes)
    : plan_(plan),
      engines_(engines),
      shape_(shape),
      price_(price),
      processes_{processes.ranks_each > 0 ? processes.ranks_each : plan.num_ranks(),
                 processes.of_first} {
  for (int stage = 0; stage < plan_.num_stages(); ++stage) {
    PlanShape keeping = shape_of(stage, {});
    keeping.recompute = model::Recompute::kNone;
    saved_.push_back(plan_pass(*engines_[static_cast<size_t>(stage)], keeping).saved);
  }
}

StageFitter::~StageFitter() = default;

std::vector<double> StageFitter::cost_by_rank(std::span<const engine::Work> of_stages) const {
  std::vector<double> of_ranks(static_cast<size_t>(plan_.num_ranks()));
  for (size_t stage = 0; stage < of_stages.size(); ++stage) {
    of_ranks[static_cast<size_t>(plan_.ranks[stage])] += price_.of(of_stages[stage]);
  }
  return of_ranks;
}

PlanShape StageFitter::shape_of(int stage, const RecomputeRegions& regions) const {
  PlanShape shape = shape_;
  shape.in_stages = true;
  shape.defers = plan_.defers_weight_gradients(stage);
  shape.in_flight = peak_live(plan_, stage);
  shape.regions = regions;
  return shape;
}

StagesChoice StageFitter::plan_stages(const RecomputeRegions& regions,
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

std::vector<Work> StageFitter::recompute_work(const RecomputeRegions& regions,
                                              const model::Recompute& recompute) const {
  std::vector<engine::Work> again;
  for (const std::vector<model::SavedCost>& saved : saved_) {
    engine::Work& work = again.emplace_back();
    for (const model::SavedCost& cost : saved) {
      // A stage's layers' inputs are made before them.
      const bool makes_inputs = regions.makes_stage() && regions.layers;
      const int times = (makes_inputs ? 1 : 0) + (recompute.keeps(cost.layer, cost.tag) ? 0 : 1);
      work.flops += times * cost.flops;
      work.bytes += times * kAgainMoves * static_cast<double>(cost.bytes);
      if (recompute.offloads(cost.layer, cost.tag))
        work.file_bytes += kFileMoves * static_cast<double>(cost.bytes);
    }
  }
  return again;
}

double StageFitter::cost(const RecomputeRegions& regions, const model::Recompute& recompute,
                         const Work& work) const {
  std::vector<engine::Work> all = recompute_work(regions, recompute);
  for (size_t stage = 0; stage < all.size(); ++stage)
    all[stage] = all[stage] + work.of_stages[stage];
  const std::vector<double> of_ranks = cost_by_rank(all);
  return *std::max_element(of_ranks.begin(), of_ranks.end());
}

double StageFitter::least_cost(const Work& work) const {
  const std::vector<double> of_ranks = cost_by_rank(work.of_stages);
  return *std::max_element(of_ranks.begin(), of_ranks.end());
}

// By rising cost.
std::vector<StageFitter::Preset> StageFitter::presets_by_cost(
    std::span<const RecomputeRegions> regions, const Work& work) const {
  std::vector<Preset> presets;
  const auto add = [&](const RecomputeRegions& region, const model::Recompute& recompute) {
    presets.push_back({cost(region, recompute, work), region, recompute});
  };
  for (const RecomputeRegions& region : regions) {
    if (!region.makes_stage()) add(region, model::Recompute::kNone);
    if (!region.any()) continue;
    for (const model::RecomputePreset& preset : model::recompute_presets()) {
      const model::Recompute value = preset.value();
      if (!value.offloads_any() || region.keeps_layer_inputs) add(region, value);
    }
    add(region, model::Recompute::kFull);
    if (region.keeps_layer_inputs) add(region, model::Recompute::offloading_layer_inputs());
  }
  std::stable_sort(presets.begin(), presets.end(),
                   [](const Preset& a, const Preset& b) { return a.cost < b.cost; });
  return presets;
}

std::optional<StagesChoice> StageFitter::fit_layers(const RecomputeRegions& regions,
                                                    const Work& work, int64_t bytes) {
  ensure_fronts(regions);
  LayerChoices by_layer(plan_, fronts_, cost_by_rank(work.of_stages), processes_);
  const std::optional<std::vector<size_t>> found = by_layer.fit(bytes);
  least_ = std::min(least_, by_layer.least());
  if (!found) return {};
  return merge_choices(regions, *found);
}

void StageFitter::ensure_fronts(const RecomputeRegions& regions) {
  for (int stage = 0; std::ssize(fronts_) < plan_.num_stages(); ++stage) {
    fronts_.push_back(std::make_unique<StageFront>(
        plan_, stage, *engines_[static_cast<size_t>(stage)], shape_of(stage, regions), price_));
  }
}

// `choices`: of each stage's front.
StagesChoice StageFitter::merge_choices(const RecomputeRegions& regions,
                                        std::span<const size_t> choices) {
  StagesChoice choice = {.regions = regions, .recompute = model::Recompute::kNone};
  std::vector<model::Recompute> of_stages;
  for (size_t stage = 0; stage < fronts_.size(); ++stage) {
    of_stages.push_back(fronts_[stage]->recompute(choices[stage]));
    choice.stages.push_back(fronts_[stage]->count_stage(choices[stage]));
  }
  choice.recompute = merge_recompute_policies(
      of_stages, saved_, engines_.front()->model().weights->layers().num_layers());
  return choice;
}

std::optional<StagesChoice> StageFitter::fit_preset(const Preset& preset, int64_t bytes,
                                                    HasFiles has_files) {
  StagesChoice choice = plan_stages(preset.regions, preset.recompute);
  if (preset.recompute.offloads_any() && !has_files(choice)) return {};
  const int64_t taken = bytes_of(choice.stages);
  least_ = std::min(least_, taken);
  if (taken > bytes) return {};
  return choice;
}

// Where all is kept nothing is better; else the cheapest of what layers and presets can do.
std::optional<StagesChoice> StageFitter::fit_cheapest(std::span<const RecomputeRegions> regions,
                                                      const Work& work, int64_t bytes,
                                                      HasFiles has_files) {
  std::optional<StagesChoice> best;
  const auto try_preset = [&](const Preset& preset) {
    std::optional<StagesChoice> choice = fit_preset(preset, bytes, has_files);
    const bool fits = choice.has_value();
    if (fits) best = std::move(choice);
    return fits;
  };
  const std::vector<Preset> by_cost = presets_by_cost(regions, work);
  const auto keeps_all = [](const Preset& preset) { return preset.recompute.keeps_all(); };
  for (const Preset& preset : by_cost) {
    if (keeps_all(preset) && try_preset(preset)) return best;
  }
  const auto layers = std::find_if(regions.begin(), regions.end(), [](const RecomputeRegions& r) {
    return r.any() && !r.makes_stage();
  });
  if (layers != regions.end()) best = fit_layers(*layers, work, bytes);
  for (const Preset& preset : by_cost) {
    if (best && preset.cost >= cost(*best, work)) break;
    if (!keeps_all(preset) && try_preset(preset)) break;
  }
  return best;
}

int64_t StageFitter::bytes_of(std::span<const StagePlan> stages) const {
  std::vector<int64_t> of_ranks(static_cast<size_t>(plan_.num_ranks()));
  for (size_t stage = 0; stage < stages.size(); ++stage)
    of_ranks[static_cast<size_t>(plan_.ranks[stage])] += stages[stage].total();
  return fullest_process_bytes(std::move(of_ranks), processes_);
}

int64_t StageFitter::base_bytes(Engine& engine) const {
  return shape_.train_base ? engine.base_trainer().state_bytes()
                           : engine.model().weights->num_bytes();
}

// Stages are counted with all in memory, wherever it will be.
std::optional<StagesChoice> StageFitter::fit(std::span<const RecomputeRegions> regions,
                                             const Work& work, int64_t bytes, HasFiles has_files) {
  int64_t in_files = 0;
  CHECK(!work.in_files || processes_.ranks_each == plan_.num_ranks(), processes_.ranks_each);
  for (Engine* engine : engines_) in_files += work.in_files ? base_bytes(*engine) : 0;
  const int64_t least = std::exchange(least_, INT64_MAX);
  std::optional<StagesChoice> choice = fit_cheapest(regions, work, bytes + in_files, has_files);
  least_ = std::min(least, least_ - in_files);
  if (choice && in_files > 0) account_base_bytes_in_files(choice->stages);
  return choice;
}

void StageFitter::account_base_bytes_in_files(std::span<StagePlan> stages) const {
  for (size_t i = 0; i < stages.size(); ++i) {
    StagePlan& stage = stages[i];
    if (shape_.train_base) {
      stage.state_file_bytes = base_bytes(*engines_[i]);
      stage.training_bytes -= stage.state_file_bytes;
    } else {
      stage.file_bytes = std::exchange(stage.weight_bytes, 0);
    }
  }
}

}  // namespace strata::engine
