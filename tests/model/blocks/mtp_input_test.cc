// SPDX-License-Identifier: Apache-2.0
// e_proj(norm_e(embed(token))) + h_proj(norm_h(state)) of each stream: the inference code of
// DeepSeek-V4, MTPBlock.
#include "model/blocks/mtp_input.h"

#include "tests/model/blocks/sublayer_case.h"

namespace strata::testing {
namespace {

Reference reference(const model::MtpInputConfig& c) {
  return [c](const ReferenceInput& in) {
    const auto width = static_cast<size_t>(kWidth);
    Rows out;
    for (size_t t = 0; t < in.x.size(); ++t) {
      const Row embedded = part(in.params.at("model.embed_tokens.weight"),
                                static_cast<size_t>(in.tokens[t]) * width, width);
      const Row e =
          linear(in.params, "e_proj", rms_norm(embedded, in.params.at("enorm.weight"), c.eps));
      Row y;
      for (size_t first = 0; first < in.x[t].size(); first += width) {
        Row h = linear(in.params, "h_proj",
                       rms_norm(part(in.x[t], first, width), in.params.at("hnorm.weight"), c.eps));
        add_scaled(h, 1.0, e);
        y.insert(y.end(), h.begin(), h.end());
      }
      out.push_back(y);
    }
    return out;
  };
}

SublayerCase make(const std::string& name, const model::MtpInputConfig& config) {
  return {.name = name,
          .block = model::Block(model::kMtpInput, config),
          .reference = reference(config),
          .streams = config.num_streams,
          .adds = false};
}

INSTANTIATE_TEST_SUITE_P(mtp_input, SublayerAlone,
                         ::testing::Values(make("one_stream", {}),
                                           make("three_streams", {.num_streams = 3})),
                         case_name);

}  // namespace
}  // namespace strata::testing
