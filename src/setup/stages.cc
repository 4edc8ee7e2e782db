// SPDX-License-Identifier: Apache-2.0
#include "setup/stages.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "backend/file_memory.h"
#include "base/ascii.h"
#include "base/cores.h"
#include "base/error.h"
#include "base/log.h"
#include "base/option_values.h"
#include "base/process_memory.h"
#include "engine/plan/cost.h"
#include "schedule/generate.h"
#include "setup/backend.h"
#include "setup/schedule_source.h"
#include "setup/weight_group.h"

namespace strata::apps {
namespace {

using model::LayerRange;

[[noreturn]] void refuse(const std::string& what) {
  throw Error(ErrorCode::kInvalidArgument, what);
}

std::vector<LayerRange> consecutive_ranges(const std::vector<int64_t>& sizes) {
  std::vector<LayerRange> ranges;
  int64_t first = 0;
  for (const int64_t size : sizes) {
    ranges.push_back({first, first + size});
    first += size;
  }
  return ranges;
}

// One number of the list.
int64_t parse_stage_size(const std::string& text, const std::string& list, int64_t num_layers) {
  int64_t size = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), size);
  if (error != std::errc() || end != text.data() + text.size() || size < 1 || size > num_layers) {
    refuse(
        fmt::format("--layers-per-stage: got '{}' in '{}', want auto or numbers from 1 to {} "
                    "with commas",
                    text, list, num_layers));
  }
  return size;
}

// "3,2,2": a number for each stage, all layers together.
std::vector<LayerRange> parse_layers_per_stage(const std::string& list, int64_t num_layers,
                                               int64_t num_stages) {
  std::vector<int64_t> sizes;
  int64_t sum = 0;
  for (const std::string& text : split_commas(list)) {
    const int64_t size = parse_stage_size(text, list, num_layers);
    sizes.push_back(size);
    sum += size;
  }
  if (std::ssize(sizes) != num_stages || sum != num_layers) {
    refuse(
        fmt::format("--layers-per-stage {}: {} stages with {} layers, want {} stages with the "
                    "model's {} layers",
                    list, sizes.size(), sum, num_stages, num_layers));
  }
  return consecutive_ranges(sizes);
}

// As many in each, and what is left over with the first or the last.
std::vector<LayerRange> equal_layers(bool before, int64_t num_layers, int64_t num_stages) {
  std::vector<int64_t> sizes(static_cast<size_t>(num_stages), num_layers / num_stages);
  (before ? sizes.front() : sizes.back()) += num_layers % num_stages;
  return consecutive_ranges(sizes);
}

void check_layers_divide(const StageOptions& options, int64_t num_layers, int64_t num_stages) {
  if (num_stages > std::max<int64_t>(1, num_layers)) {
    refuse(fmt::format(
        "--stages {}: {} stages of {} chunks are {} chunks, and the model has {} "
        "layers",
        options.stages, options.stages, num_stages / options.stages, num_stages, num_layers));
  }
  if (options.leftovers != "auto" && options.layers_per_stage != "auto") {
    refuse(fmt::format("--leftovers {}: --layers-per-stage {} leaves none over", options.leftovers,
                       options.layers_per_stage));
  }
}

std::vector<LayerRange> divide_layers(const StageOptions& options, const model::ModelConfig& config,
                                      int64_t num_stages) {
  const int64_t num_layers = config.num_layers();
  check_layers_divide(options, num_layers, num_stages);
  if (options.leftovers != "auto")
    return equal_layers(options.leftovers == "before", num_layers, num_stages);
  if (options.layers_per_stage != "auto")
    return parse_layers_per_stage(options.layers_per_stage, num_layers, num_stages);
  const engine::LayerCosts costs = engine::layer_costs(config);
  return engine::balance_layers(costs.layers, 0.0, costs.head, static_cast<int>(num_stages));
}

void check_regions(const model::RecomputeRegions& regions, const engine::RecomputeChoice& recompute,
                   bool is_whole) {
  if (is_whole) {
    refuse(
        "--recompute-iterations and --recompute-layers: of a model in stages; give --stages or "
        "--microbatches");
  }
  if (regions.iterations && recompute.keeps_all()) {
    refuse("--recompute-iterations on: --recompute none keeps everything; give another policy");
  }
  if (regions.iterations && !regions.keeps_layer_inputs && recompute.policy.offloads_any()) {
    refuse(
        fmt::format("--recompute-iterations on and --recompute {}: what is offloaded is kept "
                    "layer by layer; keep or offload decoder_layer_input as well",
                    recompute.name));
  }
}

