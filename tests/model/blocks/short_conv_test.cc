// SPDX-License-Identifier: Apache-2.0
// out_proj(C * conv(B * u)), each output of the convolution summed over its channel's last inputs:
// HF modeling_lfm2.py, Lfm2ShortConv and causal_conv1d_fn.
#include "model/blocks/short_conv.h"

#include "tests/model/blocks/sublayer_case.h"

namespace strata::testing {
namespace {

Reference reference(const model::ShortConvConfig& c) {
  return [c](const ReferenceInput& in) {
    const auto width = static_cast<size_t>(c.width);
    const auto taps = static_cast<size_t>(c.taps);
    const Row& weight = in.params.at("conv.conv.weight");
    Rows z, out;
    for (const Row& x : in.x) {
      const Row projected = linear(in.params, "conv.in_proj", x);
      Row product(width), gated(width);
      for (size_t i = 0; i < width; ++i) product[i] = projected[i] * projected[2 * width + i];
      z.push_back(product);
      for (size_t i = 0; i < width; ++i) {
        double sum = c.bias ? in.params.at("conv.conv.bias")[i] : 0.0;
        for (size_t back = 0; back < std::min(taps, z.size()); ++back) {
          sum += weight[i * taps + taps - 1 - back] * z[z.size() - 1 - back][i];
        }
        gated[i] = projected[width + i] * sum;
      }
      out.push_back(linear(in.params, "conv.out_proj", gated));
    }
    return out;
  };
}

SublayerCase make(const std::string& name, const model::ShortConvConfig& config) {
  return {.name = name,
          .block = model::Block(model::kShortConv, config),
          .reference = reference(config)};
}

INSTANTIATE_TEST_SUITE_P(short_conv, SublayerAlone,
                         ::testing::Values(make("three_taps", {.width = kWidth, .taps = 3}),
                                           make("with_biases",
                                                {.width = kWidth, .taps = 4, .bias = true}),
                                           make("one_tap", {.width = kWidth, .taps = 1})),
                         case_name);

}  // namespace
}  // namespace strata::testing
