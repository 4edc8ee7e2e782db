// SPDX-License-Identifier: Apache-2.0
// softmax(q k^T scale) v over the keys that a query sees, heads of queries in groups over those of
// keys: HF modeling_llama.py, LlamaAttention; modeling_qwen3.py and modeling_gemma3.py for norms of
// heads and windows; modeling_qwen3_5.py, Qwen3_5Attention, for the gate and partial rotation;
// modeling_smollm3.py for no rotation; modeling_ministral3.py for the scale of a query's position;
// modeling_gpt_oss.py, eager_attention_forward, for sinks; modeling_gemma2.py for capped scores;
// modeling_gemma4.py, Gemma4TextAttention, for normed values and values that are the keys'
// projection; modeling_llama4.py, Llama4TextAttention, for norms without a weight, chunks and
// queries that are scaled without being turned.
#include "model/blocks/gqa.h"

#include <cmath>

#include "tests/model/blocks/sublayer_case.h"

namespace strata::testing {
namespace {

// Of the scale of queries whose rope is another than the keys'.
constexpr double kBeta = 0.7;
constexpr double kLength = 3.0;
constexpr double kOffset = 1.0;  // where nothing is turned

// One head of a projection, normed and turned.
Row head_of(const model::GqaConfig& c, const Params& params, const Row& projected, size_t first,
            const std::string& norm, size_t position) {
  const auto width = static_cast<size_t>(c.head_dim);
  Row head = part(projected, first, width);
  if (c.qk_norm && c.norms_span_heads) {
    head = part(rms_norm(projected, params.at("self_attn." + norm + ".weight"), c.eps, 0.0), first,
                width);
  } else if (c.qk_norm) {
    head = rms_norm(head, params.at("self_attn." + norm + ".weight"), c.eps,
                    static_cast<double>(c.norm_offset));
  } else if (c.plain_qk_norm) {
    head = rms_norm(head, Row(width, 1.0), c.eps, 0.0);
  }
  if (c.rope == model::kNoRope) return head;
  const auto dim = static_cast<size_t>(c.rotary_dim == 0 ? c.head_dim : c.rotary_dim);
  rotate(head, 0, dim, static_cast<double>(position), kTheta,
         c.rope_interleave ? Pairs::kNeighbours : Pairs::kHalves);
  return head;
}

// sink: one more score, without a value; null: none.
Row attend(const model::GqaConfig& c, const Row& q, const Rows& keys, const Rows& values,
           size_t position, const double* sink) {
  size_t first = 0;
  if (c.window > 0) {
    const auto window = static_cast<size_t>(c.window);
    first = position + 1 > window ? position + 1 - window : 0;
    if (c.in_chunks) first = position / window * window;
  }
  Row scores;
  for (size_t s = first; s <= position; ++s) {
    const double score = static_cast<double>(c.scale) * dot(q, keys[s]);
    const auto cap = static_cast<double>(c.score_cap);
    scores.push_back(cap == 0.0 ? score : cap * std::tanh(score / cap));
  }
  if (sink != nullptr) scores.push_back(*sink);
  const Row weights = softmax(scores);
  Row out(q.size(), 0.0);
  for (size_t s = first; s <= position; ++s) add_scaled(out, weights[s - first], values[s]);
  return out;
}

Reference reference(const model::GqaConfig& c) {
  return [c](const ReferenceInput& in) {
    const auto width = static_cast<size_t>(c.head_dim);
    const auto num_kv_heads = static_cast<size_t>(c.num_kv_heads);
    const auto group = static_cast<size_t>(c.num_heads / c.num_kv_heads);
    const size_t q_stride = c.output_gate ? 2 * width : width;
    std::vector<Rows> keys(num_kv_heads), values(num_kv_heads);
    Rows out;
    for (size_t t = 0; t < in.x.size(); ++t) {
      const Row k = linear(in.params, "self_attn.k_proj", in.x[t]);
      const Row v = c.keys_are_values ? k : linear(in.params, "self_attn.v_proj", in.x[t]);
      for (size_t h = 0; h < num_kv_heads; ++h) {
        keys[h].push_back(head_of(c, in.params, k, h * width, "k_norm", t));
        const Row value = part(v, h * width, width);
        values[h].push_back(c.v_norm ? rms_norm(value, Row(width, 1.0), c.eps, 0.0) : value);
      }
      const Row q = linear(in.params, "self_attn.q_proj", in.x[t]);
      Row context;
      for (size_t h = 0; h < num_kv_heads * group; ++h) {
        Row query = head_of(c, in.params, q, h * q_stride, "q_norm", t);
        if (c.query_rope) {
          const double at = static_cast<double>(t) + (c.rope == model::kNoRope ? kOffset : 0.0);
          for (double& value : query)
            value *= 1.0 + kBeta * std::log(1.0 + std::floor(at / kLength));
        }
        const double* sink = c.sinks ? &in.params.at("self_attn.sinks")[h] : nullptr;
        Row head = attend(c, query, keys[h / group], values[h / group], t, sink);
        for (size_t i = 0; i < width && c.output_gate; ++i) {
          head[i] *= sigmoid(q[h * q_stride + width + i]);
        }
        context.insert(context.end(), head.begin(), head.end());
      }
      out.push_back(linear(in.params, "self_attn.o_proj", context));
    }
    return out;
  };
}

SublayerCase make(const std::string& name, const model::GqaConfig& config) {
  return {
      .name = name,
      .block = model::Block(model::kGqa, config),
      .reference = reference(config),
      .rope_dims = {config.rotary_dim == 0 ? config.head_dim : config.rotary_dim},
      .more_ropes = {{.config = {.theta = kTheta},
                      .dim = config.head_dim,
                      .position_scale = {.beta = kBeta, .length = kLength}},
                     {.config = {.type = model::RopeType::kProportional,
                                 .theta = kTheta,
                                 .partial_rotary_factor = 0.0},
                      .dim = config.head_dim,
                      .position_scale = {.beta = kBeta, .length = kLength, .offset = kOffset}}}};
}

INSTANTIATE_TEST_SUITE_P(
    gqa, SublayerAlone,
    ::testing::Values(
        make("with_biases", {.num_heads = 4,
                             .num_kv_heads = 2,
                             .head_dim = 6,
                             .scale = 0.4f,
                             .qkv_bias = true,
                             .o_bias = true}),
        make("normed_in_a_window", {.num_heads = 3,
                                    .num_kv_heads = 3,
                                    .head_dim = 4,
                                    .scale = 0.5f,
                                    .qk_norm = true,
                                    .norm_offset = 1.0f,
                                    .window = 4}),
        make("normed_over_all_heads", {.num_heads = 4,
                                       .num_kv_heads = 2,
                                       .head_dim = 6,
                                       .scale = 0.4f,
                                       .qk_norm = true,
                                       .norms_span_heads = true}),
        make("turned_in_part_by_neighbours", {.num_heads = 4,
                                              .num_kv_heads = 2,
                                              .head_dim = 6,
                                              .scale = 0.4f,
                                              .rotary_dim = 4,
                                              .rope_interleave = true}),
        make("not_turned", {.num_heads = 4,
                            .num_kv_heads = 2,
                            .head_dim = 6,
                            .scale = 0.4f,
                            .rope = model::kNoRope}),
        make("scaled_by_position",
             {.num_heads = 4, .num_kv_heads = 2, .head_dim = 6, .scale = 0.4f, .query_rope = 1}),
        make("not_turned_and_scaled_by_position", {.num_heads = 4,
                                                   .num_kv_heads = 2,
                                                   .head_dim = 6,
                                                   .scale = 0.4f,
                                                   .rope = model::kNoRope,
                                                   .query_rope = 2}),
        make("turned_by_neighbours_and_normed_in_chunks", {.num_heads = 4,
                                                           .num_kv_heads = 2,
                                                           .head_dim = 6,
                                                           .scale = 0.4f,
                                                           .plain_qk_norm = true,
                                                           .eps = 1e-3,
                                                           .window = 3,
                                                           .in_chunks = true,
                                                           .rope_interleave = true}),
        make("with_sinks", {.num_heads = 6,
                            .num_kv_heads = 2,
                            .head_dim = 4,
                            .scale = 0.5f,
                            .qkv_bias = true,
                            .o_bias = true,
                            .sinks = true}),
        make("with_sinks_in_a_window", {.num_heads = 2,
                                        .num_kv_heads = 1,
                                        .head_dim = 6,
                                        .scale = 0.4f,
                                        .window = 3,
                                        .sinks = true}),
        make("capped",
             {.num_heads = 4, .num_kv_heads = 2, .head_dim = 6, .scale = 0.4f, .score_cap = 0.7f}),
        make("capped_in_a_window", {.num_heads = 3,
                                    .num_kv_heads = 1,
                                    .head_dim = 4,
                                    .scale = 0.5f,
                                    .score_cap = 1.3f,
                                    .window = 4}),
        make("values_normed", {.num_heads = 4,
                               .num_kv_heads = 2,
                               .head_dim = 6,
                               .qkv_bias = true,
                               .v_norm = true,
                               .qk_norm = true,
                               .eps = 1e-3,
                               .window = 3}),
        make("values_are_keys", {.num_heads = 4,
                                 .num_kv_heads = 2,
                                 .head_dim = 6,
                                 .qkv_bias = true,
                                 .keys_are_values = true,
                                 .v_norm = true,
                                 .qk_norm = true,
                                 .eps = 1e-3}),
        make("values_are_plain_keys", {.num_heads = 2,
                                       .num_kv_heads = 1,
                                       .head_dim = 6,
                                       .scale = 0.4f,
                                       .keys_are_values = true}),
        make("gated_and_turned_in_part", {.num_heads = 2,
                                          .num_kv_heads = 1,
                                          .head_dim = 8,
                                          .scale = 0.35f,
                                          .qk_norm = true,
                                          .rotary_dim = 4,
                                          .output_gate = true})),
    case_name);

}  // namespace
}  // namespace strata::testing
