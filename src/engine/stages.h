// SPDX-License-Identifier: Apache-2.0
// Stages: the stages of a model that one thread, the engine thread, asks for work: one that is the
// whole model, or several, each of a rank of its own, which are threads of this process. Adapter
// slots are the same everywhere. Passes, optimizer steps and sampling steps run on all ranks at
// once; between them, and in a break of a pass, what stages keep is the engine thread's to look at
// and to change (backend/rank_threads.h). Engine thread only.
//   Stages stages(plan, std::move(engines));  stages.run(batch);  stages.step(slot, adamw);
// Or this process has one of the stages, and others have the rest: then all of them make the same
// calls, and what changes stages is collective, also in a break, which comes to all. Where one
// fails, all throw its Error, and other calls can follow. Files are read and written by the first
// rank alone.
//   Stages stages(comm, plan, std::move(engine));
#pragma once
#include <memory>
#include <vector>

#include "backend/comm.h"
#include "backend/rank_threads.h"
#include "base/function_ref.h"
#include "base/threads.h"
#include "engine/adapter_state.h"
#include "engine/runner.h"

namespace strata::engine {

// An adapter's part of each stage.
using StagedAdapter = std::vector<std::shared_ptr<model::LoraAdapter>>;

class Stages {
 public:
  // One stage, the whole model. Borrows it.
  explicit Stages(Runner& whole);
  // An engine a stage, and a rank a stage.
  Stages(PipelinePlan plan, std::vector<std::unique_ptr<Engine>> engines);
  // The stage of this rank among processes. Borrows their Comm.
  Stages(Comm& comm, PipelinePlan plan, std::unique_ptr<Engine> stage);
  Stages(const Stages&) = delete;
  Stages& operator=(const Stages&) = delete;

  // That are in this process.
  [[nodiscard]] size_t size() const { return stages_.size(); }
  [[nodiscard]] const PipelinePlan& plan() const { return plan_; }
  // Whether other processes have stages of the model; and whether this one answers for all.
  [[nodiscard]] bool has_other_processes() const { return processes_ != nullptr; }
  [[nodiscard]] bool is_first_process() const {
    return processes_ == nullptr || processes_->rank() == 0;
  }
  // Does this process's part of what all do. Where one throws, all throw its Error.
  void run_in_all_processes(FunctionRef<void()> body) const;
  // Whether it is so on any process.
  [[nodiscard]] bool is_so_on_any_process(bool on_this) const;
  // The engine of a stage; the first one's config and, but for what it holds, its table are the
  // whole model's.
  [[nodiscard]] Engine& engine(size_t stage = 0) { return *stages_[stage].engine; }
  [[nodiscard]] const Engine& engine(size_t stage = 0) const { return *stages_[stage].engine; }
  // What samples it; its passes break in on training passes.
  [[nodiscard]] Runner& sampler(size_t stage) { return *stages_[stage].sampler; }
  [[nodiscard]] PassWorkspace& sampling(size_t stage = 0) { return *stages_[stage].sampling; }
  // Tokens that training passes which run at once may have in all.
  [[nodiscard]] int64_t pass_tokens() const;

  // Calls body once for every stage of this process, each on its rank's thread, in all processes;
  // also in breaks of run(). It may ask sampler() for work.
  void run_sampling(FunctionRef<void(int stage)> body);
  // As Runner has them. `breaks`, if not null: what breaks in on passes.
  api::BatchResult run(const api::Batch& batch, const Interruption* breaks = nullptr);
  [[nodiscard]] double fraction_done() const { return stages_[0].passes->fraction_done(); }
  api::StepResult step(api::AdapterSlot slot, const api::AdamW& adamw);

  // An adapter that trains.
  api::AdapterSlot create_training_adapter(const std::vector<model::LoraModuleSpec>& specs,
                                           uint64_t seed);
  void clear_adapter(api::AdapterSlot slot);
  template <typename Body>
  void for_adapter(api::AdapterSlot slot, Body body) {
    for (Stage& stage : stages_) body(stage.engine->adapter(slot));
  }
  // Enables training and copies the adapter with its moments, for files.
  AdapterCopy copy_training_state(api::AdapterSlot slot);
  // Likewise, the parts of what nothing trains put together; of a whole model the part itself.
  std::shared_ptr<const model::LoraAdapter> merge_parts(const StagedAdapter& parts);
  // New adapters with the weights of this one, which do not train.
  StagedAdapter copy_adapter(api::AdapterSlot slot);
  // Also in a break.
  void restore(const std::vector<AdapterCopy>& parts, api::AdapterSlot slot);
  // Memory that an adapter of these modules takes, with or without gradients and moments.
  [[nodiscard]] int64_t adapter_bytes(const std::vector<model::LoraModuleSpec>& specs,
                                      bool trains) const;
  // The parts of what the first process has read as a whole, with the moments if `moments`: of an
  // adapter of these modules, or of the modules that it has found. Collective, of processes.
  std::vector<AdapterCopy> scatter(const AdapterCopy& whole,
                                   const std::vector<model::LoraModuleSpec>& specs, bool moments);
  StagedAdapter scatter(const AdapterCopy& whole);
  // Memory of a state of this adapter while it is read from files, with or without moments.
  [[nodiscard]] int64_t state_bytes(api::AdapterSlot slot, bool moments);

 private:
  struct Stage {
    // None where they are borrowed.
    std::unique_ptr<Engine> own = {};
    std::unique_ptr<Runner> own_passes = {}, own_sampler = {};
    Engine* engine = nullptr;
    Runner* passes = nullptr;
    Runner* sampler = nullptr;
    std::unique_ptr<PassWorkspace> sampling = {};
  };

  void add_stage(Stage stage);
  // The processes' Comm for all but passes and steps, in whose midst it may be used.
  [[nodiscard]] Comm& bookkeeping_comm() const { return processes_->breaking(); }
  void run_settled(Comm& processes, FunctionRef<void()> body) const;
  api::BatchResult run_in_this_process(const api::Batch& batch, const Interruption* breaks);

  [[nodiscard]] std::shared_ptr<const model::LoraAdapter> gather_weights(
      const model::LoraAdapter& part);

  Comm* const processes_ = nullptr;  // null: this one has all stages
  const PipelinePlan plan_;
  std::vector<Stage> stages_;
  RankThreads ranks_;  // of a whole model, and of one stage, this thread alone
};

}  // namespace strata::engine
