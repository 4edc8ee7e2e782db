// SPDX-License-Identifier: Apache-2.0
// Manifold-constrained hyper-connections around a gated MLP: HF modeling_deepseek_v4.py,
// DeepseekV4HyperConnection and DeepseekV4DecoderLayer (Xie et al., 2026).
#include "model/connectors/hyper_connection.h"

#include "model/blocks/gated_mlp.h"
#include "tests/model/blocks/gated_mlp_reference.h"
#include "tests/model/blocks/sublayer_case.h"

namespace strata::testing {
namespace {

using Config = model::HyperConnectionConfig;

void divide_rows(Rows& matrix, double eps) {
  for (Row& row : matrix) {
    const double sum = std::accumulate(row.begin(), row.end(), 0.0) + eps;
    for (double& value : row) value /= sum;
  }
}
void divide_columns(Rows& matrix, double eps) {
  for (size_t j = 0; j < matrix.size(); ++j) {
    double sum = eps;
    for (const Row& row : matrix) sum += row[j];
    for (Row& row : matrix) row[j] /= sum;
  }
}

// What the streams give of themselves: of the block's input, of its output, and of their mix.
struct Weights {
  Row pre, post;
  Rows comb;
};
Weights weights_of(const Config& c, const Params& params, const Row& streams) {
  const auto n = static_cast<size_t>(c.num_streams);
  const Row mix = linear(params.at("hc.fn"), rms_norm(streams, {}, c.norm_eps));
  const Row& base = params.at("hc.base");
  const Row& scale = params.at("hc.scale");
  const auto number = [&](size_t i, size_t kind) { return scale[kind] * mix[i] + base[i]; };
  Weights w;
  for (size_t i = 0; i < n; ++i) {
    w.pre.push_back(sigmoid(number(i, 0)) + c.eps);
    w.post.push_back(2.0 * sigmoid(number(n + i, 1)));
    Row row;
    for (size_t j = 0; j < n; ++j) row.push_back(number((2 + i) * n + j, 2));
    w.comb.push_back(softmax(row));
    for (double& value : w.comb.back()) value += c.eps;
  }
  divide_columns(w.comb, c.eps);
  for (int step = 1; step < c.steps; ++step) {
    divide_rows(w.comb, c.eps);
    divide_columns(w.comb, c.eps);
  }
  return w;
}

Rows run(const Config& c, const ReferenceInput& in) {
  const auto n = static_cast<size_t>(c.num_streams);
  const auto width = static_cast<size_t>(kWidth);
  Rows out;
  for (const Row& streams : in.x) {
    const Weights w = weights_of(c, in.params, streams);
    Row input(width, 0.0);
    for (size_t i = 0; i < n; ++i) add_scaled(input, w.pre[i], part(streams, i * width, width));
    const Row branch =
        gated_mlp(in.params, "mlp.", rms_norm(input, in.params.at("norm.weight"), c.norm_eps));
    Row y;
    for (size_t j = 0; j < n; ++j) {
      Row stream(width, 0.0);
      add_scaled(stream, w.post[j], branch);
      for (size_t i = 0; i < n; ++i) {
        add_scaled(stream, w.comb[i][j], part(streams, i * width, width));
      }
      y.insert(y.end(), stream.begin(), stream.end());
    }
    out.push_back(y);
  }
  return out;
}

SublayerCase make(const std::string& name, int64_t num_streams, int steps) {
  const Config config = {.norm = "norm.weight",
                         .fn = "hc.fn",
                         .base = "hc.base",
                         .scale = "hc.scale",
                         .num_streams = num_streams,
                         .steps = steps};
  return {.name = name,
          .block = model::Block(model::kGatedMlp, model::GatedMlpConfig{.width = 9}),
          .connector = model::Connector(model::kHyperConnection, config),
          .reference = [config](const ReferenceInput& in) { return run(config, in); },
          .streams = num_streams};
}

INSTANTIATE_TEST_SUITE_P(hyper_connection, SublayerAlone,
                         ::testing::Values(make("two_streams", 2, 1),
                                           make("three_streams_four_steps", 3, 4)),
                         case_name);

}  // namespace
}  // namespace strata::testing
