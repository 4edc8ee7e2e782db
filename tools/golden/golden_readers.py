# SPDX-License-Identifier: Apache-2.0
"""Golden cases of families that are Llama's layers with other numbers or names, for make_golden.py: Granite, SmolLM3,
Ministral 3, Gemma, Gemma 2, Gemma 4, Mixtral, GraniteMoE, GLM-4.5, OLMo 2, OLMo 3, GLM-4, Phi-3, DeepSeek-V2
and LFM2. Every multiplier, norm and scale is drawn away from 1.

Ministral 3 and its relatives lie inside Mistral3ForConditionalGeneration too, as do Mistral Small 3.1 and 3.2: `form`
"hub" has the published names, language_model.model..., and "language_model" those of transformers in memory.
"""
import json
import os

import numpy as np

import golden_gemma3
from golden_moe import EACH, WHOLE, random_adapter
from golden_window import ALL_LINEAR, random_adapters

FAMILIES = ("granite", "granitemoe", "smollm3", "ministral3", "gemma", "mixtral", "glm4_moe", "olmo2", "olmo3", "glm4", "phi3",
            "deepseek_v2", "gemma2", "lfm2", "gemma4", "gemma4_unified")
WITH_EXPERTS = ("granitemoe", "mixtral", "glm4_moe", "deepseek_v2")


def make_config(family, **keys):
    import transformers
    if family.startswith("gemma4"):
        return make_gemma4_config({"gemma4": "Gemma4", "gemma4_unified": "Gemma4Unified"}[family], **keys)
    name = {"granite": "Granite", "granitemoe": "GraniteMoe", "smollm3": "SmolLM3", "ministral3": "Ministral3",
            "gemma": "Gemma", "mixtral": "Mixtral", "glm4_moe": "Glm4Moe", "olmo2": "Olmo2", "olmo3": "Olmo3", "glm4": "Glm4",
            "phi3": "Phi3", "deepseek_v2": "DeepseekV2", "gemma2": "Gemma2", "lfm2": "Lfm2"}[family]
    cls = getattr(transformers, name + "Config")
    return cls(architectures=[name + "ForCausalLM"], bos_token_id=None, eos_token_id=None, pad_token_id=None, **keys)


def make_gemma4_config(name, whole=False, **keys):
    """The text model alone, or inside the multimodal one, here without the parts for images and sound."""
    import transformers
    none = dict(bos_token_id=None, eos_token_id=None, pad_token_id=None)
    text = getattr(transformers, name + "TextConfig")
    if not whole:
        return text(architectures=[name + "ForCausalLM"], **none, **keys)
    return getattr(transformers, name + "Config")(architectures=[name + "ForConditionalGeneration"],
                                                  text_config=text(**{**none, "pad_token_id": 0}, **keys), vision_config=None, audio_config=None)


def randomise(name, value, noise, config):
    """Whether it drew the parameter: norms of Gemma are 1 + w, those behind a branch make it smaller than the stream, and
    routers choose plainly."""
    if config.model_type == "gemma" and "norm" in name:
        value.copy_(0.3 + 0.25 * noise)
        return True
    if config.model_type == "gemma2" and "norm" in name:
        golden_gemma3.randomise_norm(name, value, noise)
        return True
    if config.model_type == "lfm2" and "operator_norm" in name:  # what a convolution multiplies is a product of three
        value.copy_(0.7 + 0.15 * noise)
        return True
    # Scores have no scale: norms near 1 would leave a softmax so sharp that rounding decides where training goes.
    if config.model_type.startswith("gemma4") and "post_per_layer_input_norm" in name:
        value.copy_(0.25 + 0.1 * noise)
        return True
    if config.model_type.startswith("gemma4") and ("post_" in name or "q_norm" in name or "k_norm" in name):
        value.copy_(0.5 + 0.15 * noise)
        return True
    if config.model_type.startswith("gemma4") and ".router." in name:
        value.copy_(1.5 * noise if name.endswith("proj.weight") else 1 + 0.25 * noise)
        return True
    if config.model_type in ("olmo2", "olmo3", "glm4") and "post_" in name and ("olmo" in config.model_type or
                                                                               "post_attention" not in name):
        value.copy_(0.6 + 0.2 * noise)
        return True
    if config.model_type in WITH_EXPERTS and name.endswith(("router.weight", "mlp.gate.weight")):
        value.copy_(1.5 * noise / value.shape[1] ** 0.5)
        return True
    return False


