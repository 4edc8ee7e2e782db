// SPDX-License-Identifier: Apache-2.0
// RankStages: the stages of a model that one rank has, and what joins it to the other ranks. The
// ranks of a pipeline have different stages; those that deal micro-batches out (the plan's `data`
// and `expert`) have the same ones, and each owns some rows of the base parameters
// (train/ownership.h); those of a tensor group divide each matrix of the same ones, and all have
// the same adapters. A model that is whole is one stage on one rank. Engine thread of its rank
// only.
#pragma once
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "backend/group_comm.h"
#include "base/function_ref.h"
#include "engine/pipeline/counted_comm.h"
#include "engine/pipeline/owner_group.h"
#include "engine/pipeline/stage_runner.h"

namespace strata::engine {

// Tags of a pipeline's messages, counted from PipelinePlan::gather_tag(): samples, both ends' parts
// of the embedding, rows of masters that rank 0 asks for, and masks of samples.
constexpr int64_t kStateTag = 2, kNewsTag = 3, kSwapTag = 5, kBorrowedTag = 6, kLentTag = 7,
                  kAskTag = 8, kRowsTag = 9, kMaskTag = 10;
// The tag of sums of squares that tensor ranks continue, behind those of model/tensor_ranks.h.
constexpr int64_t kSquaresTag = 2;

// Rows of a parameter, counted in the whole of it, that a rank owns; `first` is the first of them
// among those of which it has masters.
struct RowOwner {
  int rank = 0;
  train::OwnedRows rows;
  int64_t first = 0;
};

class RankStages {
 public:
  // A whole model, which it borrows.
  explicit RankStages(Engine& whole);
  // An engine for each stage of this rank, ascending. Borrows the plan.
  RankStages(Comm& comm, const PipelinePlan& plan, std::vector<std::unique_ptr<Engine>> engines);
  // A rank with one stage, which is borrowed too.
  RankStages(Comm& comm, const PipelinePlan& plan, Engine& stage);
  RankStages(const RankStages&) = delete;
  RankStages& operator=(const RankStages&) = delete;

  [[nodiscard]] const PipelinePlan& plan() const { return plan_; }
  // All ranks, without and with a count of what is sent.
  [[nodiscard]] Comm& all() const { return all_; }
  [[nodiscard]] CountedComm& everyone() { return everyone_; }
  // The ranks of this one's pipeline.
  [[nodiscard]] CountedComm& pipeline() { return pipeline_; }
  // The ranks that deal micro-batches out among themselves, and own rows of what trains; null where
  // each rank has all that it holds.
  [[nodiscard]] CountedComm* dealing() { return dealing_ ? &*dealing_ : nullptr; }
  // Those, and where several copies of the experts are dealt to ranks, the ones that have this
  // one's; none where dealing() is null.
  [[nodiscard]] std::span<const OwnerGroup> owner_groups() const { return owner_groups_; }
  [[nodiscard]] bool is_first_rank() const { return all_.rank() == 0; }
  // The ranks that have the other experts of a copy of them; null where there are none.
  [[nodiscard]] CountedComm* expert_ranks() { return experts_ ? &*experts_ : nullptr; }
  // The ranks that run the same passes with other outputs of each matrix; likewise.
  [[nodiscard]] CountedComm* tensor_ranks() { return tensor_ ? &*tensor_ : nullptr; }
  // Whether this rank's pipeline gives rank 0 what is gathered.
  [[nodiscard]] bool gathers() const { return all_.rank() % plan_.num_pipelines() == 0; }

  [[nodiscard]] std::vector<std::unique_ptr<StageRunner>>& runners() { return runners_; }
  // Empty where no ranks deal micro-batches out, else for each of this rank's stages one of each
  // owner group.
  [[nodiscard]] std::vector<std::unique_ptr<GradientChain>>& chains() { return chains_; }
  // The rank's first stage; its config, and its table but for what it holds, are the whole model's.
  [[nodiscard]] Engine& engine() { return runners_.front()->engine(); }
  [[nodiscard]] int first_stage() const { return runners_.front()->stage(); }
  // Null where the stage is another rank's.
  [[nodiscard]] StageRunner* find(int stage);

