// SPDX-License-Identifier: Apache-2.0
#include "engine/pipeline/rank_stages.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "base/error.h"
#include "engine/pipeline/owners.h"
#include "model/expert_ranks.h"
#include "model/tensor_ranks.h"
#include "model/weights/weight_shards.h"
#include "ops/elementwise.h"

namespace strata::engine {
namespace {

// First tags of messages between ranks that deal micro-batches out, of these about experts of which
// there are several copies, and of weights that they divide, both likewise; those of pipelines are
// below. MPI's tags may end at 2^23 (pml_ucx of Open MPI 4), and several ranks of a process divide
// them.
constexpr int64_t kDataTag = 1 << 18, kCopiesTag = 5 << 16, kWeightTag = 3 << 17,
                  kExpertWeightTag = 7 << 16, kEndOfTags = 1 << 19;
constexpr int64_t kTensorTag = kEndOfTags - 4;  // of few messages, the last of weights' own
constexpr int64_t kExpertTag = kEndOfTags - 16;
constexpr int64_t kTagsBehindGather = 16;

std::function<Sent(int64_t)> make_tag_classifier(const PipelinePlan& plan) {
  return [end = plan.gather_tag()](int64_t tag) {
    if (tag < end) return tag % 2 == 0 ? Sent::kActivations : Sent::kActivationGradients;
    if (tag - end == kStateTag) return Sent::kActivations;
    if (tag - end == kLentTag) return Sent::kParameters;
    const bool is_gradient = tag - end == kSwapTag || tag - end == kBorrowedTag;
    return is_gradient ? Sent::kGradients : Sent::kResults;
  };
}

std::optional<GroupComm> make_pipeline_group(Comm& all, const PipelinePlan& plan) {
  const int pipelines = plan.num_pipelines();
  if (pipelines == 1) return {};
  return std::optional<GroupComm>(
      std::in_place, all,
      RankGroup{.first = all.rank() % pipelines, .stride = pipelines, .size = plan.num_ranks()});
}

// The ranks that deal micro-batches out with this one, in the order in which they do.
std::optional<GroupComm> make_dealing_group(Comm& all, const PipelinePlan& plan,
                                            int64_t first_tag) {
  const int ranks = plan.num_dealing();
  if (ranks == 1) return {};
  return std::optional<GroupComm>(
      std::in_place, all,
      RankGroup{.first = all.rank() / ranks * ranks, .size = ranks, .first_tag = first_tag});
}

// Those of them that have this one's experts; none where these are all.
std::optional<GroupComm> make_copies_group(Comm& all, const PipelinePlan& plan, int64_t first_tag) {
  if (plan.data == 1 || plan.expert == 1) return {};
  const int ranks = plan.num_dealing();
  const int first = all.rank() / ranks * ranks + all.rank() % plan.expert;
  return std::optional<GroupComm>(
      std::in_place, all,
      RankGroup{.first = first, .stride = plan.expert, .size = plan.data, .first_tag = first_tag});
}

std::optional<GroupComm> make_tensor_group(Comm& all, const PipelinePlan& plan) {
  if (plan.tensor == 1) return {};
  const int pipelines = plan.num_pipelines(), stride = plan.num_dealing();
  const int first = all.rank() / pipelines * pipelines + all.rank() % stride;
  return std::optional<GroupComm>(
      std::in_place, all,
      RankGroup{.first = first, .stride = stride, .size = plan.tensor, .first_tag = kTensorTag});
}

std::optional<GroupComm> make_expert_group(Comm& all, const PipelinePlan& plan) {
  if (plan.expert == 1) return {};
  const int first = all.rank() / plan.expert * plan.expert;
  return std::optional<GroupComm>(
      std::in_place, all, RankGroup{.first = first, .size = plan.expert, .first_tag = kExpertTag});
}

Sent kind_of_data_tag(int64_t tag) {
  if (tag >= kFirstChainTag) return Sent::kGradients;
  if (tag == kParameterTag) return Sent::kParameters;
  return tag == kLossTag ? Sent::kResults : Sent::kControl;
}

Sent kind_of_tensor_tag(int64_t tag) {
  if (tag == kSquaresTag) return Sent::kControl;
  return tag == model::TensorRanks::kGatherTag ? Sent::kActivations : Sent::kActivationGradients;
}

Sent kind_of_expert_tag(int64_t tag) {
  if (tag == model::kExpertGradientTag) return Sent::kGradients;
  if (tag == model::kExpertCountTag) return Sent::kControl;
  return tag == model::kExpertRowGradientTag ? Sent::kActivationGradients : Sent::kActivations;
}

std::optional<CountedComm> make_counted_comm(std::optional<GroupComm>& group,
                                             Sent (*kind_of)(int64_t tag)) {
  if (!group) return {};
  return std::optional<CountedComm>(std::in_place, *group, kind_of);
}

void check_tags(const Comm& all, const PipelinePlan& plan) {
  const int64_t of_pipeline = plan.gather_tag() + kTagsBehindGather;
  if (plan.num_dealing() > 1 && of_pipeline > kDataTag) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("ranks: {} stages of {} micro-batches have more messages than ranks "
                            "that deal them out can tell apart; want a product of at most {}",
                            plan.num_stages(), plan.table.num_microbatches,
                            (kDataTag - kTagsBehindGather) / 2));
  }
  const int64_t end = plan.num_pipelines() > 1 ? kEndOfTags : of_pipeline;
  if (end <= all.end_of_tags()) return;
  throw Error(ErrorCode::kUnsupported,
              fmt::format("ranks: {} tags of messages are needed, and MPI's transport has {} for "
                          "them; start more processes, each with fewer --stages",
                          end, all.end_of_tags()));
}

}  // namespace

