// SPDX-License-Identifier: Apache-2.0
#include "apps/bench/bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "apps/bench/cluster.h"
#include "apps/bench/context.h"
#include "apps/bench/figures.h"
#include "apps/bench/groups.h"
#include "apps/bench/inputs.h"
#include "apps/bench/process.h"
#include "apps/bench/result.h"
#include "apps/bench/shapes.h"
#include "apps/bench/stages.h"
#include "apps/bench/works.h"
#include "apps/options.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/trace.h"
#include "engine/runner.h"
#include "engine/sampling/sampling_loop.h"
#include "model/blocks/experts/moe.h"
#include "model/blocks/mla.h"
#include "ops/limits.h"
#include "planner/limits.h"
#include "report/trace_file.h"
#include "setup/backend.h"
#include "setup/engine_setup.h"

namespace strata::apps {
namespace {

constexpr int64_t kTimedTokens = 32;
constexpr int64_t kNearContext = 1024;

void check_no_context(const BenchWork& work, const BenchOptions& options) {
  if (options.context == 0) return;
  throw Error(ErrorCode::kInvalidArgument, fmt::format("--context: {} does not decode", work.name));
}

// Bytes of a weight of matrices, on average, where some are kept in few bits; else 0.
double quantized_weight_bytes(const model::ModelWeights& weights) {
  if (weights.forms().empty()) return 0.0;
  double bytes = 0.0, elements = 0.0;
  for (const model::Parameter& parameter : weights.table()) {
    if (!parameter.is_matrix()) continue;
    bytes += static_cast<double>(parameter.panel.num_bytes());
    elements += static_cast<double>(parameter.shape.num_elements());
  }
  return bytes / elements;
}

class Bench {
 public:
  Bench(const BenchWork& work, const BenchOptions& options) : work_(work), options_(options) {}

  BenchResult run() {
    check_work_options();
    set_up_runner();
    startup_s_ = process_age();
    ops::LimitProbe probe(engine_->backend());
    measure_work(probe);  // warm-up: memory is touched, scratch is booked
    for (int i = 0; i < options_.repeat; ++i) runs_.push_back(measure_work(probe));
    if (work_.adapters) measure_share_of_base(probe);
    if (options_.context > 0) measure_context_cost();
    if (work_.kind == WorkKind::kTrain && has_block(model::kMoe)) measure_expert_products(probe);
    return take_result();
  }

 private:
  // A work's own gives way to --memory, which chooses.
  [[nodiscard]] std::string recompute() const {
    if (!options_.recompute.empty()) return options_.recompute;
    return work_.recompute && options_.memory.empty() ? "full" : "none";
  }

  void check_no_training_options() const {
    const std::pair<std::string_view, std::string_view> of_training[] = {
        {"memory", options_.memory},
        {"recompute", options_.recompute},
        {"offload", options_.offload},
        {"method full", options_.trains_base() ? options_.method : ""}};
    for (const auto& [name, value] : of_training) {
      if (value.empty()) continue;
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("--{}: {} does not train", name, work_.name));
    }
  }

  void check_work_options() const {
    if (work_.kind != WorkKind::kTrain) check_no_training_options();
    if (work_.kind != WorkKind::kDecode) check_no_context(work_, options_);
    check_memory_options(options_.memory, options_.recompute.empty() ? "none" : options_.recompute,
                         options_.offload);
  }

  // The modules of each adapter; none where all parameters train.
  [[nodiscard]] std::vector<model::LoraModuleSpec> modules() const {
    if (options_.trains_base()) return {};
    return bench_modules(engine_->config());
  }

  [[nodiscard]] int64_t num_tokens() const { return work_.batch * work_.length; }

  [[nodiscard]] engine::RunPlan plan_sampling() const {
    engine::PlanShape shape = {
        .pass_tokens = std::min(num_tokens(), engine_->options().pass_tokens),
        .kv_positions = work_.batch * (work_.length + kTimedTokens + 2),
        .num_sampled = work_.batch};
    if (work_.adapters) shape.modules = modules();
    return planner::plan_run(*engine_, shape);
  }

