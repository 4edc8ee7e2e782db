// SPDX-License-Identifier: Apache-2.0
#include "apps/train/staged_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>

#include "base/error.h"
#include "engine/adapter_state.h"
#include "report/format.h"
#include "report/table.h"
#include "schedule/generate.h"
#include "schedule/lower.h"
#include "schedule/walk.h"
#include "server/options/options.h"

namespace strata::apps {
namespace {

using model::RecomputeRegions;

constexpr int kMostMicrobatches = 65536;
// A batch on its way through a rank: its tokens, what its losses read and what they give.
constexpr int64_t kListBytesPerToken = 64;
// A rank's thread: its stack, and what its small lists leave free between them.
constexpr int64_t kRankBytes = 1 << 20;

// What is recomputed where the options say nothing else: --memory chooses of these.
std::vector<RecomputeRegions> regions_allowed(const StageOptions& options) {
  const StageOptions defaults;
  std::vector<RecomputeRegions> allowed;
  for (const RecomputeRegions& regions :
       {RecomputeRegions{.iterations = false, .layers = true},
        RecomputeRegions{.iterations = false, .layers = false},
        RecomputeRegions{.iterations = true, .layers = false},
        RecomputeRegions{.iterations = true, .layers = true},
        RecomputeRegions{.iterations = true, .layers = false, .keeps_layer_inputs = false},
        RecomputeRegions{.iterations = true, .layers = true, .keeps_layer_inputs = false}}) {
    if (options.recompute_iterations != defaults.recompute_iterations && !regions.iterations) {
      continue;
    }
    if (options.recompute_layers != defaults.recompute_layers && regions.layers) continue;
    allowed.push_back(regions);
  }
  return allowed;
}

double sum(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

// Plans on engines of the stages and of the whole.
class StagedPlanner {
 public:
  StagedPlanner(const LoadSpec& spec, const StageOptions& options, const RunShape& shape)
      : spec_(spec), options_(options), shape_(shape), whole_(make_planning_engine(spec)) {
    const engine::PipelinePlan stages = stages_of(options.microbatches);
    for (const model::LayerRange& range : stages.layers) {
      const bool whole = stages.num_stages() == 1;
      engines_.push_back(make_planning_engine(
          spec, /*draft_tokens=*/0, whole ? std::nullopt : std::optional<model::LayerRange>(range),
          threads_of(stages.ranks[engines_.size()], stages.num_ranks(), spec.threads)));
    }
    for (const auto& engine : engines_) borrowed_.push_back(engine.get());
    const engine::LayerCosts costs = engine::layer_costs(whole_->config());
    for (const model::LayerRange& range : stages.layers) {
      shares_.push_back(std::accumulate(costs.layers.begin() + range.first,
                                        costs.layers.begin() + range.last, 0.0));
    }
    shares_.back() += costs.head;
    for (double& share : shares_) share /= sum(costs.layers) + costs.head;
  }

  [[nodiscard]] StagedPlan as_told() {
    const Try one = at(shape_.longest_passes.front());
    engine::StageFitter fitter(one.stages, borrowed_, one.pass, shape_.price);
    const StepWork work = work_of_step(one, fitter, /*in_files=*/false);
    return finish(one, fitter, work, fitter.count(one.stages.regions, spec_.recompute.policy));
  }

  // Whatever is tried is tried for any memory, so that more of it never plans more time.
  [[nodiscard]] StagedPlan within(const std::string& memory) {
    const int64_t budget = server::parse_size("memory", memory);
    const std::vector<RecomputeRegions> regions = regions_allowed(options_);
    std::optional<StagedPlan> best;
    double best_time = std::numeric_limits<double>::max();
    for (const LongestPass& longest : numbers()) {
      const Try one = at(longest);
      engine::StageFitter fitter(one.stages, borrowed_, one.pass, shape_.price);
      const int64_t others = besides_stages(one).total();
      for (const bool in_files : {false, true}) {
        if (in_files && shape_.pass.train_base) break;  // masters are stepped in memory
        const StepWork work = work_of_step(one, fitter, in_files);
        if (one.time_of(fitter.least_cost(work.as_told())) >= best_time) continue;
        std::optional<engine::StagesChoice> choice =
            fitter.fit(regions, work.as_told(), budget - others);
        if (others + fitter.least() < least_) {
          least_ = others + fitter.least();
          least_tokens_ = one.pass.pass_tokens;
          least_number_ = longest.limit;
        }
        if (!choice) continue;
        const double time = one.time_of(fitter.cost(*choice, work.as_told()));
        if (time >= best_time) continue;
        best = finish(one, fitter, work, *std::move(choice));
        best_time = time;
      }
    }
    if (best) return *std::move(best);
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("--memory {}: the stages of all ranks take {} at least, with {} micro-batches "
                    "of up to {} tokens that recompute all they can{}; give that much, drop "
                    "longer examples with --max-length, or take a smaller --rank or --batch-tokens",
                    memory, report::format_bytes(least_), least_number_, least_tokens_,
                    shape_.pass.train_base ? "" : " and the frozen weights in a file"));
  }

 private:
  // A number of micro-batches.
  struct Try {
    engine::PipelinePlan stages;
    engine::PlanShape pass;
    double num_passes = 1.0;  // of a step, were they all as long as the longest
    double bubbles = 0.0;     // share of the ranks' time
    [[nodiscard]] double time_of(double busiest) const {
      return num_passes * busiest / (1.0 - bubbles);
    }
  };

  // Of the longest pass by stage, besides recomputing.
  struct StepWork {
    std::vector<engine::Work> of_stages;
    bool in_files = false;
    [[nodiscard]] engine::StageFitter::Work as_told() const { return {of_stages, in_files}; }
  };

  [[nodiscard]] engine::PipelinePlan stages_of(int64_t microbatches) const {
    return plan_stages(whole_->config(), options_, spec_.recompute, "", microbatches);
  }

  // Of micro-batches that are worth trying, each of which has a sequence: a file's schedule has the
  // one that it has.
  [[nodiscard]] std::vector<LongestPass> numbers() const {
    schedule::Kind kind = {};
    std::vector<LongestPass> numbers;
    for (const LongestPass& longest : shape_.longest_passes) {
      const std::vector<int64_t>& each = longest.of_microbatches;
      const bool is_short = shape_.step_tokens < kLeastPassTokens * longest.limit;
      const bool is_empty = std::find(each.begin(), each.end(), 0) != each.end();
      const bool any = schedule::parse_kind(options_.schedule, kind) && !is_short && !is_empty;
      if (numbers.empty() || any) numbers.push_back(longest);
    }
    return numbers;
  }

  [[nodiscard]] Try at(const LongestPass& longest) const {
    Try one;
    one.stages = stages_of(longest.limit);
    one.pass = shape_.pass;
    one.pass.pass_tokens = std::max(longest.trained, longest.evaluated);
    one.pass.sent_tokens =
        std::accumulate(longest.of_microbatches.begin(), longest.of_microbatches.end(), int64_t{0});
    one.num_passes =
        static_cast<double>(shape_.step_tokens) / static_cast<double>(one.pass.pass_tokens);
    // With equal stages; a backward to all parameters costs two forwards.
    one.bubbles =
        schedule::walk(
            schedule::without_transfers(one.stages.table),
            {.forward = 1, .input_grad = 1, .weight_grad = shape_.pass.train_base ? 1.0 : 0.0})
            .bubble_share;
    return one;
  }

  // Each micro-batch reads the stages' own weights; all else goes by their shares.
  [[nodiscard]] StepWork work_of_step(const Try& one, const engine::StageFitter& fitter,
                                      bool in_files) const {
    engine::RecomputePlan kept;
    for (const std::vector<model::SavedCost>& saved : fitter.saved()) {
      for (const model::SavedCost& cost : saved) {
        kept.rows.push_back(
            {.tag = cost.tag, .layers = {cost.layer}, .num_kept = 1, .layer_bytes = cost.bytes});
      }
    }
    const auto number = static_cast<double>(one.stages.table.num_microbatches);
    const model::ModelWeights& weights = *whole_->model().weights;
    const engine::Work step = engine::step_work(weights,
                                                {.lengths = shape_.lengths,
                                                 .modules = shape_.pass.modules,
                                                 .indexer_loss = shape_.pass.indexer_loss},
                                                {.tokens = static_cast<double>(shape_.step_tokens),
                                                 .number = number,
                                                 .pass_tokens = one.pass.pass_tokens},
                                                kept);
    const double others =
        step.bytes - engine::kWeightReads * number * static_cast<double>(weights.num_bytes());
    StepWork work = {.of_stages = {}, .in_files = in_files};
    for (size_t stage = 0; stage < engines_.size(); ++stage) {
      const double read =
          number * static_cast<double>(engines_[stage]->model().weights->num_bytes());
      const engine::Work own = {.flops = step.flops * shares_[stage],
                                .bytes = others * shares_[stage] + engine::kWeightReads * read,
                                .file_bytes = in_files ? engine::kFileReads * read : 0.0};
      work.of_stages.push_back(1.0 / one.num_passes * own);
    }
    return work;
  }

  // What the run takes and no stage does.
  [[nodiscard]] engine::MemoryPlan besides_stages(const Try& one) const {
    const int64_t ranks = one.stages.num_ranks();
    engine::MemoryPlan plan;
    int64_t gathered = 0;  // by the first rank, to save it
    if (one.stages.num_stages() > 1) {
      const int64_t parameters = whole_->model().weights->num_parameters();
      gathered = shape_.pass.train_base ? 3 * parameters * dtype_bytes(DType::kF32)
                                        : engine::adapter_bytes(*whole_, shape_.pass.modules, true);
      gathered += (ranks - 1) * engine::kGatherBytes;
    }
    plan.items.push_back({"gathered to save", gathered});
    // Which each process has, and threads share.
    const int64_t processes = options_.ranks.empty() ? 1 : ranks;
    plan.items.push_back(
        {"data", processes * shape_.pass.data_bytes +
                     ranks * std::max({shape_.step_tokens, shape_.largest_step, shape_.longest}) *
                         kListBytesPerToken});
    plan.items.push_back(
        {"process", processes * engine::process_bytes() + (ranks - 1) * kRankBytes});
    return plan;
  }

  [[nodiscard]] StagedPlan finish(const Try& one, const engine::StageFitter& fitter,
                                  const StepWork& work, engine::StagesChoice choice) const {
    StagedPlan plan;
    plan.stages = one.stages;
    plan.pass_tokens = one.pass.pass_tokens;
    plan.weights_in_files = work.in_files;
    plan.stages.regions = choice.regions;
    const auto of_stages = [&](auto bytes_of) {
      int64_t bytes = 0;
      for (const engine::StagePlan& stage : choice.stages) bytes += bytes_of(stage);
      return bytes;
    };
    using Stage = engine::StagePlan;
    const auto add = [&](std::string_view name, auto bytes_of) {
      plan.memory.items.push_back({name, of_stages(bytes_of)});
    };
    add("weights", [](const Stage& s) { return s.weight_bytes; });
    add(shape_.pass.train_base ? "base training" : "adapters",
        [](const Stage& s) { return s.training_bytes; });
    add("passes", [](const Stage& s) { return s.pass_bytes; });
    add("in flight", [](const Stage& s) { return s.peak_live * s.held_bytes; });
    add("between stages", [](const Stage& s) { return s.waiting_bytes() + s.message_bytes; });
    add("lists", [](const Stage& s) { return s.list_bytes; });
    add("step", [](const Stage& s) { return s.step_bytes; });
    for (const engine::PlanItem& item : besides_stages(one).items)
      plan.memory.items.push_back(item);
    plan.memory.file_bytes = of_stages([](const Stage& s) { return s.file_bytes; });
    const std::vector<engine::Work> again = fitter.again(choice.regions, choice.recompute);
    plan.work.resize(static_cast<size_t>(one.stages.num_ranks()));
    engine::Work even;
    for (size_t stage = 0; stage < again.size(); ++stage) {
      engine::Work& own = plan.work[static_cast<size_t>(one.stages.ranks[stage])];
      own = own + one.num_passes * (work.of_stages[stage] + again[stage]);
      even = even + one.num_passes * work.of_stages[stage];
    }
    plan.bubbles = one.bubbles;
    plan.stretch = one.time_of(fitter.cost(choice, work.as_told())) /
                   (shape_.price.of(even) / static_cast<double>(one.stages.num_ranks()));
    plan.choice = std::move(choice);
    return plan;
  }

  const LoadSpec& spec_;
  const StageOptions& options_;
  const RunShape& shape_;
  std::unique_ptr<engine::Engine> whole_;
  std::vector<std::unique_ptr<engine::Engine>> engines_;
  std::vector<engine::Engine*> borrowed_;
  std::vector<double> shares_;  // of all work, by stage
  int64_t least_ = INT64_MAX, least_tokens_ = 0, least_number_ = 0;
};

}  // namespace

void add_micro_batches(RunShape& shape, const std::vector<int64_t>& lengths, bool trained,
                       int microbatches, int data) {
  if (shape.longest_passes.empty()) {
    for (int number = microbatches; number <= kMostMicrobatches; number *= 2) {
      shape.longest_passes.push_back({.limit = number});
    }
  }
  for (LongestPass& longest : shape.longest_passes) {
    int64_t& most = trained ? longest.trained : longest.evaluated;
    const std::vector<size_t> firsts =
        engine::cut_lengths(lengths, static_cast<int>(longest.limit) * data);
    const auto ranks = static_cast<size_t>(data);
    std::vector<int64_t>& each = longest.of_microbatches;
    each.resize(std::max(each.size(), (firsts.size() + ranks - 2) / ranks));
    for (size_t m = 0; m + 1 < firsts.size(); ++m) {
      const int64_t tokens =
          std::accumulate(lengths.data() + firsts[m], lengths.data() + firsts[m + 1], int64_t{0});
      most = std::max(most, tokens);
      each[m / ranks] = std::max(each[m / ranks], tokens);
    }
  }
}

RunShape staged_shape(const LoadSpec& spec, const TrainOptions& options, const model::ModelConfig& config,
                      const data::Dataset& train, const data::Dataset& eval) {
  RunShape shape = train_shape(spec, options, config, train, eval);
  shape.longest_passes.clear();
  const StageOptions& stages = options.stages;
  shape.step_tokens = (shape.step_tokens + stages.data - 1) / stages.data;
  data::BatchPlan batches(shape.lengths, batch_plan_options(options));
  std::vector<int64_t> lengths;
  for (int64_t step = 0; step < batches.num_steps(); ++step) {
    lengths.clear();
    for (const std::vector<int64_t>& pass : batches.step(step).passes) {
      for (const int64_t i : pass) lengths.push_back(shape.lengths[static_cast<size_t>(i)]);
    }
    add_micro_batches(shape, lengths, /*trained=*/true, stages.microbatches, stages.data);
  }
  const std::vector<int64_t> evaluated = eval.examples.lengths();
  std::vector<int64_t> all(evaluated.size());
  std::iota(all.begin(), all.end(), int64_t{0});
  for (const auto& pass : data::cut_by_tokens(all, evaluated, options.micro_tokens)) {
    lengths.clear();
    for (const int64_t i : pass) lengths.push_back(evaluated[static_cast<size_t>(i)]);
    add_micro_batches(shape, lengths, /*trained=*/false, stages.microbatches, stages.data);
  }
  return shape;
}

StagedPlan plan_staged(const LoadSpec& spec, const StageOptions& options, const RunShape& shape,
                       const std::string& memory) {
  StagedPlanner planner(spec, options, shape);
  return memory.empty() ? planner.as_told() : planner.within(memory);
}

StagedPlan plan_staged(const LoadSpec& spec, const TrainOptions& options,
                       const data::Dataset& train, const data::Dataset& eval) {
  model::ModelConfig config = spec.parsed.config;
  config.use_mtp = spec.mtp == model::UseMtp::kAlways;
  return plan_staged(spec, options.stages, staged_shape(spec, options, config, train, eval),
                     options.memory);
}

void add_rows(const StagedPlan& plan, const StageOptions& options, const MachineLimits& limits,
              const std::string& folder, report::Table& table) {
  table.add_row(
      {"stages", fmt::format("{} on {} ranks; {}, {} micro-batches of at most {} tokens",
                             plan.stages.num_stages(), plan.stages.num_ranks(), options.schedule,
                             plan.stages.table.num_microbatches, plan.pass_tokens)});
  table.add_row({"memory", memory_text(plan.memory)});
  if (plan.weights_in_files) {
    table.add_row({"files", fmt::format("apart from that, in {}: weights {}, which each "
                                        "micro-batch reads twice; at the speed of the disk where "
                                        "the system has no space to keep it",
                                        folder, report::format_bytes(plan.memory.file_bytes))});
  }
  const double seconds = step_seconds(plan, limits);
  table.add_row(
      {"a step", fmt::format("{} predicted; {:.3g} times its work spread evenly, "
                             "for the busiest rank, bubbles and what is recomputed; {} {} FLOP/s",
                             report::format_seconds(seconds), plan.stretch, limits.source,
                             report::format_count(limits.flops))});
}

std::string stages_table(const StagedPlan& plan) {
  report::Table table({{fmt::format("passes of {} tokens", plan.pass_tokens)},
                       {"rank", report::Align::kRight},
                       {"layers", report::Align::kRight},
                       {"weights", report::Align::kRight},
                       {"training", report::Align::kRight},
                       {"a pass", report::Align::kRight},
                       {"it holds", report::Align::kRight},
                       {"in flight", report::Align::kRight},
                       {"waiting", report::Align::kRight},
                       {"together", report::Align::kRight}});
  for (size_t i = 0; i < plan.choice.stages.size(); ++i) {
    const engine::StagePlan& stage = plan.choice.stages[i];
    const model::LayerRange& layers = plan.stages.layers[i];
    table.add_row({fmt::format("stage {}", i), std::to_string(plan.stages.ranks[i]),
                   fmt::format("{} to {}", layers.first, layers.last - 1),
                   report::format_bytes(stage.weight_bytes),
                   report::format_bytes(stage.training_bytes),
                   report::format_bytes(stage.pass_bytes), report::format_bytes(stage.held_bytes),
                   std::to_string(stage.peak_live),
                   report::format_bytes(stage.waiting_bytes() + stage.message_bytes),
                   report::format_bytes(stage.total())});
  }
  return table.text();
}

double step_seconds(const StagedPlan& plan, const MachineLimits& limits) {
  double busiest = 0.0;
  for (const engine::Work& work : plan.work)
    busiest = std::max(busiest, engine::seconds_of(work, limits));
  return busiest * static_cast<double>(plan.work.size()) / (1.0 - plan.bubbles);
}

}  // namespace strata::apps
