// SPDX-License-Identifier: Apache-2.0
// Runner: runs passes and optimizer steps of a model, as one rank of those that it is divided among
// with the stages that this rank has; a model that is whole is one stage on one rank, and its
// table of actions the shortest there is. All ranks make the same calls: each runs the same program
// on the same batch, and gets the same losses and norms; the large results come to rank 0.
// Gradients, weights and every result have the bits that one stage gives: micro-batches are the
// passes that it would make, sums go over them in order, and a norm is added up from what each
// stage sums of its own, in the order of the whole. Ranks that have the same stages (the plan's
// `data`) deal micro-batches out among themselves, and each keeps and steps its own rows of the
// base parameters (train/ownership.h); in all else they are alike between batches. So do ranks that
// divide the experts (the plan's `expert`), which keep and step their own ones, or rows of them
// where there are several copies.
//   Runner runner(engine); runner.run(batch, &sink); runner.step(slot, adamw);
//   run_ranks(plan.num_ranks(), [&](Comm& comm) {
//     Runner runner(comm, plan, engines_of(plan.stages_of(comm.rank())));
//     runner.run(batch, &sink);
//   });
// Engine thread of its rank only.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "api/batch.h"
#include "api/tensor_sink.h"
#include "backend/comm.h"
#include "base/function_ref.h"
#include "engine/pipeline/plan.h"
#include "engine/pipeline/rank_gather.h"
#include "engine/pipeline/round.h"
#include "engine/pipeline/sent_bytes.h"
#include "train/optimizer.h"

namespace strata::engine {

class Engine;
class RankStages;
class StageRunner;
class TiedEmbedding;

class Runner {
 public:
  // A whole model, which it borrows.
  explicit Runner(Engine& whole);
  // An engine for each stage of this rank, ascending. Borrows the plan.
  Runner(Comm& comm, const PipelinePlan& plan, std::vector<std::unique_ptr<Engine>> engines);
  // A rank with one stage, which is borrowed too.
  Runner(Comm& comm, const PipelinePlan& plan, Engine& stage);
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;
  ~Runner();

  // All ranks.
  [[nodiscard]] Comm& comm();
  [[nodiscard]] bool is_first_rank() const;
  [[nodiscard]] const PipelinePlan& plan() const;
  // The rank's first stage; its config, and its table but for what it holds, are the whole model's.
  [[nodiscard]] Engine& engine();
  [[nodiscard]] std::vector<std::unique_ptr<StageRunner>>& stages();
  // Adapters and base parameters, put together on rank 0.
  [[nodiscard]] RankGather& gather() { return *gather_; }

  // Each stage has its own modules of an adapter; slots are the same everywhere.
  api::AdapterSlot create_adapter(const std::vector<model::LoraModuleSpec>& specs, uint64_t seed);
  api::AdapterSlot load_adapter(const std::string& dir);
  // The adapter's part of every stage of this rank.
  void for_adapter(api::AdapterSlot slot, FunctionRef<void(model::LoraAdapter&)> body);

  // Scores and, if asked, accumulates gradients. On rank 0 `sink` gets the large results; it may be
  // null when none is wanted. Neighbours share passes where both take gradients, or neither does:
  // rows that take none would go through backward all the same. All sequences are checked before
  // the first is run, long ones against the memory of a pass too: an Error names the sequence and
  // field at fault and changes nothing.
  api::BatchResult run(const api::Batch& batch, api::TensorSink* sink = nullptr);
  // How much of the batch that run() is at is done, from 0 to 1, by the layers of this rank's first
  // stage: for what breaks in on its passes.
  [[nodiscard]] double fraction_done() const;
  // kBase: the base parameters.
  api::StepResult step(api::AdapterSlot slot, const api::AdamW& adamw);
  // Bytes of this rank's weights that others of its machine have too, its part.
  [[nodiscard]] int64_t shared_weight_bytes() const;
  // All that this rank has sent to others for batches, steps and samples, and to gather.
  [[nodiscard]] SentBytes sent() const;
  // What each rank will send for a batch and the steps behind it (engine/pipeline/sent_plan.h).
  // Where ranks have parts of a stage's weights all make the call, and tell each other what stages
  // send.
  std::vector<SentBytes> plan_sends(const api::Batch& batch,
                                    std::span<const api::AdapterSlot> stepped);
  // Before gradients are read: what two stages hold of one matrix is added up on both.
  void finish_adapter_gradients(api::AdapterSlot slot);

