// SPDX-License-Identifier: Apache-2.0
// The connectors of one residual, each around a gated MLP: x + mlp(norm(x)), HF modeling_llama.py,
// LlamaDecoderLayer; x + norm_after(mlp(norm_before(x))), modeling_gemma3.py, Gemma3DecoderLayer;
// and mlp(x).
#include "model/blocks/gated_mlp.h"
#include "model/connectors/post_norm_add.h"
#include "model/connectors/pre_norm_add.h"
#include "model/connectors/replace.h"
#include "tests/model/blocks/gated_mlp_reference.h"
#include "tests/model/blocks/sublayer_case.h"

namespace strata::testing {
namespace {

constexpr double kEps = 1e-5;

template <typename Formula>
SublayerCase make(const std::string& name, const model::Connector& connector, Formula formula) {
  return {.name = name,
          .block = model::Block(model::kGatedMlp, model::GatedMlpConfig{.width = 9}),
          .connector = connector,
          .reference = [formula](const ReferenceInput& in) {
            Rows out;
            for (const Row& x : in.x) out.push_back(formula(in.params, x));
            return out;
          }};
}

SublayerCase pre_norm(const std::string& name, float offset) {
  const model::PreNormAddConfig config = {
      .norm = "input_layernorm.weight", .eps = kEps, .norm_offset = offset};
  return make(name, model::Connector(model::kPreNormAdd, config),
              [offset](const Params& params, const Row& x) {
                const Row n = rms_norm(x, params.at("input_layernorm.weight"), kEps,
                                       static_cast<double>(offset));
                Row y = gated_mlp(params, "mlp.", n);
                add_scaled(y, 1.0, x);
                return y;
              });
}

SublayerCase post_norm(const std::string& name, float offset) {
  const model::PostNormAddConfig config = {
      .before = "before.weight", .after = "after.weight", .eps = kEps, .norm_offset = offset};
  return make(name, model::Connector(model::kPostNormAdd, config),
              [offset](const Params& params, const Row& x) {
                const auto add = static_cast<double>(offset);
                const Row n = rms_norm(x, params.at("before.weight"), kEps, add);
                Row y =
                    rms_norm(gated_mlp(params, "mlp.", n), params.at("after.weight"), kEps, add);
                add_scaled(y, 1.0, x);
                return y;
              });
}

INSTANTIATE_TEST_SUITE_P(pre_norm_add, SublayerAlone,
                         ::testing::Values(pre_norm("plain", 0.0f), pre_norm("offset", 1.0f)),
                         case_name);
INSTANTIATE_TEST_SUITE_P(post_norm_add, SublayerAlone,
                         ::testing::Values(post_norm("plain", 0.0f), post_norm("offset", 1.0f)),
                         case_name);
INSTANTIATE_TEST_SUITE_P(
    replace, SublayerAlone,
    ::testing::Values(make("plain", model::Connector(model::kReplace, model::ReplaceConfig()),
                           [](const Params& params, const Row& x) {
                             return gated_mlp(params, "mlp.", x);
                           })),
    case_name);

}  // namespace
}  // namespace strata::testing
