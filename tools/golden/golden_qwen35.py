# SPDX-License-Identifier: Apache-2.0
"""Golden cases of Qwen3.5 for make_golden.py: the dense family and the one with experts, alone and in multimodal checkpoints;
and of Qwen3-Next.

form:  text     model_type qwen3_5_text or qwen3_5_moe_text, names model.layers...
       resaved  the same config, names model.language_model.layers...: a text model loaded from a multimodal checkpoint
                and saved again by transformers 5
       whole    model_type qwen3_5 or qwen3_5_moe as transformers 5 saves it, with a vision tower
       hub      the same as the published files are: keys that transformers does not read, A_log and the gated norms in
                float32 whatever the rest is, experts as two tensors a layer
       published  of Qwen3-Next: the keys of the published config, and the tensors of an MTP layer
A multimodal case also has the tensors of an MTP layer. No answer depends on them, nor on the vision tower.
"""
import json
import os
import re

import numpy as np
import torch

import golden_moe
from golden_window import random_adapters

FAMILIES = ("qwen3_5", "qwen3_5_moe", "qwen3_next")
LINEAR = ["in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj"]
NEXT_LINEAR = ["in_proj_qkvz", "in_proj_ba", "out_proj"]
FULL = ["q_proj", "k_proj", "v_proj", "o_proj"]
MLP = ["gate_proj", "up_proj", "down_proj"]
VISION = dict(depth=1, hidden_size=8, intermediate_size=8, num_heads=2, patch_size=2, temporal_patch_size=1,
              spatial_merge_size=1, num_position_embeddings=4)
# What a token's state is multiplied by: from forgotten at once to kept over thousands of tokens.
WEAKEST, STRONGEST = 1e-4, 5.0


def is_whole(spec):
    return spec.get("form", "text") in ("whole", "hub")


def make_config(family, form="text", **keys):
    import transformers
    if family == "qwen3_next":
        return transformers.Qwen3NextConfig(architectures=["Qwen3NextForCausalLM"], bos_token_id=None, eos_token_id=None,
                                            pad_token_id=None, **keys)
    kind = {"qwen3_5": "Qwen3_5", "qwen3_5_moe": "Qwen3_5Moe"}[family]
    text_class = getattr(transformers, kind + "TextConfig")
    text = dict(bos_token_id=None, eos_token_id=None, pad_token_id=None, **keys)
    if form in ("text", "resaved"):
        return text_class(architectures=[kind + "ForCausalLM"], **text)
    tokens = dict(zip(("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id"),
                      range(keys["vocab_size"], keys["vocab_size"] + 4)))
    return getattr(transformers, kind + "Config")(
        architectures=[kind + "ForConditionalGeneration"], text_config=text_class(**text).to_dict(),
        vision_config=dict(VISION, out_hidden_size=keys["hidden_size"]),
        tie_word_embeddings=keys["tie_word_embeddings"], **tokens)


def build(spec):
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText
    config = make_config(spec["family"], spec.get("form", "text"), **spec["config"])
    return (AutoModelForImageTextToText if is_whole(spec) else AutoModelForCausalLM).from_config(config)


