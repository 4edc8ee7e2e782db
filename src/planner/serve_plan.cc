// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/function_ref.h"
#include "checkpoint/source.h"
#include "engine/adapter_state.h"
#include "engine/lora_specs.h"
#include "engine/pass.h"
#include "engine/pipeline/stage_plan.h"
#include "engine/plan/memory_plan.h"
#include "planner/planner.h"
#include "report/format.h"

namespace strata::planner {
namespace {

constexpr int64_t kMostPassTokens = 2048;
constexpr int64_t kLeastServedTokens = 64;
constexpr int64_t kSamplePositions = 2048;
constexpr int64_t kUsualRank = 32;  // of an adapter, at the Tinker SDK
constexpr int64_t kAdaptersPercent = 40, kSamplerWeightsPercent = 15;  // of what passes leave
constexpr int64_t kLongDataPercent = 10;     // of what no adapter and no sample needs at least
constexpr int64_t kProcessBytes = 96 << 20;  // program, sockets, queues, the state store

int64_t lora_bytes(const ServedModel& model, int64_t rank, model::ExpertRank expert_rank) {
  int64_t bytes = 0;
  for (const engine::Engine* stage : model.stages) {
    bytes += engine::adapter_bytes(
        *stage, engine::lora_specs(stage->config(), {.rank = rank}, expert_rank), true);
  }
  return bytes;
}

engine::PlanShape served_pass_shape(const engine::Engine& engine, int64_t tokens, int64_t rank,
                                    model::ExpertRank expert_rank) {
  return {.pass_tokens = tokens,
          .modules = engine::lora_specs(engine.config(), {.rank = rank}, expert_rank),
          .backward = true};
}

// What one pass of a stage may take, and what all take that are there at once, with what is on its
// way between stages.
struct PlannedPasses {
  int64_t one = 0;
  int64_t all = 0;
};

PlannedPasses plan_stage_passes(const ServedModel& model, size_t stage, int64_t tokens,
                                int64_t rank, model::ExpertRank expert_rank) {
  engine::Engine& engine = *model.stages[stage];
  const engine::PlanShape shape = served_pass_shape(engine, tokens, rank, expert_rank);
  if (model.plan == nullptr) {
    const int64_t bytes = engine::plan_pass(engine, shape).total();
    return {bytes, bytes + engine::in_flight_gradient_bytes(engine, shape, model.num_dealing)};
  }
  const engine::StagePlan plan =
      engine::plan_stage(*model.plan, model.first_stage + static_cast<int>(stage), engine, shape);
  return {plan.pass_bytes + plan.held_bytes,
          plan.activation_bytes() + plan.waiting_bytes() + plan.message_bytes + plan.list_bytes};
}

int64_t plan_pass_bytes(const ServedModel& model, int64_t tokens, int64_t rank,
                        model::ExpertRank expert_rank) {
  int64_t bytes = 0;
  for (size_t i = 0; i < model.stages.size(); ++i)
    bytes += plan_stage_passes(model, i, tokens, rank, expert_rank).all;
  return bytes;
}

// Rows that decode may come on top, and so may all that they draft, which is read where it has
// space in an empty step.
int64_t most_step_tokens(const engine::Engine& engine, int64_t tokens, int64_t rows) {
  return tokens + std::max(rows, std::min(engine.options().draft_tokens * rows, tokens));
}

// States of a step's tokens that a sampling pass has besides its own: what the stage before sends,
// and what it sends itself, here and in a message; or what further drafts are made from.
int64_t step_state_bytes(const engine::Engine& engine, bool in_stages, int64_t step_tokens) {
  const int64_t state = Arena::aligned(step_tokens * engine.config().state_width() *
                                       dtype_bytes(engine.model().weights->compute_dtype()));
  if (engine.options().draft_tokens > 1) return state;
  return in_stages ? 3 * state : 0;
}

// A sampling step, which reads and samples at most so many tokens: as a pass without backward, and
// the logits of a chunk of rows once more, divided by their temperatures.
int64_t plan_sampling_step_bytes(engine::Engine& engine, bool in_stages, int64_t tokens,
                                 int64_t rows, int64_t rank, model::ExpertRank expert_rank) {
  const int64_t drafts = engine.options().draft_tokens;
  const int64_t step = most_step_tokens(engine, tokens, rows);
  engine::PlanShape shape = served_pass_shape(engine, step, rank, expert_rank);
  shape.backward = false;
  shape.in_stages = in_stages;
  shape.is_dealt = false;
  if (drafts > 0) {
    // Drafts come behind every token of the step, those of a training pass behind all but one.
    shape.mtp = true;
    ++shape.pass_tokens;
  }
  // A choice is made behind each draft too.
  const int64_t scaled = std::min(rows * (1 + drafts), model::kHeadChunk);
  const engine::PassPlan pass = engine::plan_pass(engine, shape);
  return pass.total() + pass.kept() + step_state_bytes(engine, in_stages, step) +
         scaled * Arena::aligned((engine.config().vocab_size + 2) * dtype_bytes(DType::kF32));
}

struct LongestDatum {
  int64_t tokens = 0;
  int64_t bytes = 0;  // of its pass
  int64_t file_bytes = 0;
};

// From `least`, which does, to `most`. Doubled first, so that no pass far beyond the answer is
// planned.
int64_t find_largest_that_fits(int64_t least, int64_t most, FunctionRef<bool(int64_t)> fits) {
  int64_t beyond = most + 1;
  while (2 * least < beyond && fits(2 * least)) least *= 2;
  beyond = std::min(beyond, 2 * least);
  while (beyond - least > 1) {
    const int64_t middle = least + (beyond - least) / 2;
    (fits(middle) ? least : beyond) = middle;
  }
  return least;
}

// The longest datum that fits `bytes` in a pass of its own, with what a runner does last to make
// it fit. One of pass_tokens does: the pass is planned for it.
LongestDatum find_longest_datum(engine::Engine& engine, bool in_stages, int64_t pass_tokens,
                                int64_t bytes, int64_t rank, model::ExpertRank expert_rank) {
  engine::PlanShape shape = served_pass_shape(engine, pass_tokens, rank, expert_rank);
  shape.recompute = engine.least_recompute();
  shape.alone = true;
  shape.in_stages = in_stages;
  const auto planned = [&](int64_t tokens) {
    shape.pass_tokens = tokens;
    return engine::plan_pass(engine, shape);
  };
  const auto bytes_of = [](const engine::PassPlan& plan) { return plan.total() + plan.kept(); };
  const auto fits = [&](int64_t tokens) { return bytes_of(planned(tokens)) <= bytes; };
  const int64_t context = engine.config().context();
  const int64_t longest = find_largest_that_fits(std::min(pass_tokens, context), context, fits);
  // Full recompute alone comes before files.
  shape.recompute = model::Recompute::kFull;
  if (!fits(longest)) shape.recompute = engine.least_recompute();
  const engine::PassPlan plan = planned(longest);
  return {.tokens = longest, .bytes = bytes_of(plan), .file_bytes = plan.file_bytes};
}

int64_t sample_pages(const engine::Engine& engine) {
  return engine.kv_pool().pages_for(std::min(kSamplePositions, engine.config().context()));
}

// All stages together, each of which has pages and states of the whole model's layers.
int64_t page_bytes(const ServedModel& model) {
  return std::ssize(model.stages) * model.stages[0]->kv_pool().page_bytes();
}
int64_t state_bytes(const ServedModel& model) {
  return std::ssize(model.stages) * model.stages[0]->cache_layout().state_bytes();
}

// What one sample keeps; and what a model can work with at least: a request of several samples
// keeps its prompt's state too.
int64_t sample_bytes(const ServedModel& model) {
  return sample_pages(*model.stages[0]) * page_bytes(model) + state_bytes(model);
}
int64_t least_of(const ServedModel& model) { return sample_bytes(model) + state_bytes(model); }

// Divides what a server may have: first what is there whatever is asked of it, then passes that
// leave enough for the rest, then longer data, then shares of what is left.
class ServePlanner {
 public:
  explicit ServePlanner(const ServeRun& run)
      : models_(run.models), run_(run), expert_rank_(run.expert_rank) {
    CHECK(!models_.empty());
  }

