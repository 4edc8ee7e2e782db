# SPDX-License-Identifier: Apache-2.0
"""Golden cases of Gemma 3 for make_golden.py: the text model alone, and inside multimodal checkpoints.

form:  text            model_type gemma3_text, names model.layers...
       hub             model_type gemma3, names language_model.model.layers... and vision_tower.vision_model...; the keys
                       of text_config that have their default are left out, as in the published files
       language_model  model_type gemma3, names model.language_model.layers... and model.vision_tower...
A multimodal case has a vision tower of one layer, which no answer depends on.
"""
import json
import os

import numpy as np

from golden_window import ALL_LINEAR, random_adapters

VISION = dict(model_type="siglip_vision_model", hidden_size=4, intermediate_size=4, num_hidden_layers=1,
              num_attention_heads=2, image_size=4, patch_size=2, vision_use_head=False)
GLOBAL, LOCAL = 1000000.0, 10000.0


def make_config(form="text", pattern=None, **keys):
    from transformers import Gemma3Config, Gemma3TextConfig
    none = dict(bos_token_id=None, eos_token_id=None, pad_token_id=None)
    if pattern is not None:
        keys["sliding_window_pattern"] = pattern
    if form == "text":
        return Gemma3TextConfig(architectures=["Gemma3ForCausalLM"], **none, **keys)
    return Gemma3Config(architectures=["Gemma3ForConditionalGeneration"], text_config=Gemma3TextConfig(**none, **keys),
                        vision_config=dict(VISION), mm_tokens_per_image=1, image_token_index=keys["vocab_size"])


def is_ignored(name):
    """Tensors of a multimodal checkpoint that belong to no text model."""
    return "vision_tower." in name or "multi_modal_projector." in name


def randomise_norm(name, value, noise):
    """Weights w of norms by 1 + w, far enough from 0 and from 1. Branches are smaller than the stream they are added to:
    a model that doubles an error in every layer would measure nothing but rounding."""
    size = {"q_norm": 0.25, "k_norm": 0.25, "post_attention": -0.4, "post_feedforward": -0.4}
    mean = next((size[key] for key in size if key in name), 0.3)
    value.copy_(mean + 0.25 * noise)


def rewrite(folder, spec, dtype):
    """From what save_pretrained writes to the form and version of the case."""
    from safetensors.torch import load_file, save_file
    form = spec.get("form", "text")
    if form == "hub":
        path = os.path.join(folder, "model.safetensors")
        tensors = {k.replace("vision_tower.", "vision_tower.vision_model."): v for k, v in load_file(path).items()}
        save_file(tensors, path, metadata={"format": "pt"})
    path = os.path.join(folder, "config.json")
    with open(path, encoding="utf-8") as f:
        config = json.load(f)
    text = config if form == "text" else config["text_config"]
    if spec.get("v4"):
        rope = text.pop("rope_parameters")
        for key in ("layer_types", "_sliding_window_pattern", "use_bidirectional_attention"):
            text.pop(key)
        full = rope["full_attention"]
        text["rope_theta"], text["rope_local_base_freq"] = full.pop("rope_theta"), rope["sliding_attention"]["rope_theta"]
        text["rope_scaling"] = None if full["rope_type"] == "default" else full
        text["sliding_window_pattern"] = spec["config"].get("pattern", 6)
        text["cache_implementation"] = "hybrid"
        config.pop("dtype")
        config["torch_dtype"] = str(dtype).removeprefix("torch.")
        config["transformers_version"] = "4.50.0.dev0"
    if form == "hub":
        defaults = make_config(vocab_size=1).to_dict() | {
            "rope_theta": GLOBAL, "rope_local_base_freq": LOCAL, "sliding_window_pattern": 6, "rope_scaling": None,
            "cache_implementation": "hybrid", "pad_token_id": 0}
        for key in [k for k, v in text.items() if k != "model_type" and k in defaults and defaults[k] == v]:
            del text[key]
    with open(path, "w", encoding="utf-8") as f:
        json.dump(config, f, indent=1)
        f.write("\n")


