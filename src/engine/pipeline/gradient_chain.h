// SPDX-License-Identifier: Apache-2.0
// GradientChain: gradients of a stage whose micro-batches ranks have dealt out among themselves.
// Each sum goes on from the rank of the micro-batch before to that of the next one, part by part
// (model/pass/gradient_turns.h) behind the backwards, and so has the order and the bits of one
// rank's. What the last micro-batch has made of an adapter goes to all, so that between batches
// each rank has all of its gradients, and steps alike; of the base parameters each owner gets its
// rows (train/ownership.h). A sum that no sequence of a micro-batch adds to goes through it. Where
// several copies of divided experts are, their gradients have a chain of their own over the ranks
// that have the same ones, whose micro-batches are those that a copy runs at once. Engine thread
// only.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "api/batch.h"
#include "engine/engine.h"
#include "engine/pipeline/owner_group.h"
#include "model/pass/gradient_turns.h"

namespace strata::engine {

// Among ranks that have a stage: of what they tell each other besides gradients of a batch, whose
// tags come behind these.
constexpr int64_t kLossTag = 0, kParameterTag = 1, kSumTag = 2, kTakenTag = 3, kFirstChainTag = 4;

class GradientChain {
 public:
  // Parts that a rank has on their way to another one of the same round, where it waits.
  static constexpr int kMostOnTheirWay = 2;

  // The group has the stage, and `engine` is this rank's of it. Borrows both. Its messages have
  // tags from kFirstChainTag on, those of no two stages the same. `may_wait`: of a batch of one
  // round, for who is to take them, so that no more than that are on their way; else all of a stage
  // may be, as are those that owners have of a batch before.
  GradientChain(const OwnerGroup& group, Engine& engine, bool may_wait)
      : group_(group), comm_(*group.ranks), engine_(engine), may_wait_(may_wait) {}

  // A micro-batch's turns with its gradients. Borrows the chain.
  class Link : public model::GradientTurns {
   public:
    Link() = default;
    Link(GradientChain& chain, size_t place) : chain_(&chain), place_(place) {}
    void begin(int64_t part) override { chain_->begin_part(part, place_); }
    void end(int64_t part) override { chain_->forward_part(part, place_); }

   private:
    GradientChain* chain_ = nullptr;
    size_t place_ = 0;
  };

  [[nodiscard]] bool is_of_experts() const { return group_.is_of_experts(); }
  // Before a batch, whose memory for gradients is there. `ranks`: of each micro-batch that has a
  // backward, in their order; or of experts of which copies run several at once, of each of these.
  void begin_batch(const api::Batch& batch, std::span<const int> ranks);
  // The link of the micro-batch of that place among them.
  [[nodiscard]] Link link(size_t place) { return {*this, place}; }
  // Behind the last backward of this rank: gets what the last micro-batch's has made.
  void finish_batch();

 private:
  using Views = std::vector<TensorView>;
  // Outside the layers first.
  [[nodiscard]] static int64_t index_of(int64_t part) { return part + model::kPartsOutside; }
  [[nodiscard]] Views& views_of(int64_t part) {
    return parts_[static_cast<size_t>(index_of(part))];
  }
  [[nodiscard]] static int64_t tag_of(int64_t part) { return kFirstChainTag + index_of(part); }
  // What is of the batch before; `ranks` are the next one's.
  void reset_batch_state(std::span<const int> ranks);
  void append_gradient(int64_t part, TensorView gradient);
  [[nodiscard]] int64_t part_of_layer(int64_t layer) const;
  // Rows of an accumulator that are in the part; none: it is of others.
  [[nodiscard]] train::OwnedRows rows_in(int64_t part, const train::Accumulator& sum) const;
  void add_parameter_views();
  void add_training_adapters(const api::Batch& batch);
  void add_adapter_views(model::LoraAdapter& adapter);
  // Adds what an adapter has of this rank's experts.
  void add_expert_views(const model::LoraAdapter& adapter);
  // Whether backwards of this stage have turns with the part.
  [[nodiscard]] bool is_here(int64_t part) const;
  void forward_part(int64_t part, size_t place);
  void send_to(int rank, int64_t part);
  // Gets the part's sums so far: from the pass before, from the owners, or zeros.
  void begin_part(int64_t part, size_t place);
  void receive_from(int rank, int64_t part);
  // Whether who sends a part to the next pass's rank is told when that has taken it.
  [[nodiscard]] bool is_told(int from, int to) const;
  // Before a part goes to a rank that tells.
  void begin_to_send(int rank);
  // Until no more than so many parts are on their way to the rank.
  void wait_for_receipts(int rank, int most);
  void list_parts_in_order();
  // How many parts of order_ of what the last micro-batch has made must have come when this part of
  // the micro-batch of that place has been sent, so that they do not pile up.
  [[nodiscard]] int64_t num_due_parts(int64_t part, size_t place) const;
  void receive_due_parts(int64_t part, size_t place);
  void receive_next();
  // What of base parameters' gradients is at rest moves: the own rows of a part to a rank, all
  // owners' rows of it here to be worked on, and what was worked on to all owners.
  void send_owned_rows(int rank, int64_t part);
  void send_all_owned_rows(int rank);
  void gather_from_owners(int64_t part);
  void scatter_to_owners(int64_t part);
  void receive_owned_rows(int64_t part);
  template <typename Body>
  void for_each_owned_rows(int64_t part, Body body);

  const OwnerGroup group_;
  Comm& comm_;
  Engine& engine_;
  const bool may_wait_;
  bool waits_ = false;             // in this batch
  std::vector<int> on_their_way_;  // parts to each rank
  std::vector<int64_t> order_;     // of the parts that there are, as backwards end them
  int64_t num_taken_ = 0;          // of them, that the last micro-batch has made
  std::vector<Views> parts_;
  std::vector<int> last_blocks_;  // of memory, that each part's last view is in; -1: none
  int block_ = 0;
  std::vector<model::LoraAdapter*> adapters_;  // that take gradients
  bool has_parameters_ = false;
  bool has_before_ = false;  // base parameters have gradients of a batch before
  std::vector<int> ranks_;
};

}  // namespace strata::engine
