// SPDX-License-Identifier: Apache-2.0
// Latent attention as the model defines it, with keys and values of every head expanded (the block
// computes in latent space): HF modeling_deepseek_v3.py, DeepseekV3Attention.
#include "model/blocks/mla.h"

#include "tests/model/blocks/sublayer_case.h"

namespace strata::testing {
namespace {

constexpr double kLatentEps = 1e-6;

struct Sizes {
  size_t heads, nope, rope, value, latent;
  explicit Sizes(const model::MlaConfig& c)
      : heads(static_cast<size_t>(c.num_heads)),
        nope(static_cast<size_t>(c.nope_dim)),
        rope(static_cast<size_t>(c.rope_dim)),
        value(static_cast<size_t>(c.value_dim)),
        latent(static_cast<size_t>(c.kv_lora_rank)) {}
};

Row queries(const model::MlaConfig& c, const Params& params, const Row& x) {
  if (c.q_lora_rank == 0) return linear(params, "self_attn.q_proj", x);
  const Row latent = rms_norm(linear(params, "self_attn.q_a_proj", x),
                              params.at("self_attn.q_a_layernorm.weight"), kLatentEps);
  return linear(params, "self_attn.q_b_proj", latent);
}

// Keys and values of one token, by head; the rotated part is the same in all.
struct Expanded {
  Rows keys, values;
};
Expanded expand(const model::MlaConfig& c, const Params& params, const Row& x, size_t position) {
  const Sizes n(c);
  const Row kv = linear(params, "self_attn.kv_a_proj_with_mqa", x);
  const Row latent =
      rms_norm(part(kv, 0, n.latent), params.at("self_attn.kv_a_layernorm.weight"), kLatentEps);
  Row turned = part(kv, n.latent, n.rope);
  rotate(turned, 0, n.rope, static_cast<double>(position), kTheta,
         c.rope_interleave ? Pairs::kNeighbours : Pairs::kHalves);
  const Row heads = linear(params, "self_attn.kv_b_proj", latent);
  Expanded out;
  for (size_t h = 0; h < n.heads; ++h) {
    const size_t first = h * (n.nope + n.value);
    Row key = part(heads, first, n.nope);
    key.insert(key.end(), turned.begin(), turned.end());
    out.keys.push_back(key);
    out.values.push_back(part(heads, first + n.nope, n.value));
  }
  return out;
}

Reference reference(const model::MlaConfig& c) {
  return [c](const ReferenceInput& in) {
    const Sizes n(c);
    const size_t width = n.nope + n.rope;
    std::vector<Expanded> seen;
    Rows out;
    for (size_t t = 0; t < in.x.size(); ++t) {
      seen.push_back(expand(c, in.params, in.x[t], t));
      const Row q = queries(c, in.params, in.x[t]);
      Row context;
      for (size_t h = 0; h < n.heads; ++h) {
        Row query = part(q, h * width, width);
        rotate(query, n.nope, n.rope, static_cast<double>(t), kTheta,
               c.rope_interleave ? Pairs::kNeighbours : Pairs::kHalves);
        Row scores;
        for (const Expanded& token : seen) {
          scores.push_back(static_cast<double>(c.scale) * dot(query, token.keys[h]));
        }
        const Row weights = softmax(scores);
        Row head(n.value, 0.0);
        for (size_t s = 0; s <= t; ++s) add_scaled(head, weights[s], seen[s].values[h]);
        context.insert(context.end(), head.begin(), head.end());
      }
      out.push_back(linear(in.params, "self_attn.o_proj", context));
    }
    return out;
  };
}

SublayerCase make(const std::string& name, const model::MlaConfig& config) {
  return {.name = name,
          .block = model::Block(model::kMla, config),
          .reference = reference(config),
          .rope_dims = {config.rope_dim}};
}

INSTANTIATE_TEST_SUITE_P(mla, SublayerAlone,
                         ::testing::Values(make("with_a_latent_of_queries_and_biases",
                                                {.num_heads = 3,
                                                 .q_lora_rank = 7,
                                                 .kv_lora_rank = 10,
                                                 .nope_dim = 4,
                                                 .rope_dim = 4,
                                                 .value_dim = 5,
                                                 .bias = true,
                                                 .scale = 0.4f}),
                                           make("without_one", {.num_heads = 2,
                                                                .kv_lora_rank = 8,
                                                                .nope_dim = 6,
                                                                .rope_dim = 4,
                                                                .value_dim = 4,
                                                                .rope_interleave = false,
                                                                .scale = 0.3f})),
                         case_name);

}  // namespace
}  // namespace strata::testing
