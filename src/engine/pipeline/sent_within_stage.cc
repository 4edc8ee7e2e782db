// SPDX-License-Identifier: Apache-2.0
// What ranks that have parts of a stage's weights send to each other for a batch
// (engine/pipeline/sent_plan.h).
#include "engine/pipeline/dealt_rows.h"
#include "engine/pipeline/sent_plan.h"
#include "model/expert_ranks.h"
#include "model/tensor_ranks.h"

namespace strata::engine {
namespace {

// Counts what the ranks of a stage send that run micro-batches at once: those of a copy of the
// experts, or one that has all; and what the tensor ranks of each of them send each other.
class MessageCounter {
 public:
  MessageCounter(const PipelinePlan& plan, int stage, Engine& engine, const api::Batch& batch,
                 std::vector<SentBytes>& all)
      : plan_(plan),
        stage_(stage),
        engine_(engine),
        batch_(batch),
        experts_(engine.model().weights->expert_ranks()),
        tensors_(engine.model().weights->tensor_ranks()),
        all_(all) {}

  [[nodiscard]] const StageWaits& waits() const { return waits_; }

  void add_copy(int copy) {
    Round round;
    round.dealt = copy * plan_.expert;
    round.num_dealt = plan_.num_dealing();
    round.num_at_once = plan_.expert;
    while (next_round(plan_, engine_.options().pass_tokens, batch_, round)) {
      for (int own = 0; round.any_has(own); ++own) add_group(round, own);
    }
  }

 private:
  SentBytes& of(int dealing_rank, int tensor) {
    return all_[static_cast<size_t>(plan_.rank_in_all(stage_, dealing_rank, tensor))];
  }

  void add_group(const Round& round, int own) {
    if (experts_ != nullptr)
      lay_out_dealt_rows(engine_, batch_, round.firsts_of_group(own), round.num_at_once, dealt_);
    // One pass counts what all expert ranks send, and what its own tensor ranks do.
    const int num_counted = tensors_ == nullptr ? 1 : round.num_at_once;
    for (int rank = 0; rank < num_counted; ++rank) {
      reset_counts();
      count_pass(round, round.place_of(own) + static_cast<size_t>(rank));
      if (rank == 0) add_expert_messages(round.dealt);
      if (rank == 0) add_waits();
      add_tensor_messages(round.dealt + rank);
    }
  }

  void reset_counts() {
    if (experts_ != nullptr) experts_->reset_count();
    if (tensors_ != nullptr) tensors_->reset_count();
  }

  // Runs the pass on a backend that only counts.
  void count_pass(const Round& round, size_t place) {
    MicroBatch rows;
    PassWork work = collate_place_of_round(engine_, batch_, round, place, rows);
    if (experts_ != nullptr) work.dealt = &dealt_;
    engine_.workspace().measure(
        [&](Backend& counter) { count_pass_memory(counter, engine_, work, rows.state()); });
  }

  // The most that rows may be, since what is sent is what routers choose.
  void add_expert_messages(int first) {
    for (int rank = 0; experts_ != nullptr && rank < plan_.expert; ++rank) {
      const model::ExpertBytes& bytes = experts_->counted()[static_cast<size_t>(rank)];
      for (int tensor = 0; tensor < plan_.tensor; ++tensor) {
        SentBytes& sent = of(first + rank, tensor);
        sent[Sent::kActivations] += bytes.rows;
        sent[Sent::kActivationGradients] += bytes.row_gradients;
        sent[Sent::kControl] += bytes.counts;
      }
    }
  }

  // All ranks of the group wait together.
  void add_waits() {
    if (experts_ != nullptr) {
      waits_.activations += experts_->counted_waits().rows;
      waits_.activation_gradients += experts_->counted_waits().row_gradients;
    }
    if (tensors_ != nullptr) {
      waits_.activations += tensors_->counted_waits().gathers;
      waits_.activation_gradients += tensors_->counted_waits().sums;
    }
  }

  void add_tensor_messages(int dealing_rank) {
    for (int tensor = 0; tensors_ != nullptr && tensor < plan_.tensor; ++tensor) {
      const model::TensorBytes& bytes = tensors_->counted()[static_cast<size_t>(tensor)];
      SentBytes& sent = of(dealing_rank, tensor);
      sent[Sent::kActivations] += bytes.gathered;
      sent[Sent::kActivationGradients] += bytes.summed;
    }
  }

  const PipelinePlan& plan_;
  const int stage_;
  Engine& engine_;
  const api::Batch& batch_;
  model::ExpertRanks* const experts_;
  model::TensorRanks* const tensors_;
  model::DealtRows dealt_;
  std::vector<SentBytes>& all_;
  StageWaits waits_;
};

}  // namespace

StageWaits add_messages_within_stage(const PipelinePlan& plan, int stage, Engine& engine,
                                     const api::Batch& batch, std::vector<SentBytes>& all) {
  if (plan.num_alike() == 1) return {};
  MessageCounter messages(plan, stage, engine, batch, all);
  for (int copy = 0; copy < plan.data; ++copy) messages.add_copy(copy);
  return messages.waits();
}

}  // namespace strata::engine
