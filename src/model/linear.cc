#include "model/linear.h"

#include <algorithm>

#include "ops/elementwise.h"

namespace strata::model {
namespace {

const LoraModule* find_module(const AdapterRun& run, int64_t layer, int target) {
  return run.adapter == nullptr ? nullptr : run.adapter->find(layer, target);
}

// Outputs in one chain of an f32 input gradient. A head has tens of thousands of outputs: in a
// single fp32 chain the sum's error would exceed the noise of a blocked product tenfold. In bf16
// mode the rounding of dy is far above it, and one chain is faster.
constexpr int64_t kChainOutputs = 512;

// dx = dy W + the low-rank terms in pass.lists.low_rank. f32: chains of kChainOutputs outputs,
// their sums added in ascending order.
void input_gradient(Pass& pass, TensorView dy, const PanelView& w, TensorView dx, bool accumulate,
                    const ops::Beside* beside) {
  Backend& backend = pass.backend;
  if (pass.dtype() != DType::kF32 || w.rows <= kChainOutputs) {
    ops::gemm_dx(backend, {.x = dy, .w = w, .runs = pass.lists.low_rank}, dx, accumulate, beside);
    return;
  }
  CHECK(kChainOutputs % w.width == 0, w.width);
  const Scratch::Mark mark(backend.scratch());
  const TensorView part = backend.scratch().take(DType::kF32, {dx.rows(), dx.cols()});
  for (int64_t begin = 0; begin < w.rows; begin += kChainOutputs) {
    const int64_t end = std::min(w.rows, begin + kChainOutputs);
    PanelView block = w;
    block.data = w.panel(begin / w.width);
    block.rows = end - begin;
    const bool first = begin == 0 && !accumulate;
    ops::gemm_dx(backend,
                 {.x = dy.slice_cols(begin, end),
                  .w = block,
                  .runs = end == w.rows ? std::span<const ops::LowRankRun>(pass.lists.low_rank)
                                        : std::span<const ops::LowRankRun>()},
                 first ? dx : part, false, begin == 0 ? beside : nullptr);
    if (!first) ops::add_into(backend, part, dx);
  }
}

}  // namespace

LinearWeights linear_of(const BlockContext& context, int key) {
  const ParamView& matrix = context.param(key);
  LinearWeights linear = {.weight = matrix.panel,
                          .bias = {},
                          .weight_index = matrix.index,
                          .layer = context.layer,
                          .target = matrix.target};
  if (matrix.bias != kNoKey) {
    linear.bias = context.values(matrix.bias);
    linear.bias_index = context.param(matrix.bias).index;
  }
  return linear;
}

TensorView take_lora_h(const Pass& pass, const BlockContext& context, int key) {
  const int64_t rank = largest_rank(pass.rows, context.layer, context.param(key).target);
  if (rank == 0) return {};
  return pass.save(kLoraTag, lora_flops(pass, context, key, rank), pass.dtype(),
                   {pass.num_tokens(), rank});
}

double linear_flops(const Pass& pass, const BlockContext& context, int key) {
  const PanelView& w = context.param(key).panel;
  return 2.0 * static_cast<double>(pass.num_tokens()) * static_cast<double>(w.rows) *
         static_cast<double>(w.cols);
}

double lora_flops(const Pass& pass, const BlockContext& context, int key, int64_t rank) {
  return 2.0 * static_cast<double>(pass.num_tokens() * rank) *
         static_cast<double>(context.param(key).panel.cols);
}

double attention_flops(const Pass& pass, const BlockWork& work) {
  double flops = 0.0;
  for (const PassSequence& sequence : pass.sequences) {
    const auto end = static_cast<double>(sequence.first_position + sequence.end - sequence.begin);
    const auto begin = static_cast<double>(sequence.first_position);
    flops += work.executed_pair_flops * (end * end - begin * begin) / 2.0;
  }
  return flops;
}

int64_t largest_rank(const RowGroups& rows, int64_t layer, int target) {
  int64_t rank = 0;
  for (const AdapterRun& run : rows.runs()) {
    const LoraModule* module = find_module(run, layer, target);
    if (module != nullptr) rank = std::max(rank, module->spec.rank);
  }
  return rank;
}

void linear_forward(Pass& pass, const RowGroups& rows, const LinearWeights& linear, TensorView x,
                    TensorView add, TensorView h, TensorView y) {
  const Scratch::Mark mark(pass.backend.scratch());
  std::vector<ops::LowRankRun>& low_rank = pass.lists.low_rank;
  low_rank.clear();
  if (h.empty()) {
    const int64_t rank = largest_rank(rows, linear.layer, linear.target);
    if (rank > 0) h = pass.backend.scratch().take(pass.dtype(), {x.rows(), rank});
  }
  std::vector<ops::RunProduct>& products = pass.lists.products;
  products.clear();
  for (const AdapterRun& run : rows.runs()) {
    const LoraModule* module = find_module(run, linear.layer, linear.target);
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

namespace {

// What a backward step of a linear reads and writes of one adapter's rows.
struct LowRankBackward {
  const Pass& pass;
  const RowGroups& rows;
  const LinearWeights& linear;
  TensorView x, h, dy, d_h;

  // y += h B^T, h = scale * x A^T  =>  d(x A^T) = scale * dy B
  void input(Backend& backend, const AdapterRun& run) const {
    const LoraModule* module = find_module(run, linear.layer, linear.target);
    if (module == nullptr) return;
    const TensorView d_h_run = d_h.slice_cols(0, module->spec.rank).slice_rows(run.begin, run.end);
    const TensorView dy_run = dy.slice_rows(run.begin, run.end);
    ops::gemm_dx(backend, {.x = dy_run, .w = module->b_panel, .scale = module->scale}, d_h_run);
  }

  void gradients(Backend& backend, const AdapterRun& run) const {
    const LoraModule* module = find_module(run, linear.layer, linear.target);
    if (module == nullptr || !pass.adapter_gradients || !run.adapter->trains()) return;
    const TensorView d_h_run = d_h.slice_cols(0, module->spec.rank).slice_rows(run.begin, run.end);
    const TensorView dy_run = dy.slice_rows(run.begin, run.end);
    const TensorView h_run = h.slice_cols(0, module->spec.rank).slice_rows(run.begin, run.end);
    ops::gemm_dw(backend, dy_run, h_run, rows.ends_of(run), module->d_b);
    ops::gemm_dw(backend, d_h_run, x.slice_rows(run.begin, run.end), rows.ends_of(run),
                 module->d_a);
  }

  // Many short runs: a worker takes whole runs, each in one thread. The bits are the same.
  void each_input(Backend& backend) const {
    const std::span<const AdapterRun> runs = rows.runs();
    backend.run_in_lanes(std::ssize(runs), [&](int64_t i, Backend& lane) {
      input(lane, runs[static_cast<size_t>(i)]);
    });
  }
};

}  // namespace

void linear_backward(Pass& pass, const RowGroups& rows, const LinearWeights& linear, TensorView x,
                     TensorView h, TensorView dy, TensorView dx, bool accumulate,
                     TensorView d_weight) {
  Backend& backend = pass.backend;
  const Scratch::Mark mark(backend.scratch());
  std::vector<ops::LowRankRun>& low_rank = pass.lists.low_rank;
  low_rank.clear();
  const int64_t rank = largest_rank(rows, linear.layer, linear.target);
  const TensorView d_h =
      rank == 0 ? TensorView() : backend.scratch().take(pass.dtype(), {x.rows(), rank});
  for (const AdapterRun& run : rows.runs()) {
    const LoraModule* module = find_module(run, linear.layer, linear.target);
    if (module == nullptr) continue;
    low_rank.push_back({.begin = run.begin,
                        .end = run.end,
                        .x = d_h.slice_cols(0, module->spec.rank),
                        .w = module->a_panel});
  }
  const LowRankBackward low_rank_terms{pass, rows, linear, x, h, dy, d_h};
  const bool beside = rank > 0 && !dx.empty() && rows.suit(backend.pool().num_threads());
  if (beside) {
    low_rank_terms.each_input(backend);
  } else if (rank > 0) {
    for (const AdapterRun& run : rows.runs()) {
      low_rank_terms.input(backend, run);
      low_rank_terms.gradients(backend, run);
    }
  }
  if (!d_weight.empty()) ops::gemm_dw(backend, dy, x, rows.ends(), d_weight);
  if (pass.base_gradients != nullptr && linear.bias_index != ModelWeights::npos) {
    ops::add_rows_into(backend, dy, pass.base_gradients->d_weight[linear.bias_index]);
  }
  // dx = dy W + d(x A^T) A
  if (dx.empty()) return;
  const auto gradients_of = [&](int64_t i, int worker) {
    low_rank_terms.gradients(backend.lane(worker), rows.runs()[static_cast<size_t>(i)]);
  };
  const ops::Beside gradients{std::ssize(rows.runs()), gradients_of};
  input_gradient(pass, dy, linear.weight, dx, accumulate, beside ? &gradients : nullptr);
}

void linear_forward(Pass& pass, const BlockContext& context, int key, TensorView x, TensorView add,
                    TensorView h, TensorView y) {
  y = pass.unknown(y);
  if (y.empty() && (h.empty() || pass.known(h))) return;  // nothing is left to make
  linear_forward(pass, pass.rows, linear_of(context, key), x, add, h, y);
}

void linear_backward(Pass& pass, const BlockContext& context, int key, TensorView x, TensorView h,
                     TensorView dy, TensorView dx, bool accumulate) {
  const LinearWeights linear = linear_of(context, key);
  linear_backward(pass, pass.rows, linear, x, h, dy, dx, accumulate,
                  pass.base_gradient(linear.weight_index));
}

}  // namespace strata::model
