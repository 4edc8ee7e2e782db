# SPDX-License-Identifier: Apache-2.0
"""Golden cases of families with sliding windows for make_golden.py: Qwen2, Mistral and Ministral; Gemma 3 is next door.

A query at position i sees the keys j with i - window < j <= i. The lengths are chosen so that windows are crossed in
training (longest), at the edge of a page of 64 while decoding (prompt) and behind an engine's chunk of 2048 prompt
tokens (long_prompt).
"""
import json

import numpy as np

ALL_LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
FAMILIES = ("qwen2", "mistral", "ministral")


def make_config(family, **keys):
    from transformers import MinistralConfig, MistralConfig, Qwen2Config
    cls, arch = {"qwen2": (Qwen2Config, "Qwen2ForCausalLM"), "mistral": (MistralConfig, "MistralForCausalLM"),
                 "ministral": (MinistralConfig, "MinistralForCausalLM")}[family]
    return cls(architectures=[arch], bos_token_id=None, eos_token_id=None, pad_token_id=None, **keys)


def rewrite_config(path, spec):
    """What other files of these families look like. v4: layer_types are derived, and Qwen2 names a window that is off.
    mistral: layer_types under the older name, which AutoConfig reads as Ministral."""
    if not (spec["family"] == "qwen2" and spec.get("v4") or spec.get("old_name")):
        return
    with open(path, encoding="utf-8") as f:
        config = json.load(f)
    if spec["family"] == "qwen2" and spec.get("v4"):
        del config["layer_types"]
        config["sliding_window"] = spec["config"].get("sliding_window", 16)
    if spec.get("old_name"):
        config["model_type"], config["architectures"] = "mistral", ["MistralForCausalLM"]
    with open(path, "w", encoding="utf-8") as f:
        json.dump(config, f, indent=1)
        f.write("\n")


def cases():
    base = dict(vocab_size=89, hidden_size=24, intermediate_size=28, num_hidden_layers=2, num_attention_heads=4,
                num_key_value_heads=2, rms_norm_eps=1e-6, max_position_embeddings=4096, tie_word_embeddings=False,
                rope_parameters={"rope_type": "default", "rope_theta": 10000.0})
    small = dict(r=3, lora_alpha=16, target_modules=ALL_LINEAR)
    pattern = dict(r=6, lora_alpha=24, target_modules=["q_proj", "v_proj", "down_proj", "gate_proj"],
                   rank_pattern={"layers.1.self_attn.q_proj": 5, ".*\\.down_proj": 2},
                   alpha_pattern={"v_proj": 40, "model.layers.0.mlp.gate_proj": 7})
    rslora = dict(r=5, lora_alpha=12, target_modules=ALL_LINEAR, use_rslora=True)
    embed = dict(r=2, lora_alpha=6, target_modules=["embed_tokens", "up_proj"], copies=True)
    head = dict(r=4, lora_alpha=8, target_modules=["embed_tokens", "lm_head", "q_proj"])
    yarn = {"rope_type": "yarn", "rope_theta": 1000000.0, "factor": 4.0, "original_max_position_embeddings": 20}
    full, sliding = "full_attention", "sliding_attention"
    nemo = dict(base, head_dim=10, rms_norm_eps=1e-5, rope_parameters={"rope_type": "default", "rope_theta": 1000000.0})
    return {
        # A window named and switched off.
        "qwen2": dict(family="qwen2", v4=True, config=dict(base, max_window_layers=1), adapters=[small, pattern],
                      requests=["main", "single", "train_adapters", "sample"]),
        # Tied; the YaRN that Qwen2.5 documents for long texts.
        "qwen2_bf16": dict(family="qwen2", dtype="BF16", v4=True, shards=2, longest=45, adapters=[pattern, embed],
                           config=dict(base, tie_word_embeddings=True, num_attention_heads=2, num_key_value_heads=1,
                                       rope_parameters=yarn),
                           requests=["main", "params"]),
        # Layers from max_window_layers on have the window.
        "qwen2_window": dict(family="qwen2", v4=True, longest=33, prompt=60, adapters=[small], config=dict(
            base, num_hidden_layers=3, num_key_value_heads=4, use_sliding_window=True, sliding_window=12,
            max_window_layers=1, tie_word_embeddings=True),
            requests=["main", "train_params", "sample", "long_prompt"]),
        # v0.1: every layer has it.
        "mistral_window": dict(family="mistral", v4=True, longest=70, prompt=125, adapters=[small, pattern], config=dict(
            base, num_hidden_layers=2, sliding_window=24, num_key_value_heads=1),
            requests=["main", "params", "train_adapters", "sample", "long_prompt"]),
        # Nemo: no window, heads that are not hidden_size wide together.
        "mistral_nemo": dict(family="mistral", dtype="BF16", shards=2, adapters=[head, small],
                             config=dict(nemo, sliding_window=None), requests=["main", "params", "train_clip"]),
        # Full and sliding layers in one file, under both names that transformers reads.
        "ministral": dict(family="ministral", longest=36, prompt=60, adapters=[rslora], config=dict(
            nemo, sliding_window=12, layer_types=[sliding, full]),
            requests=["main", "train_params", "sample"]),
        "ministral_bf16": dict(family="ministral", dtype="BF16", old_name=True, longest=33, adapters=[embed], config=dict(
            nemo, sliding_window=16, layer_types=[full, sliding], tie_word_embeddings=True), requests=["main", "params"]),
    }


