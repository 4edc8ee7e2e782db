// SPDX-License-Identifier: Apache-2.0
// fc [norm_e(embed(token)); norm_h(hidden)]: HF modeling_layers.py, MtpLayer.
#include "model/blocks/mtp_joined_input.h"

#include "tests/model/blocks/sublayer_case.h"

namespace strata::testing {
namespace {

Reference reference(const model::MtpJoinedInputConfig& c) {
  return [c](const ReferenceInput& in) {
    const auto width = static_cast<size_t>(kWidth);
    const auto normed = [&](const Row& x, const char* name) {
      Row weight = in.params.at(name);
      for (double& w : weight) w += static_cast<double>(c.norm_offset);
      return rms_norm(x, weight, c.eps);
    };
    Rows out;
    for (size_t t = 0; t < in.x.size(); ++t) {
      const Row embedded = part(in.params.at("model.embed_tokens.weight"),
                                static_cast<size_t>(in.tokens[t]) * width, width);
      Row joined = normed(embedded, "pre_fc_norm_embedding.weight");
      const Row h = normed(in.x[t], "pre_fc_norm_hidden.weight");
      joined.insert(joined.end(), h.begin(), h.end());
      out.push_back(linear(in.params, "fc", joined));
    }
    return out;
  };
}

SublayerCase make(const std::string& name, const model::MtpJoinedInputConfig& config) {
  return {.name = name,
          .block = model::Block(model::kMtpJoinedInput, config),
          .reference = reference(config),
          .adds = false};
}

INSTANTIATE_TEST_SUITE_P(mtp_joined_input, SublayerAlone,
                         ::testing::Values(make("plain_norms", {}),
                                           make("norms_of_one_plus_w", {.norm_offset = 1.0f})),
                         case_name);

}  // namespace
}  // namespace strata::testing
