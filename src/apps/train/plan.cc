// SPDX-License-Identifier: Apache-2.0
#include "apps/train/plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/process_memory.h"
#include "model/adapter/specs.h"
#include "report/format.h"
#include "report/table.h"
#include "server/options/options.h"

namespace strata::apps {
namespace {

// Of examples what is in memory; and of each run of them the order of an epoch, its shuffle and
// their lengths.
int64_t bytes_of(const data::Dataset& dataset, int64_t num_runs) {
  constexpr int64_t kLists = 4 * sizeof(int64_t);
  return dataset.examples.memory_bytes() + num_runs * std::ssize(dataset.examples.order()) * kLists;
}

int64_t longest_of(const std::vector<int64_t>& lengths) {
  return lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end());
}

// Every pass that the run will make.
void add_passes_of_run(RunShape& shape, const TrainOptions& options,
                       const std::vector<int64_t>& train, const std::vector<int64_t>& eval) {
  data::BatchPlan batches(train, batch_plan_options(options));
  std::vector<int64_t> lengths;
  double total = 0.0;
  for (int64_t step = 0; step < batches.num_steps(); ++step) {
    int64_t tokens = 0;
    for (const std::vector<int64_t>& pass : batches.step(step).passes) {
      lengths.clear();
      for (const int64_t i : pass) lengths.push_back(train[static_cast<size_t>(i)]);
      add_passes(shape, lengths, true, options.micro_tokens);
      tokens = std::accumulate(lengths.begin(), lengths.end(), tokens);
    }
    shape.largest_step = std::max(shape.largest_step, tokens);
    total += static_cast<double>(tokens);
  }
  // Without a limit of examples every step but an epoch's last is about full.
  if (*options.batch_size > 0) {
    shape.step_tokens =
        static_cast<int64_t>(std::ceil(total / static_cast<double>(batches.num_steps())));
  }
  add_passes(shape, eval, false, options.micro_tokens);
}

RunShape shape_of(TrainJob& job) {
  return train_shape(job.spec(), job.options(), job.engine().config(), job.train_data(), job.eval_data());
}

engine::PlanShape pass_of(const RunShape& shape, int64_t micro_tokens) {
  engine::PlanShape pass = shape.pass;
  pass.pass_tokens = pass_tokens(shape, micro_tokens);
  return pass;
}

// Of passes over what evaluates, which may be longer than those that train.
int64_t evaluation_bytes(engine::Engine& engine, const RunShape& shape, int64_t micro_tokens) {
  engine::PlanShape pass = shape.pass;
  pass.pass_tokens = 0;
  for (const LongestPass& longest : shape.longest_passes) {
    if (longest.limit == micro_tokens) pass.pass_tokens = longest.evaluated;
  }
  if (pass.pass_tokens <= pass_tokens(shape, micro_tokens)) return 0;
  pass.backward = pass.train_base = false;
  return engine::plan_pass_bytes(engine, pass);
}

bool weights_in_files(const engine::Engine& engine, const RunShape& shape) {
  return shape.pass.weights_in_files || engine.model().weights->in_files();
}

// Passes that the sequences take, in their order.
int64_t count_passes(const std::vector<int64_t>& lengths, int64_t pass_tokens) {
  int64_t passes = 0, tokens = 0;
  for (const int64_t length : lengths) {
    if (passes == 0 || tokens + length > pass_tokens) {
      ++passes;
      tokens = 0;
    }
    tokens += length;
  }
  return passes;
}

std::string decision(const engine::RecomputePlan::Row& row) {
  const auto of_all = [&](const char* what, int64_t count) {
    return count == std::ssize(row.layers)
               ? std::string(what)
               : fmt::format("{} {} of {}", what, count, row.layers.size());
  };
  if (row.num_kept == 0) return "recompute";
  const int64_t in_memory = row.num_kept - row.num_offloaded;
  if (row.num_offloaded == 0) return of_all("keep", in_memory);
  const std::string offloaded = of_all("offload", row.num_offloaded);
  return in_memory == 0 ? offloaded : of_all("keep", in_memory) + ", " + offloaded;
}

}  // namespace

bool FileSpace::holds(int64_t file_bytes, int64_t planned) const {
  // Who has changed more of files than a fifth of the memory waits until it is written
  // (vm.dirty_ratio of https://docs.kernel.org/admin-guide/sysctl/vm.html).
  constexpr int64_t kChangedShare = 5;
  if (file_bytes == 0) return true;
  const bool is_kept = memory == INT64_MAX || file_bytes <= (memory - planned) / kChangedShare;
  return file_bytes <= most && is_kept;
}

