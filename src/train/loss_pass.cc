#include "train/loss_pass.h"

#include <algorithm>
#include <cstring>

#include "ops/elementwise.h"
#include "ops/log_softmax.h"

namespace strata::train {

void LossPass::run(model::Pass& pass, const LossInputs& inputs, TensorView hidden,
                   std::span<float> logprobs, std::span<float> losses, TensorView d_hidden) {
  const auto tokens = static_cast<size_t>(pass.num_tokens());
  CHECK(inputs.targets.size() == tokens && inputs.weights.size() == tokens);
  CHECK(logprobs.size() == tokens && losses.size() == tokens);
  CHECK(inputs.specs.size() == pass.sequences.size());
  selected_.resize(tokens);
  row_specs_.resize(tokens);
  for (size_t s = 0; s < pass.sequences.size(); ++s) {
    for (int64_t row = pass.sequences[s].begin; row < pass.sequences[s].end; ++row) {
      row_specs_[static_cast<size_t>(row)] = inputs.specs[s];
    }
  }
  for (size_t row = 0; row < tokens; ++row) selected_[row] = inputs.weights[row] != 0.0f ? 1 : 0;
  std::fill(logprobs.begin(), logprobs.end(), 0.0f);
  std::fill(losses.begin(), losses.end(), 0.0f);
  if (!d_hidden.empty()) std::memset(d_hidden.data, 0, static_cast<size_t>(d_hidden.num_bytes()));
  chunks_.start(pass, selected_);
  for (auto rows = chunks_.next(); !rows.empty(); rows = chunks_.next()) {
    chunk(pass, inputs, rows, hidden, logprobs, losses, d_hidden);
  }
}

void LossPass::chunk(model::Pass& pass, const LossInputs& inputs, std::span<const int32_t> rows,
                     TensorView hidden, std::span<float> logprobs, std::span<float> losses,
                     TensorView d_hidden) {
  Scratch& scratch = pass.backend.scratch();
  const Scratch::Mark mark(scratch);
  const auto count = static_cast<int64_t>(rows.size());
  const int64_t vocab = pass.weights.config().vocab_size;
  const model::RowGroups& groups = chunks_.groups();
  const TensorView x = scratch.take(pass.dtype(), {count, hidden.cols()});
  const TensorView logits = scratch.take(DType::kF32, {count, vocab});
  const TensorView lse = scratch.take(DType::kF32, {count, 2});
  const int64_t rank = model::largest_rank(groups, -1, model::kHead);
  const TensorView h = rank == 0 ? TensorView() : scratch.take(pass.dtype(), {count, rank});

  ops::gather(pass.backend, hidden, rows, x);
  model::head_forward(pass, groups, x, h, logits);
  ops::logsumexp(pass.backend, logits, lse);
  chunk_targets_.resize(rows.size());
  chunk_logprobs_.resize(rows.size());
  chunk_slopes_.resize(rows.size());
  for (size_t i = 0; i < rows.size(); ++i)
    chunk_targets_[i] = inputs.targets[static_cast<size_t>(rows[i])];
  ops::target_logprobs(logits, lse, chunk_targets_, chunk_logprobs_);
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto row = static_cast<size_t>(rows[i]);
    const float q = inputs.sampling_logprobs.empty() ? 0.0f : inputs.sampling_logprobs[row];
    const float advantage = inputs.advantages.empty() ? 0.0f : inputs.advantages[row];
    const TokenLoss token =
        token_loss(row_specs_[row], chunk_logprobs_[i], inputs.weights[row], q, advantage);
    logprobs[row] = chunk_logprobs_[i];
    losses[row] = token.loss;
    chunk_slopes_[i] = token.d_logprob;
  }
  if (d_hidden.empty()) return;
  // d_logits lies over the logits: fp32 in place, bf16 in the first half of each row.
  TensorView d_logits(logits.data, pass.dtype(), {count, vocab});
  d_logits.row_stride = vocab * dtype_bytes(DType::kF32) / dtype_bytes(pass.dtype());
  ops::log_softmax_backward(pass.backend, logits, lse, chunk_targets_, chunk_slopes_, d_logits);
  const TensorView d_x = scratch.take(DType::kF32, {count, hidden.cols()});
  model::head_backward(pass, groups, x, h, d_logits, d_x);
  ops::scatter_add(pass.backend, d_x, rows, d_hidden);
}

}  // namespace strata::train
