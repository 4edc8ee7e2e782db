// SPDX-License-Identifier: Apache-2.0
// Runner: runs passes and optimizer steps of a model, as one rank of those that it is divided among
// with the stages that this rank has; a model that is whole is one stage on one rank, and its
// table of actions the shortest there is. All ranks make the same calls: each runs the same program
// on the same batch, and gets the same losses and norms; the large results come to rank 0.
// Gradients, weights and every result have the bits that one stage gives: micro-batches are the
// passes that it would make, sums go over them in order, and a norm is added up from what each
// stage sums of its own, in the order of the whole. Ranks that have the same stages (the plan's
// `data`) deal micro-batches out among themselves, and each keeps and steps its own rows of the
// base parameters (train/ownership.h); in all else they are alike between batches.
//   Runner runner(engine); runner.run(batch, &sink); runner.step(slot, adamw);
//   run_ranks(plan.num_ranks(), [&](Comm& comm) {
//     Runner runner(comm, plan, engines_of(plan.stages_of(comm.rank())));
//     runner.run(batch, &sink);
//   });
// Engine thread of its rank only.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/group_comm.h"
#include "base/function_ref.h"
#include "engine/pipeline/counted_comm.h"
#include "engine/pipeline/stage_runner.h"

namespace strata::engine {

// Behind the tag of what is gathered (PipelinePlan::gather_tag): of what two stages hold of one
// matrix, and of rows that rank 0 asks for.
constexpr int64_t kSwapTag = 5, kBorrowedTag = 6, kLentTag = 7, kAskTag = 8, kRowsTag = 9;

class Runner {
 public:
  // Of a whole model. Borrows it.
  explicit Runner(Engine& whole);
  // An engine for each stage of this rank, ascending. Borrows the plan.
  Runner(Comm& comm, const PipelinePlan& plan, std::vector<std::unique_ptr<Engine>> engines);
  // The same of a rank's one stage, which is borrowed too.
  Runner(Comm& comm, const PipelinePlan& plan, Engine& stage);
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;

  // Of all ranks.
  [[nodiscard]] Comm& comm() { return all_; }
  [[nodiscard]] bool is_first_rank() const { return all_.rank() == 0; }
  [[nodiscard]] const PipelinePlan& plan() const { return plan_; }
  // The rank's first stage; its config, and its table but for what it holds, are the whole model's.
  [[nodiscard]] Engine& engine() { return runners_.front()->engine(); }
  [[nodiscard]] std::vector<std::unique_ptr<StageRunner>>& stages() { return runners_; }

  // Each stage has its own modules of an adapter; slots are the same everywhere.
  api::AdapterSlot create_adapter(const std::vector<model::LoraModuleSpec>& specs, uint64_t seed);
  api::AdapterSlot load_adapter(const std::string& dir);
  // Of every stage of this rank.
  template <typename Body>
  void for_adapter(api::AdapterSlot slot, Body body) {
    for (const auto& runner : runners_) body(runner->engine().adapter(slot));
  }
  // Rank 0 gets the whole adapter, with gradients and moments where it trains, until the next call;
  // the others null.
  const model::LoraAdapter* gather_adapter(api::AdapterSlot slot);

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
  // Of this rank's weights, its part of what others of the machine have too.
  [[nodiscard]] int64_t shared_weight_bytes() const;
  // All that this rank has sent to others for batches, steps and samples, and to gather.
  [[nodiscard]] SentBytes sent() const;
  // Before gradients are read: what two stages hold of one matrix is added up on both.
  void finish_adapter_gradients(api::AdapterSlot slot);

  // A sampling step, of ranks with a stage each. The state that the stage before has sent, and what
  // is sent to the next one; nothing where the model begins or ends.
  void receive_state(TensorView state);
  void send_state(TensorView state);
  // From the rank of the last stage to every other.
  void broadcast_from_last_stage(std::string& bytes);
  // Rank 0's answer.
  [[nodiscard]] bool broadcast_decision(bool of_first_rank);

  // Base training. finish: likewise.
  void enable_base_steps(const train::BaseStep& how);
  void finish_base_gradients();
  void zero_base_gradients();
  enum class BaseValues { kGradients, kMasters, kFirstMoments, kSecondMoments, kRouterBias };
  // Fills `values` (the parameter's, dense) on rank 0; elsewhere it may be empty.
  void gather_base_values(size_t index, BaseValues which, std::span<float> values);
  // The same of all that has such values but routers' biases, in the table's order: rank 0 takes it
  // piece by piece.
  void gather_all_base_values(BaseValues which, FunctionRef<void(TensorView)> take);
  // While rank 0's body runs, the others give it what it reads of masters, in any order.
  using ReadRows = FunctionRef<void(size_t index, int64_t first_row, TensorView rows)>;
  void run_with_masters_served(FunctionRef<void(ReadRows read)> body);
  // After masters were overwritten: each owner's are what products read, on every rank.
  void refresh_base_weights();

  // Of a batch: what the last stage gives, and the sums over layers that backwards end in the
  // first.
  enum class LossLists : uint8_t { kOfEnd, kOfIndexers };