FileSpace space_for_files(const std::string& named) {
  return {.most = file_space(named, ""), .memory = named.empty() ? usable_memory() : INT64_MAX};
}

RunShape train_shape(const LoadSpec& spec, const TrainOptions& options,
                     const model::ModelConfig& config, const data::Dataset& train,
                     const data::Dataset& eval) {
  const bool is_lora = options.method == "lora";
  const std::vector<int64_t> lengths = train.examples.lengths();
  const std::vector<int64_t> evaluated = eval.examples.lengths();
  RunShape shape = {
      .pass = {.backward = true,
               .train_base = !is_lora,
               .mtp = config.use_mtp,
               .indexer_loss = options.indexer_loss > 0},
      .lengths = lengths,
      .longest = std::max(longest_of(lengths), longest_of(evaluated)),
      .step_tokens = std::min(batch_plan_options(options).batch_tokens, train.num_tokens),
      .file_space = space_for_files(options.offload),
      .price = spec.limits ? engine::price_of(*spec.limits) : engine::Price()};
  add_passes_of_run(shape, options, lengths, evaluated);
  shape.pass.kv_positions = options.sample_positions;
  shape.pass.num_sampled = std::ssize(options.samples);
  const int64_t num_runs = std::max<int64_t>(1, std::ssize(options.sweep));
  shape.pass.data_bytes = bytes_of(train, num_runs) + bytes_of(eval, num_runs);
  if (train.examples.store() == eval.examples.store()) {  // which both then share
    shape.pass.data_bytes -= eval.examples.store()->memory_bytes();
  }
  if (is_lora) {
    shape.pass.modules = modules_of(options, config);
    shape.pass.num_adapters = num_runs;
  }
  return shape;
}

void add_passes(RunShape& shape, std::span<const int64_t> lengths, bool trained,
                int64_t micro_tokens) {
  if (shape.longest_passes.empty()) {
    for (int64_t limit = micro_tokens; limit >= 1; limit /= 2) {
      shape.longest_passes.push_back({.limit = limit});
    }
  }
  for (LongestPass& longest : shape.longest_passes) {
    int64_t& most = trained ? longest.trained : longest.evaluated;
    int64_t tokens = 0;
    for (const int64_t length : lengths) {
      if (tokens > 0 && tokens + length > longest.limit) tokens = 0;
      tokens += length;
      most = std::max(most, tokens);
    }
  }
}

int64_t pass_tokens(const RunShape& shape, int64_t micro_tokens) {
  for (const LongestPass& longest : shape.longest_passes) {
    if (longest.limit == micro_tokens && longest.trained > 0) return longest.trained;
  }
  return std::max(shape.longest, std::min(micro_tokens, shape.step_tokens));
}

std::vector<int64_t> pass_limits(const RunShape& shape, int64_t micro_tokens) {
  std::vector<int64_t> limits = {micro_tokens};
  while (limits.back() / 2 >= kLeastPassTokens &&
         pass_tokens(shape, limits.back()) <= limits.back())
    limits.push_back(limits.back() / 2);
  return limits;
}

engine::Work work_of_step(engine::Engine& engine, const RunShape& shape, const TrainPlan& plan) {
  return engine::step_work(*engine.model().weights,
                           {.lengths = shape.lengths,
                            .modules = shape.pass.modules,
                            .indexer_loss = shape.pass.indexer_loss},
                           {.tokens = static_cast<double>(shape.step_tokens),
                            .number = plan.num_passes,
                            .pass_tokens = plan.pass.pass_tokens,
                            .weights_in_files = weights_in_files(engine, shape)},
                           plan.recompute);
}

TrainPlan plan_train(engine::Engine& engine, const RunShape& shape, int64_t micro_tokens,
                     engine::RecomputePlan recompute) {
  TrainPlan plan;
  plan.micro_tokens = micro_tokens;
  plan.pass = pass_of(shape, micro_tokens);
  plan.pass.recompute = recompute.recompute;
  plan.recompute = std::move(recompute);
  const int64_t bytes =
      std::max(plan.recompute.bytes, evaluation_bytes(engine, shape, micro_tokens));
  plan.memory = engine::plan_memory(engine, plan.pass, bytes, plan.recompute.file_bytes);
  double tokens = 0.0;
  for (const int64_t length : shape.lengths) tokens += static_cast<double>(length);
  plan.num_passes = std::max(1.0, static_cast<double>(count_passes(shape.lengths, micro_tokens)) *
                                      static_cast<double>(shape.step_tokens) / tokens);
  plan.work = work_of_step(engine, shape, plan);
  return plan;
}