  // Passes may be shorter than the work, and not than a sequence.
  [[nodiscard]] engine::RunPlan plan_training() const {
    return planner::plan_run(
        {.whole = *engine_,
         .shape = {.pass = {.modules = modules(),
                            .backward = true,
                            .train_base = options_.trains_base()},
                   .micro_tokens = engine_->options().pass_tokens,
                   .lengths = std::vector(static_cast<size_t>(work_.batch), work_.length),
                   .longest = work_.length,
                   .step_tokens = num_tokens(),
                   .file_space = measure_space_for_files(options_.offload)},
         .recompute = engine_->options().recompute,
         .memory = budget_of(options_.memory),
         .is_loaded = true});
  }

  [[nodiscard]] engine::RunPlan plan_work() const {
    return work_.kind == WorkKind::kTrain ? plan_training() : plan_sampling();
  }

  // Takes the passes that --memory allows.
  void apply_memory_plan() {
    plan_ = plan_work();
    if (plan_->recompute.file_bytes > 0) check_offload_folder(options_.offload);
    engine_->set_pass_options(plan_->micro_tokens, plan_->recompute.recompute);
  }

  // With its engine and slots.
  void set_up_runner() {
    engine_ = options_.model.empty() ? make_engine_of_shape() : load_engine_of_model();
    if (!options_.memory.empty()) apply_memory_plan();
    runner_ = std::make_unique<engine::Runner>(*engine_);
    create_slots();
  }

  // Positions of a sequence.
  [[nodiscard]] int64_t longest() const {
    if (work_.kind != WorkKind::kDecode) return work_.length;
    return std::max(work_.length, options_.context) + kTimedTokens + 2;
  }

  [[nodiscard]] engine::EngineOptions engine_options() const {
    engine::EngineOptions options;
    options.recompute = parse_recompute(recompute()).policy;
    options.offload = options_.offload;
    options.threads = options_.threads;
    options.pass_tokens = std::max<int64_t>(2048, work_.length);
    return options;
  }

  [[nodiscard]] std::unique_ptr<engine::Engine> load_engine_of_model() const {
    const engine::EngineOptions options = engine_options();
    LoadSpec spec = read_spec({.model = options_.model,
                               .dtype = options_.dtype,
                               .weights = options_.weights,
                               .recompute = recompute(),
                               .offload = options_.offload,
                               .threads = options_.threads,
                               .longest = longest()});
    check_context_fits(spec.parsed.config.max_position_embeddings);
    spec.weights = usable_weights(spec.weights, options_.method);
    return load_engine(spec, options);
  }

  [[nodiscard]] std::unique_ptr<engine::Engine> make_engine_of_shape() const {
    const engine::EngineOptions options = engine_options();
    const model::ModelConfig config = bench_config(work_.shape);
    check_context_fits(config.max_position_embeddings);
    return make_random_engine(make_backend(options_.threads), config,
                              parse_dtype(options_.dtype, config),
                              checked_random_weights(options_.weights, options_.method), options);
  }

  // That train, or are sampled with.
  [[nodiscard]] int64_t num_adapters() const {
    if (work_.kind == WorkKind::kTrain) return 1;
    return work_.adapters ? work_.batch : 0;
  }

  // What trains, or is sampled with.
  void create_slots() {
    if (options_.trains_base()) {
      runner_->enable_base_steps({});
      slots_ = {api::AdapterSlot::kBase};
      return;
    }
    for (int64_t i = 0; i < num_adapters(); ++i) {
      slots_.push_back(engine_->create_adapter(modules(), static_cast<uint64_t>(i)));
    }
  }

  Figures measure_work(ops::LimitProbe& probe) {
    switch (work_.kind) {
      case WorkKind::kTrain:
        return measure_train(probe);
      case WorkKind::kPrefill:
        return measure_prefill(probe);
      case WorkKind::kDecode:
        return measure_decode(probe, work_.adapters);
    }
    CHECK(false);
    __builtin_unreachable();
  }

