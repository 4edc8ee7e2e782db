#include "apps/bench_shapes.h"

#include "base/check.h"

namespace strata::apps {
namespace {

model::ModelConfig qwen3_06b() {
  model::ModelConfig c;
  c.family = "qwen3";
  c.architecture = "Qwen3ForCausalLM";
  c.vocab_size = 151936;
  c.hidden_size = 1024;
  c.intermediate_size = 3072;
  c.num_layers = 28;
  c.num_heads = 16;
  c.num_kv_heads = 8;
  c.head_dim = 128;
  c.max_position_embeddings = 40960;
  c.tie_word_embeddings = true;
  c.qk_norm = true;
  c.rope.theta = 1e6;
  return c;
}

model::ModelConfig qwen3_30b_a3b() {
  model::ModelConfig c;
  c.family = "qwen3_moe";
  c.architecture = "Qwen3MoeForCausalLM";
  c.vocab_size = 32768;
  c.hidden_size = 2048;
  c.intermediate_size = 6144;
  c.num_layers = 4;
  c.num_heads = 32;
  c.num_kv_heads = 4;
  c.head_dim = 128;
  c.max_position_embeddings = 40960;
  c.qk_norm = true;
  c.rope.theta = 1e6;
  c.moe = {.num_experts = 128, .top_k = 8, .expert_width = 768, .norm_topk = true};
  c.layer_kinds.assign(4, {model::AttentionKind::kGqa, model::MlpKind::kMoe});
  return c;
}

model::ModelConfig deepseek_v3_attention() {
  model::ModelConfig c;
  c.family = "deepseek_v3";
  c.architecture = "DeepseekV3ForCausalLM";
  c.vocab_size = 32768;
  c.hidden_size = 7168;
  c.intermediate_size = 2048;
  c.num_layers = 2;
  c.num_heads = 128;
  c.num_kv_heads = 128;
  c.head_dim = 192;
  c.max_position_embeddings = 163840;
  c.mla = {
      .q_lora_rank = 1536, .kv_lora_rank = 512, .nope_dim = 128, .rope_dim = 64, .value_dim = 128};
  c.layer_kinds.assign(2, {model::AttentionKind::kMla, model::MlpKind::kDense});
  return c;
}

}  // namespace

model::ModelConfig bench_config(BenchShape shape) {
  switch (shape) {
    case BenchShape::kQwen3Dense:
      return qwen3_06b();
    case BenchShape::kQwen3Moe:
      return qwen3_30b_a3b();
    case BenchShape::kLatent:
      return deepseek_v3_attention();
  }
  CHECK(false);
  __builtin_unreachable();
}

}  // namespace strata::apps
