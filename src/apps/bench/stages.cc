// SPDX-License-Identifier: Apache-2.0
#include "apps/bench/stages.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <boost/json.hpp>
#include <numeric>
#include <utility>

#include "apps/bench/figures.h"
#include "apps/bench/inputs.h"
#include "apps/bench/process.h"
#include "apps/options.h"
#include "backend/thread_comm.h"
#include "base/clock.h"
#include "base/cores.h"
#include "base/error.h"
#include "base/trace.h"
#include "engine/pipeline/stage_runner.h"
#include "engine/plan/cost.h"
#include "ops/limits.h"
#include "report/trace_file.h"
#include "schedule/lower.h"
#include "schedule/walk.h"
#include "setup/backend.h"
#include "setup/engine_setup.h"
#include "setup/ranks.h"
#include "setup/weight_group.h"

namespace strata::apps {
namespace {

LoadSpec read_spec_of_model(const StagedWork& work, const BenchOptions& options) {
  LoadSpec spec = read_spec({.model = options.model,
                             .dtype = options.dtype,
                             .weights = options.weights,
                             .recompute = work.recompute,
                             .offload = options.offload,
                             .threads = options.threads,
                             .longest = work.length});
  spec.weights = usable_weights(spec.weights, options.method);
  return spec;
}

// The spec of a model whose weights are no file's.
LoadSpec make_spec_of_shape(const StagedWork& work, const BenchOptions& options) {
  LoadSpec spec;
  spec.parsed.config = bench_config(work.shape);
  spec.dtype = parse_dtype(options.dtype, spec.parsed.config);
  spec.recompute = parse_recompute(work.recompute);
  spec.offload = options.offload;
  return spec;
}

// The spec of the model that was named, or one of the work's shape.
LoadSpec resolve_spec(const StagedWork& work, const BenchOptions& options) {
  check_memory_options(options.memory, work.recompute, options.offload);
  return options.model.empty() ? make_spec_of_shape(work, options)
                               : read_spec_of_model(work, options);
}

RankFacts collect_facts_of_bench(const LoadSpec& spec, BenchOptions options) {
  const OptionTable table = option_table_of(options);
  RankFacts facts =
      options.model.empty() ? collect_rank_facts(table) : collect_rank_facts(spec, table);
  add_schedule_hash(options.stages, facts);
  return facts;
}

class StagesBench {
 public:
  // `stages`: as the options have them, or as processes do.
  StagesBench(const StagedWork& work, const BenchOptions& options, const StageOptions& stages,
              LoadSpec spec)
      : work_(work),
        options_(options),
        spec_(std::move(spec)),
        config_(spec_.parsed.config),
        plan_(plan_division(config_, stages, spec_).told) {
    if (options.trains_base()) check_deferred_weight_grads(plan_, stages);
  }

  // Runs all ranks as threads and prints the figures; gives the exit code.
  int bench_threads() {
    run_ranks(plan_.num_ranks(), [this](Comm& comm) { run_rank(comm); });
    print();
    return 0;
  }

  // Runs the ranks of this process, which is one of several; the first one prints the figures.
  int bench_process(Comm& processes, const StageOptions& stages) {
    machines_ = static_cast<double>(processes.size()) / processes.ranks_here();
    run_ranks(processes, process_ranks(stages), [this](Comm& comm) { run_rank(comm); });
    if (processes.rank() == 0) print();
    return 0;
  }

 private:
  // The model's pipeline, or one of random weights where no model is named.
  std::unique_ptr<engine::Runner> make_pipeline(Comm& comm) const {
    const engine::EngineOptions engine_options = {
        .recompute = plan_.regions.any() ? spec_.recompute.policy : model::Recompute(),
        .regions = plan_.regions};
    if (!options_.model.empty()) return load_runner(comm, run_, spec_, engine_options);
    return std::make_unique<engine::Runner>(comm, plan_, make_random_stages(comm, engine_options));
  }

  // This rank's stages.
  std::vector<std::unique_ptr<engine::Engine>> make_random_stages(
      const Comm& comm, const engine::EngineOptions& engine_options) const {
    std::vector<std::unique_ptr<engine::Engine>> engines;
    const int threads = threads_of(comm.rank_here(), comm.ranks_here(), options_.threads);
    for (const int stage : plan_.stages_of(comm.rank() / plan_.num_pipelines())) {
      auto backend = engines.empty() ? make_backend(threads) : engines.front()->backend().sharing();
      engines.push_back(make_random_engine(
          std::move(backend), config_, spec_.dtype,
          checked_random_weights(options_.weights, options_.method), engine_options,
          plan_.layers[static_cast<size_t>(stage)], plan_.weight_share(comm.rank()),
          plan_.tensor_share(comm.rank()), plan_.expert_share(comm.rank())));
    }
    return engines;
  }

