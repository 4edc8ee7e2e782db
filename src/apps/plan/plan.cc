// SPDX-License-Identifier: Apache-2.0
#include "apps/plan/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <optional>
#include <string_view>
#include <utility>

#include "apps/options.h"
#include "apps/plan/plan_asked.h"
#include "apps/plan/plan_front.h"
#include "apps/plan/plan_json.h"
#include "apps/plan/plan_ranks.h"
#include "apps/plan/plan_search.h"
#include "apps/plan/plan_serve.h"
#include "backend/file_memory.h"
#include "base/check.h"
#include "base/error.h"
#include "base/process_memory.h"
#include "base/stop.h"
#include "planner/plan_text.h"
#include "report/format.h"
#include "report/table.h"
#include "setup/engine_setup.h"
#include "setup/simulated_step.h"
#include "setup/weights_text.h"

namespace strata::apps {
namespace {

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
    fmt::print("{}\n", boost::json::serialize(run_plan_json(plan, in_stages, engine, limits)));
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
  if (division.is_whole()) refuse_plan("--stages 1: give more, or --microbatches, or leave it out");
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
    if (is_given) refuse_plan(fmt::format("--{}: has no effect with --stages; leave it out", name));
  };
  check("svg", given.svg != absent.svg);
  check("micro-tokens", given.micro_tokens != absent.micro_tokens);
  check("indexer-loss", given.with_indexer_loss);
  if (given.stages.shard_weights)
    refuse_plan("--shard-weights: of data ranks; give --ranks data=N");
}

// Options of a simulated step are errors too where none is simulated.
void check_no_options_of_clusters(const PlanOptions& options) {
  if (!options.cluster.empty() && options.stages.ranks.empty())
    refuse_plan("--cluster: of ranks; give --ranks pipeline=N, data=N or both, or --search N");
  if (!options.schedule.trace.empty() && options.cluster.empty())
    refuse_plan("--trace: of a simulated step; give --cluster FILE and --ranks");
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
      refuse_plan(fmt::format("--for: got '{}', want train or serve", word));
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