def cases():
    def rope(factor):
        scaling = {"rope_type": "linear", "factor": factor} if factor > 1 else {"rope_type": "default"}
        return {"full_attention": {**scaling, "rope_theta": GLOBAL},
                "sliding_attention": {"rope_type": "default", "rope_theta": LOCAL}}
    base = dict(vocab_size=83, hidden_size=24, intermediate_size=20, num_hidden_layers=3, num_attention_heads=4,
                num_key_value_heads=2, head_dim=8, query_pre_attn_scalar=13, sliding_window=14,
                max_position_embeddings=4096, rope_parameters=rope(8.0))
    every = dict(r=2, lora_alpha=10, target_modules=ALL_LINEAR + ["embed_tokens"])
    some = dict(r=5, lora_alpha=12, target_modules=["q_proj", "k_proj", "down_proj"], use_rslora=True,
                rank_pattern={"layers.1.self_attn.q_proj": 3}, alpha_pattern={".*\\.down_proj": 4})
    head = dict(r=3, lora_alpha=6, target_modules=["embed_tokens", "lm_head", "o_proj"], copies=True)
    inside = dict(every, target_modules=r".*\.language_model\..*(proj|embed_tokens)")
    return {
        # Five sliding layers, a full one and a sliding one.
        "gemma3": dict(family="gemma3", longest=36, prompt=125, slower=5, adapters=[every, some], config=dict(
            base, num_hidden_layers=7), requests=["main", "train_adapters", "sample", "long_prompt"]),
        # No scaling, as in the smallest models; one key head.
        "gemma3_bf16": dict(family="gemma3", dtype="BF16", v4=True, longest=70, adapters=[head, some], config=dict(
            base, pattern=2, num_key_value_heads=1, rope_parameters=rope(1.0)),
            requests=["main", "params", "train_clip"]),
        "gemma3_vision": dict(family="gemma3", form="language_model", longest=33, prompt=60, adapters=[inside], config=dict(
            base, pattern=2, num_hidden_layers=2), requests=["main", "single", "train_params", "sample"]),
        # query_pre_attn_scalar, the pattern, eps, activation and both thetas by default.
        "gemma3_vision_hub": dict(family="gemma3", form="hub", v4=True, dtype="BF16", longest=24, adapters=[
            dict(inside, r=3), dict(some, target_modules=r".*\.language_model\..*(q|o|up)_proj", rank_pattern={})],
            config=dict({k: v for k, v in base.items() if k != "query_pre_attn_scalar"}, num_hidden_layers=6,
                        num_attention_heads=2, num_key_value_heads=1, intermediate_size=16), requests=["main", "params"]),
    }


def random_case(family, seed):
    """A model nobody chose, in any of the forms."""
    rng = np.random.default_rng([seed, 8])
    pick = lambda *values: values[int(rng.integers(len(values)))]
    kv, group = pick(1, 2, 3), pick(1, 1, 2, 3)
    heads, longest, layers = kv * group, pick(20, 33, 65, 100, 150), pick(1, 2, 3, 4, 7)
    form = pick("text", "text", "hub", "language_model")
    full = pick({"rope_type": "default"}, {"rope_type": "linear", "factor": pick(2.0, 8.0)})
    config = dict(vocab_size=int(rng.integers(50, 400)), intermediate_size=int(rng.integers(15, 100)),
                  hidden_size=heads * int(rng.integers(24 // heads + 1, 80 // heads)), num_hidden_layers=layers,
                  num_attention_heads=heads, num_key_value_heads=kv, head_dim=2 * int(rng.integers(2, 13)),
                  query_pre_attn_scalar=pick(4, 16, 168, 256), sliding_window=pick(1, 2, 7, 16, 40, longest),
                  max_position_embeddings=512, rms_norm_eps=pick(1e-5, 1e-6), pattern=pick(1, 2, 3, 6, 6),
                  attention_bias=form == "text" and bool(pick(0, 0, 0, 1)),
                  rope_parameters={"full_attention": {**full, "rope_theta": pick(GLOBAL, 5e5)},
                                   "sliding_attention": {"rope_type": "default", "rope_theta": pick(LOCAL, 2e4)}})
    adapters = random_adapters(rng)
    if form != "text":
        for adapter in adapters:
            names = [n for n in adapter["target_modules"] if n != "lm_head"] or ["q_proj"]
            adapter.update(target_modules=rf".*\.language_model\..*({'|'.join(names)})", copies=False)
    requests = ["main", "single", "params", pick("train_params", "train_adapters", "train_clip"), "sample"]
    return dict(family=family, form=form, config=config, seed=seed, longest=longest, prompt=pick(60, 125, longest),
                v4=bool(pick(0, 1)), dtype=pick("F32", "F32", "BF16"), shards=1 if form == "hub" else pick(1, 1, 2),
                adapters=adapters, requests=requests)