  // Returns when all ranks have come.
  static void barrier(Comm& comm) {
    std::vector<double> all;
    comm.all_gather(std::vector<double>{0.0}, all);
  }

  // As many as are in flight at once: enough to touch memory.
  [[nodiscard]] int64_t num_warm_up_sequences() const {
    return engine::peak_live(plan_, 0) * work_.sequences / plan_.table.num_microbatches;
  }

  // What trains.
  [[nodiscard]] api::AdapterSlot create_slot(engine::Runner& pipeline) const {
    if (!options_.trains_base()) return pipeline.create_adapter(bench_modules(config_), 0);
    pipeline.enable_base_steps({});
    return api::AdapterSlot::kBase;
  }

  void run_rank(Comm& comm) {
    const std::unique_ptr<engine::Runner> pipeline = make_pipeline(comm);
    if (comm.rank() == 0) num_threads_ = num_threads_here(comm);
    const api::AdapterSlot slot = create_slot(*pipeline);
    for (int i = 0; i <= options_.repeat; ++i) {
      const bool is_warm_up = i == 0;
      const int64_t sequences = is_warm_up ? num_warm_up_sequences() : work_.sequences;
      const TrainingBatch trained = random_batch(sequences, work_.length, config_.vocab_size, slot);
      const StepTime step = measure_step(comm, *pipeline, trained.batch, slot);
      if (!is_warm_up && comm.rank() == 0) runs_.push_back(make_figures(step));
    }
    if (!pipeline->is_first_rank()) return;
    for (const auto& stage : pipeline->stages()) peak_live_ += stage->peak_live();
  }

  // Seconds until the last rank is done.
  static double time_step(Comm& comm, engine::Runner& pipeline, const api::Batch& batch,
                          api::AdapterSlot slot) {
    barrier(comm);
    const TraceSpan span("measure");
    const double start = now_seconds();
    pipeline.run(batch);
    pipeline.step(slot, {.lr = 1e-4});
    barrier(comm);
    return now_seconds() - start;
  }

  struct StepTime {
    double seconds = 0.0;
    double peak = 0.0;  // of matrix products around it, flop/s; of the first rank
  };

  StepTime measure_step(Comm& comm, engine::Runner& pipeline, const api::Batch& batch,
                        api::AdapterSlot slot) {
    const double before = measure_matrix_flops_on_first_rank(comm);
    const double seconds = time_step(comm, pipeline, batch, slot);
    const double peak = (before + measure_matrix_flops_on_first_rank(comm)) / 2.0;
    barrier(comm);
    return {seconds, peak};
  }

  [[nodiscard]] Figures make_figures(const StepTime& step) const {
    std::vector<model::LoraModuleSpec> modules;  // none: all parameters
    if (!options_.trains_base()) modules = bench_modules(config_);
    const double flops = training_step_flops(config_, work_.sequences, work_.length, modules,
                                             work_.recompute == "full");
    const auto tokens = static_cast<double>(work_.sequences * work_.length);
    return {.tokens_per_s = tokens / step.seconds,
            .share = flops / step.seconds / step.peak,
            .peak = step.peak};
  }

  [[nodiscard]] int num_threads_here(const Comm& comm) const {
    int sum = 0;
    for (int rank = 0; rank < comm.ranks_here(); ++rank)
      sum += threads_of(rank, comm.ranks_here(), options_.threads);
    return sum;
  }

  // All threads together, while the other ranks wait; ranks of other machines are taken to have as
  // much. A process that is bound to some cores has its share of them alone.
  double measure_matrix_flops_on_first_rank(Comm& comm) {
    if (comm.rank() != 0) return 0.0;
    const int own = threads_of(comm.rank_here(), comm.ranks_here(), options_.threads);
    const bool is_bound = usable_cores() < shared_cores();
    if (!whole_) whole_ = make_backend(is_bound ? own : num_threads_);
    const double flops = ops::LimitProbe(*whole_).measure_matrix_flops(spec_.dtype) * machines_;
    return is_bound ? flops * num_threads_ / own : flops;
  }

  // The share of the ranks' time that the schedule leaves idle with equal stages; a backward to
  // activations and an adapter costs what a forward does, and that to weights as much again.
  [[nodiscard]] double bubble_share() const {
    return schedule::walk(
               schedule::without_transfers(plan_.table),
               {.forward = 1, .input_grad = 1, .weight_grad = options_.trains_base() ? 1.0 : 0.0})
        .bubble_share;
  }
  // What each has to compute, as counted.
  [[nodiscard]] std::vector<double> costs_of_ranks() const {
    const engine::LayerCosts costs = engine::layer_costs(config_);
    std::vector<double> of_rank(static_cast<size_t>(plan_.num_ranks()));
    for (int stage = 0; stage < plan_.num_stages(); ++stage) {
      double& sum = of_rank[static_cast<size_t>(plan_.ranks[static_cast<size_t>(stage)])];
      const model::LayerRange& range = plan_.layers[static_cast<size_t>(stage)];
      sum = std::accumulate(costs.layers.begin() + range.first, costs.layers.begin() + range.last,
                            sum);
      if (stage + 1 == plan_.num_stages()) sum += costs.head;
    }
    return of_rank;
  }