  [[nodiscard]] engine::RunPlan divide_memory() {
    count_minimum_bytes();
    choose_pass_tokens();
    passes_ = plan_all_pass_bytes(plan_.pass.pass_tokens);
    steps_ = plan_all_step_bytes(plan_.pass.pass_tokens);
    int64_t rest = run_.memory - taken();
    if (rest < 2 * least_) refuse_memory(taken() + 2 * least_, run_.memory);
    rest = allot_long_data(rest);
    divide_rest(rest);
    fill_example_sizes();
    fill_plan_items();
    return std::move(plan_);
  }

 private:
  // Counts weights, what requests hold, and the least that each model can work with.
  void count_minimum_bytes() {
    for (const ServedModel& model : models_) {
      count_model_weights(model);
      least_ += least_of(model) + lora_bytes(model, 8, expert_rank_);
    }
    for (const engine::PlanRow& row : run_.requests) requests_ += row.bytes;
    fixed_ = weights_ + kProcessBytes + requests_;
    // With an adapter of a usual rank.
    const int64_t one = lora_bytes(models_[0], std::min(kUsualRank, run_.max_rank), expert_rank_);
    comfortable_ = std::max(2 * least_, one * 100 / kAdaptersPercent + 1);
  }

  // Counts the model's weights, and of its files what is in few bits.
  void count_model_weights(const ServedModel& model) {
    for (const engine::Engine* stage : model.stages)
      weights_ += stage->model().weights->num_bytes();
    const model::LoadedModel& loaded = model.stages[0]->model();
    const bool dequantises = loaded.weights->forms().empty();
    plan_.server.keeps = plan_.server.keeps || !dequantises;
    if (loaded.checkpoint != nullptr && dequantises)
      plan_.server.narrow += count_quantised_bytes(*loaded.checkpoint).stored;
  }