  [[nodiscard]] bool has_block(const model::BlockOps& ops) const {
    for (const model::LayerConfig& layer : engine_->config().layers) {
      for (const model::Sublayer& sublayer : layer) {
        if (&sublayer.block.ops() == &ops) return true;
      }
    }
    return false;
  }

  DType dtype() const { return engine_->model().weights->compute_dtype(); }

  // Probes the limits once more, behind what took so long.
  Figures measure_figures(ops::LimitProbe& probe, const engine::MachineLimits& before, double flops,
                          double seconds) {
    const engine::MachineLimits after = planner::probe_limits(probe, dtype());
    const engine::MachineLimits limits = mean(before, after);
    const auto tokens = static_cast<double>(num_tokens());
    return {.tokens_per_s = tokens / seconds,
            .predicted = tokens / predicted_seconds(limits),
            .share = flops / seconds / limits.flops,
            .peak = limits.flops,
            .bandwidth = limits.bytes,
            .drift = apart(predicted_seconds(before), predicted_seconds(after))};
  }

  // The seconds that a step or a prompt is predicted to take.
  double predicted_seconds(const engine::MachineLimits& limits) {
    if (work_.kind == WorkKind::kPrefill) return engine::seconds_of(prefill_work(), limits);
    return engine::step_seconds(plan(), limits);
  }

  const engine::RunPlan& plan() {
    if (!planned_) planned_ = plan_ ? *plan_ : plan_work();
    return *planned_;
  }

  [[nodiscard]] engine::Work prefill_work() const {
    return engine::prefill_work(engine_->config(), work_.length);
  }

  Figures measure_train(ops::LimitProbe& probe) {
    const TrainingBatch trained =
        random_batch(work_.batch, work_.length, engine_->config().vocab_size, slots_[0]);
    const engine::MachineLimits before = planner::probe_limits(probe, dtype());
    const TraceSpan span("measure");
    const double start = now_seconds();
    runner_->run(trained.batch);
    runner_->step(slots_[0], {.lr = 1e-4});
    const double seconds = now_seconds() - start;
    const double flops = training_step_flops(engine_->config(), work_.batch, work_.length,
                                             modules(), recompute() == "full");
    return measure_figures(probe, before, flops, seconds);
  }

  api::SampleRequest make_request(int64_t index, int64_t max_tokens, bool adapters) const {
    api::SampleRequest out;
    out.prompt =
        random_tokens(work_.length, engine_->config().vocab_size, static_cast<uint64_t>(index));
    out.max_tokens = max_tokens;
    out.temperature = 0.0f;
    if (adapters) out.slot = slots_[static_cast<size_t>(index)];
    return out;
  }

  Figures measure_prefill(ops::LimitProbe& probe) {
    const engine::MachineLimits before = planner::probe_limits(probe, dtype());
    const TraceSpan span("measure");
    const double start = now_seconds();
    engine::sample(*runner_, {make_request(0, /*max_tokens=*/1, /*adapters=*/false)});
    const double seconds = now_seconds() - start;
    return measure_figures(probe, before, prefill_work().flops, seconds);
  }

  // Steps until every sequence decodes.
  static void run_prompts(engine::SamplingLoop& loop, int64_t sequences) {
    size_t running = 0;
    while (running < static_cast<size_t>(sequences)) running = loop.step().size();
  }

  // Seconds of kTimedTokens steps, in four stretches with probes around them, which `seen` gets.
  double time_steps_between_probes(engine::SamplingLoop& loop, ops::LimitProbe& probe,
                                   std::vector<engine::MachineLimits>& seen) const {
    constexpr int64_t kStretch = 8;
    double seconds = 0.0;
    seen.push_back(planner::probe_limits(probe, dtype()));
    for (int64_t token = 0; token < kTimedTokens; token += kStretch) {
      const TraceSpan span("measure");
      const double start = now_seconds();
      for (int64_t i = 0; i < kStretch; ++i) loop.step();
      seconds += now_seconds() - start;
      seen.push_back(planner::probe_limits(probe, dtype()));
    }
    return seconds;
  }