  // What the mean rank has to compute over what the busiest has.
  [[nodiscard]] double load_balance() const {
    const std::vector<double> costs = costs_of_ranks();
    const double sum = std::accumulate(costs.begin(), costs.end(), 0.0);
    return sum /
           (static_cast<double>(costs.size()) * *std::max_element(costs.begin(), costs.end()));
  }

  void print() const { options_.json ? print_json() : print_text(); }

  [[nodiscard]] std::vector<int64_t> layers_of_stages() const {
    std::vector<int64_t> layers;
    for (const model::LayerRange& range : plan_.layers) layers.push_back(range.size());
    return layers;
  }
  [[nodiscard]] int num_chunks() const { return plan_.num_stages() / plan_.num_ranks(); }

  void print_json() const {
    boost::json::object line = {{"work", work_.name},
                                {"stages", plan_.num_ranks()},
                                {"data_ranks", plan_.data},
                                {"tensor_ranks", plan_.tensor},
                                {"expert_ranks", plan_.expert},
                                {"chunks", num_chunks()},
                                {"schedule", options_.stages.schedule},
                                {"microbatches", plan_.table.num_microbatches},
                                {"layers", boost::json::value_from(layers_of_stages())},
                                {"sequences", work_.sequences},
                                {"method", options_.method}};
    add_speed_fields(line, median(runs_));
    line["bubble_share"] = bubble_share();
    line["balance"] = load_balance();
    line["peak_live_microbatches"] = peak_live_;
    add_machine_fields(line, arithmetic_in_use(), num_threads_);
    line["repeat"] = options_.repeat;
    fmt::print("{}\n", boost::json::serialize(line));
  }

  // How often there is a pipeline, and what divides each of its ranks.
  [[nodiscard]] std::string copies_text() const {
    std::string text;
    if (plan_.tensor > 1) text += fmt::format(", each as {} tensor ranks", plan_.tensor);
    if (plan_.expert > 1) text += fmt::format(", each as {} expert ranks", plan_.expert);
    if (plan_.data > 1) text += fmt::format(", {} times", plan_.data);
    return text;
  }

  void print_text() const {
    fmt::print(
        "{}: {}; {} ranks of {} stages{}, {}, {} micro-batches, layers {}: bubbles {:.1f} %, "
        "balance {:.1f} %, {} micro-batches alive on rank 0; peak {:.2f} GiB\n",
        work_.name,
        figures_text(median(runs_), fmt::format(" of {} sequences", work_.sequences),
                     describe_arithmetic_in_use(), num_threads_),
        plan_.num_ranks(), num_chunks(), copies_text(), options_.stages.schedule,
        plan_.table.num_microbatches, fmt::join(layers_of_stages(), " "), 100 * bubble_share(),
        100 * load_balance(), peak_live_, peak_rss_gib());
  }

  const StagedWork& work_;
  const BenchOptions& options_;
  const LoadSpec spec_;
  const model::ModelConfig& config_;
  const engine::PipelinePlan plan_;
  const engine::RunPlan run_ = {.pipeline = plan_};
  std::vector<Figures> runs_;  // what the first rank has seen
  int64_t peak_live_ = 0;
  double machines_ = 1.0;           // as many ranks as on this one
  int num_threads_ = 0;             // of all ranks of a machine
  std::unique_ptr<Backend> whole_;  // of the limit's probe
};

int bench_as_rank(Comm& comm, const schedule::ParallelLayout& layout, const StagedWork& work,
                  const BenchOptions& options) {
  StageOptions stages = stages_with_layout(options.stages, layout);
  const LoadSpec spec = resolve_spec(work, options);
  check_layout(layout, spec.parsed.config);
  check_ranks_alike(comm, collect_facts_of_bench(spec, options));
  // Random weights are each rank's own.
  if (!options.model.empty() && !options.trains_base()) choose_weight_sharers(comm, stages);
  StagedWork shared = work;
  shared.sequences =
      std::max(work.sequences, int64_t{layout.data} * layout.expert * options.stages.microbatches);
  report::TraceFile trace(comm.rank() == 0 ? options.trace : "");
  const int code = StagesBench(shared, options, stages, spec).bench_process(comm, stages);
  trace.finish();
  return code;
}

}  // namespace

int bench_stages(const StagedWork& work, const BenchOptions& options) {
  if (options.stages.ranks.empty())
    return StagesBench(work, options, options.stages, resolve_spec(work, options)).bench_threads();
  return run_as_rank(options.stages, [&](Comm& comm, const schedule::ParallelLayout& layout) {
    return bench_as_rank(comm, layout, work, options);
  });
}

}  // namespace strata::apps
