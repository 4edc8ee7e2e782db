// SPDX-License-Identifier: Apache-2.0
#include "model/embedding.h"

#include "model/residual.h"
#include "model/tensor_ranks.h"
#include "ops/elementwise.h"
#include "ops/pack.h"

namespace strata::model {
namespace {

std::span<const int32_t> tokens_of(const Pass& pass, const AdapterSegment& run) {
  return pass.tokens.subspan(static_cast<size_t>(run.begin),
                             static_cast<size_t>(run.end - run.begin));
}

const LoraModule* module_of(const Pass& pass, const AdapterSegment& run) {
  return run.find_module(-1, pass.is_mtp ? kMtpEmbedding : kEmbedding);
}

// h = round(scale * A[:, id]), [rows, r]; A is read from its masters, rounded as a panel copy would
// be.
TensorView gather_lora_a(Pass& pass, const AdapterSegment& run, const LoraModule& module) {
  const TensorView h =
      pass.backend.scratch().take(pass.dtype(), {run.end - run.begin, module.spec.rank});
  ops::gather_columns(pass.backend, module.a, tokens_of(pass, run), module.scale, h);
  return h;
}

// d is of the embedding's rows, all of them.
void lora_backward(Pass& pass, const AdapterSegment& run, const LoraModule& module, TensorView d) {
  const Scratch::Mark mark(pass.backend.scratch());
  const TensorView h = gather_lora_a(pass, run, module);
  const TensorView d_rows = to_compute_dtype(pass, d.slice_rows(run.begin, run.end));
  // x += h B^T
  ops::gemm_dw(pass.backend, d_rows, h, pass.rows.ends_of(run), module.d_b);
  const int64_t rank = module.spec.rank;
  const TensorView d_h = pass.backend.scratch().take(DType::kF32, {run.end - run.begin, rank});
  ops::gemm_dx(pass.backend, {.x = d_rows, .w = module.b_panel, .scale = module.scale}, d_h);
  // h = scale * A[:, id]: tokens ascending, one chain a column
  ops::scatter_add_columns(pass.backend, d_h, tokens_of(pass, run), module.d_a);
}

// What rows of the embedding are multiplied by.
float embedding_scale(const Pass& pass) {
  const ModelConfig& config = pass.weights.config();
  const auto scale = static_cast<float>(config.embedding_scale);
  const bool rounds = config.rounds_embedding_scale && pass.dtype() == DType::kBF16;
  return rounds ? round_to_bf16(scale) : scale;
}

}  // namespace

void embedding_forward(Pass& pass, TensorView x) {
  const PanelView embedding = pass.weights.embedding();
  if (const TensorRanks* ranks = pass.weights.tensor_ranks()) {
    const Deal deal = pass.weights.layers().vocabulary_rows().front().output_deal();
    ranks->gather_rows_of_tokens(pass, embedding, deal, x);
  } else {
    ops::gather_rows(pass.backend, embedding, pass.tokens, x);
  }
  const float scale = embedding_scale(pass);
  if (scale != 1.0f) ops::scale(pass.backend, x, scale, x);
  for (const AdapterSegment& run : pass.rows.runs()) {
    const LoraModule* module = module_of(pass, run);
    if (module == nullptr) continue;
    const Scratch::Mark mark(pass.backend.scratch());
    const TensorView rows = x.slice_rows(run.begin, run.end);
    ops::gemm(
        pass.backend,
        {.x = gather_lora_a(pass, run, *module), .w = module->b_panel, .scale = scale, .add = rows},
        rows);
  }
}

void embedding_backward(Pass& pass, TensorView d) {
  const Scratch::Mark scale_mark(pass.backend.scratch());
  // x = scale * (E[id] + h B^T)
  if (const float scale = embedding_scale(pass); scale != 1.0f) {
    const TensorView scaled = pass.take(DType::kF32, {d.rows(), d.cols()});
    ops::scale(pass.backend, d, scale, scaled);
    d = scaled;
  }
  for (const AdapterSegment& run : pass.rows.runs()) {
    const LoraModule* module = module_of(pass, run);
    if (module != nullptr && pass.trains(run)) lora_backward(pass, run, *module, d);
  }
  if (pass.base_gradients == nullptr) return;
  const TensorView d_embedding = pass.is_mtp ? pass.base_gradients->d_mtp_embedding
                                             : pass.base_gradient(pass.weights.embedding_index());
  // x = E[id]
  if (const TensorRanks* ranks = pass.weights.tensor_ranks()) {
    const ParamRow& row = pass.weights.layers().vocabulary_rows().front();
    return ranks->add_rows_of_tokens(pass, d, row.first_output, d_embedding);
  }
  ops::scatter_add(pass.backend, d, pass.tokens, d_embedding);
}

}  // namespace strata::model
