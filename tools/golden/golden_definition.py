# SPDX-License-Identifier: Apache-2.0
"""The windowed families from their definition, in numpy and float64, read from the files alone; and the traps.

A second opinion on transformers: the same logits to 1e-10, whatever form the config and the names have. And a measure of
the goldens: each trap below is the definition with one thing wrong, and must show. Settings of a layer: window (keys
j with i - window < j <= i; None for all), theta and factor (frequencies are divided by it).
"""
import json
import os
import re

import numpy as np
import torch
from safetensors.torch import load_file

import golden_gemma3
import golden_reference as gr
from golden_run import make_reference

FAMILIES = ("qwen2", "mistral", "ministral", "gemma3_text")
# Of the limit of the comparison, by which a trap must change the logits.
VISIBLE = 100
# The two GELUs are within 5e-4 of each other.
FAINT = {"gelu of erf": 20}


def load_tensors(folder, part):
    out = {}
    for name in sorted(os.listdir(folder)):
        if name.startswith(part) and name.endswith(".safetensors"):
            out.update({k: v.double().numpy() for k, v in load_file(os.path.join(folder, name)).items()})
    return out


def layer_windows(config, kind, layers):
    """None or a number for each layer."""
    window = config.get("sliding_window", 4096)
    if kind == "qwen2" and not config.get("use_sliding_window", False):
        window = None
    types = config.get("layer_types")
    if types is None and kind == "qwen2":
        types = ["sliding_attention" if i >= config.get("max_window_layers", 28) else "full_attention" for i in range(layers)]
    elif types is None and kind == "gemma3_text":
        every = config.get("sliding_window_pattern", 6)
        types = ["full_attention" if (i + 1) % every == 0 else "sliding_attention" for i in range(layers)]
    elif types is None:
        types = ["sliding_attention"] * layers
    return [window if t == "sliding_attention" else None for t in types]


