// SPDX-License-Identifier: Apache-2.0
#include "apps/plan/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <optional>
#include <string_view>
#include <utility>

#include "apps/options.h"
#include "apps/plan/plan_front.h"
#include "apps/plan/plan_json.h"
#include "apps/plan/plan_search.h"
#include "apps/plan/plan_serve.h"
#include "backend/file_memory.h"
#include "base/ascii.h"
#include "base/check.h"
#include "base/error.h"
#include "base/option_values.h"
#include "base/process_memory.h"
#include "base/stop.h"
#include "checkpoint/source.h"
#include "engine/pipeline/sent_plan.h"
#include "model/adapter/specs.h"
#include "planner/plan_text.h"
#include "report/format.h"
#include "report/table.h"
#include "setup/engine_setup.h"
#include "setup/machine_file.h"
#include "setup/ranks.h"
#include "setup/sent_text.h"
#include "setup/simulated_step.h"
#include "setup/weights_text.h"

namespace strata::apps {
namespace {

constexpr int64_t kMostTokens = int64_t{1} << 24;  // of a step
constexpr int64_t kProbeBytes = 256 << 20;

[[noreturn]] void refuse(const std::string& what) {
  throw Error(ErrorCode::kInvalidArgument, "plan: " + what);
}

struct StepTokens {
  int64_t sequences = 0;
  int64_t length = 0;
};

StepTokens parse_step_tokens(const std::string& text) {
  const std::string_view both = text;
  const size_t cross = std::min(both.find('x'), both.size());
  const std::optional<int64_t> sequences = parse_whole_number(both.substr(0, cross));
  const std::optional<int64_t> length =
      parse_whole_number(both.substr(std::min(cross + 1, both.size())));
  if (sequences && length && *sequences >= 1 && *length >= 1 &&
      *sequences <= kMostTokens / *length) {
    return {.sequences = *sequences, .length = *length};
  }
  refuse(
      fmt::format("--tokens: got '{}', want BxT, like 4x512: B sequences of T tokens, at most {} "
                  "together",
                  text, kMostTokens));
}

// Where nobody says: as many as a step of training on short conversations has.
constexpr StepTokens kUsualStep = {.sequences = 8, .length = 512};

// A step's tokens as asked, or the usual ones; Error where they exceed the context.
StepTokens resolve_step_tokens(const PlanOptions& options, int64_t context) {
  if (options.tokens.empty())
    return {.sequences = kUsualStep.sequences, .length = std::min(kUsualStep.length, context)};
  const StepTokens tokens = parse_step_tokens(options.tokens);
  if (tokens.length > context) {
    refuse(fmt::format("--tokens {}: sequences of {} tokens, the model's context is {}",
                       options.tokens, tokens.length, context));
  }
  return tokens;
}

std::vector<model::LoraModuleSpec> make_adapter_specs(const PlanOptions& options,
                                                      const model::ModelConfig& config) {
  return model::make_adapter_specs(
      config, split_commas(options.targets), options.rank,
      /*alpha=*/1.0, model::parse_expert_rank(options.expert_rank),
      options.with_indexer_loss ? model::WithIndexers::kYes : model::WithIndexers::kNo);
}

planner::RunShape make_run_shape(const PlanOptions& options, const engine::Engine& engine,
                                 const planner::Division& division = {}) {
  const StepTokens tokens = resolve_step_tokens(options, engine.config().max_position_embeddings);
  planner::RunShape shape = {
      .pass = {.backward = true,
               .train_base = options.method == "full",
               .mtp = engine.config().use_mtp,
               .indexer_loss = options.with_indexer_loss},
      .micro_tokens = options.micro_tokens,
      .lengths = std::vector<int64_t>(static_cast<size_t>(tokens.sequences), tokens.length),
      .longest = tokens.length,
      .step_tokens = tokens.sequences * tokens.length,
      .file_space = measure_space_for_files(options.offload)};
  planner::add_step_to_longest_passes(shape, division, {shape.lengths});
  if (!shape.pass.train_base) shape.pass.modules = make_adapter_specs(options, engine.config());
  return shape;
}

// As `strata train` refuses it.
void check_indexer_loss(const PlanOptions& options, const engine::Engine& engine) {
  if (options.with_indexer_loss && engine.model().weights->layers().num_indexers() == 0)
    refuse(fmt::format("--indexer-loss: no layer of {} has an indexer", options.model));
}

train::BaseStep step_of(const PlanOptions& options) {
  return {.muon = options.optimizer == "muon"};
}

// Checks which options of training go together, and reads the model's spec.
LoadSpec read_training_spec(const PlanOptions& options) {
  if (!options.memory.empty() && options.recompute != "none") {
    refuse("--memory and --recompute: give one; --memory chooses what is kept");
  }
  check_optimizer(options.optimizer, options.method);
  check_method_in_4bit(options.load_in_4bit, options.method);
  LoadSpec spec = read_plan_spec(options);
  if (options.with_mtp) spec.mtp = model::UseMtp::kAlways;
  spec.weights = usable_weights(spec.weights, options.method);
  return spec;
}

// Some numbers are options of schedules too.
StageOptions stage_options_of(const PlanOptions& options) {
  StageOptions stages = options.stages;
  stages.microbatches = std::max(1, options.schedule.microbatches);
  stages.chunks = options.schedule.chunks;
  stages.forwarding_delay = options.schedule.forwarding_delay;
  return stages;
}

engine::MachineLimits resolve_machine(const PlanOptions& options, engine::Engine& engine) {
  return resolve_machine_limits(engine.backend(), engine.model().weights->compute_dtype(),
                                kProbeBytes, options.machine, options.save_machine);
}

void check_can_simulate(const PlanOptions& options, const StageOptions& stages) {
  if (!options.machine.empty() || !options.save_machine.empty())
    refuse("--cluster and --machine: give one; a cluster's file has the limits of its ranks");
  if (stages.ranks_each > 1)
    refuse("--cluster and --stages: ranks that share a process are not simulated; give pipeline=");
  if (stages.tensor > 1) refuse("--cluster and --ranks tensor=N: not simulated yet");
  if (stages.shard_weights)
    refuse("--cluster and --shard-weights: weights on their way are not simulated yet");
  if (stages.expert > 1)
    refuse("--cluster and --ranks expert=N: rows on their way to experts are not simulated yet");
}

// As `strata train` refuses it.
StageOptions stages_of_ranks(const PlanOptions& options, const model::ModelConfig& config) {
  const schedule::ParallelLayout layout = schedule::parse_layout(options.stages.ranks);
  check_layout_of_passes(layout, options.stages, config);
  check_optimizer_of_ranks(layout, options.optimizer);
  if (!options.svg.empty()) refuse("--ranks and --svg: one budget is planned; give --memory");
  const StageOptions stages = stages_with_layout(stage_options_of(options), layout);
  check_memory_of_ranks(options.memory, options.offload);
  if (!options.cluster.empty()) check_can_simulate(options, stages);
  return stages;
}

// `behind`: what comes behind the plan's tables.
void print_rank_tables(const PlanOptions& options, const engine::RunPlan& plan,
                       const engine::MachineLimits& limits, const std::string& behind) {
  report::Table table({{""}, {""}});
  if (plan.pipeline.data > 1) table.add_row({"data", data_ranks_text(plan.pipeline)});
  if (plan.pipeline.expert > 1) table.add_row({"experts", expert_ranks_text(plan.pipeline)});
  planner::add_plan_rows(plan, limits, offload_folder(options.offload), table);
  fmt::print("{}{}{}", table.text(), planner::parts_text(plan), behind);
}

boost::json::object plan_json(const engine::RunPlan& plan, bool in_stages,
                              const engine::Engine& engine, const engine::MachineLimits& limits) {
  return in_stages ? staged_plan_json(plan, limits) : training_plan_json(plan, engine, limits);
}

// What ranks of a plan send, and on a cluster when: a step was made of a batch. `of_tensors`: of
// that what tensor ranks send for passes.
void print_ranks(const PlanOptions& options, const ClusterStep& step,
                 std::span<const engine::SentBytes> of_tensors, const engine::MachineLimits& limits,
                 const std::optional<Cluster>& cluster) {
  std::optional<schedule::Simulation> simulation;
  if (cluster) {
    const std::string& trace = options.schedule.trace;
    simulation = simulate_step(step, *cluster, /*keeps_spans=*/!trace.empty());
    if (!trace.empty()) write_simulated_trace(trace, *simulation);
  }
  if (simulation && !options.json) {
    return print_rank_tables(options, step.plan, limits,
                             simulated_table(step.plan, *simulation, *cluster));
  }
  const api::AdapterSlot slot = step.batch.sequences.front().slot;
  std::vector<engine::SentBytes> sent =
      engine::plan_sends(step.plan.pipeline, step.engine, step.batch, {&slot, 1});
  for (size_t rank = 0; rank < of_tensors.size(); ++rank) sent[rank] += of_tensors[rank];
  if (!options.json)
    return print_rank_tables(options, step.plan, limits, sent_table("a step sends", sent));
  boost::json::object line =
      plan_json(step.plan, !step.plan.pipeline.is_whole(), step.engine, limits);
  line["planned_sent_bytes"] = boost::json::parse(sent_json(sent));
  line["ranks"] = ranks_json(step.plan, sent, step.plan.pipeline.num_pipelines());
  if (simulation) add_simulated_json(step.plan, *simulation, *cluster, line);
  fmt::print("{}\n", boost::json::serialize(line));
}

// Plans count with limits of all ranks of a pipeline together.
engine::MachineLimits limits_of_pipeline(const Cluster& cluster,
                                         const planner::Division& division) {
  const double ranks = division.told.num_ranks();
  return {.flops = ranks * cluster.limits.flops,
          .f32_flops = ranks * cluster.limits.f32_flops,
          .bytes = ranks * cluster.limits.bytes,
          .source = cluster.limits.source};
}

// What tensor ranks send for a step's passes; none where there are no such ranks.
std::vector<engine::SentBytes> plan_tensor_messages(const LoadSpec& spec,
                                                    const planner::Division& division,
                                                    const planner::RunShape& shape,
                                                    const train::BaseStep& how, ClusterStep step) {
  const engine::PipelinePlan& pipeline = step.plan.pipeline;
  if (pipeline.tensor == 1) return {};
  std::vector<engine::SentBytes> sent(static_cast<size_t>(pipeline.num_ranks_in_all()));
  if (pipeline.num_stages() == 1) {
    engine::add_tensor_messages(pipeline, 0, step.engine, step.batch, sent);
    return sent;
  }
  const auto engines =
      make_part_engines(spec, step.engine, division,
                        shape.pass.train_base ? std::optional<train::BaseStep>(how) : std::nullopt);
  for (size_t stage = 0; stage < engines.size(); ++stage) {
    engine::Engine& part = *engines[stage];
    part.set_pass_options(step.plan.micro_tokens, step.plan.recompute.recompute, pipeline.regions);
    if (!shape.pass.train_base) part.plan_adapter(shape.pass.modules);
    engine::add_tensor_messages(pipeline, static_cast<int>(stage), part, step.batch, sent);
  }
  return sent;
}

// Plans ranks that are processes, and prints what each of them takes and sends.
int print_ranks_plan(const PlanOptions& options) {
  LoadSpec spec = read_training_spec(options);
  const StageOptions stages = stages_of_ranks(options, spec.parsed.config);
  check_memory_options(options.memory, options.recompute, options.offload);
  if (stages.shard_weights) spec.share = {.num_ranks = stages.data};
  spec.tensor = {.num_ranks = stages.tensor};
  spec.expert = {.num_ranks = stages.expert};
  const std::unique_ptr<engine::Engine> engine = make_planning_engine(spec);
  check_indexer_loss(options, *engine);
  engine->set_share({.num_owners = stages.data});
  const planner::Division division =
      plan_division(engine->config(), stages, spec, !options.memory.empty());
  if (options.method == "full") check_deferred_weight_grads(division.told, stages);
  planner::RunShape shape = make_run_shape(options, *engine, division);
  std::optional<Cluster> cluster;
  if (!options.cluster.empty())
    cluster = read_cluster_file(options.cluster, engine->model().weights->compute_dtype());
  const engine::MachineLimits limits =
      cluster ? limits_of_pipeline(*cluster, division) : resolve_machine(options, *engine);
  if (cluster || !options.machine.empty()) shape.price = engine::price_of(limits);
  const engine::RunPlan plan = plan_staged_run(spec,
                                               {.whole = *engine,
                                                .division = division,
                                                .shape = shape,
                                                .recompute = spec.recompute.policy,
                                                .memory = budget_of(options.memory)},
                                               step_of(options));
  engine->set_pass_options(plan.micro_tokens, plan.recompute.recompute, plan.pipeline.regions);
  api::AdapterSlot slot = api::AdapterSlot::kBase;
  if (!shape.pass.train_base) slot = engine->plan_adapter(shape.pass.modules);
  const PlannedBatch step(shape, slot);
  const ClusterStep planned = {plan, *engine, shape, step.batch()};
  print_ranks(options, planned,
              plan_tensor_messages(spec, division, shape, step_of(options), planned), limits,
              cluster);
  return 0;
}

// Looks for the best division among ranks of a cluster.
int print_search(const PlanOptions& options) {
  check_can_search(options);
  const LoadSpec spec = read_training_spec(options);
  if (options.with_indexer_loss) check_indexer_loss(options, *make_planning_engine(spec));
  const Cluster cluster = read_cluster_file(options.cluster, spec.dtype);
  DivisionSearch search = {.spec = spec, .cluster = cluster, .num_ranks = options.search};
  if (options.method == "full") search.how = step_of(options);
  if (options.recompute != "none") search.recompute = {options.recompute};
  return print_found_divisions(options, search,
                               [&](const engine::Engine& whole, const planner::Division& division) {
                                 return make_run_shape(options, whole, division);
                               });
}

report::Table make_summary_table(const engine::RunPlan& plan, const engine::Engine& engine,
                                 const LoadSpec& spec) {
  const model::ModelWeights& weights = *engine.model().weights;
  report::Table table({{""}, {""}});
  table.add_row(
      {"model", fmt::format("{}, {} parameters, {}", engine.config().family,
                            report::format_count(static_cast<double>(weights.num_parameters())),
                            dtype_name(weights.compute_dtype()))});
  add_quantised_weights_row(weights, find_weights(spec.dir).get(), table);
  table.add_row({"passes", fmt::format("{} tokens at most, {:.3g} passes a step",
                                       plan.pass.pass_tokens, plan.num_passes)});
  return table;
}

void print_training_plan(const PlanOptions& options, const engine::RunPlan& plan, bool in_stages,
                         const engine::Engine& engine, const LoadSpec& spec,
                         const engine::MachineLimits& limits) {
  if (options.json) {
    fmt::print("{}\n", boost::json::serialize(plan_json(plan, in_stages, engine, limits)));
    return;
  }
  report::Table table =
      in_stages ? report::Table({{""}, {""}}) : make_summary_table(plan, engine, spec);
  planner::add_plan_rows(plan, limits, offload_folder(options.offload), table);
  fmt::print("{}{}", table.text(), planner::parts_text(plan));
}

// What files of a run want where the folder for them has less; else nothing.
std::string disk_warning(const PlanOptions& options, const engine::RunPlan& plan) {
  const int64_t wanted = plan.memory.all_file_bytes();
  const std::string folder = offload_folder(options.offload);
  const int64_t free = wanted == 0 ? 0 : FileAllocator::free_bytes(folder);
  if (wanted <= free) return {};
  return fmt::format("it needs {} on disk, and {} has {} free: --offload DIR names another\n",
                     report::format_bytes(wanted), folder, report::format_bytes(free));
}

// "Can I tune this here?", where nobody gave a memory to plan within.
std::string answer_text(const PlanOptions& options, const engine::RunPlan& plan,
                        const engine::MachineLimits& limits, const planner::TrainRun& run,
                        const LoadSpec& spec) {
  const int64_t here = read_usable_memory(), needed = plan.memory.total();
  const std::string what = fmt::format(
      "{} on {} sequence{} of {} tokens a step{} takes {}, and this machine has {}",
      options.method == "lora" ? fmt::format("LoRA of rank {}", options.rank) : "all parameters",
      run.shape.lengths.size(), run.shape.lengths.size() == 1 ? "" : "s", run.shape.longest,
      options.tokens.empty() ? " (--tokens BxT: others)" : "", report::format_bytes(needed),
      report::format_bytes(here));
  const auto seconds = [&](const engine::RunPlan& of) {
    return report::format_seconds(engine::step_seconds(of, limits));
  };
  if (needed <= here) return fmt::format("yes: {}; a step takes {}\n", what, seconds(plan));
  planner::TrainRun within = run;
  within.memory =
      planner::Budget{.bytes = here / 10 * 9, .text = report::format_bytes(here / 10 * 9)};
  try {
    const engine::RunPlan fits = plan_staged_run(spec, within, step_of(options));
    return fmt::format("yes, with --memory {}MiB: {}; a step then takes {}\n{}",
                       within.memory->bytes >> 20, what, seconds(fits),
                       disk_warning(options, fits));
  } catch (const Error& error) {
    return fmt::format(
        "no: {}, and with less it does not run: {}\na smaller model, or its weights in 4 bits "
        "(--load-in-4bit), may fit\n",
        what, error.what());
  }
}

void check_has_stages(const planner::Division& division) {
  if (division.is_whole()) refuse("--stages 1: give more, or --microbatches, or leave it out");
}

int print_run_plan(const PlanOptions& options, const StageOptions& stages, bool in_stages) {
  const LoadSpec spec = read_training_spec(options);
  const std::unique_ptr<engine::Engine> engine = make_planning_engine(spec);
  check_indexer_loss(options, *engine);
  const planner::Division division =
      plan_division(engine->config(), stages, spec, !options.memory.empty());
  if (in_stages) check_has_stages(division);
  const engine::MachineLimits limits = resolve_machine(options, *engine);
  planner::RunShape shape = make_run_shape(options, *engine, division);
  // What is probed now would make another plan a minute later.
  if (!options.machine.empty()) shape.price = engine::price_of(limits);
  const planner::TrainRun run = {.whole = *engine,
                                 .division = division,
                                 .shape = shape,
                                 .recompute = spec.recompute.policy,
                                 .memory = budget_of(options.memory)};
  const engine::RunPlan plan = plan_staged_run(spec, run, step_of(options));
  if (!options.svg.empty()) write_pareto_chart(options.svg, run, limits, plan);
  if (options.memory.empty() && !in_stages && !options.json)
    fmt::print("{}", answer_text(options, plan, limits, run, spec));
  print_training_plan(options, plan, in_stages, *engine, spec, limits);
  return 0;
}

int print_staged_plan(const PlanOptions& options) {
  check_memory_options(options.memory, options.recompute, options.offload);
  return print_run_plan(options, stage_options_of(options), /*in_stages=*/true);
}

int print_undivided_plan(const PlanOptions& options) {
  return print_run_plan(options, stage_options_of(options), /*in_stages=*/false);
}

int plan_pipeline(const PlanOptions& options) {
  return run_plan_schedule(options.schedule, options.json);
}

// An option that would change nothing is an error.
void check_no_options_of_undivided(const PlanOptions& given) {
  const PlanOptions absent;
  const auto check = [](std::string_view name, bool is_given) {
    if (is_given) refuse(fmt::format("--{}: has no effect with --stages; leave it out", name));
  };
  check("svg", given.svg != absent.svg);
  check("micro-tokens", given.micro_tokens != absent.micro_tokens);
  check("indexer-loss", given.with_indexer_loss);
  if (given.stages.shard_weights) refuse("--shard-weights: of data ranks; give --ranks data=N");
}

// Options of a simulated step are errors too where none is simulated.
void check_no_options_of_clusters(const PlanOptions& options) {
  if (!options.cluster.empty() && options.stages.ranks.empty())
    refuse("--cluster: of ranks; give --ranks pipeline=N, data=N or both, or --search N");
  if (!options.schedule.trace.empty() && options.cluster.empty())
    refuse("--trace: of a simulated step; give --cluster FILE and --ranks");
}

int run_plan_train(const PlanOptions& options) {
  if (options.search > 0) return print_search(options);
  check_no_options_of_clusters(options);
  if (!options.stages.ranks.empty()) return print_ranks_plan(options);
  if (options.schedule.microbatches == 0 && options.stages == StageOptions())
    return print_undivided_plan(options);
  check_no_options_of_undivided(options);
  return print_staged_plan(options);
}

constexpr const char* kOfPipelines =
    "schedule,pipeline,microbatches,chunks,forwarding-delay,schedule-out,with-transfers,trace,json";
constexpr const char* kOfServing =
    "model,offload,memory,expert-rank,max-rank,dtype,threads,device,strict-config,json,speculate,"
    "draft-tokens,weights,context";
constexpr const char* kOfTraining =
    "model,tokens,memory,method,optimizer,rank,expert-rank,targets,micro-tokens,recompute,dtype,"
    "threads,device,strict-config,svg,offload,mtp,indexer-loss,json,machine,save-machine,weights,"
    "load-in-4bit,ranks,stages,shard-weights,microbatches,chunks,forwarding-delay,leftovers,"
    "pipeline-schedule,cluster,search,trace,"
    "layers-per-stage,recompute-iterations,recompute-layers";

constexpr PlanMode kModes[] = {
    {"train", "Memory and time of a step of training",
     "Examples:\n"
     "  strata plan train qwen3\n"
     "  strata plan train qwen3-0.6b --tokens 1x8192 --memory 6GiB --svg plan.svg\n"
     "  strata plan train qwen3 --tokens 8x512 --stages 2 --microbatches 8\n"
     "  strata plan train qwen3 --tokens 8x512 --ranks pipeline=2,data=2 --microbatches 2\n"
     "  strata plan train qwen3 --tokens 8x512 --ranks data=2 --cluster cluster.toml\n"
     "  strata plan train qwen3-8b --tokens 64x2048 --cluster cluster.toml --search 16",
     kOfTraining, "model", run_plan_train},
    {"serve", "What a server's memory holds", "Example:\n  strata plan serve qwen3 --memory 8GiB",
     kOfServing, "model", run_plan_serving},
    {"schedule", "Bubbles and live micro-batches of a pipeline's schedule",
     "Example:\n"
     "  strata plan schedule --schedule 1f1b --pipeline 4 --microbatches 8 --schedule-out s.csv",
     kOfPipelines, "schedule,pipeline,microbatches", plan_pipeline},
};

}  // namespace

std::span<const PlanMode> plan_modes() { return kModes; }

const PlanMode& find_plan_mode(std::string_view word) {
  const auto found =
      std::ranges::find_if(kModes, [&](const PlanMode& mode) { return mode.word == word; });
  CHECK(found != std::end(kModes));
  return *found;
}

std::vector<std::string> with_plan_word(std::span<const std::string> typed) {
  std::vector<std::string> words(typed.begin(), typed.end());
  std::string word = "train";
  const bool has_cluster = std::ranges::any_of(words, [](const std::string& typed_word) {
    return typed_word == "--cluster" || typed_word.starts_with("--cluster=");
  });
  if (!words.empty() && std::ranges::any_of(kModes, [&](const PlanMode& mode) {
        return mode.word == words.front();
      })) {
    return words;
  }
  if (!words.empty() && words.front() == "stages") {
    words.front() = word;
    return words;
  }
  if (words.empty() || words.front() == "--help" || words.front() == "--help-all") return words;
  for (size_t i = 0; i < words.size(); ++i) {
    const bool is_apart = words[i] == "--for" && i + 1 < words.size();
    if (words[i].starts_with("--schedule=") || words[i] == "--schedule") {
      // On a cluster it is the schedule of a run.
      has_cluster ? words[i].insert(2, "pipeline-") : word = "schedule";
    }
    if (!is_apart && !words[i].starts_with("--for=")) continue;
    word = is_apart ? words[i + 1] : words[i].substr(std::string_view("--for=").size());
    if (word != "train" && word != "serve")
      refuse(fmt::format("--for: got '{}', want train or serve", word));
    words.erase(words.begin() + static_cast<ptrdiff_t>(i),
                words.begin() + static_cast<ptrdiff_t>(i + (is_apart ? 2 : 1)));
    break;
  }
  words.insert(words.begin(), word);
  return words;
}

int run_plan(const PlanOptions& options, const PlanMode& mode) {
  const StopSignals signals("plan: stopped", StopSignals::First::kEnds);
  return mode.run(options);
}

}  // namespace strata::apps
