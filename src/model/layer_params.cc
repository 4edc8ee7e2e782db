#include "model/layer_params.h"

#include "base/check.h"

namespace strata::model {
namespace {

using Specs = LayerParamSpecs;

// Sources: HF modeling_llama.py, modeling_qwen3.py.
void add_gqa(const ModelConfig& c, Specs& specs) {
  const int64_t d = c.hidden_size;
  specs.push_back({LayerParam::kQProj, "self_attn.q_proj.weight", {c.q_width(), d}});
  specs.push_back({LayerParam::kKProj, "self_attn.k_proj.weight", {c.kv_width(), d}});
  specs.push_back({LayerParam::kVProj, "self_attn.v_proj.weight", {c.kv_width(), d}});
  specs.push_back({LayerParam::kOProj, "self_attn.o_proj.weight", {d, c.q_width()}});
  if (c.attention_bias) {
    specs.push_back({LayerParam::kQBias, "self_attn.q_proj.bias", {c.q_width()}});
    specs.push_back({LayerParam::kKBias, "self_attn.k_proj.bias", {c.kv_width()}});
    specs.push_back({LayerParam::kVBias, "self_attn.v_proj.bias", {c.kv_width()}});
    specs.push_back({LayerParam::kOBias, "self_attn.o_proj.bias", {d}});
  }
  if (c.qk_norm) {
    specs.push_back({LayerParam::kQNorm, "self_attn.q_norm.weight", {c.head_dim}});
    specs.push_back({LayerParam::kKNorm, "self_attn.k_norm.weight", {c.head_dim}});
  }
}

// Source: HF modeling_deepseek_v3.py. kv_b_proj is read head by head, keys and values apart.
void add_mla(const ModelConfig& c, Specs& specs) {
  const int64_t d = c.hidden_size;
  const int64_t q_rank = c.mla.q_lora_rank;
  const int64_t rank = c.mla.kv_lora_rank;
  if (q_rank == 0) {
    specs.push_back({LayerParam::kQProj, "self_attn.q_proj.weight", {c.q_width(), d}});
  } else {
    specs.push_back({LayerParam::kQAProj, "self_attn.q_a_proj.weight", {q_rank, d}});
    if (c.attention_bias) {
      specs.push_back({LayerParam::kQABias, "self_attn.q_a_proj.bias", {q_rank}});
    }
    specs.push_back({LayerParam::kQANorm, "self_attn.q_a_layernorm.weight", {q_rank}});
    specs.push_back({LayerParam::kQBProj, "self_attn.q_b_proj.weight", {c.q_width(), q_rank}});
  }
  const int64_t latent = c.mla.cache_width();
  specs.push_back({LayerParam::kKvAProj, "self_attn.kv_a_proj_with_mqa.weight", {latent, d}});
  if (c.attention_bias) {
    specs.push_back({LayerParam::kKvABias, "self_attn.kv_a_proj_with_mqa.bias", {latent}});
  }
  specs.push_back({LayerParam::kKvANorm, "self_attn.kv_a_layernorm.weight", {rank}});
  specs.push_back({.role = LayerParam::kKvBProj,
                   .suffix = "self_attn.kv_b_proj.weight",
                   .shape = {c.num_heads * c.mla.head_rows(), rank},
                   .blocks = {c.mla.nope_dim, c.mla.value_dim}});
  const int64_t values = c.num_heads * c.mla.value_dim;
  specs.push_back({LayerParam::kOProj, "self_attn.o_proj.weight", {d, values}});
  if (c.attention_bias) specs.push_back({LayerParam::kOBias, "self_attn.o_proj.bias", {d}});
}

void add_dense(const ModelConfig& c, Specs& specs) {
  const int64_t d = c.hidden_size;
  const int64_t f = c.intermediate_size;
  specs.push_back({LayerParam::kGateProj, "mlp.gate_proj.weight", {f, d}});
  specs.push_back({LayerParam::kUpProj, "mlp.up_proj.weight", {f, d}});
  specs.push_back({LayerParam::kDownProj, "mlp.down_proj.weight", {d, f}});
  if (c.mlp_bias) {
    specs.push_back({LayerParam::kGateBias, "mlp.gate_proj.bias", {f}});
    specs.push_back({LayerParam::kUpBias, "mlp.up_proj.bias", {f}});
    specs.push_back({LayerParam::kDownBias, "mlp.down_proj.bias", {d}});
  }
}

// Sources: HF modeling_qwen3_moe.py, modeling_deepseek_v3.py.
void add_moe(const ModelConfig& c, Specs& specs) {
  const int64_t d = c.hidden_size;
  const int64_t e = c.moe.num_experts;
  const int64_t f = c.moe.expert_width;
  specs.push_back({LayerParam::kRouter, "mlp.gate.weight", {e, d}});
  if (c.moe.router == RouterKind::kSigmoid) {
    specs.push_back({.role = LayerParam::kRouterBias,
                     .suffix = "mlp.gate.e_score_correction_bias",
                     .shape = {e},
                     .num_experts = 0,
                     .buffer = true});
  }
  specs.push_back({LayerParam::kExpertGate, "mlp.experts.{}.gate_proj.weight", {f, d}, e});
  specs.push_back({LayerParam::kExpertUp, "mlp.experts.{}.up_proj.weight", {f, d}, e});
  specs.push_back({LayerParam::kExpertDown, "mlp.experts.{}.down_proj.weight", {d, f}, e});
  if (c.moe.shared_width > 0) {
    const int64_t s = c.moe.shared_width;
    specs.push_back({LayerParam::kSharedGate, "mlp.shared_experts.gate_proj.weight", {s, d}});
    specs.push_back({LayerParam::kSharedUp, "mlp.shared_experts.up_proj.weight", {s, d}});
    specs.push_back({LayerParam::kSharedDown, "mlp.shared_experts.down_proj.weight", {d, s}});
  }
}

}  // namespace

LayerParamSpecs layer_params(const ModelConfig& config, LayerKind kind) {
  Specs specs;
  specs.push_back({LayerParam::kInputNorm, "input_layernorm.weight", {config.hidden_size}});
  switch (kind.attention) {
    case AttentionKind::kGqa:
      add_gqa(config, specs);
      break;
    case AttentionKind::kMla:
      add_mla(config, specs);
      break;
  }
  specs.push_back({LayerParam::kPostNorm, "post_attention_layernorm.weight", {config.hidden_size}});
  switch (kind.mlp) {
    case MlpKind::kDense:
      add_dense(config, specs);
      break;
    case MlpKind::kMoe:
      add_moe(config, specs);
      break;
  }
  return specs;
}

}  // namespace strata::model