def randomise(name, value, noise, config, gen):
    """Draws a parameter in the family's own way; False for those that are drawn as everywhere.

    Where a query is nearly orthogonal to all keys the gated norm blows up what little it reads, with its rounding errors,
    and the gradients of a few such tokens are all that a model has. Trained models have none; here a query resembles the
    key of its own token. And branches are smaller than the stream they are added to.
    """
    text = config.get_text_config()
    if name.endswith("A_log"):
        # Each layer has heads over the whole range, in any order.
        n = len(value)
        place = (torch.randperm(n, generator=gen) + torch.rand(n, generator=gen)) / n
        value.copy_(np.log(WEAKEST) + place * np.log(STRONGEST / WEAKEST))
    elif name.endswith("dt_bias"):
        value.copy_(0.5 * noise)
    elif name.endswith("linear_attn.norm.weight"):
        value.copy_(1 + 0.2 * noise)
    elif "norm" in name and "visual" not in name:
        # Norms by 1 + w, far enough from 0 and from 1.
        value.copy_(0.25 + 0.25 * noise)
    elif name.endswith(("in_proj_qkv.weight", "conv1d.weight")):
        rows = text.linear_num_key_heads * text.linear_key_head_dim
        value.copy_(noise / value.shape[-1] ** 0.5)
        value[:rows] = 0.6 * value[:rows] + 0.8 * value[rows:2 * rows]
    elif name.endswith("in_proj_qkvz.weight"):
        value.copy_(noise / value.shape[-1] ** 0.5)
        heads = value.view(text.linear_num_key_heads, -1, value.shape[-1])  # of each: q, k, v, z
        d = text.linear_key_head_dim
        heads[:, :d] = 0.6 * heads[:, :d] + 0.8 * heads[:, d:2 * d]
    elif name.endswith(("out_proj.weight", "o_proj.weight", "down_proj.weight", "down_proj")):
        value.copy_(0.25 * noise / value.shape[-1] ** 0.5)
    elif "embed_tokens" in name and text.tie_word_embeddings:
        value.copy_(2 * noise / value.shape[-1] ** 0.5)
    else:
        return False
    return True


def stays_float32(name, spec):
    return spec.get("form") == "hub" and name.endswith(("linear_attn.A_log", "linear_attn.norm.weight"))


def mtp_shapes(text):
    """Names and shapes of the MTP layer in the published files."""
    d, n, kv, h = (text[k] for k in ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim"))
    at = "mtp.layers.0."
    out = {"mtp.fc.weight": (d, 2 * d), "mtp.pre_fc_norm_embedding.weight": (d,), "mtp.pre_fc_norm_hidden.weight": (d,),
           "mtp.norm.weight": (d,), at + "input_layernorm.weight": (d,), at + "post_attention_layernorm.weight": (d,),
           at + "self_attn.q_proj.weight": (2 * n * h, d), at + "self_attn.k_proj.weight": (kv * h, d),
           at + "self_attn.v_proj.weight": (kv * h, d), at + "self_attn.o_proj.weight": (d, n * h),
           at + "self_attn.q_norm.weight": (h,), at + "self_attn.k_norm.weight": (h,)}
    if text.get("attention_bias"):
        rows = {"q": 2 * n * h, "k": kv * h, "v": kv * h, "o": d}
        out.update({f"{at}self_attn.{name}_proj.bias": (count,) for name, count in rows.items()})
    mlp, width = at + "mlp.", text.get("intermediate_size")
    if "num_experts" in text:
        e, inner, width = text["num_experts"], text["moe_intermediate_size"], text["shared_expert_intermediate_size"]
        out.update({mlp + "gate.weight": (e, d), mlp + "experts.gate_up_proj": (e, 2 * inner, d),
                    mlp + "experts.down_proj": (e, d, inner), mlp + "shared_expert_gate.weight": (1, d)})
        mlp += "shared_expert."
    out.update({mlp + "gate_proj.weight": (width, d), mlp + "up_proj.weight": (width, d), mlp + "down_proj.weight": (d, width)})
    return out


def rename_files(folder, rename):
    """Renames the tensors of a model directory, in the index too."""
    from safetensors.torch import load_file, save_file
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name)
        if name.endswith(".safetensors"):
            save_file({rename(k): v for k, v in load_file(path).items()}, path, metadata={"format": "pt"})
        elif name.endswith(".index.json"):
            with open(path, encoding="utf-8") as f:
                index = json.load(f)
            index["weight_map"] = {rename(k): v for k, v in sorted(index["weight_map"].items())}
            with open(path, "w", encoding="utf-8") as f:
                json.dump(index, f, indent=2)
                f.write("\n")


