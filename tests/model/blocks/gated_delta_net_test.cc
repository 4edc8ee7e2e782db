// SPDX-License-Identifier: Apache-2.0
// The gated delta rule token by token (the block computes in chunks): HF modeling_qwen3_5.py,
// torch_recurrent_gated_delta_rule and Qwen3_5GatedDeltaNet; Yang et al., Gated Delta Networks.
#include "model/blocks/gated_delta_net.h"

#include "tests/model/blocks/sublayer_case.h"

namespace strata::testing {
namespace {

constexpr double kNormEps = 1e-6;  // of queries and keys

// silu of the causal convolution over the last taps, channel by channel.
Row convolved(const model::GatedDeltaNetConfig& c, const Row& weight, const Rows& qkv) {
  const auto taps = static_cast<size_t>(c.conv_width);
  Row y(qkv.back().size(), 0.0);
  for (size_t i = 0; i < y.size(); ++i) {
    for (size_t tap = 0; tap < std::min(taps, qkv.size()); ++tap) {
      y[i] += weight[i * taps + taps - 1 - tap] * qkv[qkv.size() - 1 - tap][i];
    }
    y[i] = silu(y[i]);
  }
  return y;
}

Row l2_normed(Row x) {
  const double inverse = 1.0 / std::sqrt(dot(x, x) + kNormEps);
  for (double& value : x) value *= inverse;
  return x;
}

// S [K, V] = decay S + k (x) beta (v - (decay S)^T k); what q reads of it.
Row step(Rows& state, double decay, double beta, const Row& q, const Row& k, const Row& v) {
  Row memory(v.size(), 0.0);
  for (size_t i = 0; i < k.size(); ++i) {
    for (double& value : state[i]) value *= decay;
    add_scaled(memory, k[i], state[i]);
  }
  Row delta(v.size());
  for (size_t j = 0; j < v.size(); ++j) delta[j] = beta * (v[j] - memory[j]);
  Row out(v.size(), 0.0);
  for (size_t i = 0; i < k.size(); ++i) {
    add_scaled(state[i], k[i], delta);
    add_scaled(out, q[i] / std::sqrt(static_cast<double>(q.size())), state[i]);
  }
  return out;
}

Reference reference(const model::GatedDeltaNetConfig& c) {
  return [c](const ReferenceInput& in) {
    const auto key_heads = static_cast<size_t>(c.num_key_heads);
    const auto heads = static_cast<size_t>(c.num_value_heads);
    const auto key_dim = static_cast<size_t>(c.key_dim);
    const auto value_dim = static_cast<size_t>(c.value_dim);
    const std::string prefix = "linear_attn.";
    std::vector<Rows> states(heads, Rows(key_dim, Row(value_dim, 0.0)));
    Rows qkv, out;
    for (const Row& x : in.x) {
      qkv.push_back(linear(in.params, prefix + "in_proj_qkv", x));
      const Row y = convolved(c, in.params.at(prefix + "conv1d.weight"), qkv);
      const Row z = linear(in.params, prefix + "in_proj_z", x);
      const Row a = linear(in.params, prefix + "in_proj_a", x);
      const Row b = linear(in.params, prefix + "in_proj_b", x);
      Row gated;
      for (size_t h = 0; h < heads; ++h) {
        const size_t of = h / (heads / key_heads);
        const Row q = l2_normed(part(y, of * key_dim, key_dim));
        const Row k = l2_normed(part(y, (key_heads + of) * key_dim, key_dim));
        const Row v = part(y, 2 * key_heads * key_dim + h * value_dim, value_dim);
        const double g = -std::exp(in.params.at(prefix + "A_log")[h]) *
                         softplus(a[h] + in.params.at(prefix + "dt_bias")[h]);
        Row head = step(states[h], std::exp(g), sigmoid(b[h]), q, k, v);
        head = rms_norm(head, in.params.at(prefix + "norm.weight"), c.eps);
        for (size_t i = 0; i < value_dim; ++i)
          gated.push_back(head[i] * silu(z[h * value_dim + i]));
      }
      out.push_back(linear(in.params, prefix + "out_proj", gated));
    }
    return out;
  };
}

SublayerCase make(const std::string& name, const model::GatedDeltaNetConfig& config) {
  return {.name = name,
          .block = model::Block(model::kGatedDeltaNet, config),
          .reference = reference(config)};
}

INSTANTIATE_TEST_SUITE_P(gated_delta_net, SublayerAlone,
                         ::testing::Values(make("two_values_a_key", {.num_key_heads = 2,
                                                                     .num_value_heads = 4,
                                                                     .key_dim = 5,
                                                                     .value_dim = 3,
                                                                     .conv_width = 4}),
                                           make("one", {.num_key_heads = 1,
                                                        .num_value_heads = 1,
                                                        .key_dim = 4,
                                                        .value_dim = 6,
                                                        .conv_width = 2})),
                         case_name);

}  // namespace
}  // namespace strata::testing