  // Shorter passes rather than no adapter of a usual rank, but where none ever fits.
  void choose_pass_tokens() {
    plan_.pass.pass_tokens = find_longest_pass_tokens(comfortable_);
    if (plan_.pass.pass_tokens == 0) plan_.pass.pass_tokens = find_longest_pass_tokens(2 * least_);
    if (plan_.pass.pass_tokens == 0) plan_.pass.pass_tokens = kLeastServedTokens;
  }

  // The longest passes that take half of it, at most, and leave so much; 0: none do.
  [[nodiscard]] int64_t find_longest_pass_tokens(int64_t wanted_rest) const {
    const int64_t free = run_.memory - fixed_;
    for (int64_t tokens = kMostPassTokens; tokens >= kLeastServedTokens; tokens /= 2) {
      const int64_t passes = plan_all_pass_bytes(tokens);
      if (passes <= free / 2 && free - passes - plan_all_step_bytes(tokens) >= wanted_rest)
        return tokens;
    }
    return 0;
  }

  [[nodiscard]] int64_t plan_all_pass_bytes(int64_t tokens) const {
    int64_t bytes = 0;
    for (const ServedModel& model : models_)
      bytes += plan_pass_bytes(model, tokens, run_.max_rank, expert_rank_);
    return bytes;
  }

  [[nodiscard]] int64_t plan_all_step_bytes(int64_t tokens) const {
    int64_t bytes = 0;
    for (const ServedModel& model : models_) {
      for (engine::Engine* stage : model.stages) {
        bytes += plan_sampling_step_bytes(*stage, model.plan != nullptr, tokens,
                                          run_.max_sample_rows, run_.max_rank, expert_rank_);
      }
    }
    return bytes;
  }

  [[nodiscard]] int64_t taken() const { return fixed_ + passes_ + steps_; }

  // Longer data may have more than the passes that they are alone in, as far as the context goes.
  // Returns what they leave.
  [[nodiscard]] int64_t allot_long_data(int64_t rest) {
    const int64_t spare = std::max<int64_t>(0, rest - comfortable_);
    const int64_t each = spare * kLongDataPercent / 100 / std::ssize(models_);
    for (const ServedModel& model : models_) {
      LongestDatum of_model = {.tokens = INT64_MAX};
      for (size_t i = 0; i < model.stages.size(); ++i)
        rest -= allot_long_datum(model, i, each / std::ssize(model.stages), of_model);
      plan_.server.longest_data.push_back(of_model.tokens);
      plan_.server.file_bytes.push_back(of_model.file_bytes);
    }
    return rest;
  }