def add_unused_kv(folder, spec, gen):
    """Projections and norms of keys and values, as some files have them in layers that read those of others."""
    if not spec.get("unused_kv"):
        return
    import torch
    from safetensors.torch import load_file, save_file
    path = os.path.join(folder, "model.safetensors")
    tensors = load_file(path)
    own = [name for name in tensors if ".self_attn.k_" in name or ".self_attn.v_" in name]
    for name in own:
        head, layer, tail = name.partition("layers.")[0], *name.partition("layers.")[2].split(".", 1)
        for shared in range(spec["config"]["num_hidden_layers"] - spec["config"]["num_kv_shared_layers"],
                            spec["config"]["num_hidden_layers"]):
            if f"{head}layers.{shared}.self_attn.q_proj.weight" in tensors:
                value = tensors[name]
                tensors[f"{head}layers.{shared}.{tail}"] = torch.randn(value.shape, generator=gen).to(value.dtype)
    save_file(tensors, path, metadata={"format": "pt"})


def longrope(short, long, original, **more):
    """What a Phi-3 of long texts has in its config."""
    rope = {"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": short, "long_factor": long, **more}
    return {"rope_parameters": rope, "original_max_position_embeddings": original}


def rewrite_config(path, spec):
    """Keys that a file of the hub has or lacks. `drop`: names to leave out, `put`: others."""
    if not spec.get("drop") and not spec.get("put"):
        return
    with open(path, encoding="utf-8") as f:
        config = json.load(f)
    for key in spec.get("drop", []):
        config.pop(key, None)
    config.update(spec.get("put", {}))
    with open(path, "w", encoding="utf-8") as f:
        json.dump(config, f, indent=1)
        f.write("\n")