  // From now on weights that ranks divide are this runner's: where another one has the same.
  void connect_weights();

  // A sampling step, of ranks with a stage each. The state that the stage before has sent, and what
  // is sent to the next one; nothing where the model begins or ends.
  void receive_state(TensorView state);
  void send_state(TensorView state);
  // From the rank of the last stage to every other.
  void broadcast_from_last_stage(std::string& bytes);
  // From rank 0 to all ranks of the last stage; whether this is one that was told.
  bool tell_last_stage(std::string& bytes);
  // Rank 0's answer.
  [[nodiscard]] bool broadcast_decision(bool of_first_rank);

  // Base training. What two stages hold of one matrix is added up before gradients are read.
  void enable_base_steps(const train::BaseStep& how);
  void finish_base_gradients();
  void zero_base_gradients();
  // After masters were overwritten: each owner's are what products read, on every rank.
  void refresh_base_weights();

  // The lists of a batch's result: what the last stage gives, and the sums over layers that
  // backwards end in the first.
  enum class LossLists : uint8_t { kOfEnd, kOfIndexers };

 private:
  explicit Runner(std::unique_ptr<RankStages> here);
  [[nodiscard]] int stage_with(LossLists lists) const;
  void start_rounds(const api::Batch& batch);
  // Whether the batch's round that is next or under way has backwards.
  [[nodiscard]] bool runs_backward(const api::Batch& batch) const {
    return batch.want_loss && round_.backward;
  }
  void begin_progress_of_round(const api::Batch& batch);
  void run_actions(const api::Batch& batch);
  // Which rank has which of a batch's micro-batches that are dealt out.
  void deal_microbatches(const api::Batch& batch);
  template <typename Body>
  void for_each_list_dealt_to(int rank, const api::Batch& batch, LossLists lists,
                              api::BatchResult& result, Body body);
  void send_losses(Comm& comm, int64_t tag, const api::Batch& batch, LossLists lists,
                   api::BatchResult& result, int dealt_to);
  void receive_losses(Comm& comm, int from, int64_t tag, const api::Batch& batch, LossLists lists,
                      api::BatchResult& result, int dealt_to);
  // From each of the ranks that have the lists' stage to the others of them.
  void exchange_losses(const api::Batch& batch, LossLists lists, api::BatchResult& result);
  void sum_expert_loads();
  // From that stage to every rank of a pipeline.
  void broadcast_losses(const api::Batch& batch, LossLists lists, api::BatchResult& result);
  // All lists to all ranks.
  void distribute_losses(const api::Batch& batch, api::BatchResult& result);
  void add_large_tensors(const api::Batch& batch, int64_t num_tokens, api::TensorSink* sink);
  void gather_large_results(const api::Batch& batch, api::TensorSink* sink);
  void gather_hidden_states(int64_t num_tokens, api::TensorSink* sink);
  void gather_result_part(const std::string& name, int stage, api::TensorSink* sink, int64_t first,
                          int64_t count);
  double gather_global_norm();
  // Adds up sums of which one rank each has what is not zero.
  void sum_over_ranks(Comm& ranks);
  // Where ranks divide the experts: each gets the others' gradients of an adapter's experts.
  void exchange_expert_gradients(api::AdapterSlot slot);
  // What each stage and rank has of the base parameters' gradients, or this rank's stages of an
  // adapter's, into sums_.
  void sum_base_squares();
  void sum_own_squares();
  void continue_sums_over_ranks(Comm& tensor);
  void sum_adapter_squares(api::AdapterSlot slot);
  api::StepResult step_base(const api::AdamW& adamw);
  api::StepResult step_adapter(api::AdapterSlot slot, const api::AdamW& adamw);

  const std::unique_ptr<RankStages> here_;
  const std::unique_ptr<RankGather> gather_;
  const std::unique_ptr<TiedEmbedding> embedding_;
  // What fraction_done() says of the batch, in tokens, and how far the round that runs is, in
  // layers.
  struct Progress {
    double total = 0.0, done = 0.0, round = 0.0;
    int64_t layers_before = 0, layers = 0;
  };
  Progress progress_;
  // Reused from batch to batch.
  Round round_;
  // Ranks that they were dealt to; and of micro-batches that run at once the copies of experts that
  // run them.
  std::vector<int> of_sequences_, of_backwards_, of_backward_groups_;
  std::vector<double> sums_, all_sums_;
  std::vector<float> shared_;
};

}  // namespace strata::engine