  // Returns the bytes that the stage takes of its share. As many passes may be there as a stage has
  // in flight, and each may be a longer one.
  int64_t allot_long_datum(const ServedModel& model, size_t stage, int64_t share,
                           LongestDatum& of_model) {
    const int64_t count =
        model.plan == nullptr
            ? 1
            : engine::peak_live(*model.plan, model.first_stage + static_cast<int>(stage));
    const int64_t bytes =
        plan_stage_passes(model, stage, plan_.pass.pass_tokens, run_.max_rank, expert_rank_).one;
    const LongestDatum longest =
        find_longest_datum(*model.stages[stage], model.plan != nullptr, plan_.pass.pass_tokens,
                           bytes + share / count, run_.max_rank, expert_rank_);
    of_model.tokens = std::min(of_model.tokens, longest.tokens);
    of_model.file_bytes += longest.file_bytes;
    const int64_t more = std::max<int64_t>(0, longest.bytes - bytes);
    plan_.stages.push_back({.pass_bytes = bytes + more});
    passes_ += more * count;
    return more * count;
  }

  // Sampler weights, adapters, and pages and states: of each model its least, and of what is left
  // then as much as of any other.
  void divide_rest(int64_t rest) {
    int64_t least = 0;
    for (const ServedModel& model : models_) least += least_of(model);
    snapshots_ = rest * kSamplerWeightsPercent / 100;
    adapters_ = std::min(rest * kAdaptersPercent / 100, rest - snapshots_ - least);
    const int64_t more = (rest - snapshots_ - adapters_ - least) / std::ssize(models_);
    for (const ServedModel& model : models_) divide_cache(model, least_of(model) + more);
  }
  // Into pages and states.
  void divide_cache(const ServedModel& model, int64_t bytes) {
    const int64_t state = state_bytes(model);
    const int64_t states = state == 0 ? 0 : std::max<int64_t>(2, bytes / sample_bytes(model));
    plan_.server.max_states.push_back(states);
    states_ += states * state;
    plan_.server.max_pages.push_back((bytes - states * state) / page_bytes(model));
    kv_ += plan_.server.max_pages.back() * page_bytes(model);
  }

  void fill_plan_items() {
    plan_.server.budget = run_.memory;
    plan_.server.requests = run_.requests;
    plan_.server.max_rank = run_.max_rank;
    using enum engine::MemoryUse;
    plan_.memory.items = {
        {kWeights, weights_}, {kProcess, kProcessBytes}, {kRequests, requests_},
        {kPasses, passes_},   {kSamplingSteps, steps_},  {kKvCache, kv_},
        {kStates, states_},   {kAdapters, adapters_},    {kSamplerWeights, snapshots_}};
    CHECK(plan_.memory.total() <= run_.memory, plan_.memory.total(), run_.memory);
  }

  // Sizes of the first model, for people.
  void fill_example_sizes() {
    const ServedModel& first = models_[0];
    plan_.server.slot_rank_8 = lora_bytes(first, 8, expert_rank_);
    plan_.server.slot_rank_32 = lora_bytes(first, 32, expert_rank_);
    plan_.server.slot_max_rank = lora_bytes(first, run_.max_rank, expert_rank_);
    plan_.server.token_bytes =
        (plan_pass_bytes(first, plan_.pass.pass_tokens, run_.max_rank, expert_rank_) -
         plan_pass_bytes(first, plan_.pass.pass_tokens / 2, run_.max_rank, expert_rank_)) /
        (plan_.pass.pass_tokens / 2);
    plan_.server.sample_bytes = sample_bytes(first);
  }

  const std::vector<ServedModel>& models_;
  const ServeRun& run_;
  const model::ExpertRank expert_rank_;
  engine::RunPlan plan_;
  int64_t weights_ = 0;  // of all models
  int64_t requests_ = 0;
  int64_t passes_ = 0;  // scratch of each model's training passes, or of its longest datum
  int64_t steps_ = 0;   // and of its largest sampling step, which may run in the midst of one
  // Limits of all models together.
  int64_t kv_ = 0, states_ = 0, adapters_ = 0, snapshots_ = 0;
  int64_t fixed_ = 0;        // that nothing changes
  int64_t least_ = 0;        // an adapter of rank 8 and a sample, of each model
  int64_t comfortable_ = 0;  // what passes leave where they can
};

}  // namespace

void refuse_memory(int64_t needed, int64_t budget) {
  throw Error(
      ErrorCode::kResourceExhausted,
      fmt::format("memory: at least {} are needed and {} may be used; raise --memory, serve "
                  "fewer models or use --dtype bf16",
                  report::format_bytes(needed), report::format_bytes(budget)));
}

engine::RunPlan plan_run(const ServeRun& run) { return ServePlanner(run).divide_memory(); }

}  // namespace strata::planner
