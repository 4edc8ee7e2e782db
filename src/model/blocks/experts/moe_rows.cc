// SPDX-License-Identifier: Apache-2.0
// D model width, E experts, F width of an expert.
#include "model/blocks/experts/moe_rows.h"

#include <fmt/format.h>

#include <cmath>

namespace strata::model {
namespace {

void add_router_rows(const MoeConfig& c, int64_t d, ParamRows& rows) {
  const int64_t e = c.num_experts;
  rows.push_back({.key = kMoeRouter, .suffix = "mlp.gate.weight", .shape = {e, d}});
  if (c.router_bias) {
    rows.push_back({.key = kMoeLogitBias,
                    .suffix = "mlp.gate.bias",
                    .shape = {e},
                    .draw = ParamDraw::kNormal});
  }
  if (c.router == RouterKind::kTable) {
    rows.push_back({.key = kMoeTable,
                    .suffix = "mlp.gate.tid2eid",
                    .shape = {c.vocab_size, c.top_k},
                    .floor = DType::kF32,
                    .buffer = true,
                    .integers = e});
  }
  if (c.router == RouterKind::kSigmoid || c.router == RouterKind::kSqrtSoftplus) {
    rows.push_back({.key = kMoeRouterBias,
                    .suffix = "mlp.gate.e_score_correction_bias",
                    .shape = {e},
                    .floor = DType::kF32,
                    .buffer = true,
                    .balances = true});
  }
}

void add_expert_bias_rows(const MoeConfig& c, int64_t d, ParamRows& rows) {
  const auto bias = [&](MoeKey key, std::string_view suffix, int64_t width) {
    rows.push_back({.key = key,
                    .suffix = suffix,
                    .shape = {width},
                    .num_experts = c.num_experts,
                    .num_active = c.top_k});
  };
  bias(kMoeGateBias, "mlp.experts.{}.gate_proj.bias", c.expert_width);
  bias(kMoeUpBias, "mlp.experts.{}.up_proj.bias", c.expert_width);
  bias(kMoeDownBias, "mlp.experts.{}.down_proj.bias", d);
}

void add_expert_rows(const MoeConfig& c, int64_t d, ParamRows& rows) {
  constexpr int kExpertOrder = 14;  // behind latent attention's
  const int64_t e = c.num_experts;
  const int64_t f = c.expert_width;
  // transformers 5 stores all experts as two tensors: gate_up_proj [E, 2 F, D], gate rows first,
  // and down_proj [E, D, F].
  const Spelling gate = {"mlp.experts.gate_up_proj", {e, 2 * f, d}, 0, 2 * f};
  const Spelling up = {"mlp.experts.gate_up_proj", {e, 2 * f, d}, f, 2 * f};
  const Spelling down = {"mlp.experts.down_proj", {e, d, f}, 0, d};
  const RowShards outputs = uneven_outputs_by(f, "channels");
  const auto expert = [&](MoeKey key, std::string_view suffix, Shape shape, const RowShards& shards,
                          const LoraPlace& lora, const Spelling& other) {
    rows.push_back({.key = key,
                    .suffix = suffix,
                    .shape = shape,
                    .num_experts = e,
                    .num_active = c.top_k,
                    .shards = shards,
                    .lora = lora,
                    .others = {other}});
  };
  expert(kMoeGate, "mlp.experts.{}.gate_proj.weight", {f, d}, outputs,
         {.path = "mlp.experts.gate_proj",
          .order = kExpertOrder,
          .alternating = c.alternating,
          .swapped = c.swapped,
          .stacked = "w1"},
         gate);
  expert(kMoeUp, "mlp.experts.{}.up_proj.weight", {f, d}, outputs,
         {.path = "mlp.experts.up_proj",
          .order = kExpertOrder + 1,
          .alternating = c.alternating,
          .swapped = c.swapped,
          .stacked = "w3"},
         up);
  expert(kMoeDown, "mlp.experts.{}.down_proj.weight", {d, f}, gathered(outputs),
         {.path = "mlp.experts.down_proj",
          .order = kExpertOrder + 2,
          .swapped = c.swapped,
          .stacked = "w2"},
         down);
  if (c.expert_bias) add_expert_bias_rows(c, d, rows);
  rows.push_back({.key = kMoeGateUp,
                  .num_experts = e,
                  .num_active = c.top_k,
                  .lora = {.path = "mlp.experts.gate_up_proj",
                           .order = kExpertOrder + 3,
                           .in = d,
                           .out = 2 * f,
                           .num_halves = 2,
                           .alternating = c.alternating,
                           .swapped = c.swapped,
                           .is_fresh = false,
                           .stacked = "w1 w3"}});
}

// Adds the rows of the experts that read every token.
void add_shared_expert_rows(const MoeConfig& c, int64_t d, ParamRows& rows) {
  constexpr int kSharedOrder = 7;        // behind a dense MLP's projections
  constexpr int kSharedScaleOrder = 23;  // behind the delta net's
  const auto shared = [&](MoeKey key, std::string_view suffix, std::string_view path, Shape shape,
                          const RowShards& shards) {
    rows.push_back({.key = key,
                    .suffix = suffix,
                    .shape = shape,
                    .shards = shards,
                    .lora = {.path = path, .order = kSharedOrder + key - kMoeSharedGate}});
  };
  const int64_t s = c.shared_width;
  const RowShards outputs = uneven_outputs_by(s, "channels"), inputs = gathered(outputs);
  if (c.shared_gate) {
    shared(kMoeSharedGate, "mlp.shared_expert.gate_proj.weight", "mlp.shared_expert.gate_proj",
           {s, d}, outputs);
    shared(kMoeSharedUp, "mlp.shared_expert.up_proj.weight", "mlp.shared_expert.up_proj", {s, d},
           outputs);
    shared(kMoeSharedDown, "mlp.shared_expert.down_proj.weight", "mlp.shared_expert.down_proj",
           {d, s}, inputs);
    rows.push_back({.key = kMoeSharedScale,
                    .suffix = "mlp.shared_expert_gate.weight",
                    .shape = {1, d},
                    .lora = {.path = "mlp.shared_expert_gate", .order = kSharedScaleOrder}});
    return;
  }
  shared(kMoeSharedGate, "mlp.shared_experts.gate_proj.weight", "mlp.shared_experts.gate_proj",
         {s, d}, outputs);
  shared(kMoeSharedUp, "mlp.shared_experts.up_proj.weight", "mlp.shared_experts.up_proj", {s, d},
         outputs);
  shared(kMoeSharedDown, "mlp.shared_experts.down_proj.weight", "mlp.shared_experts.down_proj",
         {d, s}, inputs);
}

// The norms of Gemma 4's paths and of what its router reads, and the experts' numbers.
void add_path_rows(const MoeConfig& c, int64_t d, ParamRows& rows) {
  const auto add = [&](MoeKey key, std::string_view suffix, int64_t width) {
    rows.push_back({.key = key, .suffix = suffix, .shape = {width}, .init = 1.0f});
  };
  add(kMoeRouterNorm, "router.scale", d);
  add(kMoeExpertScale, "router.per_expert_scale", c.num_experts);
  add(kMoeSharedNormBefore, "pre_feedforward_layernorm.weight", d);
  add(kMoeSharedNormAfter, "post_feedforward_layernorm_1.weight", d);
  add(kMoeRoutedNormBefore, "pre_feedforward_layernorm_2.weight", d);
  add(kMoeRoutedNormAfter, "post_feedforward_layernorm_2.weight", d);
}

}  // namespace

std::string find_moe_config_fault(const MoeConfig& c) {
  constexpr int64_t kMostExperts = 65536;
  constexpr int64_t kLargestWidth = int64_t{1} << 31;
  std::string fault;
  const auto want = [&](bool fine, std::string_view name, int64_t got, std::string_view wanted) {
    if (fault.empty() && !fine) fault = fmt::format("{}: got {}, want {}", name, got, wanted);
  };
  const int64_t experts = c.num_experts;
  want(experts >= 1 && experts <= kMostExperts, "the number of experts", experts, "1 to 65536");
  want(c.expert_width >= 1 && c.expert_width < kLargestWidth, "moe_intermediate_size",
       c.expert_width, "at least 1 and below 2^31");
  want(c.shared_width >= 0 && c.shared_width < kLargestWidth, "the shared experts' width",
       c.shared_width, "at least 0 and below 2^31");
  want(c.top_k >= 1 && c.top_k <= experts, "num_experts_per_tok", c.top_k,
       "1 to the number of experts");
  if (fault.empty() && (!(c.clamp.limit >= 0.0f) || !std::isfinite(c.clamp.limit))) {
    fault = fmt::format("swiglu_limit: got {}, want more than 0", c.clamp.limit);
  }
  if (!fault.empty()) return fault;
  want(c.num_groups >= 1 && experts % c.num_groups == 0, "n_group", c.num_groups,
       "a divisor of the number of experts");
  if (!fault.empty()) return fault;
  want(c.top_groups >= 1 && c.top_groups <= c.num_groups, "topk_group", c.top_groups,
       "1 to n_group");
  want(c.top_k <= c.top_groups * (experts / c.num_groups), "num_experts_per_tok", c.top_k,
       "at most the experts of topk_group groups");
  return fault;
}

void add_moe_rows(const MoeConfig& c, int64_t d, ParamRows& rows) {
  add_router_rows(c, d, rows);
  if (c.norms_paths) add_path_rows(c, d, rows);
  add_expert_rows(c, d, rows);
  if (c.shared_width > 0) add_shared_expert_rows(c, d, rows);
}

}  // namespace strata::model