TrainPlan plan_train(engine::Engine& engine, const RunShape& shape, int64_t micro_tokens,
                     const model::Recompute& recompute) {
  return plan_train(engine, shape, micro_tokens,
                    engine::describe_recompute(engine, pass_of(shape, micro_tokens), recompute));
}

namespace {

// The plan that costs the least of those that a memory holds; or what is missing.
class Fit {
 public:
  // `any_files`: also activations in files beyond the space for them.
  Fit(engine::Engine& engine, const RunShape& shape, int64_t micro_tokens, int64_t budget,
      bool any_files)
      : engine_(engine), shape_(shape), budget_(budget), any_files_(any_files) {
    for (const int64_t limit : pass_limits(shape, micro_tokens)) {
      if (!any_files) try_passes(limit, /*offloads=*/false);
      if (any_files || shape.file_space.most > 0) try_passes(limit, /*offloads=*/true);
    }
  }
  [[nodiscard]] bool has() const { return best_.has_value(); }
  TrainPlan take() { return *std::move(best_); }
  [[nodiscard]] double cost() const { return best_ ? cost_ : std::numeric_limits<double>::max(); }
  // Of the shortest passes: bytes besides them, their tokens, and the least bytes of one.
  [[nodiscard]] int64_t besides() const { return besides_; }
  [[nodiscard]] int64_t least_tokens() const { return least_tokens_; }
  [[nodiscard]] int64_t least() const { return least_; }

 private:
  void try_passes(int64_t limit, bool offloads) {
    const engine::PlanShape pass = pass_of(shape_, limit);
    engine::RecomputePlanner planner(engine_, pass, offloads, shape_.price);
    const int64_t evaluated = evaluation_bytes(engine_, shape_, limit);
    const auto total = [&](int64_t bytes, int64_t file_bytes) {
      return engine::plan_memory(engine_, pass, std::max(bytes, evaluated), file_bytes).total();
    };
    least_ = std::max(planner.least(), evaluated);
    least_tokens_ = pass.pass_tokens;
    besides_ = total(least_, 0) - least_;
    if (total(planner.least(), 0) > budget_) return;
    const int64_t left = budget_ - (total(planner.most(), 0) - std::max(planner.most(), evaluated));
    std::optional<engine::RecomputePlan> plan =
        planner.plan(left, [&](int64_t bytes, int64_t file_bytes) {
          const int64_t planned = total(bytes, file_bytes);
          return planned <= budget_ && (any_files_ || shape_.file_space.holds(file_bytes, planned));
        });
    if (!plan) return;
    TrainPlan whole = plan_train(engine_, shape_, limit, *std::move(plan));
    const double cost = shape_.price.of(whole.work);
    if (best_ && cost >= cost_) return;
    best_ = std::move(whole);
    cost_ = cost;
  }

  engine::Engine& engine_;
  const RunShape& shape_;
  const int64_t budget_;
  const bool any_files_;
  std::optional<TrainPlan> best_;
  double cost_ = 0.0;
  int64_t besides_ = 0, least_tokens_ = 0, least_ = 0;
};

}  // namespace

bool needs_files(engine::Engine& engine, const RunShape& shape, int64_t micro_tokens,
                 const std::string& memory) {
  if (shape.pass.train_base) return false;
  const int64_t budget = server::parse_size("memory", memory);
  RunShape in_files = shape;
  in_files.pass.weights_in_files = true;
  // Of the longest passes that keep all.
  const double least_cost =
      shape.price.of(plan_train(engine, in_files, micro_tokens, model::Recompute::kNone).work);
  for (const bool any_files : {false, true}) {
    const Fit in_memory(engine, shape, micro_tokens, budget, any_files);
    if (!any_files && shape.file_space.most == 0) {
      if (in_memory.has()) return false;
      continue;  // files are a last resort
    }
    if (in_memory.cost() <= least_cost) return false;
    const Fit weights(engine, in_files, micro_tokens, budget, any_files);
    if (in_memory.has() || weights.has()) return weights.cost() < in_memory.cost();
  }
  return true;
}

TrainPlan fit_train(engine::Engine& engine, const RunShape& shape, int64_t micro_tokens,
                    const std::string& memory) {
  const int64_t budget = server::parse_size("memory", memory);
  Fit fit(engine, shape, micro_tokens, budget, /*any_files=*/false);
  if (fit.has()) return fit.take();
  Fit in_files(engine, shape, micro_tokens, budget, /*any_files=*/true);
  if (in_files.has()) return in_files.take();
  throw Error(
      ErrorCode::kInvalidArgument,
      fmt::format("--memory {}: {}adapters and optimizer take {} of it, and a pass of {} tokens "
                  "takes {} at least, with all it can in files; give more, or drop longer examples "
                  "with --max-length",
                  memory, weights_in_files(engine, shape) ? "" : "weights, ",
                  report::format_bytes(in_files.besides()), in_files.least_tokens(),
                  report::format_bytes(in_files.least())));
}