  // The work of the mean step. `narrow`: bytes of a weight in few bits, or 0.
  [[nodiscard]] engine::Work decode_work(bool adapters, double narrow) const {
    const std::vector<model::LoraModuleSpec> of_adapter =
        adapters ? modules() : std::vector<model::LoraModuleSpec>();
    return engine::decode_work(engine_->config(), {.batch = work_.batch,
                                                   .context = work_.length + kTimedTokens / 2,
                                                   .dtype = dtype(),
                                                   .num_adapters = adapters ? work_.batch : 0,
                                                   .modules = of_adapter,
                                                   .weight_bytes = narrow});
  }

  // Figures of kTimedTokens steps, with the limits that were seen around them.
  [[nodiscard]] Figures decode_figures(bool adapters, double seconds,
                                       const std::vector<engine::MachineLimits>& seen) const {
    const double narrow = quantized_weight_bytes(*engine_->model().weights);
    const engine::Work count = decode_work(adapters, narrow);
    const engine::MachineLimits limits = median(seen);
    const double limit = std::max(count.bytes / limits.bytes, count.flops / limits.flops);
    Figures out = {.tokens_per_s = static_cast<double>(work_.batch * kTimedTokens) / seconds,
                   .share = limit * static_cast<double>(kTimedTokens) / seconds,
                   .peak = limits.flops,
                   .bandwidth = limits.bytes};
    if (narrow > 0) return out;  // the count has no unpacking
    out.predicted = static_cast<double>(work_.batch) / engine::decode_seconds(count, limits);
    out.drift = apart(engine::decode_seconds(count, seen.front()),
                      engine::decode_seconds(count, seen.back()));
    return out;
  }

  Figures measure_decode(ops::LimitProbe& probe, bool adapters) {
    engine::SamplingLoop loop(*engine_);
    for (int64_t i = 0; i < work_.batch; ++i) loop.add(make_request(i, kTimedTokens + 2, adapters));
    run_prompts(loop, work_.batch);
    std::vector<engine::MachineLimits> seen;
    const double seconds = time_steps_between_probes(loop, probe, seen);
    return decode_figures(adapters, seconds, seen);
  }

  // lora8: pairs of the base alone and the mixed batch.
  void measure_share_of_base(ops::LimitProbe& probe) {
    std::vector<double> ratios;
    for (int i = 0; i < options_.repeat; ++i) {
      const double base = measure_decode(probe, /*adapters=*/false).tokens_per_s;
      ratios.push_back(measure_decode(probe, /*adapters=*/true).tokens_per_s / base);
    }
    share_of_base_ = median(ratios);
  }

  void check_context_fits(int64_t most) const {
    if (options_.context == 0 || std::max(options_.context, kNearContext) + kTimedTokens <= most)
      return;
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("--context: got {}, the model's context is {}", options_.context, most));
  }

  // Pairs of a step behind a short context and behind a long one.
  void measure_context_cost() {
    NoisyContext near(*engine_, kNearContext, kTimedTokens);
    NoisyContext far(*engine_, options_.context, kTimedTokens);
    near.time_decoding(1);
    far.time_decoding(1);
    std::vector<double> ratios, seconds;
    for (int i = 0; i < options_.repeat; ++i) {
      const double base = near.time_decoding(kTimedTokens);
      const double time = far.time_decoding(kTimedTokens);
      seconds.push_back(time / static_cast<double>(kTimedTokens));
      ratios.push_back(time / base);
    }
    context_cost_ = {.context = options_.context,
                     .near_context = kNearContext,
                     .step_seconds = median(seconds),
                     .ratio = median(ratios)};
  }

  void measure_expert_products(ops::LimitProbe& probe) {
    for (const int64_t tokens : {64, 128}) {
      groups_.push_back(
          measure_grouped_products(*engine_, probe, tokens, std::max(3, options_.repeat)));
    }
  }

