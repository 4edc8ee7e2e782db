// SPDX-License-Identifier: Apache-2.0
// out = down(act(gate(x)) * up(x)): HF modeling_llama.py, LlamaMLP; modeling_gemma3.py, Gemma3MLP.
#include "model/blocks/gated_mlp.h"

#include "tests/model/blocks/gated_mlp_reference.h"
#include "tests/model/blocks/sublayer_case.h"

namespace strata::testing {
namespace {

Reference reference(const model::GatedMlpConfig& c) {
  return [c](const ReferenceInput& in) {
    Rows out;
    for (const Row& x : in.x) {
      out.push_back(gated_mlp(in.params, "mlp.", x,
                              c.activation == ops::Activation::kSilu ? silu : gelu_tanh));
    }
    return out;
  };
}

SublayerCase make(const std::string& name, const model::GatedMlpConfig& config) {
  return {.name = name,
          .block = model::Block(model::kGatedMlp, config),
          .reference = reference(config)};
}

INSTANTIATE_TEST_SUITE_P(
    gated_mlp, SublayerAlone,
    ::testing::Values(make("silu", {.width = 20}),
                      make("gelu_with_biases",
                           {.width = 17, .bias = true, .activation = ops::Activation::kGeluTanh})),
    case_name);

}  // namespace
}  // namespace strata::testing
