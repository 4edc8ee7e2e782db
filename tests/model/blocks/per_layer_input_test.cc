// SPDX-License-Identifier: Apache-2.0
// out = projection(gelu(gate(x)) * e), e the layer's own input: HF modeling_gemma4.py,
// Gemma4TextDecoderLayer.
#include "model/blocks/per_layer_input.h"

#include "tests/model/blocks/gated_mlp_reference.h"
#include "tests/model/blocks/sublayer_case.h"

namespace strata::testing {
namespace {

Reference reference(const model::PerLayerInputConfig& c) {
  return [c](const ReferenceInput& in) {
    Rows out;
    for (size_t t = 0; t < in.x.size(); ++t) {
      Row gate = linear(in.params, "per_layer_input_gate", in.x[t]);
      for (size_t i = 0; i < gate.size(); ++i)
        gate[i] = gelu_tanh(gate[i]) * layer_input(in.tokens[t], i);
      out.push_back(linear(in.params, "per_layer_projection", gate));
    }
    return out;
  };
}

INSTANTIATE_TEST_SUITE_P(per_layer_input, SublayerAlone,
                         ::testing::Values(SublayerCase{
                             .name = "gelu",
                             .block = model::Block(model::kPerLayerInput,
                                                   model::PerLayerInputConfig{.width = 7}),
                             .reference = reference({.width = 7}),
                             .layer_input_width = 7}),
                         case_name);

}  // namespace
}  // namespace strata::testing