RankStages::RankStages(Engine& whole)
    : own_plan_(make_whole_plan(whole.config().num_layers())),
      all_(alone_),
      plan_(own_plan_),
      pipeline_(alone_, make_tag_classifier(plan_)),
      everyone_(alone_, make_tag_classifier(plan_)) {
  add_stage(0, whole);
}

RankStages::RankStages(Comm& comm, const PipelinePlan& plan,
                       std::vector<std::unique_ptr<Engine>> engines)
    : all_(comm),
      plan_(plan),
      pipeline_group_(make_pipeline_group(comm, plan)),
      dealing_group_(make_dealing_group(comm, plan, kDataTag)),
      weights_group_(make_dealing_group(comm, plan, kWeightTag)),
      expert_weights_group_(make_copies_group(comm, plan, kExpertWeightTag)),
      tensor_group_(make_tensor_group(comm, plan)),
      expert_group_(make_expert_group(comm, plan)),
      copies_group_(make_copies_group(comm, plan, kCopiesTag)),
      pipeline_(pipeline_group_ ? *pipeline_group_ : comm, make_tag_classifier(plan)),
      dealing_(make_counted_comm(dealing_group_, kind_of_data_tag)),
      tensor_(make_counted_comm(tensor_group_, kind_of_tensor_tag)),
      experts_(make_counted_comm(expert_group_, kind_of_expert_tag)),
      copies_(make_counted_comm(copies_group_, kind_of_data_tag)),
      everyone_(comm, make_tag_classifier(plan)),
      engines_(std::move(engines)) {
  CHECK(plan.data == 1 || !plan.any_length, plan.data);
  check_tags(comm, plan);
  list_owner_groups();
  const std::vector<int> stages = plan.stages_of(pipeline_.rank());
  CHECK(!stages.empty() && stages.size() == engines_.size(), stages.size(), engines_.size());
  for (size_t i = 0; i < stages.size(); ++i) add_stage(stages[i], *engines_[i]);
}

