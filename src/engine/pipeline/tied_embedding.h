// SPDX-License-Identifier: Apache-2.0
// TiedEmbedding: the one matrix that two stages hold. The first stage owns the embedding; the last
// one multiplies by it where it is tied to the head, and gathers from it for multi-token
// prediction. Gradients go to the first stage and what a step has made of its rows to the last, so
// that both have the bits of one stage. All ranks make the same calls. Engine thread of its rank
// only.
#pragma once
#include "api/batch.h"
#include "train/ownership.h"

namespace strata::engine {

class RankStages;

class TiedEmbedding {
 public:
  // Borrows the stages.
  explicit TiedEmbedding(RankStages& here) : here_(here) {}

  // Each end gets what the other one has accumulated of an adapter's embedding, so that both add
  // the two in one order.
  void swap_adapter_gradients(api::AdapterSlot slot);
  // The first stage's owners add up what the last stage has accumulated of the embedding, in the
  // order of one stage.
  void reduce_gradients();
  // What steps have made of the embedding goes to each rank that reads it at the end.
  void send_to_last_stage();

 private:
  // `resting`: the rows of which data rank `from` of the last stage has the sum; they are added to
  // what `owner` has of the first one's.
  void reduce_rows(int use, const train::OwnedRows& resting, int from, int owner);
  // The rows of the first stage's `owner`, to data rank `to` of the last stage.
  void send_rows(int owner, int to);

  RankStages& here_;
};

}  // namespace strata::engine
