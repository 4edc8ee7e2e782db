// SPDX-License-Identifier: Apache-2.0
#include "tests/stages/staged_run.h"

#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <cstring>
#include <span>

#include "backend/process_ranks.h"
#include "backend/thread_comm.h"
#include "base/files.h"
#include "engine/runner.h"
#include "model/adapter/specs.h"
#include "model/weights/init.h"
#include "ops/cpu/cpu_backend.h"

namespace strata::engine {
namespace {

constexpr int64_t kMaxConfigBytes = 1 << 20;
constexpr int kSteps = 10;
constexpr int kLengths[] = {5, 3, 7, 1, 4, 6, 2, 5, 3};
constexpr int64_t kRanks[] = {3, 5};
constexpr api::AdamW kAdamW = {.lr = 3e-3, .weight_decay = 0.01, .grad_clip_norm = 0.5};

uint32_t next(uint32_t& seed) { return (seed = seed * 1664525u + 1013904223u) >> 8; }

// Slots 0 (the base), 1 and 2 in turn.
api::Batch make_batch(const std::deque<api::Datum>& data, const StagedCase& c, bool adapters) {
  api::Batch batch = {.mtp_weight = c.mtp ? 0.3f : 0.0f, .indexer_weight = c.indexer_weight};
  int32_t slot = 0;
  for (const api::Datum& datum : data) {
    batch.sequences.push_back({.datum = &datum, .slot = api::AdapterSlot{slot}});
    if (adapters) slot = (slot + 1) % 3;
  }
  return batch;
}

std::vector<float> copy_of(TensorView view) {
  const HostAccess access(cpu_allocator());
  return {view.f32(), view.f32() + view.shape.num_elements()};
}

// What the test asks of an engine, or of a pipeline.
class WholeRun {
 public:
  explicit WholeRun(const StagedCase& c) {
    auto backend = std::make_unique<CpuBackend>(choose_cpu_path(), 2);
    auto model = model::init_model(*backend, staged_config(c), c.dtype, 3);
    engine_ = std::make_unique<Engine>(std::move(backend), std::move(model), EngineOptions());
    runner_ = std::make_unique<Runner>(*engine_);
  }
  Engine& engine() { return *engine_; }
  void add_adapter(const std::vector<model::LoraModuleSpec>& specs) {
    stir(engine_->adapter(engine_->create_adapter(specs, 11)));
  }
  api::BatchResult run(const api::Batch& batch, api::TensorSink* sink) {
    return runner_->run(batch, sink);
  }
  void enable_base_steps(const train::BaseStep& how) { engine_->enable_base_steps(how); }
  double step(api::AdapterSlot slot) { return runner_->step(slot, kAdamW).grad_norm; }
  const model::LoraAdapter* adapter(api::AdapterSlot slot) { return &engine_->adapter(slot); }
  void finish() { engine_->base_trainer().finish_gradients(engine_->backend()); }
  void finish_adapter(api::AdapterSlot slot) {
    engine_->adapter(slot).merge_gradients_apart(engine_->backend());
  }
  std::vector<float> base(size_t index, bool gradient) {
    const train::BaseTrainer& trainer = engine_->base_trainer();
    return copy_of(gradient ? trainer.gradient(index) : trainer.master(index));
  }
  std::vector<float> router_bias(size_t index) {
    return copy_of(engine_->base_trainer().router_bias(index));
  }

 private:
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Runner> runner_;
};

class StagedRun {
 public:
  StagedRun(const StagedCase& c, Comm& comm, const PipelinePlan& plan)
      : pipeline_(std::make_unique<Runner>(comm, plan, staged_engines(c, comm, plan))) {}
  Engine& engine() { return pipeline_->engine(); }
  void add_adapter(const std::vector<model::LoraModuleSpec>& specs) {
    pipeline_->for_adapter(pipeline_->create_adapter(specs, 11), &stir);
  }
  api::BatchResult run(const api::Batch& batch, api::TensorSink* sink) {
    return pipeline_->run(batch, sink);
  }
  void enable_base_steps(const train::BaseStep& how) { pipeline_->enable_base_steps(how); }
  double step(api::AdapterSlot slot) { return pipeline_->step(slot, kAdamW).grad_norm; }
  const model::LoraAdapter* adapter(api::AdapterSlot slot) {
    return pipeline_->gather().adapter(slot);
  }
  void finish() { pipeline_->finish_base_gradients(); }
  void finish_adapter(api::AdapterSlot slot) { pipeline_->finish_adapter_gradients(slot); }
  std::vector<float> base(size_t index, bool gradient) {
    return read(index, gradient ? BaseValues::kGradients : BaseValues::kMasters);
  }
  std::vector<float> router_bias(size_t index) { return read(index, BaseValues::kRouterBias); }

