// SPDX-License-Identifier: Apache-2.0
#include "model/per_layer_inputs.h"

#include <cmath>

#include "model/embedding.h"
#include "model/linear.h"
#include "model/residual.h"
#include "ops/elementwise.h"
#include "ops/pack.h"

namespace strata::model {
namespace {

const float kScale = static_cast<float>(std::sqrt(0.5));  // of the sum

const PerLayerInputs& config_of(const Pass& pass) {
  return *pass.weights.config().per_layer_inputs;
}

bool has_any(const Pass& pass) { return pass.weights.config().per_layer_inputs.has_value(); }

Shape shape_of(const Pass& pass) {
  return {pass.num_tokens(), pass.weights.config().num_layers() * config_of(pass).width};
}

// What the rows of the layers' embeddings are multiplied by, in the compute type.
float embedding_scale(const Pass& pass) {
  const auto scale = static_cast<float>(std::sqrt(static_cast<double>(config_of(pass).width)));
  return pass.dtype() == DType::kBF16 ? round_to_bf16(scale) : scale;
}

float projection_scale(const Pass& pass) {
  const auto width = static_cast<double>(pass.weights.config().hidden_size);
  return static_cast<float>(1.0 / std::sqrt(width));
}

// x [T, L P] as a row for each layer of a token, [T L, P].
TensorView by_layer(const Pass& pass, TensorView x) {
  return x.reshape({x.rows() * pass.weights.config().num_layers(), config_of(pass).width});
}

ops::RmsNormArgs norm_of(const Pass& pass, TensorView projected) {
  return norm_args(by_layer(pass, projected), pass.weights.per_layer_inputs().values(kPerLayerNorm),
                   pass.weights.config().rms_norm_eps, 0.0f);
}

// D^-1/2 W x0, [T, L P], from the scratch; h: of adapters, as in model/linear.h.
TensorView project(Pass& pass, TensorView x0, TensorView h = {}) {
  const TensorView y = pass.take(pass.dtype(), shape_of(pass));
  linear_forward(pass, pass.weights.per_layer_inputs(), kPerLayerProjection, x0, {}, h, y);
  ops::scale(pass.backend, y, projection_scale(pass), y);
  return y;
}

}  // namespace

void make_per_layer_inputs(Pass& pass, TensorView x0) {
  if (!has_any(pass)) return;
  const TensorView y = pass.lists.shared.per_layer_inputs;
  const Scratch::Mark mark(pass.backend.scratch());
  const TensorView sum = pass.take(DType::kF32, y.shape);
  ops::rms_norm(pass.backend, norm_of(pass, project(pass, x0)), by_layer(pass, sum), {});
  const TensorView rows = pass.take(pass.dtype(), y.shape);
  ops::gather_rows(pass.backend, pass.weights.per_layer_inputs().param(kPerLayerEmbedding).panel,
                   pass.tokens, rows);
  ops::scale(pass.backend, rows, embedding_scale(pass), rows);
  ops::add_into(pass.backend, rows, sum);
  ops::scale(pass.backend, sum, kScale, y);
}

void per_layer_inputs_backward(Pass& pass, TensorView d) {
  const TensorView d_y = pass.lists.shared.d_per_layer_inputs;
  if (d_y.empty()) return;
  const Scratch::Mark mark(pass.backend.scratch());
  const BlockContext& context = pass.weights.per_layer_inputs();
  // y = kScale (norm(projected) + scaled rows)
  const TensorView d_sum = pass.take(DType::kF32, d_y.shape);
  ops::scale(pass.backend, d_y, kScale, d_sum);
  const TensorView d_embedding = pass.base_gradient(context.param(kPerLayerEmbedding).index);
  if (!d_embedding.empty()) {
    const Scratch::Mark inner(pass.backend.scratch());
    const TensorView d_rows = pass.take(DType::kF32, d_y.shape);
    ops::scale(pass.backend, d_sum, embedding_scale(pass), d_rows);
    ops::scatter_add(pass.backend, d_rows, pass.tokens, d_embedding);
  }
  const TensorView x0 = pass.take(pass.dtype(), {pass.num_tokens(), d.cols()});
  embedding_forward(pass, x0);
  const int64_t rank = largest_rank(pass.rows, -1, kPerLayerModelProjection);
  const TensorView h = rank > 0 ? pass.take(pass.dtype(), {x0.rows(), rank}) : TensorView();
  const TensorView d_projected = zeros(pass, d_y.shape);
  ops::rms_norm_backward(pass.backend, norm_of(pass, project(pass, x0, h)), {},
                         by_layer(pass, d_sum), by_layer(pass, d_projected),
                         pass.base_gradient(context.param(kPerLayerNorm).index));
  // projected = D^-1/2 W x0
  const TensorView dy = pass.take(pass.dtype(), d_y.shape);
  ops::scale(pass.backend, d_projected, projection_scale(pass), dy);
  linear_backward(pass, context, kPerLayerProjection, x0, h, dy, d, true);
}

}  // namespace strata::model