RankStages::RankStages(Comm& comm, const PipelinePlan& plan, Engine& stage)
    : all_(comm),
      plan_(plan),
      pipeline_group_(make_pipeline_group(comm, plan)),
      dealing_group_(make_dealing_group(comm, plan, kDataTag)),
      tensor_group_(make_tensor_group(comm, plan)),
      expert_group_(make_expert_group(comm, plan)),
      pipeline_(pipeline_group_ ? *pipeline_group_ : comm, make_tag_classifier(plan)),
      dealing_(make_counted_comm(dealing_group_, kind_of_data_tag)),
      tensor_(make_counted_comm(tensor_group_, kind_of_tensor_tag)),
      experts_(make_counted_comm(expert_group_, kind_of_expert_tag)),
      everyone_(comm, make_tag_classifier(plan)) {
  CHECK(plan.data == 1, plan.data);
  check_tags(comm, plan);
  list_owner_groups();
  const std::vector<int> stages = plan.stages_of(pipeline_.rank());
  CHECK(stages.size() == 1, stages.size());
  add_stage(stages[0], stage);
}

void RankStages::add_stage(int stage, Engine& engine) {
  CHECK(engine.model().weights->part() == plan_.layers[static_cast<size_t>(stage)], stage);
  model::TensorRanks* const tensor_ranks = engine.model().weights->tensor_ranks();
  CHECK((tensor_ranks != nullptr) == tensor_.has_value(), plan_.tensor);
  if (tensor_ranks != nullptr) tensor_ranks->connect(*tensor_);
  model::ExpertRanks* const expert_ranks = engine.model().weights->expert_ranks();
  CHECK((expert_ranks != nullptr) == experts_.has_value(), plan_.expert);
  if (expert_ranks != nullptr) expert_ranks->connect(*experts_);
  if (model::WeightShards* shards = engine.model().weights->shards()) {
    CHECK(weights_group_, stage);
    shards->memory().connect_ranks(*weights_group_, int64_t{2} * stage);
    if (DividedMemory* experts = shards->expert_memory())
      experts->connect_ranks(*expert_weights_group_, int64_t{2} * stage);
  }
  const StageChains chains = add_chains(engine);
  runners_.push_back(std::make_unique<StageRunner>(pipeline_, plan_, stage, engine, chains));
}

// Who is an expert's next owner is as many ranks behind as divide the experts.
void RankStages::list_owner_groups() {
  if (dealing_) owner_groups_.push_back({.ranks = &*dealing_});
  if (copies_) {
    owner_groups_.push_back({.ranks = &*copies_,
                             .adds = train::AddedBy::kExpertCopies,
                             .first_owner = plan_.expert_share(all_.rank()).rank,
                             .stride = plan_.expert});
  }
}

StageChains RankStages::add_chains(Engine& engine) {
  if (dealing_) engine.set_share({dealing_->rank(), dealing_->size()});
  StageChains chains;
  for (const OwnerGroup& group : owner_groups_) {
    // In a pipeline who waits for a stage may keep others waiting, and it for them.
    chains_.push_back(
        std::make_unique<GradientChain>(group, engine, /*may_wait=*/plan_.num_stages() == 1));
    (group.is_of_experts() ? chains.experts : chains.all) = chains_.back().get();
  }
  return chains;
}

void RankStages::connect_weights() {
  for (const auto& runner : runners_) {
    model::ModelWeights& weights = *runner->engine().model().weights;
    if (model::TensorRanks* ranks = weights.tensor_ranks()) ranks->connect(*tensor_);
    if (model::ExpertRanks* ranks = weights.expert_ranks()) ranks->connect(*experts_);
  }
}

StageRunner* RankStages::find(int stage) {
  const auto found = std::find_if(runners_.begin(), runners_.end(),
                                  [&](const auto& runner) { return runner->stage() == stage; });
  return found == runners_.end() ? nullptr : found->get();
}

int RankStages::stage_of_parameter(size_t index) {
  const model::ModelWeights& weights = *engine().model().weights;
  const model::Parameter& parameter = weights.table()[index];
  if (parameter.layer >= 0) return plan_.stage_of_layer(parameter.layer);
  return weights.is_before_layers(index) ? 0 : plan_.num_stages() - 1;
}