// What the options recompute; an Error where it does not go with the rest.
model::RecomputeRegions recompute_regions_of(const StageOptions& options,
                                             const engine::RecomputeChoice& recompute,
                                             bool is_whole) {
  const model::RecomputeRegions regions = {.iterations = options.recompute_iterations == "on",
                                           .layers = options.recompute_layers == "on",
                                           .keeps_layer_inputs = recompute.keeps_layer_inputs};
  if (regions.iterations == model::RecomputeRegions().iterations &&
      regions.layers == model::RecomputeRegions().layers) {
    return {};
  }
  check_regions(regions, recompute, is_whole);
  return regions;
}

// What is recomputed where the options say nothing else: --memory chooses of these.
std::vector<model::RecomputeRegions> regions_allowed(const StageOptions& options) {
  const StageOptions defaults;
  std::vector<model::RecomputeRegions> allowed;
  for (const model::RecomputeRegions& regions :
       {model::RecomputeRegions{.iterations = false, .layers = true},
        model::RecomputeRegions{.iterations = false, .layers = false},
        model::RecomputeRegions{.iterations = true, .layers = false},
        model::RecomputeRegions{.iterations = true, .layers = true},
        model::RecomputeRegions{.iterations = true, .layers = false, .keeps_layer_inputs = false},
        model::RecomputeRegions{.iterations = true, .layers = true, .keeps_layer_inputs = false}}) {
    if (options.recompute_iterations != defaults.recompute_iterations && !regions.iterations) {
      continue;
    }
    if (options.recompute_layers != defaults.recompute_layers && regions.layers) continue;
    allowed.push_back(regions);
  }
  return allowed;
}

void check_shard_weights(const StageOptions& options) {
  if (!options.shard_weights || options.data * options.expert > 1) return;
  refuse(
      "--shard-weights: data ranks divide the weights among themselves; give --ranks data=N with "
      "it, or leave it out");
}

ScheduleSource schedule_source_of(const StageOptions& options) {
  return {.schedule = options.schedule,
          .num_ranks = options.stages,
          .ranks_option = "--stages",
          .option = "--pipeline-schedule",
          .num_microbatches = options.microbatches,
          .num_chunks = options.chunks,
          .forwarding_delay = options.forwarding_delay};
}

schedule::Spec generator_spec_of(const StageOptions& options, schedule::Kind kind) {
  return {.kind = kind,
          .num_ranks = options.stages,
          .num_microbatches = options.microbatches,
          .num_chunks = std::max(1, options.chunks),
          .forwarding_delay = options.forwarding_delay};
}

}  // namespace

std::optional<planner::Budget> budget_of(const std::string& memory) {
  if (memory.empty()) return std::nullopt;
  return planner::Budget{parse_size("memory", memory), memory};
}

planner::FileSpace measure_space_for_files(const std::string& named) {
  if (!named.empty()) return {.most = INT64_MAX};
  const std::string folder = find_usable_offload_folder(named);
  if (folder.empty()) return {};
  return {.most = std::max<int64_t>(0, FileAllocator::free_bytes(folder) / 2),
          .memory = read_usable_memory()};
}

int threads_of(int rank, int num_ranks, int threads) {
  const int all = threads > 0 ? threads : shared_threads();
  return std::max(1, all / num_ranks + (rank < all % num_ranks ? 1 : 0));
}

namespace {

void set_ranks(const StageOptions& options, engine::PipelinePlan& plan) {
  plan.data = options.data;
  plan.shard_weights = options.shard_weights;
  plan.tensor = options.tensor;
  plan.expert = options.expert;
  plan.weight_sharers = options.weight_sharers;
}

}  // namespace

