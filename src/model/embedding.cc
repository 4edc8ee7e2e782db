#include "model/embedding.h"

#include "model/residual.h"
#include "ops/pack.h"

namespace strata::model {
namespace {

// h = round(scale * A[:, id]), [rows, r]; A is read from its masters, rounded as a panel copy would
// be.
TensorView gather_columns(Pass& pass, const AdapterRun& run, const LoraModule& module) {
  const int64_t rank = module.spec.rank;
  const int64_t count = run.end - run.begin;
  const TensorView h = pass.backend.scratch().take(pass.dtype(), {count, rank});
  const int64_t vocab = module.a.cols();
  const float* a = module.a.f32();
  for (int64_t i = 0; i < (pass.backend.is_counting() ? 0 : count); ++i) {
    const int32_t id = pass.tokens[static_cast<size_t>(run.begin + i)];
    for (int64_t j = 0; j < rank; ++j) {
      const float value = a[j * vocab + id];
      if (pass.dtype() == DType::kF32) {
        h.f32()[i * rank + j] = module.scale * value;
      } else {
        h.bf16()[i * rank + j] = to_bf16(module.scale * round_to_bf16(value));
      }
    }
  }
  return h;
}

}  // namespace

void embedding_forward(Pass& pass, TensorView x) {
  ops::gather_rows(pass.backend, pass.weights.embedding(), pass.tokens, x);
  for (const AdapterRun& run : pass.rows.runs()) {
    const LoraModule* module = run.adapter == nullptr ? nullptr : run.adapter->find(-1, kEmbedding);
    if (module == nullptr) continue;
    const Scratch::Mark mark(pass.backend.scratch());
    const TensorView rows = x.slice_rows(run.begin, run.end);
    ops::gemm(pass.backend,
              {.x = gather_columns(pass, run, *module), .w = module->b_panel, .add = rows}, rows);
  }
}

void embedding_backward(Pass& pass, TensorView d) {
  for (const AdapterRun& run : pass.rows.runs()) {
    const LoraModule* module = run.adapter == nullptr ? nullptr : run.adapter->find(-1, kEmbedding);
    if (module == nullptr || !pass.adapter_gradients || !run.adapter->trains()) continue;
    const Scratch::Mark mark(pass.backend.scratch());
    const TensorView h = gather_columns(pass, run, *module);
    const TensorView d_rows = rounded(pass, d.slice_rows(run.begin, run.end));
    // x += h B^T
    ops::gemm_dw(pass.backend, d_rows, h, pass.rows.ends_of(run), module->d_b);
    const int64_t rank = module->spec.rank;
    const TensorView d_h = pass.backend.scratch().take(DType::kF32, {run.end - run.begin, rank});
    ops::gemm_dx(pass.backend, {.x = d_rows, .w = module->b_panel, .scale = module->scale}, d_h);
    // h = scale * A[:, id]: tokens ascending, one chain a column
    const int64_t vocab = module->a.cols();
    if (pass.backend.is_counting()) continue;
    for (int64_t i = 0; i < run.end - run.begin; ++i) {
      const int32_t id = pass.tokens[static_cast<size_t>(run.begin + i)];
      for (int64_t j = 0; j < rank; ++j)
        module->d_a.f32()[j * vocab + id] += d_h.f32()[i * rank + j];
    }
  }
  const TensorView d_embedding = pass.base_gradient(pass.weights.embedding_index());
  // x = E[id]
  if (!d_embedding.empty()) ops::scatter_add(pass.backend, d, pass.tokens, d_embedding);
}

}  // namespace strata::model