  // Bytes of a token in a layer, measured: the pool's memory over what it holds; 0 without one.
  [[nodiscard]] double row_bytes() const {
    const engine::KvPool& pool = engine_->kv_pool();
    const int64_t rows = pool.num_pages() * pool.page_size() * engine_->config().num_layers();
    return rows == 0 ? 0.0 : static_cast<double>(pool.num_bytes()) / static_cast<double>(rows);
  }

  // Bytes of a latent row of the first layer, as its block declares it.
  [[nodiscard]] int64_t latent_bytes() const {
    const auto* mla = engine_->config().find_block_config<model::MlaConfig>(0, model::kMla);
    return mla == nullptr ? 0 : mla->cache_width() * dtype_bytes(dtype());
  }

  [[nodiscard]] BenchResult take_result() {
    BenchResult out = {.runs = std::move(runs_),
                       .memory = plan().memory,
                       .plan = plan_,
                       .arithmetic = std::string(engine_->backend().arithmetic()),
                       .dtype = dtype(),
                       .threads = engine_->backend().parallelism(),
                       .startup_s = startup_s_,
                       .share_of_base = share_of_base_,
                       .context_cost = context_cost_,
                       .groups = std::move(groups_)};
    if (has_block(model::kMla)) {
      out.latent = {.row_bytes = row_bytes(),
                    .latent_bytes = latent_bytes(),
                    .work_ratio = engine::absorbed_attention_ratio(engine_->config())};
    }
    return out;
  }

  const BenchWork& work_;
  const BenchOptions& options_;
  std::unique_ptr<engine::Engine> engine_;
  std::unique_ptr<engine::Runner> runner_;
  std::vector<api::AdapterSlot> slots_;
  std::vector<Figures> runs_;
  std::optional<engine::RunPlan> plan_;     // where --memory chose
  std::optional<engine::RunPlan> planned_;  // that, or of the work without
  double startup_s_ = 0.0;
  std::optional<double> share_of_base_;
  std::optional<ContextCost> context_cost_;
  std::vector<GroupShares> groups_;
};

void check_options_of_stages(const BenchWork& work, const BenchOptions& options) {
  const std::string by = options.stages.ranks.empty() ? "--stages" : "--ranks";
  if (work.kind != WorkKind::kTrain) {
    throw Error(
        ErrorCode::kUnsupported,
        fmt::format("{}: {} does not train; prefill and decoding run on one stage", by, work.name));
  }
  check_no_context(work, options);
  if (!options.memory.empty()) {
    throw Error(ErrorCode::kUnsupported,
                "--memory and " + by + ": bench divides what --recompute keeps; leave one out");
  }
}

// The policy of training without --memory.
std::string recompute_of(const BenchWork& work, const BenchOptions& options) {
  if (!options.recompute.empty()) return options.recompute;
  return work.recompute ? "full" : "none";
}

int bench_one_stage(const BenchWork& work, const BenchOptions& options) {
  const BenchResult result = Bench(work, options).run();
  options.json ? print_json(work, options, result) : print_text(work, result);
  return 0;
}

int bench_in_stages(const BenchWork& work, const BenchOptions& options) {
  check_options_of_stages(work, options);
  return bench_stages({.name = std::string(work.name),
                       .sequences = std::max<int64_t>(work.batch, options.stages.microbatches),
                       .length = work.length,
                       .recompute = recompute_of(work, options),
                       .shape = work.shape},
                      options);
}

}  // namespace

int run_bench(const BenchOptions& options) {
  check_options(options);
  if (options.work == "cluster") return bench_cluster(options);
  if (!options.out.empty())
    throw Error(ErrorCode::kInvalidArgument, "--out: of strata bench cluster; leave it out");
  const BenchWork& work = find_bench_work(options.work);
  name_thread("main");
  report::TraceFile trace(options.stages.ranks.empty() ? options.trace : "");
  const int code =
      options.divides() ? bench_in_stages(work, options) : bench_one_stage(work, options);
  trace.finish();
  return code;
}

}  // namespace strata::apps
