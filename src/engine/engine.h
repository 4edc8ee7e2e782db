// SPDX-License-Identifier: Apache-2.0
// Engine: a stage of a base model, which may be all of it: owns its weights, adapter slots,
// optimizer state and KV pages. Runs nothing: a Runner does (engine/runner.h). One call at a time,
// on the engine thread; its thread pool does the math.
//   Engine engine(backend, load_model(...), {...});
//   const AdapterSlot slot = engine.create_adapter(specs, seed);
//   Runner(engine).run(batch, &sink);
#pragma once
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "api/batch.h"
#include "api/tensor_sink.h"
#include "backend/backend.h"
#include "base/check.h"
#include "engine/engine_options.h"
#include "engine/kv_cache.h"
#include "engine/pass_workspace.h"
#include "model/adapter/io.h"
#include "model/weights/load.h"
#include "train/optimizer.h"

namespace strata::engine {

class Engine {
 public:
  Engine(std::unique_ptr<Backend> backend, model::LoadedModel model, const EngineOptions& options);

  [[nodiscard]] Backend& backend() { return workspace_.backend(); }
  [[nodiscard]] const Backend& backend() const { return workspace_.backend(); }
  [[nodiscard]] PassWorkspace& workspace() { return workspace_; }
  [[nodiscard]] const model::ModelConfig& config() const { return model_.config; }
  [[nodiscard]] const model::LoadedModel& model() const { return model_; }
  [[nodiscard]] const EngineOptions& options() const { return options_; }
  // Limits that a plan can only name once the model is loaded. Changes no result.
  void set_limits(int64_t pass_tokens, int64_t max_pages, int64_t max_states, int64_t pass_bytes);

  // What a sequence that is too long for the memory of a pass is run with at last.
  [[nodiscard]] const model::Recompute& least_recompute() const {
    return options_.offload.empty() ? model::Recompute::kFull : inputs_offloaded_;
  }
  // What training passes are planned with from now on. Changes no result.
  void set_pass_options(int64_t pass_tokens, const model::Recompute& recompute) {
    set_pass_options(pass_tokens, recompute, options_.regions);
  }
  void set_pass_options(int64_t pass_tokens, const model::Recompute& recompute,
                        const model::RecomputeRegions& regions) {
    options_.pass_tokens = pass_tokens;
    options_.recompute = recompute;
    options_.regions = regions;
  }

  // Adapter slots: the smallest free number from 1 on. A slot starts from PEFT's initialisation,
  // zero optimizer state and no gradient; a cleared slot's memory is gone, so nothing of it can
  // reach the next owner.
  api::AdapterSlot create_adapter(const std::vector<model::LoraModuleSpec>& specs, uint64_t seed);
  // An adapter on an engine that plans: nobody touches its values.
  api::AdapterSlot plan_adapter(const std::vector<model::LoraModuleSpec>& specs);
  api::AdapterSlot load_adapter(const std::string& dir);
  void save_adapter(api::AdapterSlot slot, const std::string& dir) const;
  void clear_adapter(api::AdapterSlot slot);
  // The adapter of a slot; an Error for the base or a free slot. Valid until the slot is cleared.
  [[nodiscard]] model::LoraAdapter& adapter(api::AdapterSlot slot) const;

  [[nodiscard]] const std::map<int32_t, std::unique_ptr<model::LoraAdapter>>& adapters() const {
    return adapters_;
  }

  // Which part of what trains is this rank's between passes, of those that have the same stage.
  // Before anything trains.
  void set_share(const train::Share& share) {
    CHECK(base_trainer_ == nullptr);
    share_ = share;
  }
  // Base training: gradients of every parameter, and with steps also fp32 masters and moments.
  train::BaseTrainer& base_trainer();
  // How all parameters are stepped is said the first time.
  void enable_base_steps(const train::BaseStep& how = {});

  // What comes before a batch's first pass: all sequences are checked, the sink has its tensors (of
  // a stage, its part of them), and what takes gradients has memory for them.
  void prepare_batch(const api::Batch& batch, api::TensorSink* sink);

  // An Error that names the field at fault, below `where`.
  void check(const api::Sequence& sequence, const std::string& where, bool want_loss) const;
  // For the sampling loop (engine/sampling/sampling_loop.h).
  void check(const api::SampleRequest& request, size_t index) const;
  // The slot's adapter; null for the base model.
  [[nodiscard]] model::LoraAdapter* slot_adapter(api::AdapterSlot slot) const;
  [[nodiscard]] KvPool& kv_pool() { return kv_pool_; }
  [[nodiscard]] const KvPool& kv_pool() const { return kv_pool_; }
  // States of sampled sequences, where the cache layout has any.
  [[nodiscard]] SlabPool& state_pool() { return state_pool_; }
  [[nodiscard]] const SlabPool& state_pool() const { return state_pool_; }
  [[nodiscard]] const model::CacheLayout& cache_layout() const { return cache_layout_; }
  // The plan of the pass that ran or was counted last.
  [[nodiscard]] const PassPlan& last_plan() const { return workspace_.last_plan(); }

 private:
  void check(const api::Batch& batch) const;
  // Adds large tensors to the sink; a stage adds its part of them.
  void add_large_tensors(const api::Batch& batch, api::TensorSink& sink) const;
  void enable_adapter_training(const api::Batch& batch) const;
  void ensure_base_trainer();
  // Into the first free slot.
  api::AdapterSlot add_adapter(std::unique_ptr<model::LoraAdapter> adapter);

  EngineOptions options_;
  const model::Recompute inputs_offloaded_ = model::Recompute::offloading_layer_inputs();
  model::LoadedModel model_;
  PassWorkspace workspace_;
  model::CacheLayout cache_layout_;
  KvPool kv_pool_;
  SlabPool state_pool_;
  std::map<int32_t, std::unique_ptr<model::LoraAdapter>> adapters_;
  train::Share share_;
  std::unique_ptr<train::BaseTrainer> base_trainer_;
};

}  // namespace strata::engine
