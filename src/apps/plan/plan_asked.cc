// SPDX-License-Identifier: Apache-2.0
#include "apps/plan/plan_asked.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string_view>

#include "apps/plan/plan_front.h"
#include "backend/file_memory.h"
#include "base/ascii.h"
#include "base/error.h"
#include "base/option_values.h"
#include "model/adapter/specs.h"
#include "setup/engine_setup.h"
#include "setup/machine_file.h"
#include "setup/weights_text.h"

namespace strata::apps {

[[noreturn]] void refuse_plan(const std::string& what) {
  throw Error(ErrorCode::kInvalidArgument, "plan: " + what);
}

namespace {

constexpr int64_t kMostTokens = int64_t{1} << 24;  // of a step
constexpr int64_t kProbeBytes = 256 << 20;

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
  refuse_plan(
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
    refuse_plan(fmt::format("--tokens {}: sequences of {} tokens, the model's context is {}",
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

}  // namespace

planner::RunShape make_run_shape(const PlanOptions& options, const engine::Engine& engine,
                                 const planner::Division& division) {
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

void check_indexer_loss(const PlanOptions& options, const engine::Engine& engine) {
  if (options.with_indexer_loss && engine.model().weights->layers().num_indexers() == 0)
    refuse_plan(fmt::format("--indexer-loss: no layer of {} has an indexer", options.model));
}

train::BaseStep step_of(const PlanOptions& options) {
  return {.muon = options.optimizer == "muon"};
}

LoadSpec read_training_spec(const PlanOptions& options) {
  if (!options.memory.empty() && options.recompute != "none") {
    refuse_plan("--memory and --recompute: give one; --memory chooses what is kept");
  }
  check_optimizer(options.optimizer, options.method);
  check_method_in_4bit(options.load_in_4bit, options.method);
  LoadSpec spec = read_plan_spec(options);
  if (options.with_mtp) spec.mtp = model::UseMtp::kAlways;
  spec.weights = usable_weights(spec.weights, options.method);
  return spec;
}

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

}  // namespace strata::apps
