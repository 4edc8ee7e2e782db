#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a tiny Hugging Face model directory as a GGUF file, by gguf-py, as llama.cpp's convert_hf_to_gguf.py does.

usage: python tools/golden/make_gguf.py MODEL_DIR OUT.gguf [--type F32|F16|BF16|Q8_0|...] [--split-latent] [--parts N]
       python tools/golden/make_gguf.py --all                 rewrite tests/golden/gguf/ (seconds)
       python tools/golden/make_gguf.py --blocks              rewrite tests/checkpoint/data/gguf_blocks.bin
       python tools/golden/make_gguf.py --quantised           rewrite tests/checkpoint/data/gguf_quantised.bin

--all takes the models of tests/golden/ that are listed below. Where GGUF cannot say what a golden's config.json says
(an attention scale of its own), the config is changed first; NAME.json beside the file is the config that was written,
and its safetensors are the golden's. Needs tools/requirements/golden.txt.
"""
import argparse
import json
import math
import os
import sys

import gguf
import numpy as np
import torch
from safetensors import safe_open

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
GOLDEN = os.path.join(ROOT, "tests/golden")
TYPES = {t.name: t for t in gguf.GGMLQuantizationType}
# What llama.cpp takes as given for Llama 4.
LLAMA4 = {"attention_chunk_size": 8192, "floor_scale": 8192, "attn_scale": 0.1, "attn_temperature_tuning": True}
# name: (golden, changes of its config.json, type of matrices, options)
FILES = {
    "llama2": ("llama2", {}, "F32", {}),
    "llama31": ("llama31", {}, "F32", {}),
    "llama_bias": ("llama_bias_f16", {}, "F16", {}),
    "llama4": ("llama4", {**LLAMA4, "rope_parameters": {
        "rope_type": "llama3", "rope_theta": 10000.0, "factor": 16.0, "low_freq_factor": 1.0, "high_freq_factor": 1.0,
        "original_max_position_embeddings": 8}}, "F32", {}),
    "llama4_bf16": ("llama4_bf16", {**LLAMA4, "use_qk_norm": True, "no_rope_layers": []}, "BF16", {}),
    "mistral": ("mistral_nemo", {"sliding_window": None}, "BF16", {}),
    "qwen2": ("qwen2", {}, "F32", {}),
    "qwen2_bf16": ("qwen2_bf16", {"use_sliding_window": False}, "BF16", {}),
    "qwen3": ("qwen3", {}, "F32", {}),
    "qwen3_bf16": ("qwen3_bf16", {}, "BF16", {}),
    "qwen3_moe": ("qwen3_moe", {}, "F32", {}),
    "qwen3_moe_bf16": ("qwen3_moe_bf16", {"norm_topk_prob": True}, "BF16", {}),
    "qwen35": ("qwen3_5", {}, "F32", {}),
    "qwen35_bf16": ("qwen3_5_bf16", {}, "BF16", {}),
    "qwen35moe": ("qwen3_5_moe", {}, "F32", {}),
    "qwen35_mtp": ("qwen3_5_mtp", {}, "F32", {}),
    "qwen35moe_mtp": ("qwen3_5_moe_mtp", {}, "F32", {}),
    "gemma3": ("gemma3", {"query_pre_attn_scalar": "head_dim"}, "F32", {}),
    "gemma3_bf16": ("gemma3_bf16", {"query_pre_attn_scalar": "head_dim"}, "BF16", {}),
    "gemma4": ("gemma4", {}, "F32", {}),
    "gemma4_bf16": ("gemma4_bf16", {}, "BF16", {}),
    "gemma4_unified": ("gemma4_unified", {}, "BF16", {}),
    "gemma4_moe": ("gemma4_moe", {}, "F32", {}),
    "gemma4_shared": ("gemma4_shared", {}, "F32", {}),
    "gemma4_shared_small": ("gemma4_shared_small", {}, "F32", {}),
    "deepseek2": ("deepseek_moe", {}, "F32", {}),
    "deepseek2_split": ("deepseek_mla", {}, "F32", {"split_latent": True}),
    "deepseek2_yarn": ("deepseek_mla", {"rope_parameters": {
        "rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0, "original_max_position_embeddings": 32,
        "beta_fast": 8.0, "beta_slow": 1.0, "mscale": 0.7, "mscale_all_dim": 0.7}}, "F32", {}),
    "glm4_moe_lite": ("glm4_moe_lite", {}, "BF16", {"split_latent": True}),
    "gpt_oss": ("gpt_oss", {"swiglu_limit": 7.0}, "F32", {}),
    "gpt_oss_plain": ("gpt_oss", {"swiglu_limit": 7.0, "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0}},
                      "F32", {}),
    "qwen3_parts": ("qwen3", {}, "F32", {"parts": 3}),
}
ARCHITECTURES = {
    "LlamaForCausalLM": "llama", "MistralForCausalLM": "llama", "Qwen2ForCausalLM": "qwen2", "Qwen3ForCausalLM": "qwen3",
    "Qwen3MoeForCausalLM": "qwen3moe", "Qwen3_5ForCausalLM": "qwen35", "Qwen3_5MoeForCausalLM": "qwen35moe",
    "Qwen3_5MoeForConditionalGeneration": "qwen35moe", "Gemma3ForCausalLM": "gemma3", "DeepseekV3ForCausalLM": "deepseek2", "Glm4MoeLiteForCausalLM": "deepseek2",
    "GptOssForCausalLM": "gpt-oss", "Gemma4ForCausalLM": "gemma4", "Gemma4ForConditionalGeneration": "gemma4",
    "Gemma4UnifiedForCausalLM": "gemma4", "Llama4ForCausalLM": "llama4",
}
NAMES = {
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "mlp.gate": "ffn_gate_inp", "mlp.router": "ffn_gate_inp",
    "self_attn.q_a_proj": "attn_q_a", "self_attn.q_a_layernorm": "attn_q_a_norm", "self_attn.q_b_proj": "attn_q_b",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa", "self_attn.kv_a_layernorm": "attn_kv_a_norm",
    "self_attn.kv_b_proj": "attn_kv_b", "mlp.shared_experts.gate_proj": "ffn_gate_shexp",
    "mlp.shared_experts.up_proj": "ffn_up_shexp", "mlp.shared_experts.down_proj": "ffn_down_shexp",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp", "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp", "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "linear_attn.in_proj_qkv": "attn_qkv", "linear_attn.in_proj_z": "attn_gate", "linear_attn.in_proj_a": "ssm_alpha",
    "linear_attn.in_proj_b": "ssm_beta", "linear_attn.conv1d": "ssm_conv1d", "linear_attn.norm": "ssm_norm",
    "linear_attn.out_proj": "ssm_out",
}
GEMMA3 = {"post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
          "post_feedforward_layernorm": "post_ffw_norm"}

# Below a layer, where the names differ from those above; the ones with an ending are whole names.
GEMMA4 = {**GEMMA3, "post_feedforward_layernorm_1": "post_ffw_norm_1", "pre_feedforward_layernorm_2": "pre_ffw_norm_2",
          "post_feedforward_layernorm_2": "post_ffw_norm_2", "router.proj": "ffn_gate_inp",
          "per_layer_input_gate": "inp_gate", "per_layer_projection": "proj", "post_per_layer_input_norm": "post_norm"}
GEMMA4_WHOLE = {"layer_scalar": "layer_output_scale.weight", "router.scale": "ffn_gate_inp.scale",
                "router.per_expert_scale": "ffn_down_exps.scale", "experts.gate_up_proj": "ffn_gate_up_exps.weight",
                "experts.down_proj": "ffn_down_exps.weight"}
# Of Qwen3.5's layer of multi-token prediction, behind the decoder's, what no other layer has.
NEXTN = {"mtp.fc": "eh_proj", "mtp.pre_fc_norm_embedding": "enorm", "mtp.pre_fc_norm_hidden": "hnorm",
         "mtp.norm": "shared_head_norm"}
LLAMA4_NAMES = {"feed_forward.router": "ffn_gate_inp", **{
    f"feed_forward.{at}{name}_proj": f"ffn_{name}{end}" for at, end in (("", ""), ("shared_expert.", "_shexp"))
    for name in ("gate", "up", "down")}}
OUTSIDE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
           "model.embed_tokens_per_layer": "per_layer_token_embd",
           "model.per_layer_model_projection": "per_layer_model_proj",
           "model.per_layer_projection_norm": "per_layer_proj_norm"}


def read_tensors(model_dir):
    tensors = {}
    for name in sorted(os.listdir(model_dir)):
        if name.endswith(".safetensors"):
            with safe_open(os.path.join(model_dir, name), framework="pt") as f:
                for key in f.keys():
                    tensors[key] = f.get_tensor(key)
    return tensors


def rope_of(config):
    rope = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    rope.setdefault("rope_theta", config.get("rope_theta", 10000.0))
    rope.setdefault("rope_type", rope.get("type", "default"))
    return rope


class Model:
    """A Hugging Face model and the GGUF file that is made of it."""

    def __init__(self, config, tensors, kind, split_latent=False):
        self.arch = ARCHITECTURES[config["architectures"][0]]
        config = config.get("text_config", config)
        self.config, self.tensors, self.kind, self.split_latent = config, tensors, kind, split_latent
        self.heads = config["num_attention_heads"]
        self.kv_heads = config.get("num_key_value_heads") or self.heads
        self.head_dim = config.get("head_dim") or config["hidden_size"] // self.heads
        self.out = []

    # llama.cpp's order: halves of a head become pairs.
    @staticmethod
    def permute(t, heads):
        return t.reshape(heads, 2, t.shape[0] // heads // 2, *t.shape[1:]).swapaxes(1, 2).reshape(t.shape)

    # Value heads of Qwen3.5, grouped by key head, become tiled.
    def tile(self, t, axis, before, run):
        keys, values = self.config["linear_num_key_heads"], self.config["linear_num_value_heads"]
        t = t.movedim(axis, 0)
        head, rest = t[:before], t[before:]
        rest = rest.reshape(keys, values // keys, run, *rest.shape[1:]).transpose(0, 1).reshape(rest.shape)
        return torch.cat([head, rest]).movedim(0, axis)

    def delta_net(self, name, t):
        c = self.config
        width, before = c["linear_value_head_dim"], 2 * c["linear_num_key_heads"] * c["linear_key_head_dim"]
        if name in ("in_proj_qkv.weight", "conv1d.weight"):
            return self.tile(t.squeeze(1) if t.ndim == 3 else t, 0, before, width)
        if name == "in_proj_z.weight":
            return self.tile(t, 0, 0, width)
        if name == "out_proj.weight":
            return self.tile(t, 1, 0, width)
        if name == "norm.weight":
            return t
        if name == "A_log":
            t = -torch.exp(t.double()).float()
        return self.tile(t, 0, 0, 1)

    def block_count(self):
        return self.config["num_hidden_layers"] + int("mtp.fc.weight" in self.tensors)

    def add(self, name, t):
        is_f32 = t.ndim < 2 or name.endswith(".bias") or "norm" in name or "ffn_gate_inp" in name or "ssm_conv1d" in name
        self.out.append((name, t, "F32" if is_f32 else self.kind))

    # Experts are [E, in, out], gate and up in alternating columns; biases lack the middle axis.
    def gpt_oss_experts(self, block, part, t):
        bias = part.endswith("_bias")
        t, ending = (t, "bias") if bias else (t.transpose(1, 2), "weight")
        if part.startswith("down"):
            self.add(f"{block}ffn_down_exps.{ending}", t)
        else:
            self.add(f"{block}ffn_gate_exps.{ending}", t[:, ::2])
            self.add(f"{block}ffn_up_exps.{ending}", t[:, 1::2])

    # As conversion/llama.py's Llama4Model: experts are [E, in, out], the columns of gate before those of up.
    def llama4_tensor(self, block, rest, t):
        base, _, ending = rest.rpartition(".")
        if rest.endswith("experts.gate_up_proj"):
            gate, up = t.transpose(1, 2).chunk(2, dim=1)
            self.add(block + "ffn_gate_exps.weight", gate)
            self.add(block + "ffn_up_exps.weight", up)
        elif rest.endswith("experts.down_proj"):
            self.add(block + "ffn_down_exps.weight", t.transpose(1, 2))
        else:
            self.add(f"{block}{LLAMA4_NAMES.get(base) or NAMES[base]}.{ending}", t)

    def gemma4_tensor(self, block, rest, t):
        base, _, ending = rest.rpartition(".")
        if rest in GEMMA4_WHOLE:
            self.add(block + GEMMA4_WHOLE[rest], t)
        else:
            self.add(f"{block}{GEMMA4.get(base) or NAMES[base]}.{ending}", t)

    def convert(self):
        c, experts = self.config, {}
        for name, t in self.tensors.items():
            if name.startswith("model.visual."):
                continue
            name = name.replace("model.language_model.", "model.")
            name = name.replace("mtp.layers.0.", f"model.layers.{c['num_hidden_layers']}.")
            base, _, ending = name.rpartition(".")
            plus_one = self.arch in ("gemma3", "qwen35", "qwen35moe") and "linear_attn" not in name \
                and (name.endswith("norm.weight") or name.startswith("mtp.pre_fc_norm_"))
            if plus_one:
                t = t.float() + 1
            if base in OUTSIDE:
                self.add(OUTSIDE[base] + ".weight", t)
                continue
            if base in NEXTN:
                self.add(f"blk.{c['num_hidden_layers']}.nextn.{NEXTN[base]}.weight", t)
                continue
            _, _, layer, rest = name.split(".", 3)
            block, base = f"blk.{layer}.", rest.rpartition(".")[0]
            if int(layer) >= self.block_count():
                continue
            if self.arch == "gemma4":
                self.gemma4_tensor(block, rest, t)
                continue
            if self.arch == "llama4":
                self.llama4_tensor(block, rest, t)
                continue
            if ".experts." in rest:
                parts = rest.split(".")
                if self.arch == "gpt-oss":
                    self.gpt_oss_experts(block, parts[2], t)
                elif parts[2].isdigit():
                    experts.setdefault((layer, parts[3]), {})[int(parts[2])] = t
                elif parts[2] == "gate_up_proj":
                    gate, up = t.chunk(2, dim=1)
                    self.add(block + "ffn_gate_exps.weight", gate)
                    self.add(block + "ffn_up_exps.weight", up)
                else:
                    self.add(block + "ffn_down_exps.weight", t)
                continue
            if rest == "self_attn.sinks":
                self.add(block + "attn_sinks.weight", t)
                continue
            if rest == "mlp.gate.e_score_correction_bias":
                self.add(block + "exp_probs_b.bias", t)
                continue
            if rest.startswith("linear_attn."):
                t = self.delta_net(rest[len("linear_attn."):], t)
                if rest.endswith("A_log") or rest.endswith("dt_bias"):
                    self.add(block + ("ssm_a" if rest.endswith("A_log") else "ssm_dt.bias"), t)
                    continue
            if self.arch == "llama" and base == "self_attn.q_proj":
                t = self.permute(t, self.heads)
            if self.arch == "llama" and base == "self_attn.k_proj":
                t = self.permute(t, self.kv_heads)
            if self.split_latent and base == "self_attn.kv_b_proj":
                kv = t.reshape(self.heads, c["qk_nope_head_dim"] + c["v_head_dim"], -1)
                self.add(block + "attn_k_b.weight", kv[:, :c["qk_nope_head_dim"]].transpose(1, 2))
                self.add(block + "attn_v_b.weight", kv[:, c["qk_nope_head_dim"]:])
                continue
            if base == "mlp.shared_expert_gate":
                t = t.squeeze(0)
            stored = (GEMMA3 if self.arch == "gemma3" else {}).get(base) or NAMES[base]
            if self.arch.startswith(("qwen35", "gpt-oss")) and base == "post_attention_layernorm":
                stored = "post_attention_norm"
            self.add(f"{block}{stored}.{ending}", t)
        for (layer, part), of in experts.items():
            stack = torch.stack([of[i] for i in range(len(of))])
            self.add(f"blk.{layer}.ffn_{part.removesuffix('_proj')}_exps.weight", stack)
        self.add_rope_freqs()

    # As convert_hf_to_gguf.py's LlamaModel.generate_extra_tensors.
    def add_rope_freqs(self):
        if self.arch == "gemma4":
            pairs = self.full_layers()["head_dim"] // 2
            turning = int(pairs * self.config["rope_parameters"]["full_attention"]["partial_rotary_factor"])
            values = [1.0] * turning + [1e30] * (pairs - turning)
            self.out.append(("rope_freqs.weight", torch.tensor(values, dtype=torch.float32), "F32"))
            return
        rope = rope_of(self.config)
        if self.arch not in ("llama", "llama4") or rope["rope_type"] != "llama3":
            return
        low = rope["original_max_position_embeddings"] / rope["low_freq_factor"]
        high = rope["original_max_position_embeddings"] / rope["high_freq_factor"]
        factors = []
        freqs = 1.0 / (rope["rope_theta"] ** (torch.arange(0, self.head_dim, 2, dtype=torch.float32) / self.head_dim))
        for freq in freqs:
            wavelen = 2 * math.pi / freq
            if wavelen < high:
                factors.append(1)
            elif wavelen > low:
                factors.append(rope["factor"])
            else:
                smooth = (rope["original_max_position_embeddings"] / wavelen - rope["low_freq_factor"]) / (
                    rope["high_freq_factor"] - rope["low_freq_factor"])
                factors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
        self.out.append(("rope_freqs.weight", torch.tensor(factors, dtype=torch.float32), "F32"))

    # head_dim and num_key_value_heads of Gemma 4's full layers, of which the last layer is one.
    def full_layers(self):
        c = self.config
        if "per_layer_config" not in c:
            return {"head_dim": c["global_head_dim"],
                    "num_key_value_heads": c["num_global_key_value_heads"] or self.kv_heads}
        own = c["per_layer_config"][str(c["num_hidden_layers"] - 1)]
        return {"head_dim": own["head_dim"], "num_key_value_heads": own.get("num_key_value_heads", self.kv_heads)}

    # As conversion/gemma.py's Gemma4Model.set_gguf_parameters.
    def write_gemma4_keys(self, w):
        c, full = self.config, self.full_layers()
        layers = c["num_hidden_layers"]
        types = c.get("layer_types") or ["sliding_attention" if (i + 1) % 6 else "full_attention" for i in range(layers)]
        sliding = [t == "sliding_attention" for t in types]
        sliding[-1] = False
        shared = c["num_kv_shared_layers"]
        width = c["intermediate_size"]
        w.add_context_length(c["max_position_embeddings"])
        w.add_embedding_length(c["hidden_size"])
        w.add_block_count(layers)
        w.add_feed_forward_length([width * (2 if i >= layers - shared else 1) for i in range(layers)]
                                  if c.get("use_double_wide_mlp") else width)
        w.add_head_count(self.heads)
        w.add_head_count_kv([self.kv_heads if s else full["num_key_value_heads"] for s in sliding])
        w.add_layer_norm_rms_eps(c["rms_norm_eps"])
        w.add_key_length(full["head_dim"])
        w.add_value_length(full["head_dim"])
        w.add_key_length_swa(self.head_dim)
        w.add_value_length_swa(self.head_dim)
        w.add_rope_dimension_count(full["head_dim"])
        w.add_rope_dimension_count_swa(self.head_dim)
        w.add_rope_freq_base(c["rope_parameters"]["full_attention"]["rope_theta"])
        w.add_rope_freq_base_swa(c["rope_parameters"]["sliding_attention"]["rope_theta"])
        w.add_sliding_window(c["sliding_window"])
        w.add_sliding_window_pattern(sliding)
        w.add_shared_kv_layers(shared)
        w.add_embedding_length_per_layer_input(c.get("hidden_size_per_layer_input") or 0)
        if c.get("final_logit_softcapping"):
            w.add_final_logit_softcapping(c["final_logit_softcapping"])
        if c.get("enable_moe_block"):
            w.add_expert_count(c["num_experts"])
            w.add_expert_used_count(c["top_k_experts"])
            w.add_expert_feed_forward_length(c["moe_intermediate_size"])
        w.add_file_type(0)
        w.add_tokenizer_model("none")
        w.add_vocab_size(c["vocab_size"])

    def write_keys(self, w):
        if self.arch == "gemma4":
            return self.write_gemma4_keys(w)
        c, rope = self.config, rope_of(self.config)
        w.add_context_length(c["max_position_embeddings"])
        w.add_embedding_length(c["hidden_size"])
        w.add_block_count(self.block_count())
        if self.block_count() > c["num_hidden_layers"]:
            w.add_nextn_predict_layers(1)
        if self.arch == "llama4":
            w.add_feed_forward_length(c["intermediate_size_mlp"])
            w.add_expert_feed_forward_length(c["intermediate_size"])
            w.add_interleave_moe_layer_step(c["interleave_moe_layer_step"])
            w.add_expert_count(c["num_local_experts"])
            w.add_expert_used_count(c["num_experts_per_tok"])
        elif c.get("intermediate_size"):
            w.add_feed_forward_length(c["intermediate_size"])
        w.add_head_count(self.heads)
        w.add_layer_norm_rms_eps(c["rms_norm_eps"])
        w.add_file_type(0)
        w.add_tokenizer_model("none")  # llama.cpp loads no file without these two
        w.add_vocab_size(c["vocab_size"])
        if self.arch == "deepseek2":
            self.write_latent_keys(w)
        else:
            w.add_head_count_kv(self.kv_heads)
            if c.get("head_dim"):
                w.add_key_length(self.head_dim)
                w.add_value_length(self.head_dim)
        if self.arch in ("llama", "llama4"):
            w.add_rope_dimension_count(self.head_dim)
        if self.arch in ("qwen3moe", "qwen35moe"):
            w.add_expert_count(c.get("num_experts") or c["num_local_experts"])
            w.add_expert_used_count(c["num_experts_per_tok"])
            w.add_expert_feed_forward_length(c["moe_intermediate_size"])
        if self.arch == "gpt-oss":
            w.add_sliding_window(c["sliding_window"])
            w.add_expert_count(c["num_local_experts"])
            w.add_expert_used_count(c["num_experts_per_tok"])
            w.add_expert_feed_forward_length(c["intermediate_size"])
        if self.arch == "qwen35moe":
            w.add_expert_shared_feed_forward_length(c["shared_expert_intermediate_size"])
        if self.arch.startswith("qwen35"):
            self.write_hybrid_keys(w, rope)
        if self.arch == "gemma3":
            ropes = c.get("rope_parameters") or {
                "full_attention": {"rope_theta": c["rope_theta"], "rope_type": "default"},
                "sliding_attention": {"rope_theta": c["rope_local_base_freq"]}}
            full = ropes["full_attention"]
            w.add_sliding_window(c["sliding_window"])
            w.add_rope_freq_base(full["rope_theta"])
            w.add_rope_freq_base_swa(ropes["sliding_attention"]["rope_theta"])
            if full["rope_type"] == "linear":
                w.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
                w.add_rope_scaling_factor(full["factor"])
            if "layer_types" in c:
                w.add_sliding_window_pattern([t == "sliding_attention" for t in c["layer_types"]])
            else:
                w.add_sliding_window_pattern(c["sliding_window_pattern"])
            return
        w.add_rope_freq_base(rope["rope_theta"])
        if rope["rope_type"] in ("linear", "yarn"):
            w.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
            w.add_rope_scaling_factor(rope["factor"])
        if rope["rope_type"] == "yarn":
            w.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
            if rope.get("beta_fast"):
                w.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])
            if rope.get("beta_slow"):
                w.add_rope_scaling_yarn_beta_slow(rope["beta_slow"])
            if rope.get("mscale_all_dim"):
                w.add_rope_scaling_yarn_log_mul(0.1 * rope["mscale_all_dim"])

    def write_hybrid_keys(self, w, rope):
        c = self.config
        w.add_ssm_conv_kernel(c["linear_conv_kernel_dim"])
        w.add_ssm_state_size(c["linear_key_head_dim"])
        w.add_ssm_group_count(c["linear_num_key_heads"])
        w.add_ssm_time_step_rank(c["linear_num_value_heads"])
        w.add_ssm_inner_size(c["linear_value_head_dim"] * c["linear_num_value_heads"])
        w.add_full_attention_interval(c.get("full_attention_interval", 4))
        w.add_rope_dimension_count(int(self.head_dim * rope.get("partial_rotary_factor", 0.25)))
        w.add_rope_dimension_sections([1, 1, 0, 0])

    def write_latent_keys(self, w):
        c = self.config
        w.add_head_count_kv(1 if self.split_latent else self.heads)
        if c.get("q_lora_rank"):
            w.add_q_lora_rank(c["q_lora_rank"])
        w.add_kv_lora_rank(c["kv_lora_rank"])
        key = c["qk_nope_head_dim"] + c["qk_rope_head_dim"]
        if self.split_latent:
            w.add_key_length(c["kv_lora_rank"] + c["qk_rope_head_dim"])
            w.add_value_length(c["kv_lora_rank"])
            w.add_key_length_mla(key)
            w.add_value_length_mla(c["v_head_dim"])
        else:
            w.add_key_length(key)
            w.add_value_length(c["v_head_dim"])
        w.add_rope_dimension_count(c["qk_rope_head_dim"])
        dense = c["mlp_layer_types"].count("dense") if "mlp_layer_types" in c else c["first_k_dense_replace"]
        w.add_leading_dense_block_count(min(dense, c["num_hidden_layers"]))
        w.add_expert_count(c["n_routed_experts"])
        w.add_expert_used_count(c["num_experts_per_tok"])
        w.add_expert_shared_count(c["n_shared_experts"])
        w.add_expert_feed_forward_length(c["moe_intermediate_size"])
        w.add_expert_group_count(c["n_group"])
        w.add_expert_group_used_count(c["topk_group"])
        w.add_expert_weights_scale(c["routed_scaling_factor"])
        w.add_expert_weights_norm(c["norm_topk_prob"])
        w.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)

    def write(self, path, parts):
        self.convert()
        if parts == 1:
            names = [path]
        else:
            names = [path.replace(".gguf", f"-{i + 1:05}-of-{parts:05}.gguf") for i in range(parts)]
        for part, name in enumerate(names):
            w = gguf.GGUFWriter(name, self.arch)
            if part == 0:
                w.add_name(os.path.basename(path))
                self.write_keys(w)
            if parts > 1:
                w.add_uint16(gguf.Keys.Split.LLM_KV_SPLIT_NO, part)
                w.add_uint16(gguf.Keys.Split.LLM_KV_SPLIT_COUNT, parts)
                w.add_int32(gguf.Keys.Split.LLM_KV_SPLIT_TENSORS_COUNT, len(self.out))
            size = -(-len(self.out) // max(1, parts - 1))
            of_part = self.out if parts == 1 else self.out[(part - 1) * size:part * size] if part else []
            for stored, t, kind in of_part:
                self.write_tensor(w, stored, t, kind)
            w.write_header_to_file()
            w.write_kv_data_to_file()
            w.write_tensors_to_file()
            w.close()

    @staticmethod
    def write_tensor(w, name, t, kind):
        block = gguf.GGML_QUANT_SIZES[TYPES[kind]][0]
        kind = kind if t.shape[-1] % block == 0 else "F16"
        if kind in ("F32", "F16"):
            return w.add_tensor(name, t.to(torch.float32 if kind == "F32" else torch.float16).contiguous().numpy())
        data = gguf.quants.quantize(t.float().contiguous().numpy(), TYPES[kind])
        return w.add_tensor(name, data, raw_dtype=TYPES[kind])


def load(model_dir):
    with open(os.path.join(model_dir, "config.json")) as f:
        return json.load(f), read_tensors(model_dir)


def write_all():
    out = os.path.join(GOLDEN, "gguf")
    os.makedirs(out, exist_ok=True)
    listed = []
    for name, (golden, changes, kind, options) in FILES.items():
        config, tensors = load(os.path.join(GOLDEN, golden, "model"))
        for key, value in changes.items():
            config[key] = config["head_dim"] if value == "head_dim" else value
        options = dict(options)
        parts = options.pop("parts", 1)
        path = os.path.join(out, name + ".gguf")
        Model(config, tensors, kind, **options).write(path, parts)
        row = {"file": name + ("" if parts == 1 else f"-00002-of-{parts:05}") + ".gguf", "golden": golden}
        if changes:
            row["config"] = name + ".json"
            with open(os.path.join(out, name + ".json"), "w") as f:
                json.dump(config, f, indent=1)
        listed.append(row)
        print(name, os.path.getsize(os.path.join(out, row["file"])))
    with open(os.path.join(out, "files.json"), "w") as f:
        json.dump(listed, f, indent=1)


BLOCK_TYPES = ["F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL",
               "IQ4_XS", "MXFP4", "NVFP4"]
# Where halves of a block are scales, in bytes; of MXFP4 the exponent.
SCALES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82], "Q3_K": [108],
          "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0], "IQ4_XS": [0]}
EXTREMES = [0x0000, 0x8000, 0x0001, 0x8001, 0x03ff, 0x0400, 0x7bff, 0xfbff, 0x3c00, 0xbc00]


def write_blocks(count=40):
    """Random blocks, those of extreme scales first; then their values by gguf-py. One record a type: its name in 8
    bytes, count, bytes and elements of a block (u32 each), blocks, values (f32)."""
    rng = np.random.default_rng(0)
    path = os.path.join(ROOT, "tests/checkpoint/data/gguf_blocks.bin")
    with open(path, "wb") as f:
        for name in BLOCK_TYPES:
            elements, size = gguf.GGML_QUANT_SIZES[TYPES[name]]
            n = count if elements > 1 else 1024
            blocks = rng.integers(0, 256, (n, size), dtype=np.uint8)
            for i in range(n):
                for at in SCALES.get(name, []):
                    scale = EXTREMES[(i + at) % len(EXTREMES)] if i < 2 * len(EXTREMES) else rng.integers(0, 0x7c00)
                    blocks[i, at:at + 2] = np.array([scale], dtype="<u2").view(np.uint8)
                if name == "MXFP4":
                    blocks[i, 0] = i if i < 8 else rng.integers(0, 253)
                if name == "MXFP4" and i in (8, 9):
                    blocks[i, 0] = 252
                if name == "NVFP4" and i < 4:
                    blocks[i, :4] = [[0x7f, 0xff, 0x80, 0], [1, 7, 8, 0x7e], [0x81, 0x87, 0x88, 0xfe], [0x38] * 4][i]
            if name in ("F16", "BF16"):  # infinities and NaN have no one f32
                halves = blocks.view("<u2")
                halves[(halves & (0x7c00 if name == "F16" else 0x7f80)) == (0x7c00 if name == "F16" else 0x7f80)] = 0x3c00
            with np.errstate(all="ignore"):
                values = gguf.quants.dequantize(blocks, TYPES[name]).astype(np.float32)
            assert np.isfinite(values).all(), name
            f.write(name.encode().ljust(8, b"\0") + np.array([n, size, elements], dtype="<u4").tobytes())
            f.write(blocks.tobytes() + values.tobytes())
    print(path, os.path.getsize(path))


def write_quantised(count=64):
    """Values and what gguf-py quantises them to. One record a type, as of write_blocks, but that values come first."""
    rng = np.random.default_rng(1)
    path = os.path.join(ROOT, "tests/checkpoint/data/gguf_quantised.bin")
    with open(path, "wb") as f:
        for name in ["F16", "BF16", "Q8_0", "Q4_0", "MXFP4"]:
            elements, size = gguf.GGML_QUANT_SIZES[TYPES[name]]
            n = count if elements > 1 else count * 32
            values = rng.standard_normal((n * elements // 32, 32)).astype(np.float32)
            values *= np.exp2(rng.integers(-24, 12, (len(values), 1))).astype(np.float32)
            values[0] = 0
            values[1] = np.arange(32) - 16  # ties, and the largest twice with both signs
            values[2] = 0.25 * np.arange(32)
            values[3, 5] = -values[3, 4]
            values[4] = 0
            values[4, 31] = 3e-5
            values[5] = np.where(np.arange(32) % 2, 1.0, -1.0)
            data = values.astype(np.float16) if name == "F16" else gguf.quants.quantize(values, TYPES[name])
            f.write(name.encode().ljust(8, b"\0") + np.array([n, size, elements], dtype="<u4").tobytes())
            f.write(values.tobytes() + data.tobytes())
    print(path, os.path.getsize(path))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?")
    parser.add_argument("out", nargs="?")
    parser.add_argument("--type", default="F32", choices=sorted(TYPES))
    parser.add_argument("--split-latent", action="store_true")
    parser.add_argument("--parts", type=int, default=1)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--blocks", action="store_true")
    parser.add_argument("--quantised", action="store_true")
    args = parser.parse_args()
    if args.all:
        write_all()
    if args.blocks:
        write_blocks()
    if args.quantised:
        write_quantised()
    if args.model and args.out:
        config, tensors = load(args.model)
        Model(config, tensors, args.type, args.split_latent).write(args.out, args.parts)
    return 0


if __name__ == "__main__":
    sys.exit(main())
