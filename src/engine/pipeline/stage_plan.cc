// SPDX-License-Identifier: Apache-2.0
#include "engine/pipeline/stage_plan.h"

#include <algorithm>

#include "engine/adapter_state.h"

namespace strata::engine {
namespace {

using schedule::Op;

// Tokens, positions, targets, columns of losses, and what they give, of a micro-batch in flight.
constexpr int64_t kListBytesPerToken = 128;

// Calls body with the op of each action of a stage, in their order.
template <typename Body>
void for_each_op(const PipelinePlan& plan, int stage, Body body) {
  const int rank = plan.ranks[static_cast<size_t>(stage)];
  for (const schedule::Slot& slot : plan.table.rows[static_cast<size_t>(rank)]) {
    for (const schedule::Action& action : slot.actions()) {
      if (action.stage == stage) body(action.op);
    }
  }
}

// States (or gradients) between the action that computes them and the one that sends them, at most;
// what stays on the rank, or has nowhere to go, is let go at once.
int64_t peak_waiting(const PipelinePlan& plan, int stage, bool forward) {
  const Op sends = forward ? Op::kSendForward : Op::kSendBackward;
  const int to_stage = forward ? stage + 1 : stage - 1;
  const bool waits =
      to_stage >= 0 && to_stage < plan.num_stages() &&
      plan.ranks[static_cast<size_t>(to_stage)] != plan.ranks[static_cast<size_t>(stage)];
  int64_t waiting = 0, most = 0;
  for_each_op(plan, stage, [&](Op op) {
    const bool computes = forward ? op == Op::kForward : schedule::is_backward(op);
    if (computes) most = std::max(most, waiting + 1);
    if (computes && waits) ++waiting;
    if (op == sends) --waiting;
  });
  return most;
}

// A gradient's, and with it a loss of the indexers for each token.
int64_t gradient_values(const Engine& engine, const PlanShape& shape) {
  const bool is_before_layers =
      shape.train_base ||
      std::any_of(shape.modules.begin(), shape.modules.end(),
                  [](const auto& spec) { return spec.layer < 0 && spec.target != model::kHead; });
  return model::border_gradient_width(engine.config(), is_before_layers) +
         (shape.indexer_loss ? 1 : 0);
}

int64_t border_bytes(const PipelinePlan& plan, int stage, const Engine& engine,
                     const PlanShape& shape) {
  const DType dtype = engine.model().weights->compute_dtype();
  const bool ends = stage + 1 == plan.num_stages();
  const int64_t states = ends ? 0 : peak_waiting(plan, stage, /*forward=*/true);
  const int64_t gradients = peak_waiting(plan, stage, /*forward=*/false);
  return shape.pass_tokens *
         (states * model::border_width(engine.config()) * dtype_bytes(dtype) +
          gradients * gradient_values(engine, shape) * dtype_bytes(DType::kF32));
}

// Around a step, of a matrix that both ends read: the last one's gradients and the first one's
// values are a few pieces at once, and an adapter's gradients go both ways.
int64_t shared_embedding_bytes(const PipelinePlan& plan, const Engine& engine,
                               const PlanShape& shape) {
  const model::ModelWeights& weights = *engine.model().weights;
  const model::ModelConfig& c = engine.config();
  if (weights.begins() == weights.ends()) return 0;
  int64_t bytes = 0;
  if (shape.train_base && train::num_borrowed_uses(c) > 0) {
    const int64_t ahead = plan.num_dealing() * train::kPiecesAhead * train::kPieceBytes;
    bytes = std::min(ahead, c.vocab_size * c.hidden_size * dtype_bytes(DType::kF32));
  }
  for (const model::LoraModuleSpec& spec : shape.modules) {
    const bool is_embedding = spec.layer < 0 && spec.target == model::kEmbedding;
    if (is_embedding && c.use_mtp)
      bytes += spec.rank * (c.vocab_size + c.hidden_size) * dtype_bytes(DType::kF32);
  }
  return bytes;
}

// A message stays with its channel, of which each micro-batch has one each way.
int64_t message_bytes(const PipelinePlan& plan, int stage, const Engine& engine,
                      const PlanShape& shape) {
  const int64_t tokens =
      shape.sent_tokens > 0 ? shape.sent_tokens : plan.table.num_microbatches * shape.pass_tokens;
  const bool ends = stage + 1 == plan.num_stages();
  const int64_t state =
      model::border_width(engine.config()) * dtype_bytes(engine.model().weights->compute_dtype());
  const int64_t gradient = gradient_values(engine, shape) * dtype_bytes(DType::kF32);
  return tokens * ((ends ? 0 : state) + (stage == 0 ? 0 : gradient)) +
         shared_embedding_bytes(plan, engine, shape);
}

int64_t training_bytes(Engine& engine, const PlanShape& shape) {
  int64_t bytes = 0;
  for (const auto& [slot, adapter] : engine.adapters()) bytes += adapter->num_bytes();
  if (engine.adapters().empty()) bytes = adapter_bytes(engine, shape.modules, shape.backward);
  return bytes + (shape.train_base ? engine.base_trainer().num_bytes() : 0) -
         state_file_bytes(engine, shape);
}

}  // namespace

int64_t peak_live(const PipelinePlan& plan, int stage) {
  int64_t live = 0, most = 0;
  for_each_op(plan, stage, [&](Op op) {
    if (op == Op::kForward) most = std::max(most, ++live);
    if (schedule::is_backward(op)) --live;
  });
  return most;
}

int64_t peak_deferred(const PipelinePlan& plan, int stage) {
  int64_t waiting = 0, most = 0;
  for_each_op(plan, stage, [&](Op op) {
    if (op == Op::kInputGrad) most = std::max(most, ++waiting);
    if (op == Op::kWeightGrad) --waiting;
  });
  return most;
}

StagePlan plan_stage(const PipelinePlan& plan, int stage, Engine& engine, const PlanShape& shape) {
  const int64_t weights = engine.model().weights->num_bytes();
  const bool in_files = shape.weights_in_files || engine.model().weights->in_files();
  StagePlan own = {.weight_bytes = in_files ? 0 : engine.model().weights->memory_bytes(),
                   .file_bytes = in_files ? weights : 0,
                   .state_file_bytes = state_file_bytes(engine, shape),
                   .training_bytes = training_bytes(engine, shape),
                   .border_bytes = border_bytes(plan, stage, engine, shape),
                   .peak_live = peak_live(plan, stage),
                   .peak_deferred = peak_deferred(plan, stage),
                   .message_bytes = message_bytes(plan, stage, engine, shape) +
                                    in_flight_gradient_bytes(engine, shape, plan.num_dealing())};
  own.list_bytes =
      rope_table_bytes(engine, shape) + own.peak_live * shape.pass_tokens * kListBytesPerToken;
  PlanShape apart = shape;
  apart.in_stages = true;
  apart.defers = plan.defers_weight_gradients(stage);
  apart.in_flight = own.peak_live;
  const PassPlan pass = plan_pass(engine, apart);
  own.pass_bytes = pass.total();
  own.held_bytes = pass.held_bytes;
  own.offloaded_bytes = pass.file_bytes;
  own.deferred_bytes = pass.deferred_bytes;
  own.step_bytes = step_bytes_beyond_pass(engine, shape, own.pass_bytes);
  own.cache_bytes = cache_bytes(engine, shape);
  return own;
}

}  // namespace strata::engine