 private:
  std::vector<float> read(size_t index, BaseValues which) {
    const Shape shape = engine().model().weights->table()[index].whole_shape();
    std::vector<float> values(static_cast<size_t>(shape.num_elements()));
    pipeline_->gather().base_values(index, which, values);
    return values;
  }

  std::unique_ptr<Runner> pipeline_;
};

template <typename Run>
void put_trained(Run& run, const StagedCase& c, const std::string& what, bool gradient,
                 Outcome& out) {
  if (c.parameters) {
    const std::vector<model::Parameter>& table = run.engine().model().weights->table();
    for (size_t i = 0; i < table.size(); ++i) {
      if (!table[i].buffer) out[what + " " + table[i].name] = run.base(i, gradient);
    }
    return;
  }
  for (int32_t slot = 1; slot <= 2; ++slot) {
    if (gradient) run.finish_adapter(api::AdapterSlot{slot});
    const model::LoraAdapter* adapter = run.adapter(api::AdapterSlot{slot});
    if (adapter == nullptr) continue;
    for (const model::LoraModule& module : adapter->modules()) {
      const std::string name = what + " " + std::to_string(slot) + " " + module.path;
      out[name + " A"] = copy_of(gradient ? module.d_a : module.a);
      out[name + " B"] = copy_of(gradient ? module.d_b : module.b);
    }
    if (!gradient) out[what + " " + std::to_string(slot)] = copy_of(adapter->second_moments());
  }
}

// All of its bits.
void put_double(double value, std::vector<float>& out) {
  float halves[2];
  std::memcpy(halves, &value, sizeof(value));
  out.insert(out.end(), halves, halves + 2);
}

void put_losses(const api::BatchResult& result, const std::string& what, Outcome& out) {
  for (const api::SequenceResult& sequence : result.sequences) {
    for (const float value : sequence.logprobs) out[what + " logprobs"].push_back(value);
    for (const float value : sequence.losses) out[what + " losses"].push_back(value);
    for (const float value : sequence.mtp_losses) out[what + " mtp losses"].push_back(value);
    for (const float value : sequence.indexer_losses)
      out[what + " indexer losses"].push_back(value);
  }
  put_double(result.loss_sum, out[what + " sum"]);
  put_double(result.mtp_loss_sum, out[what + " mtp sum"]);
}

// Large results and losses of sequences of the base and of two adapters, which it adds.
template <typename Run>
void put_scored(Run& run, const StagedCase& c, const std::deque<api::Datum>& data, Outcome& out) {
  for (const int64_t rank : kRanks) {
    run.add_adapter(model::make_adapter_specs(
        run.engine().config(), {"all-linear", "embed_tokens", "lm_head"}, rank, 16.0));
  }
  if (c.router_bias_rate > 0.0 || c.muon) {
    run.enable_base_steps({.muon = c.muon, .router_bias_rate = c.router_bias_rate});
  }
  api::Batch scored = make_batch(data, c, /*adapters=*/true);
  scored.want_hidden_states = scored.want_logits = true;
  api::TensorSink sink;
  put_losses(run.run(scored, &sink), "scored", out);
  for (const auto& [name, tensor] : sink.tensors()) out[name] = tensor.values;
}

template <typename Run>
Outcome outcome_of(Run& run, const StagedCase& c) {
  Outcome out;
  const std::deque<api::Datum> data = staged_data(run.engine().config().vocab_size, c);
  put_scored(run, c, data, out);
  api::Batch batch = make_batch(data, c, true);
  batch.gradients = c.parameters ? api::Gradients::kParameters : api::Gradients::kAdapters;
  put_losses(run.run(batch, nullptr), "trained", out);
  if (c.parameters) run.finish();
  put_trained(run, c, "gradient", true, out);
  for (int step = 0; step < kSteps; ++step) {
    if (step > 0) run.run(batch, nullptr);  // the first one's gradients are there
    // Accumulates over two runs before some steps.
    if (step % 4 == 3) put_losses(run.run(batch, nullptr), "step " + std::to_string(step), out);
    for (int32_t slot = c.parameters ? 0 : 1; slot <= (c.parameters ? 0 : 2); ++slot) {
      put_double(run.step(api::AdapterSlot{slot}), out["norms"]);
    }
  }
  put_trained(run, c, "value", false, out);
  for (const size_t index : run.engine().base_trainer().router_bias_indices()) {
    out[run.engine().model().weights->table()[index].name] = run.router_bias(index);
  }
  return out;
}

model::Recompute recompute_of(Again again) {
  switch (again) {
    case Again::kNothing:
      return model::Recompute::kNone;
    case Again::kLayers:
    case Again::kStage:
    case Again::kStageOfItsInput:
      return model::Recompute::kFull;
    case Again::kBoth:
      return model::Recompute::keeping({"query_proj", "context", "mlpwi_0", "branch", "lora_h"});
  }
  return {};
}

}  // namespace

std::deque<api::Datum> staged_data(int64_t vocab, const StagedCase& c) {
  std::deque<api::Datum> data;
  uint32_t seed = 7;
  for (const int length : std::span(kLengths).first(static_cast<size_t>(c.num_sequences))) {
    api::Datum& datum = data.emplace_back();
    for (int i = 0; i < length * c.times_as_long; ++i) {
      datum.tokens.push_back(static_cast<int32_t>(next(seed) % static_cast<uint32_t>(vocab)));
      datum.targets.push_back(static_cast<int32_t>(next(seed) % static_cast<uint32_t>(vocab)));
      datum.inputs[api::LossInput::kWeights].push_back(
          i % 5 == 2 ? 0.0f : 1.0f - 0.125f * static_cast<float>(i % 3));
    }
  }
  return data;
}

void stir(model::LoraAdapter& adapter) {
  const HostAccess access(cpu_allocator());
  for (size_t i = 0; i < adapter.modules().size(); ++i) {
    const model::LoraModule& module = adapter.modules()[i];
    if (!module.held()) continue;
    auto seed = static_cast<uint32_t>(i);
    for (const TensorView& values : {module.a, module.b}) {
      for (int64_t j = 0; j < values.shape.num_elements(); ++j) {
        values.f32()[j] += 0.03f * static_cast<float>(next(seed) % 17) - 0.24f;
      }
    }
  }
  adapter.refresh(adapter.backend());
}

void PrintTo(const StagedCase& c, std::ostream* out) {
  *out << c.model << " " << c.num_layers << " layers " << (c.parameters ? "full" : "lora")
       << (c.dtype == DType::kBF16 ? " bf16" : " f32") << " S=" << c.num_ranks
       << (c.ranks_each > 1 ? " each=" + std::to_string(c.ranks_each) : "")
       << (c.data > 1 ? " data=" + std::to_string(c.data) : "")
       << (c.tensor > 1 ? " tensor=" + std::to_string(c.tensor) : "")
       << (c.expert > 1 ? " expert=" + std::to_string(c.expert) : "") << (c.shards ? " shards" : "")
       << " R=" << c.num_chunks << " " << schedule::kind_name(c.kind) << " M=" << c.num_microbatches
       << " again=" << static_cast<int>(c.again) << (c.offloads ? " offloads" : "")
       << (c.mtp ? " mtp" : "") << (c.tied ? " tied" : "") << (c.muon ? " muon" : "")
       << (c.router_bias_rate > 0 ? " router biases" : "");
}

model::ModelConfig staged_config(const StagedCase& c) {
  const std::string path =
      std::string(STRATA_SOURCE_DIR) + "/tests/golden/" + c.model + "/model/config.json";
  boost::json::value file = boost::json::parse(read_file(path, kMaxConfigBytes));
  for (const auto& [name, number] : c.numbers) file.as_object()[name] = number;
  model::ModelConfig config =
      model::parse_config(boost::json::serialize(file), path, /*strict=*/false).config;
  const std::vector<model::LayerConfig> own = config.layers;
  config.layers.clear();
  for (int64_t layer = 0; layer < c.num_layers; ++layer) {
    config.layers.push_back(own[static_cast<size_t>(layer) % own.size()]);
  }
  // Layers that give keys and values do so again where they are repeated.
  const std::vector<model::SharedKvSpec> shared = config.shared_kv;
  for (model::SharedKvSpec kv : shared) {
    for (kv.layer += std::ssize(own); kv.layer < c.num_layers; kv.layer += std::ssize(own))
      config.shared_kv.push_back(kv);
  }
  if (c.vocab_size > 0) config.vocab_size = c.vocab_size;
  config.use_mtp = c.mtp;
  config.tie_word_embeddings = config.tie_word_embeddings || c.tied;
  return config;
}

EngineOptions staged_options(const StagedCase& c) {
  if (c.offloads) {
    return {.pass_tokens = c.pass_tokens,
            .recompute = model::Recompute::with_offload(
                {"query_proj"}, {std::string(model::kLayerInputTag), "context", "mlpwi_0"}),
            .offload = testing::TempDir()};
  }
  return {.pass_tokens = c.pass_tokens,
          .recompute = recompute_of(c.again),
          .regions = {.iterations = c.again >= Again::kStage,
                      .layers = c.again == Again::kLayers || c.again == Again::kBoth,
                      .keeps_layer_inputs = c.again <= Again::kStage}};
}

std::vector<std::unique_ptr<Engine>> staged_engines(const StagedCase& c, Comm& comm,
                                                    const PipelinePlan& plan,
                                                    const EngineOptions& options) {
  std::vector<std::unique_ptr<Engine>> engines;
  for (const int stage : plan.stages_of(comm.rank() / plan.num_pipelines())) {
    auto backend = engines.empty() ? std::make_unique<CpuBackend>(choose_cpu_path(), 1)
                                   : engines.front()->backend().sharing();
    auto model =
        model::init_model(*backend, staged_config(c), c.dtype, 3,
                          plan.layers[static_cast<size_t>(stage)], plan.weight_share(comm.rank()),
                          plan.tensor_share(comm.rank()), plan.expert_share(comm.rank()));
    engines.push_back(std::make_unique<Engine>(std::move(backend), std::move(model), options));
  }
  return engines;
}

PipelinePlan staged_plan(const StagedCase& c) {
  const schedule::Table table = schedule::generate({.kind = c.kind,
                                                    .num_ranks = c.num_ranks,
                                                    .num_microbatches = c.num_microbatches,
                                                    .num_chunks = c.num_chunks,
                                                    .forwarding_delay = c.forwarding_delay});
  std::vector<model::LayerRange> layers;
  if (c.layers.empty()) {
    const std::vector<double> costs(static_cast<size_t>(c.num_layers), 1.0);
    layers = balance_layers(costs, 0.0, 0.5, table.num_stages);
  }
  for (const int64_t size : c.layers) {
    const int64_t first = layers.empty() ? 0 : layers.back().last;
    layers.push_back({first, first + size});
  }
  PipelinePlan plan = make_pipeline_plan(table, c.forwarding_delay, std::move(layers));
  plan.data = c.data;
  plan.tensor = c.tensor;
  plan.expert = c.expert;
  plan.shard_weights = c.shards;
  return plan;
}

Outcome run_whole(const StagedCase& c) {
  WholeRun run(c);
  return outcome_of(run, c);
}

Outcome score_whole(const StagedCase& c) {
  WholeRun run(c);
  Outcome out;
  put_scored(run, c, staged_data(run.engine().config().vocab_size, c), out);
  return out;
}

std::vector<Outcome> score_staged(const StagedCase& c) {
  const PipelinePlan plan = staged_plan(c);
  std::vector<Outcome> out(static_cast<size_t>(plan.num_ranks_in_all()));
  run_ranks(plan.num_ranks_in_all(), [&](Comm& comm) {
    StagedRun run(c, comm, plan);
    put_scored(run, c, staged_data(run.engine().config().vocab_size, c),
               out[static_cast<size_t>(comm.rank())]);
  });
  return out;
}

Outcome run_staged(const StagedCase& c) {
  const PipelinePlan plan = staged_plan(c);
  Outcome out;
  run_ranks(plan.num_ranks_in_all() / c.ranks_each, [&](Comm& process) {
    run_ranks(process, {.threads = c.ranks_each, .data = plan.num_pipelines()}, [&](Comm& comm) {
      StagedRun run(c, comm, plan);
      Outcome own = outcome_of(run, c);
      if (comm.rank() == 0) out = std::move(own);
    });
  });
  return out;
}

void expect_same_bits(const Outcome& got, const Outcome& want) {
  EXPECT_EQ(got.size(), want.size());
  for (const auto& [name, values] : want) {
    const auto found = got.find(name);
    ASSERT_NE(found, got.end()) << name;
    ASSERT_EQ(found->second.size(), values.size()) << name;
    EXPECT_FALSE(values.empty()) << name;
    EXPECT_EQ(std::memcmp(found->second.data(), values.data(), values.size() * sizeof(float)), 0)
        << name << " differs";
  }
}

}  // namespace strata::engine
