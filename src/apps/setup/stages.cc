// SPDX-License-Identifier: Apache-2.0
#include "apps/setup/stages.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>

#include "apps/setup/backend.h"
#include "apps/setup/schedule_source.h"
#include "base/cores.h"
#include "base/error.h"
#include "base/log.h"
#include "engine/plan/cost.h"

namespace strata::apps {
namespace {

using model::LayerRange;

[[noreturn]] void refuse(const std::string& what) {
  throw Error(ErrorCode::kInvalidArgument, what);
}

std::vector<LayerRange> ranges_of(const std::vector<int64_t>& sizes) {
  std::vector<LayerRange> ranges;
  int64_t first = 0;
  for (const int64_t size : sizes) {
    ranges.push_back({first, first + size});
    first += size;
  }
  return ranges;
}

// "3,2,2": a number for each stage, all layers together.
std::vector<LayerRange> listed_layers(const std::string& list, int64_t num_layers,
                                      int64_t num_stages) {
  std::vector<int64_t> sizes;
  int64_t sum = 0;
  for (const std::string& text : split_commas(list)) {
    int64_t size = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), size);
    if (error != std::errc() || end != text.data() + text.size() || size < 1 || size > num_layers) {
      refuse(
          fmt::format("--layers-per-stage: got '{}' in '{}', want auto or numbers from 1 to {} "
                      "with commas",
                      text, list, num_layers));
    }
    sizes.push_back(size);
    sum += size;
  }
  if (std::ssize(sizes) != num_stages || sum != num_layers) {
    refuse(
        fmt::format("--layers-per-stage {}: {} stages with {} layers, want {} stages with the "
                    "model's {} layers",
                    list, sizes.size(), sum, num_stages, num_layers));
  }
  return ranges_of(sizes);
}

// As many in each, and what is left over with the first or the last.
std::vector<LayerRange> equal_layers(bool before, int64_t num_layers, int64_t num_stages) {
  std::vector<int64_t> sizes(static_cast<size_t>(num_stages), num_layers / num_stages);
  (before ? sizes.front() : sizes.back()) += num_layers % num_stages;
  return ranges_of(sizes);
}

std::vector<LayerRange> divide(const StageOptions& options, const model::ModelConfig& config,
                               int64_t num_stages) {
  const int64_t num_layers = config.num_layers();
  const bool listed = options.layers_per_stage != "auto";
  if (num_stages > std::max<int64_t>(1, num_layers)) {
    refuse(fmt::format(
        "--stages {}: {} stages of {} chunks are {} chunks, and the model has {} "
        "layers",
        options.stages, options.stages, num_stages / options.stages, num_stages, num_layers));
  }
  if (options.leftovers != "auto") {
    if (listed) {
      refuse(fmt::format("--leftovers {}: --layers-per-stage {} leaves none over",
                         options.leftovers, options.layers_per_stage));
    }
    return equal_layers(options.leftovers == "before", num_layers, num_stages);
  }
  if (listed) return listed_layers(options.layers_per_stage, num_layers, num_stages);
  const engine::LayerCosts costs = engine::layer_costs(config);
  return engine::balanced_layers(costs.layers, 0.0, costs.head, static_cast<int>(num_stages));
}

model::RecomputeRegions regions_of(const StageOptions& options, const std::string& recompute,
                                   bool is_whole) {
  const model::RecomputeRegions regions = {.iterations = options.recompute_iterations == "on",
                                           .layers = options.recompute_layers == "on",
                                           .keeps_layer_inputs = keeps_layer_inputs(recompute)};
  if (regions.iterations == model::RecomputeRegions().iterations &&
      regions.layers == model::RecomputeRegions().layers) {
    return {};
  }
  if (is_whole) {
    refuse(
        "--recompute-iterations and --recompute-layers: of a model in stages; give --stages or "
        "--microbatches");
  }
  if (regions.iterations && recompute == "none") {
    refuse("--recompute-iterations on: --recompute none keeps everything; give another policy");
  }
  return regions;
}

// A pass in flight would need a file of its own for what it offloads.
void check_offload(const std::string& recompute, const std::string& folder) {
  if (parse_recompute(recompute).offloads_any()) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("--recompute {} and --stages or --microbatches: stages keep "
                            "activations in memory alone, since many micro-batches are in flight "
                            "at once; name what is kept without '=offload', or give train "
                            "--memory, which lays frozen weights in a file where it must",
                            recompute));
  }
  if (folder.empty()) return;
  throw Error(ErrorCode::kUnsupported,
              fmt::format("--offload {} and --stages or --microbatches: of stages only frozen "
                          "weights lie in files, where train's --memory does not hold them; give "
                          "it, or leave out --offload",
                          folder));
}