def rewrite(folder, spec, dtype, gen):
    """From what save_pretrained writes to the form of the case."""
    from safetensors.torch import load_file, save_file
    form = spec.get("form", "text")
    if form == "resaved":
        rename_files(folder, lambda k: re.sub(r"^model\.", "model.language_model.", k))
    path = os.path.join(folder, "config.json")
    with open(path, encoding="utf-8") as f:
        config = json.load(f)
    text = config.get("text_config", config)
    if is_whole(spec) or form == "published":
        tensors = os.path.join(folder, "model.safetensors")
        more = {k: (0.1 * torch.randn(shape, generator=gen)).to(dtype) for k, shape in mtp_shapes(text).items()}
        save_file({**load_file(tensors), **more}, tensors, metadata={"format": "pt"})
    if form == "hub":
        rewrite_as_published(config, text, dtype)
    if form == "published":
        rope = config.pop("rope_parameters")
        config.pop("dtype", None)
        config.update(rope_theta=rope["rope_theta"], rope_scaling=None, partial_rotary_factor=rope["partial_rotary_factor"],
                      torch_dtype=str(dtype).removeprefix("torch."), transformers_version="4.57.0.dev0")
    if spec.get("interval"):  # instead of a list of layers
        del text["layer_types"]
        text["full_attention_interval"] = spec["interval"]
    with open(path, "w", encoding="utf-8") as f:
        json.dump(config, f, indent=1)
        f.write("\n")


def rewrite_as_published(config, text, dtype):
    types = text["layer_types"]
    text.update(attn_output_gate=True, full_attention_interval=types.index("full_attention") + 1, mamba_ssm_dtype="float32",
                mlp_only_layers=[], mtp_num_hidden_layers=1, mtp_use_dedicated_embeddings=False,
                dtype=str(dtype).removeprefix("torch."))
    text["partial_rotary_factor"] = text["rope_parameters"]["partial_rotary_factor"]
    for key in ("bos_token_id", "pad_token_id"):
        del text[key]
    # The published files say so, and transformers corrects it.
    config["vision_config"]["model_type"] = config["model_type"]
    config["vision_config"]["deepstack_visual_indexes"] = []
    del config["vision_config"]["rope_parameters"]
    config.pop("dtype", None)
    config.update(language_model_only=False, transformers_version="4.57.0.dev0")


