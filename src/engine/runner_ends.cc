// SPDX-License-Identifier: Apache-2.0
// What a Runner's first and last stage accumulate of one matrix: the embedding, which the last one
// multiplies by where it is tied to the head, and gathers from for multi-token prediction.
#include "base/check.h"
#include "engine/pipeline/owners.h"
#include "engine/runner.h"

namespace strata::engine {

// Each gets the other's, so that both add them in one order.
void Runner::swap_between_ends(FunctionRef<SharedGradients(Engine&)> shared) {
  if (plan_.num_stages() == 1) return;
  const int last_stage = plan_.num_stages() - 1;
  StageRunner* first = stage_here(0);
  StageRunner* last = stage_here(last_stage);
  const auto send = [&](int stage, int64_t tag, std::span<const TensorView> views) {
    for (const TensorView& view : views) {
      if (!view.empty()) comm_.send(rank_of(stage), plan_.gather_tag() + tag, view);
    }
  };
  const auto receive = [&](int stage, int64_t tag, std::span<const TensorView> views) {
    for (const TensorView& view : views) {
      if (!view.empty()) comm_.receive(rank_of(stage), plan_.gather_tag() + tag, view);
    }
  };
  if (first != nullptr) send(last_stage, kFirstSwapTag, shared(first->engine()).of_first);
  if (last != nullptr) {
    const SharedGradients views = shared(last->engine());
    send(0, kLastSwapTag, views.of_last);
    receive(0, kFirstSwapTag, views.of_first);
  }
  if (first != nullptr) receive(last_stage, kLastSwapTag, shared(first->engine()).of_last);
}

// The last stage reads the embedding for multi-token prediction.
void Runner::finish_adapter_gradients(api::AdapterSlot slot) {
  if (engine().config().use_mtp && engine().adapter(slot).find(-1, model::kEmbedding) != nullptr) {
    swap_between_ends([&](Engine& stage) -> SharedGradients {
      const model::LoraAdapter& adapter = stage.adapter(slot);
      const model::LoraModule& own = *adapter.find(-1, model::kEmbedding);
      const model::LoraModule& again = *adapter.find(-1, model::kMtpEmbedding);
      return {.of_first = {own.d_a, own.d_b}, .of_last = {again.d_a, again.d_b, {}}};
    });
  }
  for (const auto& runner : runners_) {
    runner->engine().adapter(slot).finish_gradients(runner->engine().backend());
  }
}

// Each sends the rows that it owns to those that own them at the other end.
void Runner::swap_base_between_ends() {
  const int last_stage = plan_.num_stages() - 1;
  StageRunner* first = stage_here(0);
  StageRunner* last = stage_here(last_stage);
  if (last_stage == 0 || (first == nullptr && last == nullptr)) return;
  const size_t index = engine().model().weights->embedding_index();
  const int own = data_ ? data_->rank() : 0;
  const int64_t cols = engine().model().weights->table()[index].num_cols();
  // Calls body with each rank of the other end and a view of the rows that both own.
  const auto for_shared = [&](int stage, int other_stage, TensorView values, auto body) {
    const train::OwnedRows& rows = ownership_of_stage(stage).rows(own, index);
    for (int owner = 0; owner < plan_.data; ++owner) {
      const train::OwnedRows both =
          rows.shared_with(ownership_of_stage(other_stage).rows(owner, index));
      if (both.empty()) continue;
      body(owner_of(other_stage, owner),
           values.part((both.first - rows.first) * cols, {both.count, cols}));
    }
  };
  const auto for_second_uses = [&](StageRunner& stage, auto body) {
    const train::BaseTrainer& trainer = stage.engine().base_trainer();
    for (const train::Accumulator& sum : trainer.second_uses())
      if (sum.index == index && !sum.own.empty()) body(sum.own);
  };
  const auto gradient = [&](StageRunner& stage) {
    return stage.engine().base_trainer().gradient(index);
  };
  const int64_t first_tag = plan_.gather_tag() + kFirstSwapTag;
  const int64_t last_tag = plan_.gather_tag() + kLastSwapTag;
  const auto send_to = [&](int64_t tag) {
    return [this, tag](int rank, TensorView rows) { everyone_.send(rank, tag, rows); };
  };
  const auto receive_from = [&](int64_t tag) {
    return [this, tag](int rank, TensorView rows) { everyone_.receive(rank, tag, rows); };
  };
  if (first != nullptr) for_shared(0, last_stage, gradient(*first), send_to(first_tag));
  if (last != nullptr) {
    for_second_uses(*last, [&](TensorView own_rows) {
      for_shared(last_stage, 0, own_rows, send_to(last_tag));
    });
    for_shared(last_stage, 0, gradient(*last), receive_from(first_tag));
  }
  if (first != nullptr) {
    for_second_uses(*first, [&](TensorView own_rows) {
      for_shared(0, last_stage, own_rows, receive_from(last_tag));
    });
  }
}

void Runner::finish_base_gradients() {
  const model::ModelConfig& c = engine().config();
  if (c.tie_word_embeddings || c.use_mtp) swap_base_between_ends();
  for (const auto& runner : runners_) {
    runner->engine().base_trainer().finish_gradients(runner->engine().backend());
  }
}

}  // namespace strata::engine
