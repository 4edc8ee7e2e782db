// SPDX-License-Identifier: Apache-2.0
// The connectors of one residual, each around a gated MLP: x + mlp(norm(x)), HF modeling_llama.py,
// LlamaDecoderLayer, with a scale of the branch, modeling_granite.py, GraniteDecoderLayer; x +
// norm_after(mlp(norm_before(x))), modeling_gemma3.py, Gemma3DecoderLayer; x + norm_after(mlp(x)),
// modeling_olmo2.py, Olmo2DecoderLayer; all of it times a number of the layer,
// modeling_gemma4.py, Gemma4TextDecoderLayer; and mlp(x).
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

SublayerCase pre_norm(const std::string& name, float offset, float scale = 1.0f) {
  const model::PreNormAddConfig config = {
      .norm = "input_layernorm.weight", .eps = kEps, .norm_offset = offset, .branch_scale = scale};
  return make(name, model::Connector(model::kPreNormAdd, config),
              [offset, scale](const Params& params, const Row& x) {
                const Row n = rms_norm(x, params.at("input_layernorm.weight"), kEps,
                                       static_cast<double>(offset));
                Row y = x;
                add_scaled(y, static_cast<double>(scale), gated_mlp(params, "mlp.", n));
                return y;
              });
}

SublayerCase post_norm(const std::string& name, float offset, std::string_view scale = {}) {
  const model::PostNormAddConfig config = {.before = "before.weight",
                                           .after = "after.weight",
                                           .scale = scale,
                                           .eps = kEps,
                                           .norm_offset = offset};
  return make(name, model::Connector(model::kPostNormAdd, config),
              [offset, scale](const Params& params, const Row& x) {
                const auto add = static_cast<double>(offset);
                const Row n = rms_norm(x, params.at("before.weight"), kEps, add);
                Row y =
                    rms_norm(gated_mlp(params, "mlp.", n), params.at("after.weight"), kEps, add);
                add_scaled(y, 1.0, x);
                if (scale.empty()) return y;
                Row scaled(y.size(), 0.0);
                add_scaled(scaled, params.at(std::string(scale))[0], y);
                return scaled;
              });
}

SublayerCase norm_behind_alone(const std::string& name) {
  const model::PostNormAddConfig config = {.after = "after.weight", .eps = kEps};
  return make(
      name, model::Connector(model::kPostNormAdd, config), [](const Params& params, const Row& x) {
        Row y = rms_norm(gated_mlp(params, "mlp.", x), params.at("after.weight"), kEps, 0.0);
        add_scaled(y, 1.0, x);
        return y;
      });
}

INSTANTIATE_TEST_SUITE_P(pre_norm_add, SublayerAlone,
                         ::testing::Values(pre_norm("plain", 0.0f), pre_norm("offset", 1.0f),
                                           pre_norm("scaled", 0.0f, 0.22f)),
                         case_name);
INSTANTIATE_TEST_SUITE_P(post_norm_add, SublayerAlone,
                         ::testing::Values(post_norm("plain", 0.0f), post_norm("offset", 1.0f),
                                           post_norm("scaled", 0.0f, "layer_scalar"),
                                           norm_behind_alone("behind_alone")),
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
