// SPDX-License-Identifier: Apache-2.0
// What Runner does where ranks deal micro-batches out among themselves: who has which, and what
// each tells the others of its own besides gradients (pipeline/gradient_chain.h). Losses go from
// the stage of a pipeline that has them to its others in the same way.
#include <algorithm>

#include "base/check.h"
#include "engine/pipeline/rank_stages.h"
#include "engine/runner.h"

namespace strata::engine {
namespace {

using Lists = Runner::LossLists;

// Each list that a pass gives of a sequence, and how many values it has.
template <typename Body>
void for_each_loss_list(const api::Batch& batch, size_t s, Lists lists, api::SequenceResult& of,
                        Body body) {
  const api::Sequence& sequence = batch.sequences[s];
  const size_t tokens = sequence.datum->tokens.size();
  const size_t targets = tokens * static_cast<size_t>(sequence.datum->targets_per_token());
  const bool backward = sequence.gradients && batch.gradients != api::Gradients::kNone;
  if (lists == Lists::kOfIndexers) {
    if (backward) body(of.indexer_losses, tokens);
    return;
  }
  body(of.logprobs, targets);
  body(of.losses, targets);
  if (batch.mtp_weight > 0.0f) body(of.mtp_losses, targets);
  if (batch.want_top) body(of.top_logprobs, tokens);
}

}  // namespace

void Runner::deal_microbatches(const api::Batch& batch) {
  round_.dealt = here_->dealing()->rank();
  round_.num_dealt = here_->dealing()->size();
  round_.num_at_once = here_->plan().expert;
  of_sequences_.clear();
  of_backwards_.clear();
  of_backward_groups_.clear();
  while (next_round(here_->plan(), engine().options().pass_tokens, batch, round_)) {
    for (int m = 0; m < round_.num_microbatches(); ++m) {
      const int rank = m % round_.num_dealt;
      of_sequences_.resize(round_.firsts[static_cast<size_t>(m) + 1], rank);
      if (!runs_backward(batch)) continue;
      of_backwards_.push_back(rank);
      if (rank % round_.num_at_once == 0) of_backward_groups_.push_back(rank / round_.num_at_once);
    }
  }
  round_.clear();
}

// Calls with the lists of the sequences that a rank was dealt; rank -1: with all.
template <typename Body>
void Runner::for_each_list_dealt_to(int rank, const api::Batch& batch, LossLists lists,
                                    api::BatchResult& result, Body body) {
  for (size_t s = 0; s < batch.sequences.size(); ++s) {
    if (rank < 0 || of_sequences_[s] == rank)
      for_each_loss_list(batch, s, lists, result.sequences[s], body);
  }
}

void Runner::send_losses(Comm& comm, int64_t tag, const api::Batch& batch, LossLists lists,
                         api::BatchResult& result, int dealt_to) {
  shared_.clear();
  for_each_list_dealt_to(dealt_to, batch, lists, result,
                         [&](const std::vector<float>& values, size_t count) {
                           CHECK(values.size() == count, values.size(), count);
                           shared_.insert(shared_.end(), values.begin(), values.end());
                         });
  const auto bytes = static_cast<int64_t>(shared_.size() * sizeof(float));
  for (int rank = 0; rank < comm.size(); ++rank) {
    if (rank != comm.rank()) comm.send_bytes(rank, tag, shared_.data(), bytes);
  }
}

void Runner::receive_losses(Comm& comm, int from, int64_t tag, const api::Batch& batch,
                            LossLists lists, api::BatchResult& result, int dealt_to) {
  size_t total = 0;
  for_each_list_dealt_to(dealt_to, batch, lists, result,
                         [&](std::vector<float>&, size_t count) { total += count; });
  shared_.resize(total);
  comm.receive_bytes(from, tag, shared_.data(), static_cast<int64_t>(total * sizeof(float)));
  auto next = shared_.begin();
  for_each_list_dealt_to(dealt_to, batch, lists, result,
                         [&](std::vector<float>& values, size_t count) {
                           values.assign(next, next + static_cast<int64_t>(count));
                           next += static_cast<int64_t>(count);
                         });
}

void Runner::exchange_losses(const api::Batch& batch, LossLists lists, api::BatchResult& result) {
  if (here_->find(stage_with(lists)) == nullptr) return;
  CountedComm& ranks = *here_->dealing();
  send_losses(ranks, kLossTag, batch, lists, result, ranks.rank());
  for (int rank = 0; rank < ranks.size(); ++rank) {
    if (rank != ranks.rank()) receive_losses(ranks, rank, kLossTag, batch, lists, result, rank);
  }
}

void Runner::broadcast_losses(const api::Batch& batch, LossLists lists, api::BatchResult& result) {
  const int owner = here_->rank_of(stage_with(lists));
  if (here_->pipeline().size() == 1) return;
  if (here_->pipeline().rank() != owner)
    return receive_losses(here_->pipeline(), owner, here_->plan().gather_tag(), batch, lists,
                          result, -1);
  send_losses(here_->pipeline(), here_->plan().gather_tag(), batch, lists, result, -1);
}

void Runner::distribute_losses(const api::Batch& batch, api::BatchResult& result) {
  for (const LossLists lists : {LossLists::kOfEnd, LossLists::kOfIndexers}) {
    if (lists == LossLists::kOfIndexers && batch.indexer_weight == 0.0f) continue;
    if (round_.num_dealt > 1) exchange_losses(batch, lists, result);
    broadcast_losses(batch, lists, result);
  }
}

void Runner::sum_over_ranks(Comm& ranks) {
  ranks.all_gather(sums_, all_sums_);
  std::fill(sums_.begin(), sums_.end(), 0.0);
  for (size_t i = 0; i < all_sums_.size(); ++i) sums_[i % sums_.size()] += all_sums_[i];
}

// Rows that experts had are whole numbers, which a double holds.
void Runner::sum_expert_loads() {
  std::vector<double> own, all;
  for (const auto& runner : here_->runners()) {
    for (std::vector<int64_t>& loads : runner->engine().base_trainer().gradients()->expert_loads) {
      if (loads.empty()) continue;
      own.assign(loads.begin(), loads.end());
      here_->dealing()->all_gather(own, all);
      std::fill(loads.begin(), loads.end(), 0);
      for (size_t i = 0; i < all.size(); ++i) {
        loads[i % loads.size()] += static_cast<int64_t>(all[i]);
      }
    }
  }
}

}  // namespace strata::engine