bool needs_files(const LoadSpec& spec, const TrainOptions& options, const data::Dataset& train,
                 const data::Dataset& eval) {
  if (options.memory.empty()) return false;
  const std::unique_ptr<engine::Engine> engine = make_planning_engine(spec);
  const RunShape shape = train_shape(spec, options, engine->config(), train, eval);
  return needs_files(*engine, shape, options.micro_tokens, options.memory);
}

TrainPlan plan_of(TrainJob& job) {
  const engine::EngineOptions& options = job.engine().options();
  TrainPlan plan = plan_train(job.engine(), shape_of(job), options.pass_tokens, options.recompute);
  plan.work = 1.0 / job.stages().data * plan.work;
  return plan;
}

void fit_memory(TrainJob& job) {
  const TrainOptions& o = job.options();
  if (o.memory.empty()) return;
  const TrainPlan plan = fit_train(job.engine(), shape_of(job), o.micro_tokens, o.memory);
  if (plan.recompute.file_bytes > 0) check_offload_folder(o.offload);
  job.engine().set_pass(plan.micro_tokens, plan.recompute.recompute);
}

std::string memory_text(const engine::MemoryPlan& plan) {
  std::string text = report::format_bytes(plan.total());
  const char* separator = ": ";
  for (const engine::PlanItem& item : plan.items) {
    if (item.bytes == 0) continue;
    text += fmt::format("{}{} {}", separator, item.name, report::format_bytes(item.bytes));
    separator = ", ";
  }
  return text;
}

std::string time_text(const TrainPlan& plan, const MachineLimits& limits) {
  const double seconds = engine::seconds_of(plan.work, limits);
  return fmt::format("{} predicted: {} FLOP, {} moved; {} {} FLOP/s, {}/s",
                     report::format_seconds(seconds), report::format_count(plan.work.flops),
                     report::format_bytes(static_cast<int64_t>(plan.work.bytes)), limits.source,
                     report::format_count(limits.flops),
                     report::format_bytes(static_cast<int64_t>(limits.bytes)));
}

std::string file_text(const TrainPlan& plan, const std::string& folder) {
  std::vector<std::string> parts;
  if (plan.memory.file_bytes > 0) {
    parts.push_back(fmt::format("weights {}, which each of {:.3g} passes a step reads twice",
                                report::format_bytes(plan.memory.file_bytes), plan.num_passes));
  }
  if (plan.memory.activation_file_bytes > 0) {
    parts.push_back(fmt::format("activations {}, which a pass writes and reads",
                                report::format_bytes(plan.memory.activation_file_bytes)));
  }
  if (parts.empty()) return {};
  return fmt::format(
      "apart from that, in {}: {}; at the speed of the disk where the system has no "
      "space to keep it",
      folder, fmt::join(parts, "; "));
}

std::string activations_text(const TrainPlan& plan) {
  const engine::RecomputePlan& recompute = plan.recompute;
  report::Table table({{fmt::format("a pass of {} tokens", plan.pass.pass_tokens)},
                       {"a layer", report::Align::kRight},
                       {"layers", report::Align::kRight},
                       {"decision"},
                       {"at the peak", report::Align::kRight},
                       {"recomputed", report::Align::kRight}});
  std::vector<Scratch::Use> uses = recompute.uses;
  const auto take_use = [&](ScratchTag tag) {
    for (Scratch::Use& use : uses) {
      if (use.tag == tag) return std::exchange(use.bytes, 0);
    }
    return int64_t{0};
  };
  for (const engine::RecomputePlan::Row& row : recompute.rows) {
    const double again = row.layer_flops * static_cast<double>(row.num_again());
    table.add_row({std::string(row.tag), report::format_bytes(row.layer_bytes),
                   std::to_string(row.layers.size()), decision(row),
                   report::format_bytes(take_use(row.tag)),
                   again == 0.0 ? "" : report::format_count(again) + " FLOP"});
  }
  int64_t rest = recompute.bytes;
  for (const Scratch::Use& use : recompute.uses) rest -= use.bytes;
  uses.push_back({"of each thread", rest});
  for (const Scratch::Use& use : uses) {
    if (use.bytes == 0) continue;
    table.add_row({std::string(use.tag), "", "", "", report::format_bytes(use.bytes), ""});
  }
  return table.text();
}

}  // namespace strata::apps