 private:
  std::unique_ptr<model::LoraAdapter> make_whole_adapter(const model::LoraAdapter& own);
  void gather_modules(api::AdapterSlot slot, int stage, size_t first, size_t last);
  [[nodiscard]] int rank_of(int stage) const { return plan_.ranks[static_cast<size_t>(stage)]; }
  [[nodiscard]] int stage_with(LossLists lists) const {
    return lists == LossLists::kOfIndexers ? 0 : plan_.num_stages() - 1;
  }
  // Null where it is another rank's.
  [[nodiscard]] StageRunner* stage_here(int stage);
  [[nodiscard]] int stage_of_parameter(size_t index);
  [[nodiscard]] int stage_of_module(const model::LoraModule& module) const;
  void add_stage(int stage, Engine& engine);
  // Whether this rank's pipeline gives rank 0 what is gathered.
  [[nodiscard]] bool gathers() const { return !data_ || data_->rank() == 0; }
  void start_rounds(const api::Batch& batch);
  // Of the batch's round that is next or under way.
  [[nodiscard]] bool runs_backward(const api::Batch& batch) const {
    return batch.want_loss && round_.backward;
  }
  void begin_progress_of_round(const api::Batch& batch);
  void run_actions(const api::Batch& batch);
  // Of weights that ranks divide each has its part alone.
  void release_weights_and_wait_for_all();
  // Of a batch whose micro-batches are dealt out: which rank has which.
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
  // Pieces from one rank to another, which asks for them, so that few are on their way. Views may
  // be scratch of this rank's first stage.
  using PieceView = FunctionRef<TensorView(size_t piece)>;
  void transfer_pieces(int from, int to, int64_t tag, size_t num_pieces, PieceView own,
                       PieceView place, FunctionRef<void(size_t piece, TensorView)> take);
  // One rank of both; the two ends of a transfer.
  void copy_pieces(size_t num_pieces, PieceView own, PieceView place,
                   FunctionRef<void(size_t piece, TensorView)> take);
  void request_and_take_pieces(int from, int64_t tag, size_t num_pieces, PieceView place,
                               FunctionRef<void(size_t piece, TensorView)> take);
  void send_requested_pieces(int to, int64_t tag, size_t num_pieces, PieceView own);
  // Of the embedding, where the last stage reads it and the first one owns it.
  void swap_embedding_gradients(api::AdapterSlot slot);
  void reduce_embedding_gradients();
  void reduce_embedding_rows(int use, const train::OwnedRows& resting, int from, int owner);
  void send_embedding_to_last_stage();
  void send_embedding_rows(int owner, int to);
  void gather_hidden_states(int64_t num_tokens, api::TensorSink* sink);
  void gather_result_part(const std::string& name, int stage, api::TensorSink* sink, int64_t first,
                          int64_t count);
  // Of ranks in all: that which owns some of a stage.
  [[nodiscard]] int owner_of(int stage, int data) const {
    return rank_of(stage) * plan_.data + data;
  }
  const train::Ownership& ownership_of_stage(int stage);
  // Of a parameter's values those of the rows that an owner has, where it is this rank.
  TensorView owned_values_here(size_t index, BaseValues which, int owner);
  [[nodiscard]] int64_t num_owned_values(size_t index, BaseValues which, int data);
  // Of an owner's values of a parameter piece after piece, on rank 0.
  void gather_owned_values(size_t index, BaseValues which, int data,
                           FunctionRef<void(std::span<float>)> take);
  void serve_masters();
  // `rows`: of the owner's own.
  void request_masters(int owner, size_t index, const train::OwnedRows& rows, TensorView to);
  void read_masters(size_t index, int64_t first_row, TensorView rows);
  double gather_global_norm();
  // Of each sum one rank has what is not zero.
  void sum_over_data_ranks();
  // What each stage and rank has of the base parameters' gradients, or this rank's stages of an
  // adapter's, into sums_.
  void sum_base_squares();
  void sum_adapter_squares(api::AdapterSlot slot);
  api::StepResult step_base(const api::AdamW& adamw);
  api::StepResult step_adapter(api::AdapterSlot slot, const api::AdamW& adamw);
  // A tensor to rank 0 from one of all ranks; `from` matters there, `to` on rank 0.
  void gather_tensor(int owner, TensorView from, TensorView to);

  LoneComm alone_;
  const PipelinePlan own_plan_;  // of a whole model
  Comm& all_;
  const PipelinePlan& plan_;
  // Of one pipeline, and of the ranks with this one's stages; none where there is one pipeline.
  std::optional<GroupComm> pipeline_, data_group_;
  std::optional<GroupComm> weights_group_;  // of the same ranks, for weights that they divide
  CountedComm comm_;                        // of the pipeline
  std::optional<CountedComm> data_;
  CountedComm everyone_;
  const std::vector<std::unique_ptr<Engine>> engines_;  // none where it is borrowed
  std::vector<std::unique_ptr<GradientChain>> chains_;  // of each stage here, likewise
  std::vector<std::unique_ptr<StageRunner>> runners_;
  int first_stage_ = 0;  // of this rank's
  std::unique_ptr<model::LoraAdapter> whole_;
  std::vector<train::Ownership> ownerships_;  // of each stage, made when first needed
  // What fraction_done() says of the batch, in tokens, and how far the round that runs is, in
  // layers.
  struct Progress {
    double total = 0.0, done = 0.0, round = 0.0;
    int64_t layers_before = 0, layers = 0;
  };
  Progress progress_;
  // Reused.
  Round round_;
  std::vector<int> of_sequences_, of_backwards_;  // ranks that they were dealt to
  std::vector<double> sums_, all_sums_;
  std::vector<float> shared_;
};

}  // namespace strata::engine