std::vector<RowOwner> RankStages::owners_of_parameter(size_t index) {
  const model::Parameter& parameter = engine().model().weights->table()[index];
  std::vector<RowOwner> owners;
  const int stage = stage_of_parameter(index);
  for (int tensor = 0; tensor < plan_.tensor; ++tensor) {
    const model::TensorShare share = {tensor, plan_.tensor};
    const model::AxisPart own = parameter.own_rows_of(share);
    // Among all rows that the tensor rank has.
    const train::OwnedRows in_all = {parameter.num_lead_rows_of(share), own.count};
    for (int owner = 0; owner < plan_.num_dealing(); ++owner) {
      const train::OwnedRows& owned = ownership_of_stage(stage, tensor).rows(owner, index);
      const train::OwnedRows rows = owned.shared_with(in_all);
      if (rows.empty()) continue;
      owners.push_back({.rank = owner_of(stage, owner, tensor),
                        .rows = {own.first + rows.first - in_all.first, rows.count},
                        .first = rows.first - owned.first});
    }
  }
  return owners;
}

const train::Ownership& RankStages::ownership_of_stage(int stage, int tensor) {
  for (int i = static_cast<int>(ownerships_.size()); i < plan_.num_stages() * plan_.tensor; ++i)
    ownerships_.push_back(ownership_of(plan_, i / plan_.tensor, i % plan_.tensor, engine()));
  return ownerships_[static_cast<size_t>(stage * plan_.tensor + tensor)];
}

void RankStages::release_divided_weights() {
  if (engine().model().weights->shards() == nullptr) return;
  for (const auto& runner : runners_) runner->engine().model().weights->release_divided_weights();
  std::vector<double> nothing;
  dealing_->all_gather({}, nothing);
}

int64_t RankStages::shared_weight_bytes() const {
  int64_t bytes = 0;
  for (const auto& runner : runners_) bytes += runner->engine().model().weights->shared_bytes();
  return bytes;
}

SentBytes RankStages::sent() const {
  SentBytes sent = pipeline_.sent();
  sent += everyone_.sent();
  if (dealing_) sent += dealing_->sent();
  if (copies_) sent += copies_->sent();
  if (tensor_) sent += tensor_->sent();
  if (experts_) sent += experts_->sent();
  for (const auto& runner : runners_) {
    const model::WeightShards* shards = runner->engine().model().weights->shards();
    if (shards == nullptr) continue;
    sent[Sent::kParameters] += shards->answered_bytes();
    sent[Sent::kControl] += shards->asked_bytes();
  }
  return sent;
}

void RankStages::transfer_pieces(int from, int to, int64_t tag, size_t num_pieces, PieceView own,
                                 PieceView place, TakePiece take) {
  if (all_.rank() == to) {
    if (from == to)
      copy_pieces(num_pieces, own, place, take);
    else
      request_pieces(from, tag, num_pieces, place, take);
  } else if (all_.rank() == from) {
    send_requested_pieces(to, tag, num_pieces, own);
  }
}

void RankStages::copy_pieces(size_t num_pieces, PieceView own, PieceView place, TakePiece take) {
  Backend& backend = engine().backend();
  for (size_t i = 0; i < num_pieces; ++i) {
    const Scratch::Mark mark(backend.scratch());
    const TensorView rows = place(i);
    ops::copy(backend, own(i), rows);
    take(i, rows);
  }
}

void RankStages::request_pieces(int from, int64_t tag, size_t num_pieces, PieceView place,
                                TakePiece take) {
  const auto request_one = [&] { everyone_.send_bytes(from, tag, nullptr, 0); };
  const size_t ahead = std::min(size_t{train::kPiecesAhead}, num_pieces);
  for (size_t i = 0; i < ahead; ++i) request_one();
  for (size_t i = 0; i < num_pieces; ++i) {
    const Scratch::Mark mark(engine().backend().scratch());
    const TensorView rows = place(i);
    everyone_.receive(from, tag, rows);
    take(i, rows);
    if (i + ahead < num_pieces) request_one();
  }
}

void RankStages::send_requested_pieces(int to, int64_t tag, size_t num_pieces, PieceView own) {
  for (size_t i = 0; i < num_pieces; ++i) {
    const Scratch::Mark mark(engine().backend().scratch());
    everyone_.receive_bytes(to, tag, nullptr, 0);
    everyone_.send(to, tag, own(i));
  }
}

}  // namespace strata::engine
