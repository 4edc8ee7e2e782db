// SPDX-License-Identifier: Apache-2.0
// sum of weight * expert(x) over the chosen experts, + shared(x): HF modeling_qwen3_moe.py,
// Qwen3MoeTopKRouter; modeling_deepseek_v3.py, DeepseekV3TopkRouter; modeling_qwen3_5_moe.py,
// Qwen3_5MoeSparseMoeBlock; modeling_deepseek_v4.py, DeepseekV4TopKRouter, DeepseekV4HashRouter;
// modeling_gpt_oss.py, GptOssTopKRouter and GptOssExperts; modeling_llama4.py, Llama4Router and
// Llama4TextMoe.
#include "model/blocks/experts/moe.h"

#include "tests/model/blocks/gated_mlp_reference.h"
#include "tests/model/blocks/sublayer_case.h"

namespace strata::testing {
namespace {

using model::MoeConfig;
using model::RouterKind;

Clamp clamp_of(const MoeConfig& c) {
  return {double{c.clamp.limit}, double{c.clamp.alpha}, double{c.clamp.up_offset}};
}

Row scores_of(const MoeConfig& c, Row logits) {
  if (c.router == RouterKind::kSoftmax) return softmax(logits);
  if (c.router == RouterKind::kLogit) return logits;
  for (double& value : logits) {
    value = c.router == RouterKind::kSigmoid ? sigmoid(value) : std::sqrt(softplus(value));
  }
  return logits;
}

// Scores of experts outside the best groups, by the sum of a group's two best, are out of choice.
Row in_best_groups(const MoeConfig& c, Row scores) {
  if (c.num_groups == 1) return scores;
  const size_t size = scores.size() / static_cast<size_t>(c.num_groups);
  Row sums;
  for (size_t first = 0; first < scores.size(); first += size) {
    double sum = 0.0;
    for (const size_t place : top_places(part(scores, first, size), 2))
      sum += scores[first + place];
    sums.push_back(sum);
  }
  const std::vector<size_t> best = top_places(sums, static_cast<size_t>(c.top_groups));
  for (size_t e = 0; e < scores.size(); ++e) {
    if (std::find(best.begin(), best.end(), e / size) == best.end()) scores[e] = -HUGE_VAL;
  }
  return scores;
}

std::vector<size_t> choose(const MoeConfig& c, const Params& params, const Row& scores,
                           int32_t token) {
  const auto top_k = static_cast<size_t>(c.top_k);
  if (c.router == RouterKind::kTable) {
    const Row chosen =
        part(params.at("mlp.gate.tid2eid"), static_cast<size_t>(token) * top_k, top_k);
    return {chosen.begin(), chosen.end()};
  }
  Row biased = scores;
  const auto bias = params.find("mlp.gate.e_score_correction_bias");
  if (bias != params.end()) add_scaled(biased, 1.0, bias->second);
  return top_places(in_best_groups(c, biased), top_k);
}

Row shared(const MoeConfig& c, const Params& params, const Row& x) {
  if (!c.shared_gate) return gated_mlp(params, "mlp.shared_experts.", x, silu, clamp_of(c));
  Row y = gated_mlp(params, "mlp.shared_expert.", x, silu, clamp_of(c));
  const double factor = sigmoid(linear(params, "mlp.shared_expert_gate", x)[0]);
  for (double& value : y) value *= factor;
  return y;
}

Reference reference(const MoeConfig& c) {
  return [c](const ReferenceInput& in) {
    Rows out;
    for (size_t t = 0; t < in.x.size(); ++t) {
      const Row& x = in.x[t];
      const Row scores = scores_of(c, linear(in.params, "mlp.gate", x));
      const std::vector<size_t> chosen = choose(c, in.params, scores, in.tokens[t]);
      double sum = 0.0;
      for (const size_t e : chosen) sum += scores[e];
      Row y(x.size(), 0.0);
      for (const size_t e : chosen) {
        const double score = c.router == RouterKind::kLogit ? sigmoid(scores[e]) : scores[e];
        const double weight = c.scale * score / (c.norm_topk ? sum : 1.0);
        Row input = x;
        for (double& value : input) value *= c.weighs_inputs ? weight : 1.0;
        add_scaled(y, c.weighs_inputs ? 1.0 : weight,
                   gated_mlp(in.params, "mlp.experts." + std::to_string(e) + ".", input, silu,
                             clamp_of(c)));
      }
      if (c.shared_width > 0) add_scaled(y, 1.0, shared(c, in.params, x));
      out.push_back(y);
    }
    return out;
  };
}

SublayerCase make(const std::string& name, const MoeConfig& config) {
  return {.name = name, .block = model::Block(model::kMoe, config), .reference = reference(config)};
}

INSTANTIATE_TEST_SUITE_P(
    moe, SublayerAlone,
    ::testing::Values(
        make("softmax", {.num_experts = 5, .top_k = 2, .expert_width = 6, .norm_topk = true}),
        make("softmax_with_a_gated_shared_expert", {.num_experts = 4,
                                                    .top_k = 3,
                                                    .expert_width = 5,
                                                    .shared_width = 7,
                                                    .shared_gate = true}),
        make("sigmoid_in_groups", {.num_experts = 6,
                                   .top_k = 2,
                                   .expert_width = 5,
                                   .shared_width = 6,
                                   .router = RouterKind::kSigmoid,
                                   .norm_topk = true,
                                   .num_groups = 3,
                                   .top_groups = 2,
                                   .scale = 1.5}),
        make("root_of_softplus_clamped", {.num_experts = 4,
                                          .top_k = 2,
                                          .expert_width = 5,
                                          .shared_width = 5,
                                          .router = RouterKind::kSqrtSoftplus,
                                          .norm_topk = true,
                                          .scale = 2.0,
                                          .clamp = {.limit = 0.6f}}),
        make("table", {.num_experts = 4,
                       .top_k = 2,
                       .expert_width = 5,
                       .router = RouterKind::kTable,
                       .norm_topk = true,
                       .vocab_size = kVocab,
                       .clamp = {.limit = 0.6f}}),
        make("logits_with_weighed_inputs", {.num_experts = 5,
                                            .top_k = 2,
                                            .expert_width = 6,
                                            .shared_width = 7,
                                            .router = RouterKind::kLogit,
                                            .weighs_inputs = true}),
        make("with_biases", {.num_experts = 5,
                             .top_k = 2,
                             .expert_width = 6,
                             .norm_topk = true,
                             .clamp = {.limit = 0.6f, .alpha = 1.702f, .up_offset = 1.0f},
                             .router_bias = true,
                             .expert_bias = true})),
    case_name);

}  // namespace
}  // namespace strata::testing