def yarn(theta, dim, rope):
    """(frequencies, factor of cos and sin) of YaRN with the default ramp of 32 to 1 turns."""
    base = theta ** (-np.arange(0, dim, 2) / dim)
    place = lambda turns: dim * np.log(rope["original_max_position_embeddings"] / (turns * 2 * np.pi)) / (2 * np.log(theta))
    low, high = max(np.floor(place(32)), 0), min(np.ceil(place(1)), dim - 1)
    ramp = np.clip((np.arange(dim // 2) - low) / (high - low if high > low else 0.001), 0, 1)
    return base * (1 - ramp) + base / rope["factor"] * ramp, 0.1 * np.log(rope["factor"]) + 1


class Definition:
    def __init__(self, model_dir, adapter_dir=None):
        with open(os.path.join(model_dir, "config.json"), encoding="utf-8") as f:
            config = json.load(f)
        config = config.get("text_config", config)
        kind = config["model_type"]
        self.config, self.gemma = config, kind == "gemma3_text"
        tensors = load_tensors(model_dir, "model")
        self.weights = {re.sub(r"^(language_model\.model|model\.language_model|model)\.", "", k): v
                        for k, v in tensors.items() if not golden_gemma3.is_ignored(k)}
        self.layers = layers = config["num_hidden_layers"]
        self.heads = config["num_attention_heads"]
        self.kv_heads = config["num_key_value_heads"]
        self.head_dim = config.get("head_dim") or config["hidden_size"] // self.heads
        self.eps = config.get("rms_norm_eps", 1e-6)
        self.windows = layer_windows(config, kind, layers)
        self.scale = (config.get("query_pre_attn_scalar", 256) if self.gemma else self.head_dim) ** -0.5
        self.norm_offset = 1.0 if self.gemma else 0.0
        self.embed_scale = config["hidden_size"] ** 0.5 if self.gemma else 1.0
        self.embed_lora_scale = self.embed_scale
        self.act = self.gelu_tanh if self.gemma else self.silu
        self.post_norms = self.qk_norms = self.gemma
        self.read_ropes(config)
        self.adapter = {}
        if adapter_dir:
            self.read_adapter(adapter_dir)

    def read_ropes(self, config):
        """A list of (frequencies, factor of cos and sin), one a layer."""
        rope = config.get("rope_parameters")
        if self.gemma:
            if rope is None:
                rope = {"full_attention": {**(config.get("rope_scaling") or {}), "rope_theta": config.get("rope_theta", 1e6)},
                        "sliding_attention": {"rope_theta": config.get("rope_local_base_freq", 1e4)}}
            tables = {}
            for kind, values in rope.items():
                tables[kind] = (self.plain(values["rope_theta"]) / values.get("factor", 1.0), 1.0)
            self.tables = [tables["full_attention" if w is None else "sliding_attention"] for w in self.windows]
            self.local, self.full = tables["sliding_attention"], tables["full_attention"]
            return
        rope = rope or {**(config.get("rope_scaling") or {}), "rope_theta": config["rope_theta"]}
        scaled = rope.get("rope_type", rope.get("type", "default")) == "yarn"
        table = yarn(rope["rope_theta"], self.head_dim, rope) if scaled else (self.plain(rope["rope_theta"]), 1.0)
        self.tables = [table] * self.layers

    def plain(self, theta):
        return theta ** (-np.arange(0, self.head_dim, 2) / self.head_dim)

    def read_adapter(self, folder):
        """Linear modules with their delta added; the embedding's delta by itself."""
        with open(os.path.join(folder, "adapter_config.json"), encoding="utf-8") as f:
            config = json.load(f)
        find = lambda patterns, path, value: next(
            (v for k, v in patterns.items() if re.match(rf"(.*\.)?({k})$", path)), value)
        tensors = load_tensors(folder, "adapter_model")
        for name in tensors:
            found = re.match(r"base_model\.model\.(.*)\.lora_(embedding_)?A(\.weight)?$", name)
            if not found:
                continue
            path, a = found.group(1), tensors[name]
            b = tensors[name.replace("_A", "_B")]
            scale = find(config["alpha_pattern"], path, config["lora_alpha"]) / (
                len(a) ** 0.5 if config["use_rslora"] else len(a))
            path = re.sub(r"^model\.(language_model\.)?", "", path) + ".weight"
            self.adapter[path] = scale * (b @ a).T if found.group(2) else scale * (b @ a)

    @staticmethod
    def silu(x):
        return x / (1 + np.exp(-x))

    @staticmethod
    def gelu_tanh(x):
        return 0.5 * x * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x ** 3)))

    @staticmethod
    def gelu_erf(x):
        return 0.5 * x * (1 + torch.erf(torch.tensor(x) / 2 ** 0.5).numpy())

    def norm(self, x, name):
        w = self.weights[name + ".weight"] + self.norm_offset
        return x / np.sqrt((x ** 2).mean(-1, keepdims=True) + self.eps) * w

    def linear(self, x, name):
        y = x @ (self.weights[name + ".weight"] + self.adapter.get(name + ".weight", 0)).T
        return y + self.weights.get(name + ".bias", 0)

    def rotate(self, x, table):
        """x [T, heads, head_dim]: the two halves of a head are the parts of its pairs."""
        frequencies, size = table
        angle = np.arange(len(x))[:, None, None] * frequencies
        cos, sin = np.cos(angle) * size, np.sin(angle) * size
        a, b = np.split(x, 2, -1)
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    def attention(self, x, i):
        at, n = f"layers.{i}.self_attn.", len(x)
        q, k, v = (self.linear(x, f"{at}{p}_proj").reshape(n, -1, self.head_dim) for p in "qkv")
        if self.qk_norms:
            q, k = self.norm(q, at + "q_norm"), self.norm(k, at + "k_norm")
        q, k = self.rotate(q, self.tables[i]), self.rotate(k, self.tables[i])
        group = self.heads // self.kv_heads
        scores = np.einsum("ihd,jhd->hij", q, np.repeat(k, group, 1)) * self.scale
        back = np.arange(n)[:, None] - np.arange(n)
        window = self.windows[i] if self.windows[i] is not None else n
        scores = np.where((back >= 0) & (back < window), scores, -np.inf)
        p = np.exp(scores - scores.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        return self.linear(np.einsum("hij,jhd->ihd", p, np.repeat(v, group, 1)).reshape(n, -1), at + "o_proj")

    def mlp(self, x, i):
        at = f"layers.{i}.mlp."
        return self.linear(self.act(self.linear(x, at + "gate_proj")) * self.linear(x, at + "up_proj"), at + "down_proj")

    def logits(self, ids):
        x = self.weights["embed_tokens.weight"][ids] * self.embed_scale
        if "embed_tokens.weight" in self.adapter:
            x = x + self.adapter["embed_tokens.weight"][ids] * self.embed_lora_scale
        after = (lambda y, name: self.norm(y, name)) if self.post_norms else (lambda y, name: y)
        for i in range(self.layers):
            at = f"layers.{i}."
            x = x + after(self.attention(self.norm(x, at + "input_layernorm"), i), at + "post_attention_layernorm")
            second = "pre_feedforward_layernorm" if self.gemma else "post_attention_layernorm"
            x = x + after(self.mlp(self.norm(x, at + second), i), at + "post_feedforward_layernorm")
        head = "lm_head.weight" if "lm_head.weight" in self.weights else "embed_tokens.weight"
        return self.norm(x, "norm") @ (self.weights[head] + self.adapter.get("lm_head.weight", 0)).T


def traps(d, longest):
    """{name: what to do to a Definition}: only those that ought to show in this model."""
    config, out = d.config, {}
    crossing = [w for w in d.windows if w is not None and w < longest]
    if crossing:
        w = crossing[0]
        each = lambda f: lambda x: setattr(x, "windows", [v if v is None else f(v) for v in x.windows])
        out["no window"] = each(lambda v: None)
        out["window + 1"] = each(lambda v: v + 1)
        if w > 1:
            out["window - 1"] = each(lambda v: v - 1)
        if None in d.windows:
            out["window on every layer"] = lambda x: setattr(x, "windows", [w] * x.layers)
            out["types reversed"] = lambda x: setattr(x, "windows", [None if v is not None else w for v in x.windows])
    elif config.get("sliding_window") and config.get("use_sliding_window") is False and config["sliding_window"] < longest:
        out["window though switched off"] = lambda x: setattr(x, "windows", [config["sliding_window"]] * x.layers)
    if any(k.endswith("q_proj.bias") for k in d.weights):
        def drop(letter):
            def change(x):
                x.weights = {k: v for k, v in x.weights.items() if not k.endswith(f"{letter}_proj.bias")}
            return change
        # A key's bias adds nearly the same to all scores of a query, but for the rotation.
        out.update({f"no {letter} bias": drop(letter) for letter in "qkv"})
    if d.heads * d.head_dim != config["hidden_size"] and not d.gemma:
        out["scale of hidden_size / heads"] = lambda x: setattr(x, "scale", (config["hidden_size"] / x.heads) ** -0.5)
    if not d.gemma:
        out["interleaved pairs"] = lambda x: setattr(x, "rotate", lambda v, t: interleaved(v, t))
        if d.tables and d.tables[0][1] != 1:
            out["YaRN without its factor"] = lambda x: setattr(x, "tables", [(t[0], 1.0) for t in x.tables])
        return out
    kinds = {w is None for w in d.windows}
    swap = {True: d.local, False: d.full}
    out["two rope tables swapped"] = lambda x: setattr(x, "tables", [swap[w is None] for w in x.windows])
    if len(kinds) == 2:
        out["local rope table everywhere"] = lambda x: setattr(x, "tables", [d.local] * x.layers)
        out["global rope table everywhere"] = lambda x: setattr(x, "tables", [d.full] * x.layers)
    rope = config.get("rope_parameters", {}).get("full_attention") or config.get("rope_scaling") or {}
    factor = rope.get("factor", 1.0)
    if factor != 1:
        if True in kinds:
            out["global table unscaled"] = lambda x: setattr(
                x, "tables", [t if w is not None else (t[0] * factor, 1.0) for t, w in zip(x.tables, x.windows)])
        if False in kinds:
            out["local table scaled too"] = lambda x: setattr(
                x, "tables", [t if w is None else (t[0] / factor, 1.0) for t, w in zip(x.tables, x.windows)])
    out["no embedding scale"] = lambda x: vars(x).update(embed_scale=1.0)
    out["norms by w"] = lambda x: setattr(x, "norm_offset", 0.0)
    out["no norms of q and k"] = lambda x: setattr(x, "qk_norms", False)
    out["no norms after branches"] = lambda x: setattr(x, "post_norms", False)
    out["gelu of erf"] = lambda x: setattr(x, "act", x.gelu_erf)
    out["silu"] = lambda x: setattr(x, "act", x.silu)
    if config.get("query_pre_attn_scalar", 256) != d.head_dim:
        out["scale of head_dim"] = lambda x: setattr(x, "scale", x.head_dim ** -0.5)
    if "embed_tokens.weight" in d.adapter:
        out["embedding's LoRA unscaled"] = lambda x: setattr(x, "embed_lora_scale", 1.0)
    return out


def interleaved(x, table):
    angle = np.arange(len(x))[:, None, None] * table[0]
    a, b = x[..., 0::2], x[..., 1::2]
    cos, sin = np.cos(angle) * table[1], np.sin(angle) * table[1]
    return np.stack([a * cos - b * sin, b * cos + a * sin], -1).reshape(x.shape)


def check(name, model_dir, adapters, vocab, longest, strict):
    """Compares with transformers, base and first adapter, and prints by how much each trap changes the logits."""
    with open(os.path.join(model_dir, "config.json"), encoding="utf-8") as f:
        config = json.load(f)
    if config.get("text_config", config)["model_type"] not in FAMILIES:
        return
    ids = np.random.default_rng(0).integers(0, vocab, longest).tolist()
    for k, adapter in enumerate([None, *adapters]):
        with torch.no_grad():
            theirs = gr.to_numpy(make_reference(model_dir, adapters, "f64").forward(ids, k)[1])
            single = gr.to_numpy(make_reference(model_dir, adapters, "f32").forward(ids, k)[1])
        ours = Definition(model_dir, adapter)
        right = ours.logits(ids)
        difference = gr.relative_l2(right, theirs)
        assert difference < 1e-10, f"{name}, adapter {k}: transformers is {difference:.1e} from the definition"
        limit = max(10 * gr.relative_l2(single, theirs), 2e-6)
        for trap, change in traps(ours, longest).items():
            if k and trap != "embedding's LoRA unscaled":
                continue
            wrong = Definition(model_dir, adapter)
            change(wrong)
            with np.errstate(all="ignore"):
                moved = gr.relative_l2(wrong.logits(ids), right)
            print(f"  {name}: {trap}: logits move by {moved:.1e}, {moved / limit:.0f} limits (limit {limit:.1e})")
            assert not strict or moved > FAINT.get(trap, VISIBLE) * limit, f"{name}: '{trap}' hardly shows"