planner::Division plan_division(const model::ModelConfig& config, const StageOptions& options,
                                const engine::RunSpec& spec, bool within_memory) {
  check_shard_weights(options);
  const schedule::Table table = resolve_schedule(schedule_source_of(options));
  planner::Division division = {
      .told = engine::make_pipeline_plan(table, options.forwarding_delay,
                                         divide_layers(options, config, table.num_stages)),
      .schedule = options.schedule,
      .regions = regions_allowed(options)};
  set_ranks(options, division.told);
  division.told.regions = recompute_regions_of(
      options, within_memory ? parse_recompute("full") : spec.recompute, division.told.is_whole());
  if (schedule::Kind kind = {}; schedule::parse_kind(options.schedule, kind))
    division.spec = generator_spec_of(options, kind);
  if (!options.ranks.empty())
    division.num_processes = division.told.num_ranks() / options.ranks_each;
  return division;
}

namespace {

// By load_engine's checks, for which a stage knows too little.
void check_whole_model(const LoadSpec& spec) { static_cast<void>(make_planning_engine(spec)); }

}  // namespace

engine::PipelinePlan plan_stages(const LoadSpec& spec, const StageOptions& options) {
  model::ModelConfig config = spec.parsed.config;
  config.use_mtp = config.mtp_layer && resolve_use_mtp(spec);
  engine::PipelinePlan plan = plan_division(config, options, spec).told;
  if (plan.num_stages() > 1) check_whole_model(spec);
  return plan;
}

namespace {

// What a rank loads.
LoadSpec with_weight_share(LoadSpec spec, const engine::PipelinePlan& plan, int rank) {
  spec.share = plan.weight_share(rank);
  spec.tensor = plan.tensor_share(rank);
  spec.expert = plan.expert_share(rank);
  spec.weight_sharers = std::max(1, plan.weight_sharers);
  return spec;
}

}  // namespace

LoadSpec with_planned_share(LoadSpec spec, const StageOptions& options) {
  engine::PipelinePlan ranks;
  set_ranks(options, ranks);
  return with_planned_share(std::move(spec), ranks);
}

LoadSpec with_planned_share(LoadSpec spec, const engine::PipelinePlan& plan) {
  spec = with_weight_share(std::move(spec), plan, /*rank=*/0);
  if (plan.tensor > 1) {
    const auto backend = make_backend(spec.threads);
    spec.tensor = model::largest_share(*backend, spec.parsed.config, spec.dtype, plan.tensor);
  }
  return spec;
}

namespace {

// `part` of the model: none where it is all of it.
std::unique_ptr<engine::Engine> make_stage_planning_engine(const LoadSpec& spec,
                                                           const engine::PipelinePlan& told,
                                                           size_t stage,
                                                           std::optional<LayerRange> part) {
  std::unique_ptr<engine::Engine> engine =
      make_planning_engine(with_planned_share(spec, told), /*draft_tokens=*/0, part,
                           threads_of(told.ranks[stage], told.num_ranks(), spec.threads));
  engine->set_share({.num_owners = told.num_dealing()});
  return engine;
}

// Has an engine that can only plan take what stepping all parameters takes: nothing is filled.
void plan_base_steps(engine::Engine& engine, const train::BaseStep& how) {
  engine.base_trainer().enable_steps([](size_t, int64_t, TensorView) {}, how);
}

}  // namespace

std::vector<std::unique_ptr<engine::Engine>> make_part_engines(
    const LoadSpec& spec, engine::Engine& whole, const planner::Division& division,
    const std::optional<train::BaseStep>& how) {
  const std::vector<LayerRange> parts = division.parts();
  if (how) plan_base_steps(whole, *how);
  std::vector<std::unique_ptr<engine::Engine>> engines;
  for (size_t stage = 0; stage < parts.size(); ++stage) {
    engines.push_back(make_stage_planning_engine(
        spec, division.told, stage,
        parts.size() == 1 ? std::nullopt : std::optional<LayerRange>(parts[stage])));
    if (how) plan_base_steps(*engines.back(), *how);
  }
  return engines;
}

engine::RunPlan plan_staged_run(const LoadSpec& spec, planner::TrainRun run,
                                const train::BaseStep& how) {
  const auto engines = make_part_engines(
      spec, run.whole, run.division,
      run.shape.pass.train_base ? std::optional<train::BaseStep>(how) : std::nullopt);
  for (const auto& engine : engines) run.stages.push_back(engine.get());
  return planner::plan_run(run);
}