def cases():
    linear, full = "linear_attention", "full_attention"
    rope = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25, "mrope_section": [1, 1, 0],
            "mrope_interleaved": True}
    # Grouped heads whose keys and values differ in width, three linear layers to one full.
    base = dict(vocab_size=61, hidden_size=24, intermediate_size=28, num_hidden_layers=4, num_attention_heads=4,
                num_key_value_heads=2, head_dim=16, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8,
                linear_value_head_dim=16, linear_conv_kernel_dim=4, rms_norm_eps=1e-6, max_position_embeddings=4096,
                tie_word_embeddings=True, rope_parameters=rope)
    small = dict(base, num_hidden_layers=2, layer_types=[linear, full], hidden_size=20, intermediate_size=20)
    equal = dict(small, linear_num_key_heads=3, linear_num_value_heads=3, linear_key_head_dim=16, linear_value_head_dim=8,
                 linear_conv_kernel_dim=3, head_dim=8, layer_types=[full, linear], tie_word_embeddings=False, rms_norm_eps=1e-5,
                 rope_parameters=dict(rope, partial_rotary_factor=0.5))
    yarn = dict(rope, rope_type="yarn", factor=4.0, original_max_position_embeddings=40, partial_rotary_factor=0.5)
    moe = {k: v for k, v in small.items() if k != "intermediate_size"}
    moe.update(moe_intermediate_size=12, shared_expert_intermediate_size=16, num_experts=6, num_experts_per_tok=2,
               tie_word_embeddings=False)
    following = dict(moe, intermediate_size=20, rope_parameters={k: v for k, v in rope.items() if "mrope" not in k})
    every = dict(r=3, lora_alpha=12, target_modules=LINEAR + FULL + MLP)
    # Without in_proj_z.
    some = dict(r=4, lora_alpha=10, target_modules=["in_proj_qkv", "in_proj_a", "q_proj", "down_proj"], use_rslora=True,
                rank_pattern={"layers.1.linear_attn.in_proj_qkv": 2}, alpha_pattern={".*\\.q_proj": 5})
    gates = dict(r=2, lora_alpha=6, target_modules=["in_proj_z", "in_proj_b", "o_proj", "gate_proj", "embed_tokens", "lm_head"])
    ends = dict(r=2, lora_alpha=8, target_modules=["out_proj", "in_proj_a", "v_proj", "up_proj", "embed_tokens"], copies=True)
    return {
        "qwen3_5": dict(family="qwen3_5", seed=5, config=base, longest=129, lengths=[300, 1, 64, 2, 65], prompt=125, slower=5,
                        adapters=[every, some], requests=["main", "single", "params", "train_adapters", "sample", "long_prompt"]),
        # Untied; as many key heads as value heads, the narrower convolution, a full layer first.
        "qwen3_5_equal": dict(family="qwen3_5", seed=5, config=equal, longest=67, lengths=[130, 3, 63, 5, 128], prompt=61, slower=5,
                              adapters=[some, gates], requests=["main", "params", "train_params", "train_clip", "sample"]),
        "qwen3_5_bf16": dict(family="qwen3_5", seed=5, form="resaved", dtype="BF16", shards=2, longest=66, lengths=[129, 2, 64, 4, 127],
                             interval=2, adapters=[every, ends], config=dict(small, head_dim=32, rope_parameters=yarn),
                             requests=["main", "params"]),
        "qwen3_5_vision": dict(family="qwen3_5", seed=5, form="whole", longest=65, lengths=[66, 1, 17, 5, 62], prompt=60,
                               adapters=[dict(every, whole=True), gates],
                               config=dict(equal, linear_num_value_heads=6, layer_types=[linear, full]),
                               requests=["main", "train_params", "sample"]),
        "qwen3_5_vision_hub": dict(family="qwen3_5", seed=5, form="hub", dtype="BF16", longest=63, lengths=[127, 4, 65, 2, 63],
                                   adapters=[dict(some, whole=True, rank_pattern={})], config=small, requests=["main", "params"]),
        # Experts one by one, as transformers 5 saves them; every form of adapter.
        "qwen3_5_moe": dict(family="qwen3_5_moe", seed=4, config=moe, longest=67, lengths=[131, 1, 64, 3, 65], prompt=60, slower=5, adapters=[
            dict(form="per_expert", r=3, expert_r=2, lora_alpha=8, modules=LINEAR + FULL + MLP, experts=MLP),
            dict(form="fused", r=2, lora_alpha=6, modules=["in_proj_qkv", "q_proj", "shared_expert_gate"],
                 experts=["gate_up_proj", "down_proj"], peft=True)],
            requests=["main", "single", "params", "train_adapters", "train_params", "sample", "short"]),
        "qwen3_5_moe_hub": dict(family="qwen3_5_moe", seed=4, form="hub", dtype="BF16", longest=40, lengths=[70, 2, 63, 5, 66], adapters=[
            dict(form="fused", r=2, expert_r=1, lora_alpha=4, modules=["in_proj_qkv", "in_proj_b", "o_proj", "up_proj"],
                 experts=["down_proj"], whole=True)],
            config=dict(moe, num_experts=5, num_experts_per_tok=3), requests=["main", "params", "short"]),
        # A dense layer among those with experts; both fused projections adapted, and each by itself.
        "qwen3_next": dict(family="qwen3_next", seed=6, config=dict(
            following, num_hidden_layers=3, layer_types=[linear, full, linear], mlp_only_layers=[2]),
            longest=67, lengths=[131, 1, 64, 3, 65], prompt=60, slower=5, adapters=[
                dict(form="per_expert", r=3, expert_r=2, lora_alpha=8, modules=NEXT_LINEAR + FULL + MLP, experts=MLP),
                dict(form="fused", r=2, lora_alpha=6, modules=["in_proj_ba", "q_proj", "shared_expert_gate"],
                     experts=["gate_up_proj", "down_proj"], peft=True)],
            requests=["main", "single", "params", "train_adapters", "train_params", "sample"]),
        "qwen3_next_bf16": dict(family="qwen3_next", seed=6, form="published", dtype="BF16", interval=2, longest=40,
                                lengths=[70, 2, 63, 5, 66], adapters=[
                                    dict(form="per_expert", r=2, expert_r=1, lora_alpha=4, modules=["in_proj_qkvz", "o_proj"],
                                         experts=["down_proj"])],
                                config=dict(following, linear_num_key_heads=3, linear_num_value_heads=9,
                                            linear_key_head_dim=8, linear_value_head_dim=8, norm_topk_prob=False),
                                requests=["main", "params"]),
    }


