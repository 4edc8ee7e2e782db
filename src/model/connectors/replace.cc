// SPDX-License-Identifier: Apache-2.0
#include "model/connectors/replace.h"

#include "model/residual.h"

namespace strata::model {
namespace {

struct Replace {
  using Config = ReplaceConfig;
  struct Saved {};

  static void add_params(const Config&, int64_t, ParamRows&) {}
  static constexpr bool kSavesOutput = false;
  static void allocate_saved(Pass&, const SublayerContext&, Saved&) {}

  static void forward(Pass& pass, const SublayerContext& context, const SublayerSaved& saved,
                      TensorView state, TensorView out) {
    context.block->forward(pass, context.inner, saved.inner, state, {.add = {}, .out = out});
  }

  static void backward(Pass& pass, const SublayerContext& context, const SublayerSaved& saved,
                       TensorView state, TensorView d) {
    const Scratch::Mark mark(pass.backend.scratch());
    const TensorView d_state = pass.take(DType::kF32, d.shape);
    // out = block(state)
    context.block->backward(pass, context.inner, saved.inner, state, to_compute_dtype(pass, d),
                            d_state);
    ops::copy(pass.backend, d_state, d);
  }
};

}  // namespace

const ConnectorOps kReplace = connector_ops<Replace>("replace");

}  // namespace strata::model