namespace {

// By `make`, into the memory that the group has together, or from it.
template <typename Make>
std::unique_ptr<engine::Engine> load_in_group(WeightGroup& group, bool in_file, Make make) {
  WeightPlace place = {.shared = group.begin_loading(), .in_file = in_file};
  SharedMemory* const memory = place.shared.get();
  std::unique_ptr<engine::Engine> engine = make(std::move(place));
  group.publish_after_loading(memory);
  return engine;
}

// Loads this rank's stages of a model, which share a team.
std::vector<std::unique_ptr<engine::Engine>> load_stages_of_rank(
    const Comm& comm, const engine::RunPlan& run, const LoadSpec& spec,
    const engine::EngineOptions& options, WeightGroup& group) {
  const engine::PipelinePlan& plan = run.pipeline;
  std::vector<std::unique_ptr<engine::Engine>> engines;
  for (const int stage : plan.stages_of(comm.rank() / plan.num_pipelines())) {
    auto backend =
        engines.empty() ? make_backend(options.threads) : engines.front()->backend().sharing();
    engines.push_back(load_in_group(group, run.weights_in_files, [&](WeightPlace place) {
      return load_engine(std::move(backend), spec, options, plan.layers[static_cast<size_t>(stage)],
                         comm.rank() == 0 && stage == 0 ? Warnings::kTold : Warnings::kNone,
                         std::move(place));
    }));
  }
  return engines;
}

}  // namespace

std::unique_ptr<engine::Runner> load_runner(Comm& comm, const engine::RunPlan& run,
                                            const LoadSpec& spec, engine::EngineOptions options) {
  const engine::PipelinePlan& plan = run.pipeline;
  options.regions = plan.regions;
  const engine::RecomputeChoice recompute =
      plan.regions.any() ? spec.recompute : engine::RecomputeChoice();
  const int threads = threads_of(comm.rank_here(), comm.ranks_here(), spec.threads);
  WeightGroup group(comm, {.count = plan.data, .stride = plan.expert}, plan.weight_sharers > 0);
  LoadSpec own = with_weight_share(spec, plan, comm.rank());
  own.weight_sharers = group.size();
  std::vector<std::unique_ptr<engine::Engine>> engines;
  if (plan.num_stages() == 1) {
    if (plan.num_pipelines() > 1) own.threads = threads;
    engines.push_back(load_in_group(group, run.weights_in_files, [&](WeightPlace place) {
      return load_engine(own, options, recompute, std::move(place));
    }));
  } else {
    options.recompute = recompute.policy;
    options.offload = spec.offload;
    options.threads = threads;
    engines = load_stages_of_rank(comm, run, own, options, group);
  }
  return std::make_unique<engine::Runner>(comm, plan, std::move(engines));
}

std::unique_ptr<engine::Engine> load_stage_of_rank(const Comm& comm,
                                                   const engine::PipelinePlan& plan,
                                                   const LoadSpec& spec) {
  const engine::EngineOptions options = {
      .threads = threads_of(comm.rank_here(), comm.ranks_here(), spec.threads),
      .recompute = spec.recompute.policy,
      .offload = spec.offload};
  const auto stage = static_cast<size_t>(plan.stages_of(comm.rank() / plan.num_pipelines()).at(0));
  return load_engine(make_backend(options.threads), with_weight_share(spec, plan, comm.rank()),
                     options, plan.layers[stage],
                     comm.rank() == 0 ? Warnings::kTold : Warnings::kNone);
}

std::vector<std::unique_ptr<engine::Engine>> load_all_stages(const engine::PipelinePlan& plan,
                                                             const LoadSpec& spec,
                                                             engine::EngineOptions options) {
  options.recompute = spec.recompute.policy;
  options.offload = spec.offload;
  std::vector<std::unique_ptr<engine::Engine>> engines;
  for (int rank = 0; rank < plan.num_ranks(); ++rank) {
    const auto stage = static_cast<size_t>(plan.stages_of(rank).at(0));
    options.threads = threads_of(rank, plan.num_ranks(), spec.threads);
    engines.push_back(load_engine(make_backend(options.threads), spec, options, plan.layers[stage],
                                  rank == 0 ? Warnings::kTold : Warnings::kNone));
  }
  return engines;
}

}  // namespace strata::apps