std::unique_ptr<engine::Engine> make_stage(std::unique_ptr<Backend> backend,
                                           const EngineSetup& setup, const LayerRange& part,
                                           const engine::EngineOptions& options, bool tells) {
  const DType dtype =
      parse_dtype(setup.dtype, model::load_config(setup.model, setup.strict_config).config);
  model::LoadedModel model =
      model::load_model(*backend, setup.model,
                        {.compute_dtype = dtype,
                         .strict_config = setup.strict_config,
                         .mtp = setup.mtp,
                         .offload = setup.weights_in_files ? offload_folder(setup.offload) : "",
                         .part = part,
                         .keep = parse_weights(setup.weights)});
  for (const std::string& warning : model.warnings) {
    if (tells) log(LogLevel::kWarning, warning);
  }
  return std::make_unique<engine::Engine>(std::move(backend), std::move(model), options);
}

}  // namespace

int threads_of(int rank, int num_ranks, int threads) {
  const int all = threads > 0 ? threads : usable_cores();
  return std::max(1, all / num_ranks + (rank < all % num_ranks ? 1 : 0));
}

engine::PipelinePlan plan_stages(const model::ModelConfig& config, const StageOptions& options,
                                 const std::string& recompute, const std::string& offload) {
  const schedule::Table table = find_schedule({.schedule = options.schedule,
                                               .num_ranks = options.stages,
                                               .ranks_option = "--stages",
                                               .option = "--pipeline-schedule",
                                               .num_microbatches = options.microbatches,
                                               .num_chunks = options.chunks,
                                               .forwarding_delay = options.forwarding_delay});
  engine::PipelinePlan plan = engine::make_pipeline_plan(table, options.forwarding_delay,
                                                         divide(options, config, table.num_stages));
  plan.data = options.data;
  plan.regions = regions_of(options, recompute, plan.is_whole());
  if (!plan.is_whole()) check_offload(recompute, offload);
  return plan;
}

engine::PipelinePlan plan_stages(const EngineSetup& setup, const StageOptions& options) {
  model::ModelConfig config = model::load_config(setup.model, setup.strict_config).config;
  config.use_mtp = config.mtp_layer && uses_mtp(setup);
  engine::PipelinePlan plan = plan_stages(config, options, setup.recompute, setup.offload);
  // A stage knows too little for the checks that make_engine makes.
  if (plan.num_stages() > 1) static_cast<void>(make_planning_engine(setup));
  return plan;
}

std::unique_ptr<engine::Runner> make_runner(Comm& comm, const engine::PipelinePlan& plan,
                                            const EngineSetup& setup,
                                            engine::EngineOptions options) {
  EngineSetup own = setup;
  if (!plan.regions.any()) own.recompute = "none";
  const model::Recompute recompute = parse_recompute(own.recompute);
  std::vector<std::unique_ptr<engine::Engine>> engines;
  options.regions = plan.regions;
  const int threads = threads_of(comm.rank_here(), comm.ranks_here(), setup.threads);
  if (plan.num_stages() == 1) {
    if (plan.data > 1) own.threads = threads;
    engines.push_back(make_engine(own, options));
    return std::make_unique<engine::Runner>(comm, plan, std::move(engines));
  }
  options.recompute = recompute;
  options.threads = threads;
  const int rank = comm.rank() / plan.data;
  for (const int stage : plan.stages_of(rank)) {
    // A rank's stages share a team.
    auto backend =
        engines.empty() ? make_backend(options.threads) : engines.front()->backend().sharing();
    engines.push_back(make_stage(std::move(backend), setup, plan.layers[static_cast<size_t>(stage)],
                                 options, comm.rank() == 0 && stage == 0));
  }
  return std::make_unique<engine::Runner>(comm, plan, std::move(engines));
}

std::vector<std::unique_ptr<engine::Engine>> make_stages(const engine::PipelinePlan& plan,
                                                         const EngineSetup& setup,
                                                         engine::EngineOptions options) {
  options.recompute = parse_recompute(setup.recompute);
  std::vector<std::unique_ptr<engine::Engine>> engines;
  for (int rank = 0; rank < plan.num_ranks(); ++rank) {
    const auto stage = static_cast<size_t>(plan.stages_of(rank).at(0));
    options.threads = threads_of(rank, plan.num_ranks(), setup.threads);
    engines.push_back(
        make_stage(make_backend(options.threads), setup, plan.layers[stage], options, rank == 0));
  }
  return engines;
}

}  // namespace strata::apps
