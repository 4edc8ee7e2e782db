// SPDX-License-Identifier: Apache-2.0
#include "planner/staged_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "engine/adapter_state.h"
#include "engine/pipeline/stage_fit.h"
#include "engine/plan/recompute_plan.h"
#include "report/format.h"
#include "schedule/lower.h"
#include "schedule/verify.h"
#include "schedule/walk.h"

namespace strata::planner {
namespace {

// A batch on its way through a rank: its tokens, what its losses read and what they give.
constexpr int64_t kListBytesPerToken = 64;
// A rank's thread: its stack, and what its small lists leave free between them.
constexpr int64_t kRankBytes = 1 << 20;

double sum(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

// A sample has pages of one stage on each rank.
void check_stages_can_sample(const TrainRun& run) {
  const engine::PipelinePlan& told = run.division.told;
  if (run.shape.pass.num_sampled == 0 || told.num_stages() == told.num_ranks()) return;
  throw Error(ErrorCode::kUnsupported,
              "--sample or --loss grpo, and --chunks: ranks that have several stages each do not "
              "sample yet; give one");
}

// Each stage's share of all work.
std::vector<double> shares_of_stages(const TrainRun& run) {
  const engine::LayerCosts costs = engine::layer_costs(run.whole.config());
  std::vector<double> shares;
  for (const model::LayerRange& range : run.division.told.layers) {
    shares.push_back(std::accumulate(costs.layers.begin() + range.first,
                                     costs.layers.begin() + range.last, 0.0));
  }
  shares.back() += costs.head;
  for (double& share : shares) share /= sum(costs.layers) + costs.head;
  return shares;
}

// Plans on engines of the stages and of the whole.
class StagedPlanner {
 public:
  explicit StagedPlanner(const TrainRun& run) : run_(run), shape_(run.shape) {
    const int64_t ranks = run.division.told.num_dealing();  // a step is divided among them
    shape_.step_tokens = (shape_.step_tokens + ranks - 1) / ranks;
    shares_ = shares_of_stages(run);
  }

  [[nodiscard]] engine::RunPlan plan_as_requested() {
    const Candidate one = make_candidate(shape_.longest_passes.front());
    engine::StageFitter fitter(one.stages, run_.stages, one.pass, shape_.price, processes_of(one));
    const StepWork work = work_of_step(one, fitter, /*in_files=*/false);
    return make_plan(one, fitter, work, fitter.plan_stages(one.stages.regions, run_.recompute));
  }

  [[nodiscard]] engine::RunPlan plan_within(const Budget& memory) {
    for (const bool any_files : {false, true}) {
      if (any_files && is_divided()) break;
      if (std::optional<engine::RunPlan> best = find_best_within(memory, any_files))
        return *std::move(best);
    }
    throw_nothing_fits(memory);
  }

 private:
  [[noreturn]] void throw_nothing_fits(const Budget& memory) const {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("--memory {}: the stages of {} take {} at least, with {} micro-batches of up "
                    "to {} tokens that recompute all they can{}; give that much, drop longer "
                    "examples with --max-length, or take a smaller --rank or --batch-tokens",
                    memory.text, is_divided() ? "a process" : "all ranks",
                    report::format_bytes(least_), least_number_, least_tokens_,
                    is_divided()             ? ""
                    : shape_.pass.train_base ? ", masters and moments in a file"
                                             : " and the frozen weights in a file"));
  }
  // Into processes, each of which has a memory of its own, and nothing in files.
  [[nodiscard]] bool is_divided() const {
    return run_.division.num_processes * run_.division.told.num_pipelines() > 1;
  }
  // Whatever is tried is tried for any memory, so that more of it never plans more time.
  // `any_files`: also activations in files beyond the space for them.
  [[nodiscard]] std::optional<engine::RunPlan> find_best_within(const Budget& memory,
                                                                bool any_files) {
    std::optional<engine::RunPlan> best;
    double best_time = std::numeric_limits<double>::max();
    for (const LongestPass& longest : micro_batch_numbers_to_try()) {
      const Candidate one = make_candidate(longest);
      engine::StageFitter fitter(one.stages, run_.stages, one.pass, shape_.price,
                                 processes_of(one));
      for (const bool in_files : {false, true}) {
        if (in_files && is_divided()) break;
        const StepWork work = work_of_step(one, fitter, in_files);
        if (one.time_of(fitter.least_cost(work.fitter_work())) >= best_time) continue;
        std::optional<engine::StagesChoice> choice =
            fit_candidate(one, fitter, work, memory, any_files);
        if (!choice) continue;
        const double time = one.time_of(fitter.cost(*choice, work.fitter_work()));
        if (time >= best_time) continue;
        best = make_plan(one, fitter, work, *std::move(choice));
        best_time = time;
      }
    }
    return best;
  }

  // A number of micro-batches.
  struct Candidate {
    int64_t num_microbatches = 0;  // as they were asked for
    engine::PipelinePlan stages;
    engine::PlanShape pass;
    double num_passes = 1.0;  // of a step, were they all as long as the longest
    double bubbles = 0.0;     // share of the ranks' time
    [[nodiscard]] double time_of(double busiest) const {
      return num_passes * busiest / (1.0 - bubbles);
    }
  };

  // The work of the longest pass by stage, besides recomputing.
  struct StepWork {
    std::vector<engine::Work> of_stages;
    bool in_files = false;
    [[nodiscard]] engine::StageFitter::Work fitter_work() const { return {of_stages, in_files}; }
  };

  // The least bytes of all that are tried are told where nothing fits.
  [[nodiscard]] std::optional<engine::StagesChoice> fit_candidate(const Candidate& one,
                                                                  engine::StageFitter& fitter,
                                                                  const StepWork& work,
                                                                  const Budget& memory,
                                                                  bool any_files) {
    const int64_t others = process_overhead_bytes(one);
    const auto allowed = [&](const engine::StagesChoice& tried) {
      if (is_divided()) return false;
      return any_files || shape_.file_space.holds(tried.file_bytes(),
                                                  others + gathered_bytes(one) + tried.bytes());
    };
    std::optional<engine::StagesChoice> choice =
        fitter.fit(run_.division.regions, work.fitter_work(), memory.bytes - others, allowed);
    if (others + fitter.least() < least_) {
      least_ = others + fitter.least();
      least_tokens_ = one.pass.pass_tokens;
      least_number_ = one.num_microbatches;
    }
    return choice;
  }

  [[nodiscard]] engine::PipelinePlan generate_pipeline(int64_t microbatches) const {
    const engine::PipelinePlan& told = run_.division.told;
    if (microbatches == told.table.num_microbatches) return told;
    schedule::Spec spec = run_.division.spec.value();
    spec.num_microbatches = static_cast<int>(microbatches);
    const schedule::Table table = schedule::generate(spec);
    CHECK(!schedule::verify(table), run_.division.schedule, microbatches);
    engine::PipelinePlan plan =
        engine::make_pipeline_plan(table, spec.forwarding_delay, told.layers);
    plan.data = told.data;
    plan.tensor = told.tensor;
    plan.expert = told.expert;
    plan.regions = told.regions;
    plan.shard_weights = told.shard_weights;
    plan.weight_sharers = told.weight_sharers;
    return plan;
  }

  // Numbers of micro-batches that are worth trying, each of which has a sequence: a file's schedule
  // has the one that it has.
  [[nodiscard]] std::vector<LongestPass> micro_batch_numbers_to_try() const {
    std::vector<LongestPass> numbers;
    for (const LongestPass& longest : shape_.longest_passes) {
      const std::vector<int64_t>& each = longest.of_microbatches;
      const bool is_short = shape_.step_tokens < kLeastPassTokens * longest.limit;
      const bool is_empty = std::find(each.begin(), each.end(), 0) != each.end();
      const bool any = run_.division.spec && !is_short && !is_empty;
      if (numbers.empty() || any) numbers.push_back(longest);
    }
    return numbers;
  }

  [[nodiscard]] Candidate make_candidate(const LongestPass& longest) const {
    Candidate one;
    one.num_microbatches = longest.limit;
    one.stages = generate_pipeline(longest.limit);
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

  // A plan that recomputes nothing.
  static engine::RecomputePlan plan_keeping_all(const engine::StageFitter& fitter) {
    engine::RecomputePlan kept;
    for (const std::vector<model::SavedCost>& saved : fitter.saved()) {
      for (const model::SavedCost& cost : saved) {
        kept.rows.push_back(
            {.tag = cost.tag, .layers = {cost.layer}, .num_kept = 1, .layer_bytes = cost.bytes});
      }
    }
    return kept;
  }

  // What a step moves to and from files, of a stage whose passes read so much of its weights.
  [[nodiscard]] double file_bytes_of_step(size_t stage, double read) const {
    if (!shape_.pass.train_base) return engine::kFileReads * read;
    return engine::kStateMoves *
           static_cast<double>(run_.stages[stage]->base_trainer().state_bytes());
  }

  // Each micro-batch reads the stages' own weights; all else goes by their shares.
  [[nodiscard]] StepWork work_of_step(const Candidate& one, const engine::StageFitter& fitter,
                                      bool in_files) const {
    const auto number = static_cast<double>(one.stages.table.num_microbatches);
    const model::ModelWeights& weights = *run_.whole.model().weights;
    const engine::Work step = engine::step_work(weights,
                                                {.lengths = shape_.lengths,
                                                 .modules = shape_.pass.modules,
                                                 .indexer_loss = shape_.pass.indexer_loss},
                                                {.tokens = static_cast<double>(shape_.step_tokens),
                                                 .number = number,
                                                 .pass_tokens = one.pass.pass_tokens},
                                                plan_keeping_all(fitter));
    const double others =
        step.bytes - engine::kWeightReads * number * static_cast<double>(weights.num_bytes());
    StepWork work = {.of_stages = {}, .in_files = in_files};
    for (size_t stage = 0; stage < run_.stages.size(); ++stage) {
      const double read =
          number * static_cast<double>(run_.stages[stage]->model().weights->num_bytes());
      const engine::Work own = {.flops = step.flops * shares_[stage],
                                .f32_flops = step.f32_flops * shares_[stage],
                                .exponentials = step.exponentials * shares_[stage],
                                .bytes = others * shares_[stage] + engine::kWeightReads * read,
                                .file_bytes = in_files ? file_bytes_of_step(stage, read) : 0.0};
      work.of_stages.push_back(1.0 / one.num_passes *
                               engine::divide_products(own, one.stages.tensor));
    }
    return work;
  }

  // By the first rank, to save it: of all parameters piece by piece.
  [[nodiscard]] int64_t gathered_bytes(const Candidate& one) const {
    if (one.stages.num_stages() == 1) return 0;
    const bool is_base = shape_.pass.train_base;
    const int64_t pieces =
        one.stages.num_ranks() * train::kPieceBytes * (is_base ? 1 : train::kPiecesAhead);
    return pieces + (is_base ? 0 : engine::adapter_bytes(run_.whole, shape_.pass.modules, true));
  }

  // What the run takes and no stage does.
  [[nodiscard]] engine::MemoryPlan run_overhead(const Candidate& one) const {
    const int64_t ranks = one.stages.num_ranks();
    engine::MemoryPlan plan;
    plan.items.push_back({engine::MemoryUse::kGathered, gathered_bytes(one)});
    // Which each process has, and threads share.
    const int64_t processes = run_.division.num_processes;
    plan.items.push_back(
        {engine::MemoryUse::kData,
         processes * shape_.pass.data_bytes +
             ranks * std::max({shape_.step_tokens, shape_.largest_step, shape_.longest}) *
                 kListBytesPerToken});
    plan.items.push_back({engine::MemoryUse::kProcess,
                          processes * engine::kProcessBytes + (ranks - 1) * kRankBytes});
    if (processes * one.stages.num_pipelines() > 1)
      plan.items.push_back({engine::MemoryUse::kMpi, processes * engine::kMpiBytes});
    return plan;
  }

  [[nodiscard]] engine::Processes processes_of(const Candidate& one) const {
    return {.ranks_each = run_.division.told.num_ranks() / run_.division.num_processes,
            .of_first = gathered_bytes(one)};
  }
  // Bytes of each process, but for what the first one gathers.
  [[nodiscard]] int64_t process_overhead_bytes(const Candidate& one) const {
    const int64_t all = run_overhead(one).total() - gathered_bytes(one);
    const int64_t processes = run_.division.num_processes;
    return (all + processes - 1) / processes;
  }

  [[nodiscard]] engine::RunPlan make_plan(const Candidate& one, const engine::StageFitter& fitter,
                                          const StepWork& work, engine::StagesChoice choice) const {
    engine::RunPlan plan = {.pipeline = one.stages,
                            .schedule = run_.division.schedule,
                            .micro_tokens = shape_.micro_tokens,
                            .pass = one.pass,
                            .weights_in_files = work.in_files && !shape_.pass.train_base,
                            .state_in_files = work.in_files && shape_.pass.train_base,
                            .num_passes = one.num_passes};
    plan.pipeline.regions = choice.regions;
    plan.memory = memory_of(one, choice.stages);
    plan.work = work_of_ranks(one, work, fitter.recompute_work(choice.regions, choice.recompute));
    engine::Work even;
    for (const engine::Work& stage : work.of_stages) even = even + one.num_passes * stage;
    plan.bubbles = one.bubbles;
    plan.stretch = one.time_of(fitter.cost(choice, work.fitter_work())) /
                   (shape_.price.of(even) / static_cast<double>(one.stages.num_ranks()));
    plan.recompute.recompute = std::move(choice.recompute);
    plan.stages = std::move(choice.stages);
    return plan;
  }

  [[nodiscard]] static std::vector<engine::Work> work_of_ranks(
      const Candidate& one, const StepWork& work, const std::vector<engine::Work>& again) {
    std::vector<engine::Work> ranks(static_cast<size_t>(one.stages.num_ranks()));
    for (size_t stage = 0; stage < again.size(); ++stage) {
      engine::Work& own = ranks[static_cast<size_t>(one.stages.ranks[stage])];
      own = own + one.num_passes * (work.of_stages[stage] + again[stage]);
    }
    return ranks;
  }

  [[nodiscard]] engine::MemoryPlan memory_of(const Candidate& one,
                                             const std::vector<engine::StagePlan>& stages) const {
    engine::MemoryPlan memory;
    const auto of_stages = [&](auto bytes_of) {
      int64_t bytes = 0;
      for (const engine::StagePlan& stage : stages) bytes += bytes_of(stage);
      return bytes;
    };
    using Stage = engine::StagePlan;
    using enum engine::MemoryUse;
    const auto add = [&](engine::MemoryUse use, auto bytes_of) {
      memory.items.push_back({use, of_stages(bytes_of)});
    };
    add(kWeights, [](const Stage& s) { return s.weight_bytes; });
    add(shape_.pass.train_base ? kBaseTraining : kAdapters,
        [](const Stage& s) { return s.training_bytes; });
    add(kPasses, [](const Stage& s) { return s.pass_bytes; });
    add(kInFlight, [](const Stage& s) { return s.peak_live * s.held_bytes; });
    add(kBetweenStages, [](const Stage& s) { return s.waiting_bytes() + s.message_bytes; });
    add(kLists, [](const Stage& s) { return s.list_bytes; });
    add(kStep, [](const Stage& s) { return s.step_bytes; });
    if (shape_.pass.num_sampled > 0) add(kKvCache, [](const Stage& s) { return s.cache_bytes; });
    for (const engine::PlanItem& item : run_overhead(one).items) memory.items.push_back(item);
    memory.file_bytes = of_stages([](const Stage& s) { return s.file_bytes; });
    memory.state_file_bytes = of_stages([](const Stage& s) { return s.state_file_bytes; });
    memory.activation_file_bytes =
        of_stages([](const Stage& s) { return s.activation_file_bytes(); });
    return memory;
  }

  const TrainRun& run_;
  RunShape shape_;
  std::vector<double> shares_;  // of all work, by stage
  int64_t least_ = INT64_MAX, least_tokens_ = 0, least_number_ = 0;
};

}  // namespace

engine::RunPlan plan_staged(const TrainRun& run) {
  check_stages_can_sample(run);
  StagedPlanner planner(run);
  return run.memory ? planner.plan_within(*run.memory) : planner.plan_as_requested();
}

}  // namespace strata::planner
