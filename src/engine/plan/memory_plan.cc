// SPDX-License-Identifier: Apache-2.0
#include "engine/plan/memory_plan.h"

#include <algorithm>
#include <map>

#include "engine/adapter_state.h"
#include "engine/pass.h"
#include "model/expert_ranks.h"

namespace strata::engine {
namespace {

using Adapters = std::vector<std::unique_ptr<model::LoraAdapter>>;

// Among how many ranks such passes are dealt out whose experts they divide; 1: they are not.
int num_expert_ranks_dealing(const Engine& engine) {
  const model::ExpertRanks* const ranks = engine.model().weights->expert_ranks();
  return ranks == nullptr ? 1 : ranks->share().num_ranks;
}

// `count` sequences of `length` tokens each; neighbours share an adapter, so that runs are as few
// as adapters.
PassPlan plan_pass_of_sequences(Engine& engine, const PlanShape& shape, const Adapters& adapters,
                                int64_t count, int64_t length) {
  const std::vector<int32_t> tokens(static_cast<size_t>(length), 0);
  const std::vector<int32_t> targets(static_cast<size_t>(count * length), 0);
  const std::vector<float> weights(targets.size(), 1.0f);
  const std::vector<api::Loss> losses_of_sequences(static_cast<size_t>(count));
  std::vector<float> logprobs(targets.size()), losses(targets.size()), mtp_losses(targets.size());
  std::vector<float> indexer_losses(targets.size());
  PassBuilder builder;
  const auto adapter_of = [&](int64_t i) {
    return adapters.empty() ? nullptr
                            : adapters[static_cast<size_t>(i * std::ssize(adapters) / count)].get();
  };
  for (int64_t i = 0; i < count; ++i) builder.append(tokens, 0, adapter_of(i));
  const int num_ranks = shape.is_dealt ? num_expert_ranks_dealing(engine) : 1;
  model::DealtRows dealt;  // each rank has as many
  dealt.clear();
  for (int rank = 0; rank < num_ranks; ++rank) {
    for (int64_t i = 0; i < count; ++i) dealt.rows.add_sequence(length, adapter_of(i));
    dealt.end_rank();
  }
  PassState state;
  train::LossInputs inputs;
  inputs.targets = targets;
  inputs.columns[api::LossInput::kWeights] = weights;
  inputs.losses = losses_of_sequences;
  const PassWork work = {
      .builder = builder,
      .adapter_gradients = shape.backward && !shape.train_base,
      .base_gradients = shape.train_base ? engine.base_trainer().gradients() : nullptr,
      .dealt = num_ranks > 1 ? &dealt : nullptr,
      .recompute = shape.recompute.value_or(engine.options().recompute),
      .regions = shape.regions.value_or(engine.options().regions),
      .want_loss = true,
      .inputs = inputs,
      .logprobs = logprobs,
      .losses = losses,
      .mtp_weight = shape.mtp ? 1.0f : 0.0f,
      .mtp_losses = mtp_losses,
      .indexer_weight = shape.indexer_loss ? 1.0f : 0.0f,
      .indexer_losses = indexer_losses};
  return plan_pass(engine, work, state, shape.in_stages, shape.defers);
}

// Those that the engine has or, where it has none, as many of the shape's modules.
int64_t planned_adapter_bytes(const Engine& engine, const PlanShape& shape) {
  int64_t bytes = 0;
  for (const auto& [slot, adapter] : engine.adapters()) {
    const int64_t flat = adapter->num_parameters() * dtype_bytes(DType::kF32);  // of a moment
    bytes += adapter->num_bytes() + (shape.backward && !adapter->trains() ? 3 * flat : 0);
  }
  if (!engine.adapters().empty() || shape.modules.empty()) return bytes;
  bytes = shape.num_adapters * adapter_bytes(engine, shape.modules, shape.backward);
  if (!shape.backward) return bytes;
  const model::ModelWeights& weights = *engine.model().weights;
  return bytes - (shape.num_adapters - 1) * model::gradient_bytes(weights, shape.modules);
}

// One for each sequence that runs at once; none without modules. Their memory is never touched.
Adapters make_adapters(Engine& engine, const PlanShape& shape) {
  Adapters adapters;
  const int64_t at_once = engine.backend().parallelism();
  for (int64_t i = 0; i < at_once && !shape.modules.empty(); ++i) {
    adapters.push_back(std::make_unique<model::LoraAdapter>(
        engine.backend(), *engine.model().weights, shape.modules));
    if (shape.backward) adapters.back()->enable_training();
  }
  return adapters;
}

}  // namespace

PassPlan plan_pass(Engine& engine, const PassWork& work, PassState& state, bool in_stages,
                   bool defers) {
  PassMeter meter(engine.backend());
  const auto whole = [&](Backend& counter) { count_pass_memory(counter, engine, work, state); };
  const auto apart = [&](Backend& counter) {
    return count_stage_pass(counter, engine, work, state, defers);
  };
  PassPlan plan = in_stages ? meter.measure_held(apart) : meter.measure(whole);
  plan.saved = work.builder.saved_costs();
  return plan;
}

PassPlan plan_pass(Engine& engine, const PlanShape& shape, int64_t enough) {
  const Adapters adapters = make_adapters(engine, shape);
  const int64_t at_once = engine.backend().parallelism();
  // One sequence; as many as run at once, each of another adapter; and one for each token.
  PassPlan most;
  for (const int64_t count : {int64_t{1}, at_once, shape.pass_tokens}) {
    if (shape.alone && count > 1) continue;
    const int64_t length = (shape.pass_tokens + count - 1) / count;
    PassPlan plan = plan_pass_of_sequences(engine, shape, adapters, count, length);
    // Where passes run apart, each part is that of the pass that takes most of it.
    const int64_t held = std::max(most.held_bytes, plan.held_bytes);
    const int64_t deferred = std::max(most.deferred_bytes, plan.deferred_bytes);
    if (plan.total() > most.total()) most = std::move(plan);
    most.held_bytes = held;
    most.deferred_bytes = deferred;
    if (most.total() > enough) break;
  }
  return most;
}

namespace {

struct GradientBytes {
  int64_t all = 0;
  std::map<int64_t, int64_t> of_layers = {};
};

// Counts the gradients that these ranks add to, one behind the other.
GradientBytes gradient_bytes(Engine& engine, const PlanShape& shape, train::AddedBy ranks) {
  const model::ModelWeights& weights = *engine.model().weights;
  const bool of_experts = ranks == train::AddedBy::kExpertCopies;
  GradientBytes bytes;
  const auto add = [&](int64_t layer, int64_t values) {
    bytes.all += values * dtype_bytes(DType::kF32);
    if (layer >= 0) bytes.of_layers[layer] += values * dtype_bytes(DType::kF32);
  };
  if (shape.train_base) {
    for (const train::Accumulator& sum : engine.base_trainer().accumulators()) {
      if (sum.added_by == ranks) add(sum.part, weights.table()[sum.index].shape.num_elements());
    }
  }
  for (const auto& [slot, adapter] : engine.adapters()) {
    for (const model::LoraModule& module : adapter->modules()) {
      const bool is_divided = module.num_experts > 0 && weights.expert_ranks() != nullptr;
      if (is_divided != of_experts) continue;
      const int64_t values = module.a.shape.num_elements() + module.b.shape.num_elements();
      add(module.spec.layer,
          of_experts ? values / module.num_experts * weights.own_experts(module.num_experts).count
                     : values);
    }
  }
  if (!engine.adapters().empty()) return bytes;
  bytes.all += of_experts ? model::own_expert_gradient_bytes(weights, shape.modules)
                          : model::gradient_bytes(weights, shape.modules);
  return bytes;
}

// Counts what is on its way of these gradients, to so many ranks besides this one.
int64_t in_flight_bytes(Engine& engine, const PlanShape& shape, train::AddedBy ranks,
                        int64_t others) {
  if (others == 0 || !(shape.backward || shape.train_base)) return 0;
  const model::ModelWeights& weights = *engine.model().weights;
  const auto [all, of_layers] = gradient_bytes(engine, shape, ranks);
  // To each of the others, what all get alike.
  const int64_t copies = shape.train_base ? 1 : others;
  const bool is_bounded = weights.begins() && weights.ends() && !shape.several_rounds;
  if (!is_bounded) return copies * all;
  int64_t layers = 0, largest = 0;
  for (const auto& [layer, bytes] : of_layers) {
    layers += bytes;
    largest = std::max(largest, bytes);
  }
  return copies * (all - layers + std::min(layers, (3 * others + 3) * largest));
}

}  // namespace

int64_t in_flight_gradient_bytes(Engine& engine, const PlanShape& shape, int num_dealing) {
  const int copies = num_dealing / num_expert_ranks_dealing(engine);  // of the experts
  const int64_t bytes = in_flight_bytes(engine, shape, train::AddedBy::kDealing, num_dealing - 1);
  if (copies <= 1 || copies == num_dealing) return bytes;
  return bytes + in_flight_bytes(engine, shape, train::AddedBy::kExpertCopies, copies - 1);
}

int64_t rope_table_bytes(const Engine& engine, const PlanShape& shape) {
  int64_t bytes = 0;  // tables of cos and sin
  for (const model::RopeSpec& rope : engine.config().ropes)
    bytes += 2 * shape.pass_tokens * (rope.dim / 2) * dtype_bytes(DType::kF32);
  return bytes;
}

int64_t state_file_bytes(Engine& engine, const PlanShape& shape) {
  if (!shape.train_base) return 0;
  const train::BaseTrainer& trainer = engine.base_trainer();
  return shape.state_in_files || trainer.in_files() ? trainer.state_bytes() : 0;
}

int64_t cache_bytes(const Engine& engine, const PlanShape& shape) {
  const model::CacheLayout& layout = engine.cache_layout();
  return static_cast<int64_t>(static_cast<double>(shape.kv_positions) * layout.position_bytes()) +
         shape.num_sampled * layout.state_bytes();
}

int64_t step_bytes_beyond_pass(Engine& engine, const PlanShape& shape, int64_t pass_bytes) {
  if (!shape.train_base) return 0;
  PassMeter meter(engine.backend());
  const PassPlan& step =
      meter.measure([&](Backend& counter) { engine.base_trainer().count_step_scratch(counter); });
  return std::max<int64_t>(0, step.total() - pass_bytes);
}

std::string_view memory_use_name(MemoryUse use) {
  switch (use) {
    case MemoryUse::kWeights:
      return "weights";
    case MemoryUse::kAdapters:
      return "adapters";
    case MemoryUse::kBaseTraining:
      return "base training";
    case MemoryUse::kPass:
      return "pass";
    case MemoryUse::kPasses:
      return "passes";
    case MemoryUse::kSamplingSteps:
      return "sampling steps";
    case MemoryUse::kInFlight:
      return "in flight";
    case MemoryUse::kBetweenStages:
      return "between stages";
    case MemoryUse::kLists:
      return "lists";
    case MemoryUse::kStep:
      return "step";
    case MemoryUse::kGradientsInTransit:
      return "gradients on their way";
    case MemoryUse::kPositions:
      return "positions";
    case MemoryUse::kKvCache:
      return "kv cache";
    case MemoryUse::kStates:
      return "states";
    case MemoryUse::kSamplerWeights:
      return "sampler weights";
    case MemoryUse::kRequests:
      return "requests";
    case MemoryUse::kGathered:
      return "gathered to save";
    case MemoryUse::kData:
      return "data";
    case MemoryUse::kProcess:
      return "process";
    case MemoryUse::kMpi:
      return "MPI";
  }
  CHECK(false, static_cast<int>(use));
}

int64_t MemoryPlan::bytes_of(MemoryUse use) const {
  const auto found = std::ranges::find(items, use, &PlanItem::use);
  CHECK(found != items.end(), memory_use_name(use));
  return found->bytes;
}

MemoryPlan plan_memory(Engine& engine, const PlanShape& shape) {
  const PassPlan pass = plan_pass(engine, shape);
  return plan_memory(engine, shape, pass.total(), pass.file_bytes);
}

MemoryPlan plan_memory(Engine& engine, const PlanShape& shape, int64_t pass_bytes,
                       int64_t pass_file_bytes) {
  const model::ModelWeights& weights = *engine.model().weights;
  MemoryPlan plan;
  plan.activation_file_bytes = pass_file_bytes;
  const bool in_files = shape.weights_in_files || weights.in_files();
  plan.items.push_back({MemoryUse::kWeights, in_files ? 0 : weights.memory_bytes()});
  if (in_files) plan.file_bytes = weights.num_bytes();
  plan.items.push_back({MemoryUse::kAdapters, planned_adapter_bytes(engine, shape)});
  if (shape.train_base) {
    plan.state_file_bytes = state_file_bytes(engine, shape);
    plan.items.push_back(
        {MemoryUse::kBaseTraining, engine.base_trainer().num_bytes() - plan.state_file_bytes});
  }
  plan.items.push_back({MemoryUse::kPass, pass_bytes});
  if (shape.train_base)
    plan.items.push_back({MemoryUse::kStep, step_bytes_beyond_pass(engine, shape, pass_bytes)});
  const int num_dealing = engine.base_trainer().share().num_owners;
  if (const int64_t chain = in_flight_gradient_bytes(engine, shape, num_dealing); chain > 0)
    plan.items.push_back({MemoryUse::kGradientsInTransit, chain});
  plan.items.push_back({MemoryUse::kPositions, rope_table_bytes(engine, shape)});
  const int64_t states = shape.num_sampled * engine.cache_layout().state_bytes();
  plan.items.push_back({MemoryUse::kKvCache, cache_bytes(engine, shape) - states});
  if (engine.cache_layout().state_bytes() > 0) plan.items.push_back({MemoryUse::kStates, states});
  if (shape.data_bytes > 0) plan.items.push_back({MemoryUse::kData, shape.data_bytes});
  plan.items.push_back({MemoryUse::kProcess, kProcessBytes});
  const bool is_divided = weights.expert_ranks() != nullptr || weights.tensor_ranks() != nullptr;
  if (num_dealing > 1 || is_divided) plan.items.push_back({MemoryUse::kMpi, kMpiBytes});
  return plan;
}

}  // namespace strata::engine