def random_adapters(rng):
    pick = lambda *values: values[int(rng.integers(len(values)))]
    adapters = []
    for _ in range(pick(1, 2, 2, 3)):
        names = [str(n) for n in rng.permutation(ALL_LINEAR + ["embed_tokens", "lm_head"])]
        adapter = dict(r=int(rng.integers(1, 18)), lora_alpha=int(rng.integers(1, 40)), use_rslora=bool(pick(0, 0, 1)),
                       target_modules=names[: int(rng.integers(1, 10))], copies=bool(pick(0, 1)))
        if pick(0, 1):
            key = pick("q_proj", "layers.0.mlp.up_proj", ".*self_attn.*", "v_proj")
            adapter.update(rank_pattern={key: int(rng.integers(1, 9))}, alpha_pattern={key: 5})
        adapters.append(adapter)
    return adapters


def random_case(family, seed):
    """A model nobody chose: windows below and above the lengths, on all layers, some or none. A mistral may be a
    ministral under either name."""
    rng = np.random.default_rng([seed, {"qwen2": 6, "mistral": 7}[family]])
    pick = lambda *values: values[int(rng.integers(len(values)))]
    kv, group, head_dim = pick(1, 2, 3, 4), pick(1, 1, 2, 3), 2 * int(rng.integers(2, 17))
    heads, layers, longest = kv * group, pick(1, 2, 3, 4), pick(20, 33, 65, 100, 150)
    window = pick(1, 2, int(rng.integers(3, 20)), int(rng.integers(8, longest + 10)))
    config = dict(vocab_size=int(rng.integers(50, 400)), intermediate_size=int(rng.integers(15, 150)),
                  num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=kv, rms_norm_eps=pick(1e-5, 1e-6),
                  max_position_embeddings=512, tie_word_embeddings=bool(pick(0, 1)),
                  rope_parameters={"rope_type": "default", "rope_theta": pick(1e4, 1e6)})
    requests = ["main", "single", "params", pick("train_params", "train_adapters", "train_clip"), "sample"]
    spec = dict(family=family, config=config, seed=seed, longest=longest, prompt=pick(60, 125, longest),
                v4=bool(pick(0, 1)), dtype=pick("F32", "F32", "BF16"), shards=pick(1, 1, 2), adapters=random_adapters(rng),
                requests=requests)
    if family == "qwen2":
        config.update(hidden_size=heads * head_dim, use_sliding_window=bool(pick(0, 1, 1)), sliding_window=window,
                      max_window_layers=int(rng.integers(0, layers + 1)))
        return spec
    config.update(hidden_size=heads * pick(head_dim, int(rng.integers(24 // heads + 1, 100 // heads))), head_dim=head_dim,
                  sliding_window=pick(None, window, window))
    if config["sliding_window"] is not None and pick(0, 1):
        config["layer_types"] = [pick("full_attention", "sliding_attention") for _ in range(layers)]
        spec.update(family="ministral", v4=False, old_name=bool(pick(0, 1)))
    return spec
