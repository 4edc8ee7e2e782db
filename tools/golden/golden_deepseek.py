# SPDX-License-Identifier: Apache-2.0
"""Golden cases of the DeepSeek-V3 family for make_golden.py: latent attention and its YaRN."""

ATTENTION = ["q_proj", "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"]


def make_config(family, **keys):
    from transformers import DeepseekV3Config, Glm4MoeLiteConfig
    cls, arch = {"deepseek_v3": (DeepseekV3Config, "DeepseekV3ForCausalLM"),
                 "glm4_moe_lite": (Glm4MoeLiteConfig, "Glm4MoeLiteForCausalLM")}[family]
    return cls(architectures=[arch], bos_token_id=None, eos_token_id=None, **keys)


def cases():
    base = dict(vocab_size=101, hidden_size=40, intermediate_size=36, num_hidden_layers=2,
                num_attention_heads=4, num_key_value_heads=4, q_lora_rank=18, kv_lora_rank=22,
                qk_nope_head_dim=12, qk_rope_head_dim=8, v_head_dim=10, rms_norm_eps=1e-3,
                max_position_embeddings=256, tie_word_embeddings=False, first_k_dense_replace=9,
                num_nextn_predict_layers=0, n_routed_experts=8, n_group=2, topk_group=1,
                num_experts_per_tok=2, moe_intermediate_size=16,
                rope_parameters={"rope_type": "default", "rope_theta": 10000.0})
    yarn = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0, "beta_fast": 8, "beta_slow": 1,
            "original_max_position_embeddings": 32}
    every = dict(r=3, lora_alpha=16, target_modules=ATTENTION)
    latent = dict(r=8, lora_alpha=12, target_modules=["kv_b_proj", "kv_a_proj_with_mqa", "o_proj"],
                  use_rslora=True)
    heads = dict(r=5, lora_alpha=9, target_modules=["kv_b_proj", "q_b_proj", "q_proj", "lm_head"],
                 rank_pattern={"layers.1.self_attn.kv_b_proj": 2})
    return {
        "deepseek_mla": dict(family="deepseek_v3", config=base, adapters=[every, heads], requests=[
            "main", "single", "params", "train_adapters", "train_params", "sample"]),
        # Odd widths, no latent of queries, half-split pairs, both keys of mscale.
        "deepseek_yarn": dict(family="deepseek_v3", seed=5, v4=True, longest=70, adapters=[every, latent], config=dict(
            base, q_lora_rank=None, kv_lora_rank=17, qk_nope_head_dim=7, v_head_dim=13, rope_interleave=False,
            attention_bias=True, num_attention_heads=3, num_key_value_heads=3,
            rope_parameters=dict(yarn, mscale=0.7, mscale_all_dim=1.3)),
            requests=["main", "params", "train_clip", "sample"]),
        # One mscale key, and a ramp whose ends are not whole pairs.
        "deepseek_yarn_bf16": dict(family="deepseek_v3", dtype="BF16", longest=70, adapters=[latent], config=dict(
            base, attention_bias=True, qk_rope_head_dim=16,
            rope_parameters=dict(yarn, mscale_all_dim=0.8, truncate=False)),
            requests=["main", "params"]),
        # No mscale key; the factor of cos and sin written out; shards.
        "deepseek_yarn_factor": dict(family="deepseek_v3", shards=2, longest=70, adapters=[], config=dict(
            base, tie_word_embeddings=True, rope_parameters=dict(yarn, attention_factor=1.1)),
            requests=["main", "train_params"]),
    }
