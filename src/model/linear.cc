#include "model/linear.h"

#include <algorithm>

#include "ops/elementwise.h"

namespace strata::model {
namespace {

const LoraModule* find_module(const AdapterRun& run, int64_t layer, int kind) {
  if (run.adapter == nullptr) return nullptr;
  if (kind == kHead) return run.adapter->head();
  return run.adapter->find(layer, static_cast<Projection>(kind));
}

}  // namespace

LinearWeights layer_linear(const ModelWeights& weights, int64_t layer, Projection projection) {
  const LayerParam weight = weight_of(projection);
  const LayerParam bias = bias_of(projection);
  const LayerWeights& views = weights.layer(layer);
  return {.weight = views.panel(weight),
          .bias = views.vec(bias),
          .weight_index = weights.layer_index(layer, weight),
          .bias_index = weights.layer_index(layer, bias),
          .layer = layer,
          .kind = static_cast<int>(projection)};
}

int64_t largest_rank(const RowGroups& rows, int64_t layer, int kind) {
  int64_t rank = 0;
  for (const AdapterRun& run : rows.runs()) {
    const LoraModule* module = find_module(run, layer, kind);
    if (module != nullptr) rank = std::max(rank, module->spec.rank);
  }
  return rank;
}

void linear_forward(Pass& pass, const RowGroups& rows, const LinearWeights& linear, TensorView x,
                    TensorView add, TensorView h, TensorView y) {
  const Scratch::Mark mark(pass.backend.scratch());
  std::vector<ops::LowRankRun>& low_rank = pass.run_buffer;
  low_rank.clear();
  if (h.empty()) {
    const int64_t rank = largest_rank(rows, linear.layer, linear.kind);
    if (rank > 0) h = pass.backend.scratch().take(pass.dtype(), {x.rows(), rank});
  }
  std::vector<ops::RunProduct>& products = pass.product_buffer;
  products.clear();
  for (const AdapterRun& run : rows.runs()) {
    const LoraModule* module = find_module(run, linear.layer, linear.kind);
    if (module == nullptr) continue;
    products.push_back(
        {.begin = run.begin, .end = run.end, .w = module->a_panel, .scale = module->scale});
    low_rank.push_back({.begin = run.begin,
                        .end = run.end,
                        .x = h.slice_cols(0, module->spec.rank),
                        .w = module->b_panel});
  }
  // h = round(scale * x A^T)
  if (!products.empty()) ops::gemm_runs(pass.backend, x, products, h);
  if (y.empty()) return;
  ops::gemm(pass.backend,
            {.x = x, .w = linear.weight, .runs = low_rank, .bias = linear.bias, .add = add}, y);
}

void linear_backward(Pass& pass, const RowGroups& rows, const LinearWeights& linear, TensorView x,
                     TensorView h, TensorView dy, TensorView dx, bool accumulate,
                     TensorView d_weight) {
  Backend& backend = pass.backend;
  const Scratch::Mark mark(backend.scratch());
  std::vector<ops::LowRankRun>& low_rank = pass.run_buffer;
  low_rank.clear();
  const int64_t rank = largest_rank(rows, linear.layer, linear.kind);
  const TensorView d_h =
      rank == 0 ? TensorView() : backend.scratch().take(pass.dtype(), {x.rows(), rank});
  for (const AdapterRun& run : rows.runs()) {
    const LoraModule* module = find_module(run, linear.layer, linear.kind);
    if (module == nullptr) continue;
    const TensorView d_h_module = d_h.slice_cols(0, module->spec.rank);
    const TensorView d_h_run = d_h_module.slice_rows(run.begin, run.end);
    const TensorView dy_run = dy.slice_rows(run.begin, run.end);
    // y += h B^T, h = scale * x A^T  =>  d(x A^T) = scale * dy B
    ops::gemm_dx(backend, {.x = dy_run, .w = module->b_panel, .scale = module->scale}, d_h_run);
    low_rank.push_back({.begin = run.begin, .end = run.end, .x = d_h_module, .w = module->a_panel});
    if (pass.adapter_gradients && run.adapter->trains()) {
      const TensorView h_run = h.slice_cols(0, module->spec.rank).slice_rows(run.begin, run.end);
      ops::gemm_dw(backend, dy_run, h_run, rows.ends_of(run), module->d_b);
      ops::gemm_dw(backend, d_h_run, x.slice_rows(run.begin, run.end), rows.ends_of(run),
                   module->d_a);
    }
  }
  if (!d_weight.empty()) ops::gemm_dw(backend, dy, x, rows.ends(), d_weight);
  if (pass.base_gradients != nullptr && linear.bias_index != ModelWeights::npos) {
    ops::add_rows_into(backend, dy, pass.base_gradients->d_weight[linear.bias_index]);
  }
  // dx = dy W + d(x A^T) A
  if (!dx.empty())
    ops::gemm_dx(backend, {.x = dy, .w = linear.weight, .runs = low_rank}, dx, accumulate);
}

}  // namespace strata::model