def random_case(family, seed):
    """A model nobody chose, in any of the forms."""
    rng = np.random.default_rng([seed, {"qwen3_5": 9, "qwen3_5_moe": 10, "qwen3_next": 11}[family]])
    pick = lambda *values: values[int(rng.integers(len(values)))]
    form, layers, longest = pick("text", "text", "resaved", "whole", "hub"), pick(1, 2, 3, 4), pick(20, 63, 65, 100, 130)
    kv, keys = pick(1, 2, 3), pick(1, 2, 3)
    types = [str(t) for t in rng.choice(["linear_attention", "linear_attention", "full_attention"], layers)]
    head_dim, rotated = pick((8, 0.25), (8, 1.0), (12, 0.5), (16, 0.25), (32, 0.25), (32, 0.5))
    config = dict(vocab_size=int(rng.integers(50, 300)), hidden_size=int(rng.integers(12, 60)),
                  num_hidden_layers=layers, layer_types=types, num_attention_heads=kv * pick(1, 2, 3), num_key_value_heads=kv,
                  head_dim=head_dim, linear_num_key_heads=keys, linear_num_value_heads=keys * pick(1, 2, 3),
                  linear_key_head_dim=pick(8, 16, 24), linear_value_head_dim=pick(8, 16, 24), linear_conv_kernel_dim=pick(2, 3, 4),
                  rms_norm_eps=pick(1e-5, 1e-6), max_position_embeddings=512, tie_word_embeddings=bool(pick(0, 1)),
                  attention_bias=bool(pick(0, 0, 0, 1)),
                  rope_parameters={"rope_type": "default", "rope_theta": pick(1e4, 1e7), "partial_rotary_factor": rotated})
    if form == "hub" and "full_attention" not in types:
        form = "whole"
    is_next = family == "qwen3_next"
    if is_next:
        form = pick("text", "text", "published")
    experts = family == "qwen3_5_moe" or is_next
    linear = NEXT_LINEAR if is_next else LINEAR
    names = LINEAR + FULL + MLP + ["embed_tokens", "lm_head"]
    if experts:
        top_k = pick(1, 2, 2, 3)
        config.update(moe_intermediate_size=int(rng.integers(3, 30)), shared_expert_intermediate_size=int(rng.integers(3, 30)),
                      num_experts=pick(top_k, 5, 8), num_experts_per_tok=top_k)
        if is_next:
            config.update(intermediate_size=int(rng.integers(15, 60)), norm_topk_prob=bool(pick(0, 1)),
                          decoder_sparse_step=pick(1, 1, 2) if layers > 1 else 1, mlp_only_layers=pick([], [0]) if layers > 1 else [])
        adapters = [golden_moe.random_adapter(rng, linear + FULL + ["shared_expert_gate"]) for _ in range(pick(1, 2))]
    else:
        config["intermediate_size"] = int(rng.integers(15, 100))
        adapters = random_adapters(rng)
        for adapter in adapters:
            adapter["target_modules"] = [str(n) for n in rng.permutation(names)[: int(rng.integers(1, len(names)))]]
            for key in ("rank_pattern", "alpha_pattern"):
                adapter.pop(key, None)
    present = set(MLP + ["embed_tokens", "lm_head", "shared_expert_gate"]) | {
        n for n in linear if "linear_attention" in types} | {n for n in FULL if "full_attention" in types}
    for adapter in adapters:
        key = "target_modules" if "target_modules" in adapter else "modules"
        adapter[key] = [n for n in adapter[key] if n in present] or MLP
        adapter["whole"] = form in ("whole", "hub") and bool(pick(0, 1))
    requests = ["main", "single", "params", pick("train_params", "train_adapters", "train_clip"), "sample"]
    return dict(family=family, form=form, config=config, seed=seed, longest=longest, prompt=pick(60, 125, longest),
                dtype=pick("F32", "F32", "BF16"), shards=pick(1, 2) if form in ("text", "resaved") else 1, adapters=adapters,
                slower=5, requests=requests)