def cases():
    plain = {"rope_type": "default", "rope_theta": 10000.0}
    base = dict(vocab_size=89, hidden_size=24, intermediate_size=28, num_hidden_layers=2, num_attention_heads=4,
                num_key_value_heads=2, rms_norm_eps=1e-6, max_position_embeddings=4096, tie_word_embeddings=False,
                rope_parameters=plain)
    every = dict(r=3, lora_alpha=16, target_modules=ALL_LINEAR)
    short, long = [1.1, 1.7, 2.9], [1.3, 4.1, 21.0]
    head = dict(r=4, lora_alpha=8, target_modules=["embed_tokens", "lm_head", "q_proj"])
    some = dict(r=5, lora_alpha=12, target_modules=["q_proj", "k_proj", "down_proj"], use_rslora=True)
    multipliers = dict(embedding_multiplier=11.3, attention_multiplier=0.21, residual_multiplier=0.37, logits_scaling=2.7)
    yarn = {"rope_type": "yarn", "rope_theta": 1000000.0, "factor": 16.0, "original_max_position_embeddings": 16,
            "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1,
            "max_position_embeddings": 4096}
    lfm = {**{k: v for k, v in base.items() if k != "rms_norm_eps"}, "norm_eps": 1e-5, "block_multiple_of": 8,
           "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0}}
    gemma4 = dict(base, head_dim=8, global_head_dim=12, tie_word_embeddings=True, hidden_size_per_layer_input=0, rope_parameters={
        "sliding_attention": plain, "full_attention": {"rope_type": "proportional", "rope_theta": 1000000.0,
                                                       "partial_rotary_factor": 0.5}})
    experts = dict(base, num_local_experts=6, num_experts_per_tok=2)
    glm = dict(base, head_dim=12, rms_norm_eps=1e-5, num_hidden_layers=3, moe_intermediate_size=12, n_routed_experts=7,
               n_shared_experts=1, num_experts_per_tok=3, first_k_dense_replace=1, routed_scaling_factor=1.7, n_group=1,
               topk_group=1, attention_bias=True, use_qk_norm=True,
               rope_parameters={"rope_type": "default", "rope_theta": 1000000.0, "partial_rotary_factor": 0.5})
    return {
        # No multiplier is 1 or a power of two; adapters of embedding and head are behind and before two of them.
        "granite": dict(family="granite", config=dict(base, **multipliers), adapters=[every, head],
                        requests=["main", "single", "train_adapters", "train_params", "sample"]),
        "granite_bf16": dict(family="granite", dtype="BF16", v4=True, config=dict(
            base, **multipliers, tie_word_embeddings=True, attention_bias=True, mlp_bias=True), adapters=[some],
            requests=["main", "params"]),
        # Every fourth layer does not rotate, and has the window where one is switched on.
        "smollm3": dict(family="smollm3", longest=40, config=dict(base, num_hidden_layers=5, tie_word_embeddings=True),
                        adapters=[every, some], requests=["main", "params", "train_adapters", "sample"]),
        "smollm3_window": dict(family="smollm3", dtype="BF16", longest=40, prompt=60, config=dict(
            base, num_hidden_layers=3, use_sliding_window=True, sliding_window=9, no_rope_layers=[0, 1, 0]),
            adapters=[every], requests=["main", "params"]),
        # Queries beyond several multiples of the original length.
        "ministral3": dict(family="ministral3", longest=70, prompt=60, config=dict(base, head_dim=10, rope_parameters=yarn),
                           adapters=[every, head], requests=["main", "single", "train_adapters", "sample"]),
        # Devstral 2's settings: no mscale_all_dim, no scale of positions.
        "ministral3_bf16": dict(family="ministral3", dtype="BF16", longest=50, config=dict(
            base, head_dim=8, tie_word_embeddings=True, rope_parameters=dict(
                yarn, mscale_all_dim=0.0, beta_fast=4.0, llama_4_scaling_beta=0)), adapters=[some],
            requests=["main", "params"]),
        "gemma": dict(family="gemma", config=dict(base, head_dim=8, tie_word_embeddings=True), adapters=[every, head],
                      requests=["main", "single", "train_params", "sample"]),
        "gemma_bf16": dict(family="gemma", dtype="BF16", v4=True, put={"hidden_act": "gelu", "hidden_activation": None},
                           config=dict(base, head_dim=10, num_key_value_heads=1, tie_word_embeddings=True),
                           adapters=[some], requests=["main", "params"]),
        # Scores and logits about their caps; lengths beyond three windows, full layers between.
        "gemma2": dict(family="gemma2", longest=36, prompt=60, config=dict(
            base, num_hidden_layers=3, head_dim=8, query_pre_attn_scalar=5, sliding_window=9, tie_word_embeddings=True,
            attn_logit_softcapping=1.7, final_logit_softcapping=2.5), adapters=[every, head],
            requests=["main", "single", "params", "train_adapters", "train_params", "sample", "long_prompt"]),
        # As the hub has them: layer_types are left out.
        "gemma2_bf16": dict(family="gemma2", dtype="BF16", v4=True, longest=40, drop=["layer_types"],
                            put={"hidden_act": "gelu_pytorch_tanh", "cache_implementation": "hybrid"}, config=dict(
                                base, head_dim=10, num_key_value_heads=1, query_pre_attn_scalar=3, sliding_window=11,
                                tie_word_embeddings=True, attn_logit_softcapping=2.0, final_logit_softcapping=4.0),
                            adapters=[some], requests=["main", "params"]),
        # Full layers whose keys are their values, of fewer and wider heads; the file has sizes by layer.
        "gemma4": dict(family="gemma4", longest=36, prompt=60, slower=5, config=dict(
            gemma4, num_hidden_layers=5, sliding_window=9, attention_k_eq_v=True, num_global_key_value_heads=1,
            layer_types=["sliding_attention", "full_attention", "sliding_attention", "sliding_attention", "full_attention"],
            final_logit_softcapping=2.5), adapters=[every, head],
            requests=["main", "single", "params", "train_adapters", "train_params", "sample", "long_prompt"]),
        # As the hub has them: sizes of the full layers in two keys, layer_types left out; values of their own everywhere.
        "gemma4_bf16": dict(family="gemma4", dtype="BF16", longest=40, drop=["layer_types", "per_layer_config"],
                            put={"global_head_dim": 12, "num_global_key_value_heads": None}, config=dict(
                                gemma4, num_hidden_layers=3, sliding_window=11, final_logit_softcapping=4.0),
                            adapters=[some], requests=["main", "params"]),
        # 26B-A4B's: experts next to the MLP, each path with norms of its own.
        "gemma4_moe": dict(family="gemma4", longest=33, prompt=60, slower=5, config=dict(
            gemma4, num_hidden_layers=3, sliding_window=9, attention_k_eq_v=True, num_global_key_value_heads=1,
            layer_types=["full_attention", "sliding_attention", "full_attention"], final_logit_softcapping=3.0,
            enable_moe_block=True, num_experts=6, top_k_experts=2, moe_intermediate_size=10), adapters=[
                dict(form="per_expert", r=4, expert_r=2, lora_alpha=8, modules=["q_proj", "gate_proj", "down_proj"], experts=EACH),
                dict(form="fused", r=3, lora_alpha=6, modules=["k_proj", "o_proj"], experts=WHOLE, peft=True)],
            requests=["main", "params", "train_adapters", "train_params", "sample", "short"]),
        # 12B's form, inside a multimodal file.
        "gemma4_whole": dict(family="gemma4", longest=33, prompt=60, slower=5, adapters=[dict(
            every, target_modules=r".*\.language_model\..*(q_proj|k_proj|v_proj|o_proj|down_proj|embed_tokens)")],
            config=dict(gemma4, whole=True, num_hidden_layers=2, sliding_window=9, attention_k_eq_v=True,
                        num_global_key_value_heads=1, final_logit_softcapping=3.0),
            requests=["main", "train_params", "sample"]),
        "gemma4_unified": dict(family="gemma4_unified", dtype="BF16", longest=33, adapters=[some], config=dict(
            {k: v for k, v in gemma4.items() if k != "hidden_size_per_layer_input"}, num_hidden_layers=2,
            sliding_window=9, attention_k_eq_v=True, num_global_key_value_heads=2, final_logit_softcapping=3.0),
            requests=["main", "params"]),
        # E2B's: the last layers read keys and values of two layers before them, one of each kind, and have a wider MLP; each
        # layer has an input of its own. Lengths beyond three windows and five.
        "gemma4_shared": dict(family="gemma4", longest=36, prompt=60, slower=5, config=dict(
            gemma4, num_hidden_layers=7, sliding_window=5, hidden_size_per_layer_input=6, vocab_size_per_layer_input=97,
            num_kv_shared_layers=3, use_double_wide_mlp=True, final_logit_softcapping=2.5,
            layer_types=["sliding_attention", "full_attention", "sliding_attention", "full_attention", "sliding_attention",
                         "sliding_attention", "full_attention"]),
            adapters=[dict(every, target_modules=[*ALL_LINEAR, "per_layer_input_gate", "per_layer_projection",
                                                  "per_layer_model_projection"]), head],
            requests=["main", "single", "params", "train_adapters", "sample", "long_prompt"]),
        # Small, so that no gradient is so near 0 that rounding says where a first step of training goes.
        "gemma4_shared_small": dict(family="gemma4", longest=20, slower=5, adapters=[], config=dict(
            gemma4, num_hidden_layers=4, hidden_size=12, intermediate_size=8, num_attention_heads=2, num_key_value_heads=1,
            sliding_window=5, hidden_size_per_layer_input=2, vocab_size_per_layer_input=89, num_kv_shared_layers=2,
            layer_types=["sliding_attention", "full_attention"] * 2), requests=["train_params"]),
        # Inside a multimodal file as the hub has it, with what nothing uses.
        "gemma4_shared_bf16": dict(family="gemma4", dtype="BF16", longest=33, slower=5, unused_kv=True, adapters=[dict(
            every, target_modules=r".*\.language_model\..*(q_proj|k_proj|o_proj|down_proj|per_layer_input_gate)")],
            config=dict(gemma4, whole=True, num_hidden_layers=5, sliding_window=5, hidden_size_per_layer_input=8,
                        vocab_size_per_layer_input=89, num_kv_shared_layers=2, final_logit_softcapping=3.0,
                        layer_types=["sliding_attention", "full_attention", "sliding_attention", "sliding_attention",
                                     "full_attention"]),
            requests=["main", "params"]),
        "mixtral": dict(family="mixtral", config=experts, adapters=[
            dict(form="per_expert", r=4, expert_r=2, lora_alpha=8, modules=["q_proj"], experts=EACH),
            dict(form="fused", r=3, lora_alpha=6, modules=["v_proj", "o_proj"], experts=WHOLE, peft=True)],
            requests=["main", "single", "params", "train_adapters", "sample", "short"]),
        "granitemoe": dict(family="granitemoe", config=dict(experts, **multipliers), adapters=[
            dict(form="fused", r=3, lora_alpha=6, modules=["v_proj", "o_proj"], experts=WHOLE, peft=True)],
            requests=["main", "params", "train_adapters", "sample", "short"]),
        "glm4_moe": dict(family="glm4_moe", config=glm, adapters=[
            dict(form="per_expert", r=3, expert_r=1, lora_alpha=6, modules=["q_proj", "k_proj", *EACH], experts=EACH)],
            requests=["main", "params", "train_adapters", "sample", "short"]),
        # Norms behind the branches alone, which are smaller than what they are added to.
        "olmo2": dict(family="olmo2", config=base, adapters=[every, head],
                      requests=["main", "single", "train_adapters", "train_params", "sample"]),
        # yarn in the full layer alone; lengths beyond three windows.
        "olmo3": dict(family="olmo3", longest=50, prompt=60, config=dict(
            base, num_hidden_layers=4, sliding_window=9, rope_parameters={
                "sliding_attention": plain, "full_attention": dict(
                    rope_type="yarn", rope_theta=10000.0, factor=8.0, original_max_position_embeddings=16,
                    attention_factor=1.2, beta_fast=32.0, beta_slow=1.0)}),
            adapters=[some], requests=["main", "params", "train_adapters", "sample", "long_prompt"]),
        "olmo3_bf16": dict(family="olmo3", dtype="BF16", longest=33, config=dict(
            base, num_hidden_layers=2, sliding_window=9, layer_types=["full_attention", "sliding_attention"],
            tie_word_embeddings=True, rope_parameters={"sliding_attention": plain, "full_attention": plain}),
            adapters=[every], requests=["main", "params"]),
        # Convolutions before, between and behind attention; the width of the MLP is 48.
        "lfm2": dict(family="lfm2", seed=2, longest=36, prompt=60, config=dict(
            lfm, num_hidden_layers=4, layer_types=["conv", "full_attention", "conv", "conv"], intermediate_size=50,
            block_ffn_dim_multiplier=1.3, tie_word_embeddings=True), adapters=[
                dict(every, target_modules=["q_proj", "k_proj", "v_proj", "in_proj", "out_proj", "w1", "w2", "w3"]),
                dict(head, target_modules=["embed_tokens", "lm_head", "q_proj", "in_proj"])],
            requests=["main", "single", "params", "train_adapters", "train_params", "sample", "long_prompt"]),
        # As the first files of the hub have it, with biases and another head than the embedding.
        "lfm2_bf16": dict(family="lfm2", dtype="BF16", v4=True, drop=["layer_types", "intermediate_size", "tie_word_embeddings"],
                          put={"block_ff_dim": 44, "full_attn_idxs": [1], "tie_embedding": False, "block_dim": 24, "conv_dim": 24,
                               "block_norm_eps": 1e-5, "block_use_swiglu": True, "num_heads": 4, "use_pos_enc": True},
                          config=dict(lfm, num_hidden_layers=3, layer_types=["conv", "full_attention", "conv"],
                                      intermediate_size=44, conv_bias=True, conv_L_cache=4, tie_word_embeddings=False),
                          adapters=[dict(some, target_modules=["q_proj", "in_proj", "w2"])], requests=["main", "params"]),
        # Files and adapters have gate and up as one, and q, k and v of Phi-3, of unequal sizes.
        "glm4": dict(family="glm4", seed=3, config=dict(base, head_dim=12, attention_bias=True, rope_parameters={
            "rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}),
            adapters=[dict(every, target_modules=["q_proj", "v_proj", "o_proj", "gate_up_proj", "down_proj"]), head],
            requests=["main", "single", "params", "train_adapters", "train_params", "sample"]),
        "phi3": dict(family="phi3", config=dict(base, sliding_window=11), adapters=[
            dict(every, target_modules=["qkv_proj", "o_proj", "gate_up_proj", "down_proj"]),
            dict(some, target_modules=["qkv_proj", "embed_tokens"])], longest=40, prompt=60,
            requests=["main", "single", "params", "train_adapters", "train_params", "sample"]),
        "phi3_bf16": dict(family="phi3", dtype="BF16", config=dict(base, num_key_value_heads=4, tie_word_embeddings=True),
                          adapters=[dict(every, target_modules=["qkv_proj", "gate_up_proj"])], requests=["main", "params"]),
        # longrope: transformers goes by the length of a sequence, Strata by the longest of a run. So that both take one table,
        # whatever the sequence, the original length is longer than all of them, or shorter than all whose keys are rotated.
        "phi3_short": dict(family="phi3", longest=40, prompt=40, adapters=[dict(every, target_modules=["qkv_proj", "o_proj"])],
                           config=dict(base, hidden_size=32, **longrope(short, long, 64, partial_rotary_factor=0.75)),
                           drop=["rope_parameters"], put={
                               "rope_theta": 10000.0, "partial_rotary_factor": 0.75,
                               "rope_scaling": {"type": "longrope", "short_factor": short, "long_factor": long}},
                           requests=["main", "params", "train_adapters", "sample"]),
        "phi3_long": dict(family="phi3", longest=70, prompt=60, adapters=[dict(every, target_modules=["qkv_proj", "down_proj"]),
                                                                         dict(some, target_modules=["qkv_proj", "lm_head"])],
                          config=dict(base, hidden_size=32, sliding_window=25, **longrope(
                              short, long, 1, partial_rotary_factor=0.75, attention_factor=1.1902381)),
                          requests=["main", "params", "train_params", "sample"]),
        # The last length that takes the short factors, and the first of the long ones; older files say yarn or su.
        "phi3_border": dict(family="phi3", config=dict(base, hidden_size=32, **longrope(short + [1.2], long + [64.0], 16)),
                            longest=17, adapters=[dict(every, target_modules=["qkv_proj"])],
                            drop=["rope_parameters"], put={
                                "rope_theta": 10000.0,
                                "rope_scaling": {"type": "yarn", "short_factor": short + [1.2], "long_factor": long + [64.0]}},
                            requests=["lone_16", "lone_17"]),
        # Groups by their best expert, weights that do not sum to one, YaRN in the scale of scores.
        "deepseek_v2": dict(family="deepseek_v2", longest=40, config=dict(
            {k: v for k, v in base.items() if k != "num_key_value_heads"}, hidden_size=32, num_hidden_layers=3, q_lora_rank=10,
            kv_lora_rank=14, qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=6, moe_intermediate_size=12,
            n_routed_experts=12, n_shared_experts=2, num_experts_per_tok=3, first_k_dense_replace=1, n_group=4, topk_group=2,
            topk_method="group_limited_greedy", routed_scaling_factor=3.0, norm_topk_prob=False, rope_parameters={
                "rope_type": "yarn", "rope_theta": 10000.0, "factor": 40.0, "beta_fast": 32, "beta_slow": 1, "mscale": 0.707,
                "mscale_all_dim": 0.707, "original_max_position_embeddings": 16}), adapters=[
                dict(form="per_expert", r=3, expert_r=1, lora_alpha=6, modules=["q_a_proj", "kv_b_proj", *EACH], experts=EACH)],
            requests=["main", "params", "train_adapters", "sample"]),
        # Lite: no latent of queries, no groups.
        "deepseek_v2_bf16": dict(family="deepseek_v2", dtype="BF16", config=dict(
            {k: v for k, v in base.items() if k != "num_key_value_heads"}, num_hidden_layers=1, q_lora_rank=None, kv_lora_rank=14,
            qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=6, moe_intermediate_size=12, n_routed_experts=6,
            n_shared_experts=2, num_experts_per_tok=2), adapters=[], requests=["main", "params"]),
        "glm4_moe_bf16": dict(family="glm4_moe", dtype="BF16", config=dict(
            glm, num_hidden_layers=1, first_k_dense_replace=0, use_qk_norm=False, attention_bias=False), adapters=[],
            requests=["main", "params", "short"]),
    }


def random_case(family, seed):
    """A model nobody chose, with adapters and requests drawn from the seed too."""
    rng = np.random.default_rng([seed, 20 + FAMILIES.index(family)])
    pick = lambda *values: values[int(rng.integers(len(values)))]
    number = lambda low, high: round(float(np.exp(rng.uniform(np.log(low), np.log(high)))), 3)
    kv, group, layers = pick(1, 2, 3), pick(1, 1, 2, 3), pick(1, 2, 3, 5)
    heads, longest = kv * group, pick(20, 33, 65, 100)
    head_dim = 2 * int(rng.integers(2, 13))
    config = dict(vocab_size=int(rng.integers(50, 300)), hidden_size=heads * int(rng.integers(24 // heads + 1, 70 // heads)),
                  intermediate_size=int(rng.integers(8, 90)), num_hidden_layers=layers, num_attention_heads=heads,
                  num_key_value_heads=kv, rms_norm_eps=pick(1e-5, 1e-6), max_position_embeddings=512,
                  tie_word_embeddings=bool(pick(0, 1)), rope_parameters={"rope_type": "default", "rope_theta": pick(1e4, 1e6)})
    spec = dict(family=family, config=config, seed=seed, longest=longest, prompt=pick(60, 125, longest),
                v4=family != "ministral3" and bool(pick(0, 1)), dtype=pick("F32", "F32", "BF16"), shards=pick(1, 1, 2))
    if family not in ("granitemoe", "mixtral"):
        config["head_dim"] = head_dim
    elif config["hidden_size"] // heads % 2:
        config["hidden_size"] += heads
    if family in ("granite", "smollm3", "glm4_moe", "gemma", "granitemoe"):
        config["attention_bias"] = bool(pick(0, 0, 1))
    if family in ("granite", "smollm3"):
        config["mlp_bias"] = bool(pick(0, 0, 1))
    if family.startswith("granite"):
        config.update(embedding_multiplier=number(0.5, 20), attention_multiplier=number(0.05, 0.6),
                      residual_multiplier=number(0.1, 1.5), logits_scaling=number(0.5, 12))
    if family == "gemma2":
        config.update(attention_bias=bool(pick(0, 0, 1)), query_pre_attn_scalar=pick(1, 3, 8, 20), sliding_window=pick(1, 7, 16, longest),
                      attn_logit_softcapping=pick(None, 0.8, 2.0, 50.0), final_logit_softcapping=pick(None, 1.5, 5.0, 30.0))
        config.update(pick({}, {"layer_types": [pick("full_attention", "sliding_attention") for _ in range(layers)]}))
    if family.startswith("gemma4"):
        plain, types = {"rope_type": "default", "rope_theta": pick(1e4, 5e4)}, ["full_attention", "sliding_attention"]
        config.update(attention_bias=bool(pick(0, 0, 1)), sliding_window=pick(1, 7, 16, longest), tie_word_embeddings=True,
                      global_head_dim=2 * int(rng.integers(2, 13)), attention_k_eq_v=bool(pick(0, 1, 1)),
                      num_global_key_value_heads=pick(None, 1, kv), final_logit_softcapping=pick(None, 1.5, 5.0, 30.0),
                      rope_parameters={"sliding_attention": plain, "full_attention": {
                          "rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": pick(0.25, 0.5, 0.7, 1.0)}})
        config.update(pick({}, {"layer_types": [pick(*types) for _ in range(layers)]}))
        if family == "gemma4":
            types = config.get("layer_types") or ["full_attention" if i % 6 == 5 else "sliding_attention" for i in range(layers)]
            types = [*types[:-1], "full_attention"]
            shared = pick(0, 0, 1, 2)
            shared = shared if shared < layers and set(types[layers - shared:]) <= set(types[:layers - shared]) else 0
            if shared:  # transformers wants both kinds before them where both are anywhere
                shared = shared if set(types) == set(types[:layers - shared]) else 0
            width = pick(0, 0, 2, 5, 16)  # transformers fails on shared layers without inputs of their own
            config.update(hidden_size_per_layer_input=width, num_kv_shared_layers=shared if width else 0,
                          vocab_size_per_layer_input=config["vocab_size"] + pick(0, 3), use_double_wide_mlp=bool(pick(0, 1)))
            config.update(pick({}, {}, dict(enable_moe_block=True, num_experts=pick(4, 5, 8), top_k_experts=pick(1, 2, 3),
                                            moe_intermediate_size=int(rng.integers(3, 30)))))
        spec.update(v4=False, slower=5)
    if family == "smollm3":
        config.update(pick({}, {"no_rope_layers": [int(pick(0, 1)) for _ in range(layers)]},
                           {"no_rope_layer_interval": pick(1, 2, 3)}))
        config.update(pick({}, {}, dict(use_sliding_window=True, sliding_window=pick(1, 7, 16, longest))))
    if family == "ministral3":
        config["rope_parameters"] = {
            "rope_type": "yarn", "rope_theta": pick(1e4, 1e6), "factor": pick(4.0, 16.0), "beta_fast": pick(32.0, 4.0),
            "beta_slow": 1.0, "original_max_position_embeddings": pick(8, 16, 64), "llama_4_scaling_beta": pick(0, 0.1, 0.4),
            **pick({"mscale": 1.0, "mscale_all_dim": 1.0}, {"mscale": 1.0, "mscale_all_dim": 0.0}, {})}
    if family in ("ministral3", "mixtral"):
        config["sliding_window"] = pick(None, None, 7, longest)
    if family in ("granitemoe", "mixtral"):
        config.update(num_local_experts=pick(4, 5, 8), num_experts_per_tok=pick(1, 2, 3, 4))
    if family == "glm4":
        config["rope_parameters"]["partial_rotary_factor"] = pick(0.5, 1.0)
        config.update(head_dim=4 * int(rng.integers(1, 6)), attention_bias=bool(pick(0, 1)))
    if family == "phi3":
        config["sliding_window"] = pick(None, None, 7, longest)
    if family == "lfm2":
        config.update(norm_eps=config.pop("rms_norm_eps"), conv_bias=bool(pick(0, 0, 1)), conv_L_cache=pick(1, 2, 3, 4, 5),
                      block_auto_adjust_ff_dim=bool(pick(0, 1)), block_multiple_of=pick(1, 8),
                      block_ffn_dim_multiplier=pick(0.9, 1.0, 1.3),
                      layer_types=[pick("conv", "conv", "full_attention") for _ in range(layers)])
    if family.startswith("olmo") or family in ("phi3", "lfm2"):
        config.pop("head_dim")
        config["hidden_size"] += heads * (config["hidden_size"] // heads % 2)
    if family == "phi3" and pick(0, 1):
        partial, head_dim = pick(0.75, 1.0), config["hidden_size"] // heads
        partial = 1.0 if int(head_dim * partial) % 2 else partial  # transformers fails with a column over
        pairs = int(head_dim * partial) // 2
        factors = lambda most: [round(float(f), 3) for f in 1 + rng.random(pairs) * most]
        original, more = pick((1, {"attention_factor": number(0.9, 1.4)}), (200, {}), (512, {}))  # long; short; short and a = 1
        config.update(longrope(factors(2), factors(40), original, partial_rotary_factor=partial, **more))
    if family == "olmo3":
        full = pick({"rope_type": "default"}, {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 16})
        theta = config["rope_parameters"]["rope_theta"]
        config.update(sliding_window=pick(1, 7, 16, longest), rope_parameters={
            "full_attention": {**full, "rope_theta": theta}, "sliding_attention": {"rope_type": "default", "rope_theta": theta}})
        spec["v4"] = False
    if family == "glm4_moe":
        config.update(head_dim=4 * int(rng.integers(1, 6)), moe_intermediate_size=int(rng.integers(3, 30)),
                      n_routed_experts=8, n_group=pick(1, 1, 2, 4), num_experts_per_tok=pick(1, 2, 3), n_shared_experts=pick(1, 2),
                      first_k_dense_replace=int(rng.integers(0, layers)), routed_scaling_factor=pick(1.0, 2.5),
                      norm_topk_prob=bool(pick(0, 1)), use_qk_norm=bool(pick(0, 1)))
        config["topk_group"] = min(config["n_group"], pick(1, 2)) if config["n_group"] < 4 else 2
        config["rope_parameters"]["partial_rotary_factor"] = pick(0.5, 1.0)
    attention = ["q_proj", "k_proj", "v_proj", "o_proj"]
    if family == "deepseek_v2":
        attention = ["q_proj", "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"]
        config.pop("head_dim"), config.pop("num_key_value_heads")
        groups = pick(1, 2, 4)
        config.update(q_lora_rank=pick(None, 7, 16), kv_lora_rank=pick(5, 12), qk_nope_head_dim=pick(4, 8),
                      qk_rope_head_dim=pick(2, 6), v_head_dim=pick(4, 9), moe_intermediate_size=int(rng.integers(3, 30)),
                      n_routed_experts=12, n_shared_experts=pick(1, 2), num_experts_per_tok=pick(1, 2, 3),
                      first_k_dense_replace=int(rng.integers(0, layers)), routed_scaling_factor=pick(1.0, 16.0))
        config.update(pick({}, dict(n_group=groups, topk_group=max(1, groups // 2), topk_method="group_limited_greedy")))
    if family in WITH_EXPERTS or config.get("enable_moe_block"):
        adapters = [random_adapter(rng, attention) for _ in range(pick(1, 2))]
        for adapter in adapters:  # PEFT names projections of dense layers too, which these families lack or mix
            adapter.setdefault("form", "per_expert")
            if family == "granitemoe" and adapter["form"] != "fused":
                adapter.update(form="fused", experts=pick([], WHOLE))
            adapter.pop("target_modules", None)
            adapter["modules"] = sorted({"o_proj", *adapter.get("modules", [])})  # which all layers have
            adapter.setdefault("experts", [])
        spec["adapters"] = adapters
    else:
        spec["adapters"] = random_adapters(rng)
    fused = {"glm4": {"gate_proj": "gate_up_proj", "up_proj": "gate_up_proj"},
             "phi3": {"gate_proj": "gate_up_proj", "up_proj": "gate_up_proj", "q_proj": "qkv_proj", "k_proj": "qkv_proj",
                      "v_proj": "qkv_proj"},
             "lfm2": {"o_proj": "out_proj", "gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}}.get(family, {})
    for adapter in spec["adapters"] if fused else []:
        adapter["target_modules"] = sorted({fused.get(n, n) for n in adapter["target_modules"]}
                                           | ({"in_proj", "w2"} if family == "lfm2" else set()))
        adapter.pop("rank_pattern", None), adapter.pop("alpha_pattern", None)
    spec["requests"] = ["main", "single", "params", pick("train_params", "train_adapters", "train_clip"), "sample"]
    return spec