  // The rank of a pipeline that has the stage, and the rank of all that owns a part of it.
  [[nodiscard]] int rank_of(int stage) const { return plan_.ranks[static_cast<size_t>(stage)]; }
  [[nodiscard]] int owner_of(int stage, int dealing_rank, int tensor = 0) const {
    return plan_.rank_in_all(stage, dealing_rank, tensor);
  }
  [[nodiscard]] int tensor_rank() const { return plan_.tensor_share(all_.rank()).rank; }
  // The ranks of all that own a parameter's rows, in the order of these, each row once.
  [[nodiscard]] std::vector<RowOwner> owners_of_parameter(size_t index);
  // The stage that owns a parameter of the whole model's table.
  [[nodiscard]] int stage_of_parameter(size_t index);
  // Which rows of a stage's parameters each of the ranks owns that have what this tensor rank has,
  // or another.
  const train::Ownership& ownership_of_stage(int stage) {
    return ownership_of_stage(stage, tensor_rank());
  }
  const train::Ownership& ownership_of_stage(int stage, int tensor);
  // Before another rule of ownership holds.
  void clear_ownerships() { ownerships_.clear(); }

  // From now on the matrices that tensor ranks divide, and experts, are joined by these ranks.
  void connect_weights();

  // Frees what this rank has read of weights that ranks divide, and waits for all: what others ask
  // for is sent when all are here, so that it counts for the batch that took it.
  void release_divided_weights();
  // Bytes of this rank's weights that others of its machine have too, its part.
  [[nodiscard]] int64_t shared_weight_bytes() const;
  // All that this rank has sent to others.
  [[nodiscard]] SentBytes sent() const;

  // Pieces from one of all ranks to another, which asks for them, so that few are on their way.
  // `own` gives a piece on the first rank; on the second `place` says where it goes, and `take` is
  // called behind it. Views may be scratch of this rank's first stage.
  using PieceView = FunctionRef<TensorView(size_t piece)>;
  using TakePiece = FunctionRef<void(size_t piece, TensorView)>;
  void transfer_pieces(int from, int to, int64_t tag, size_t num_pieces, PieceView own,
                       PieceView place, TakePiece take);

 private:
  void list_owner_groups();
  void add_stage(int stage, Engine& engine);
  StageChains add_chains(Engine& engine);
  void copy_pieces(size_t num_pieces, PieceView own, PieceView place, TakePiece take);
  void request_pieces(int from, int64_t tag, size_t num_pieces, PieceView place, TakePiece take);
  void send_requested_pieces(int to, int64_t tag, size_t num_pieces, PieceView own);

  LoneComm alone_;
  const PipelinePlan own_plan_;  // of a whole model
  Comm& all_;
  const PipelinePlan& plan_;
  // None where there is one pipeline.
  std::optional<GroupComm> pipeline_group_, dealing_group_;
  // The latter again, and those of them that have this one's experts, for weights that they divide.
  std::optional<GroupComm> weights_group_, expert_weights_group_;
  // Ranks that divide each matrix, ranks that divide the experts, and those of several copies of
  // these that have the same ones.
  std::optional<GroupComm> tensor_group_, expert_group_, copies_group_;
  CountedComm pipeline_;
  std::optional<CountedComm> dealing_, tensor_, experts_, copies_;
  CountedComm everyone_;
  std::vector<OwnerGroup> owner_groups_;
  const std::vector<std::unique_ptr<Engine>> engines_;  // none where it is borrowed
  std::vector<std::unique_ptr<GradientChain>> chains_;
  std::vector<std::unique_ptr<StageRunner>> runners_;
  // Who owns what, for each tensor rank of each stage in turn; made when first needed.
  std::vector<train::Ownership> ownerships_;
};

}  // namespace strata::engine
