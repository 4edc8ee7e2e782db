// SPDX-License-Identifier: Apache-2.0
// PipelinePlan: how a model is divided into stages, and the schedule that its ranks run. Every rank
// makes the same one. Plain values. Any thread.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "backend/memory_share.h"
#include "model/pass/recompute.h"
#include "model/weights/expert_share.h"
#include "model/weights/layer_table.h"
#include "model/weights/weight_share.h"
#include "schedule/action.h"

namespace strata::engine {

struct PipelinePlan {
  schedule::Table table;                  // verified, with transfers
  std::vector<model::LayerRange> layers;  // of each stage, ascending
  std::vector<int> ranks;                 // of each stage
  model::RecomputeRegions regions = {};
  // Batches are of any length, of which a server's are: their micro-batches are no longer than a
  // pass.
  bool any_length = false;
  // Ranks that have the same stages, and deal the micro-batches out among themselves. Of two
  // neighbouring ranks of a run these differ, or where ranks divide experts, those.
  int data = 1;
  bool shard_weights = false;  // each of which, and of expert ranks, keeps a part of the weights
  // Ranks that divide each matrix of a stage, and run the same passes. Of two ranks that differ in
  // these alone as many are between as deal micro-batches out.
  int tensor = 1;
  // Ranks that divide the experts of such a model: one copy of these, of which there are as many as
  // data ranks. They deal passes out among themselves too, or each runs the same ones.
  int expert = 1;
  // Where those of one machine have a copy of the weights together: at least so many. 0: each has
  // one of its own.
  int weight_sharers = 0;

  // The share of the weights that one of all ranks keeps.
  [[nodiscard]] model::WeightShare weight_share(int rank) const {
    if (!shard_weights) return {};
    const MemoryShare copy = {rank / expert % data, data};
    return {.all = {rank % num_dealing(), num_dealing()},
            .experts = expert > 1 ? copy : MemoryShare()};
  }
  // The share of each matrix that one of all ranks has.
  [[nodiscard]] model::TensorShare tensor_share(int rank) const {
    return {rank / (data * expert) % tensor, tensor};
  }
  // The share of the experts, likewise.
  [[nodiscard]] model::ExpertShare expert_share(int rank) const { return {rank % expert, expert}; }
  // Ranks that deal micro-batches out among themselves, and own rows of all else than experts: data
  // ranks, expert ranks or, copy behind copy, both.
  [[nodiscard]] int num_dealing() const { return data * expert; }
  // The rank of all that has a stage, of those that have it by its places among the ranks that deal
  // micro-batches out, and among the tensor ranks.
  [[nodiscard]] int rank_in_all(int stage, int dealing_rank, int tensor_rank) const {
    return ranks[static_cast<size_t>(stage)] * num_pipelines() + tensor_rank * num_dealing() +
           dealing_rank;
  }
  // Ranks that have parts of a stage's weights.
  [[nodiscard]] int num_alike() const { return tensor * expert; }
  [[nodiscard]] int num_stages() const { return static_cast<int>(layers.size()); }
  // The ranks of one pipeline; and of all, one for each number of the data, tensors and experts.
  [[nodiscard]] int num_ranks() const { return table.num_ranks(); }
  [[nodiscard]] int num_pipelines() const { return data * num_alike(); }
  [[nodiscard]] int num_ranks_in_all() const { return num_ranks() * num_pipelines(); }
  // One stage and one micro-batch: no rank has other passes in flight.
  [[nodiscard]] bool is_whole() const { return num_stages() == 1 && table.num_microbatches == 1; }
  // A batch is run in rounds of the table, whose micro-batches have as many tokens as a pass has at
  // most; or in one round, divided by their number.
  [[nodiscard]] bool cuts_by_tokens() const { return is_whole() || any_length; }
  // Whether passes are in flight: between a forward and its backward others run.
  [[nodiscard]] bool has_flights() const { return !is_whole(); }
  // The stages of a rank, ascending.
  [[nodiscard]] std::vector<int> stages_of(int rank) const;
  // Whether the stage's weight gradients may come after its backwards.
  [[nodiscard]] bool defers_weight_gradients(int stage) const;
  // The first tag beyond those of messages over borders. Ranks gather in the same order, so one is
  // enough for that.
  [[nodiscard]] int64_t gather_tag() const {
    return int64_t{2} * num_stages() * table.num_microbatches;
  }
  // Where a layer is; of layer -1 the first stage or, for what comes after the layers, the last.
  [[nodiscard]] int stage_of_layer(int64_t layer) const;
};

// `table` holds a verified schedule with or without transfers. Throws Error for one that cannot
// run: backwards of a stage that do not ascend, whose sums would have other bits.
PipelinePlan make_pipeline_plan(const schedule::Table& table, int forwarding_delay,
                                std::vector<model::LayerRange> layers);

// A model of so many layers that nothing divides: the table of one stage and one pass.
PipelinePlan make_whole_plan(int64_t num_layers);

// Layers in `num_stages` runs whose largest cost is the least there is; `before` and `after` are
// what the first and the last run cost besides their layers. No run is empty.
std::vector<model::LayerRange> balance_layers(std::span<const double> costs, double before,
                                              double after, int num_stages);

}  // namespace strata::engine
