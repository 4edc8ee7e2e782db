#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""DeepSeek-V4 from its definition, in torch and float64, read from the files alone; and the traps.

usage: python tools/golden/golden_deepseek_v4_definition.py [--goldens tests/golden] [--only TEXT]   checks the committed goldens
       python tools/golden/golden_deepseek_v4_definition.py --numbers        a model of fixed numbers against what the model's own code made of it

A second opinion on transformers, and the only one on the layer of multi-token prediction (which transformers leaves
out) and on adapters of the grouped projection: the published model's steps one by one, no masks and no batches. Each
trap is the definition with one thing wrong that another implementation had wrong, and must move the logits of a
committed request by more than 100 limits. Sources: the model's own inference code, HF modeling_deepseek_v4.py.
Legend: S tokens, D hidden size, k streams, H head size, R rotated part, m tokens of an entry.
"""
import argparse
import json
import math
import os
import re
import sys

import torch

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import numpy as np

import golden_deepseek_v4 as v4
from compare_probe import limit_of, read_safetensors, relative_l2
from golden_definition import VISIBLE, load_tensors

torch.set_default_dtype(torch.float64)
COMPRESSED = {v4.SPARSE: 4, v4.HEAVY: 128}


def rms(x, eps):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


def read_config(config):
    """The keys that matter, in one form."""
    c = dict(config)
    n = c["num_hidden_layers"]
    types = c.get("layer_types")
    if types is None:
        types = [{v: k for k, v in v4.RATIOS.items()}[r] for r in c["compress_ratios"]]
    c["types"] = types[:n]
    hashed = c.get("mlp_layer_types")
    c["hashed"] = ([t == "hash_moe" for t in hashed] if hashed is not None
                   else [i < c["num_hash_layers"] for i in range(n)])[:n]
    c["rates"] = c.get("compress_rates", COMPRESSED)
    rope = c.get("rope_parameters") or c.get("rope_scaling") or {}
    c["scaling"] = rope.get("compress", rope)
    c["rotated"] = c.get("qk_rope_head_dim") or int(c["head_dim"] * c["partial_rotary_factor"])
    return c


class Definition:
    """tensors: by the published names, an adapter's products added to them."""

    def __init__(self, config, tensors, wrong=None):
        self.c = read_config(config)
        self.w = tensors
        self.wrong = wrong
        self.eps = self.c.get("rms_norm_eps", 1e-6)
        self.loads = {}  # rows of each expert, by its layer
        self.margins = []  # of choices: from the last that is chosen to the next
        self.trains_indexers = False
        self.indexer_losses = []  # of their layers, a value a token

    def is_wrong(self, trap):
        return self.wrong == trap

    def frequencies(self, kind):
        c, r = self.c, self.c["rotated"]
        plain = kind == v4.SLIDING
        if self.is_wrong("one theta and YaRN for all layers"):
            plain = False
        if self.is_wrong("no YaRN and one theta"):
            plain = True
        theta = c.get("rope_theta", 10000.0) if plain else c.get("compress_rope_theta", 160000.0)
        if self.is_wrong("compress theta 40000") and not plain:
            theta = 40000.0
        f = theta ** (-torch.arange(0, r, 2) / r)
        if plain or c["scaling"].get("type", c["scaling"].get("rope_type", "default")) != "yarn" or self.is_wrong("no YaRN"):
            return f
        s = c["scaling"]
        at = lambda n: r * math.log(s["original_max_position_embeddings"] / (2 * math.pi * n)) / (2 * math.log(theta))
        low, high = max(math.floor(at(s["beta_fast"])), 0), min(math.ceil(at(s["beta_slow"])), r - 1)
        ramp = ((torch.arange(r // 2) - low) / max(high - low, 0.001)).clamp(0, 1)
        return f * (1 - ramp) + f / s["factor"] * ramp

    def turn(self, x, positions, kind, sign=1):
        """x [S, heads, H]: the last R columns, pair by pair."""
        angle = positions[:, None, None] * self.frequencies(kind) * sign
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        r = self.c["rotated"]
        head, tail = x[..., :-r], x[..., -r:]
        if self.is_wrong("halves in place of pairs"):
            a, b = tail[..., : r // 2], tail[..., r // 2:]
            turned = torch.cat([a * cos - b * sin, a * sin + b * cos], -1)
        else:
            a, b = tail[..., 0::2], tail[..., 1::2]
            turned = torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)
        return torch.cat([head, turned], -1)

    def norm(self, x, name):
        return rms(x, self.eps) * self.w[name]

    def compress(self, at, x, m, kind, overlap):
        """Entries [E, C] of the windows that x fills."""
        kv, gate, ape = x @ self.w[at + "wkv.weight"].T, x @ self.w[at + "wgate.weight"].T, self.w[at + "ape"]
        width = ape.shape[1] // 2 if overlap else ape.shape[1]
        entries = []
        for i in range(len(x) // m):
            own = slice(m * i, m * (i + 1))
            values, logits = [kv[own][:, -width:]], [(gate[own] + ape)[:, -width:]]
            if overlap and i > 0:
                before = slice(m * (i - 1), m * i)
                values.append(kv[before][:, :width])
                logits.append((gate[before] + ape)[:, :width])
            weights = torch.cat(logits).softmax(0)
            entries.append((weights * torch.cat(values)).sum(0))
        if not entries:
            return x.new_zeros((0, width))
        entries = self.norm(torch.stack(entries), at + "norm.weight")
        positions = torch.arange(len(entries)) * (1 if self.is_wrong("entries turned by their index") else m)
        return self.turn(entries[:, None], positions, kind)[:, 0]

    def index_scores(self, at, x, latent, m, kind):
        """Of each query's visible entries."""
        c = self.c
        keys = self.compress(at + "compressor.", x, m, kind, True)
        heads, size = c["index_n_heads"], c["index_head_dim"]
        q = self.turn((latent @ self.w[at + "wq_b.weight"].T).view(len(x), heads, size), torch.arange(len(x)), kind)
        weights = x @ self.w[at + "weights_proj.weight"].T
        return [(weights[t][:, None] * (q[t] @ keys[: (t + 1) // m].T).clamp(min=0)).sum(0) for t in range(len(x))]

    def select(self, at, x, latent, m, kind):
        """The entries that each query lists."""
        c = self.c
        lists = []
        for t, score in enumerate(self.index_scores(at, x, latent, m, kind)):
            seen = (t + 1) // m
            score, order = torch.sort(score, descending=True, stable=True)
            lists.append(order[: c["index_topk"]])
            if seen > c["index_topk"]:
                self.margins.append((score[c["index_topk"] - 1] - score[c["index_topk"]]).item())
        return lists

    def indexer_loss(self, at, x, latent, q, kv, entries, scale, m, kind):
        """Ours: of each query, from the attention that sees every entry to the softmax of the indexer's scores (as in
        DeepSeek-V3.2's warm-up). The indexer's input is no variable, nor is the attention."""
        c = self.c
        factor = (c["index_n_heads"] * c["index_head_dim"]) ** -0.5
        losses = []
        for t, score in enumerate(self.index_scores(at + "indexer.", x.detach(), latent.detach(), m, kind)):
            if len(score) < 2:
                losses.append(score.new_zeros(()))
                continue
            keys = torch.cat([kv[max(0, t - c["sliding_window"] + 1): t + 1], entries[: len(score)]])
            logits = torch.cat([scale * q[t] @ keys.T, self.w[at + "attn_sink"][:, None]], -1)
            p = logits.softmax(-1)[:, len(keys) - len(score): len(keys)].sum(0).detach()
            p = p / p.sum()
            losses.append((torch.xlogy(p, p) - p * (factor * score).log_softmax(-1)).sum())
        return torch.stack(losses)

    def attention(self, at, x, kind):
        c, s = self.c, len(x)
        heads, size = c["num_attention_heads"], c["head_dim"]
        t = torch.arange(s)
        latent = self.norm(x @ self.w[at + "wq_a.weight"].T, at + "q_norm.weight")
        q = (latent @ self.w[at + "wq_b.weight"].T).view(s, heads, size)
        q = self.turn(rms(q, self.eps), t, kind)
        kv = self.turn(self.norm(x @ self.w[at + "wkv.weight"].T, at + "kv_norm.weight")[:, None], t, kind)[:, 0]
        scale = size ** -0.5
        if self.is_wrong("YaRN's magnitude in the scores") and kind != v4.SLIDING:
            scale *= 0.1 * math.log(c["scaling"].get("factor", 1)) + 1
        m = 0 if kind == v4.SLIDING else c["rates"][kind]
        if m:
            entries = self.compress(at + "compressor.", x, m, kind, kind == v4.SPARSE)
            lists = self.select(at + "indexer.", x, latent, m, kind) if kind == v4.SPARSE else None
            if kind == v4.SPARSE and self.trains_indexers:
                self.indexer_losses.append(self.indexer_loss(at, x, latent, q, kv, entries, scale, m, kind))
        rows = []
        for i in range(s):
            keys = [kv[max(0, i - c["sliding_window"] + 1): i + 1]]
            if m:
                every = torch.arange((i + 1) // m)
                keys.append(entries[every if lists is None or self.is_wrong("every entry listed") else lists[i]])
            keys = torch.cat(keys)
            logits = torch.cat([scale * q[i] @ keys.T, self.w[at + "attn_sink"][:, None]], -1)
            p = (logits[:, :-1] if self.is_wrong("no sink") else logits).softmax(-1)[:, : len(keys)]
            rows.append(p @ keys)
        context = torch.stack(rows)
        if not self.is_wrong("output not turned back"):
            context = self.turn(context, t, kind, -1)
        groups = c["o_groups"]
        out = torch.einsum("sgi,goi->sgo", context.reshape(s, groups, -1),
                           self.w[at + "wo_a.weight"].view(groups, c["o_lora_rank"], -1))
        return out.flatten(1) @ self.w[at + "wo_b.weight"].T

    def expert(self, at, x, limit):
        gate, up = x @ self.w[at + "w1.weight"].T, x @ self.w[at + "w3.weight"].T
        if limit:
            gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
        return (torch.nn.functional.silu(gate) * up) @ self.w[at + "w2.weight"].T

    def experts(self, at, x, ids, hashed):
        c = self.c
        scores = torch.nn.functional.softplus(x @ self.w[at + "gate.weight"].T).sqrt()
        limit = c["swiglu_limit"]
        shared = None if self.is_wrong("the shared expert not clamped") else limit
        rows, k = [], c["num_experts_per_tok"]
        loads = self.loads.setdefault(at, [0] * scores.shape[1])
        for t in range(len(x)):
            if hashed and not self.is_wrong("hash layers choose by score"):
                chosen = self.w[at + "gate.tid2eid"][ids[t]].long()
            else:
                bias = self.w.get(at + "gate.bias", torch.zeros(scores.shape[1]))
                order = torch.sort(scores[t] + bias, descending=True, stable=True)
                chosen = order.indices[:k]
                if k < len(bias):
                    self.margins.append((order.values[k - 1] - order.values[k]).item())
            for e in chosen:
                loads[int(e)] += 1
            weights = scores[t][chosen]
            if self.is_wrong("the router's bias in the weights") and not hashed:
                weights = weights + self.w[at + "gate.bias"][chosen]
            weights = weights / (weights.sum() + 1e-20) * c["routed_scaling_factor"]
            rows.append(sum(w * self.expert(f"{at}experts.{int(e)}.", x[t], limit) for e, w in zip(chosen, weights)))
        return torch.stack(rows) + self.expert(at + "shared_experts.", x, shared)

    def connect(self, at, norm, x, block):
        """x [S, k, D] around a block."""
        c, k = self.c, self.c["hc_mult"]
        eps = c.get("hc_eps", 1e-6)
        mix = rms(x.flatten(1), self.eps) @ self.w[at + "fn"].T
        base, scale = self.w[at + "base"], self.w[at + "scale"]
        pre = torch.sigmoid(mix[:, :k] * scale[0] + base[:k]) + eps
        post = 2 * torch.sigmoid(mix[:, k:2 * k] * scale[1] + base[k:2 * k])
        comb = (mix[:, 2 * k:] * scale[2] + base[2 * k:]).view(-1, k, k)
        rows, columns = (-2, -1) if self.is_wrong("Sinkhorn by columns first") else (-1, -2)
        comb = comb.softmax(rows) + eps
        comb = comb / (comb.sum(columns, keepdim=True) + eps)
        steps = 1 if self.is_wrong("one step of Sinkhorn") else c["hc_sinkhorn_iters"]
        for _ in range(steps - 1):
            comb = comb / (comb.sum(rows, keepdim=True) + eps)
            comb = comb / (comb.sum(columns, keepdim=True) + eps)
        out = block(self.norm((pre[..., None] * x).sum(1), norm))
        mixed = "sij,sjd->sid" if self.is_wrong("streams mixed by the transpose") else "sij,sid->sjd"
        return post[..., None] * out[:, None] + torch.einsum(mixed, comb, x)

    def layer(self, at, x, ids, kind, hashed):
        x = self.connect(at + "hc_attn_", at + "attn_norm.weight", x, lambda n: self.attention(at + "attn.", n, kind))
        return self.connect(at + "hc_ffn_", at + "ffn_norm.weight", x, lambda n: self.experts(at + "ffn.", n, ids, hashed))

    def head(self, at, x):
        mix = rms(x.flatten(1), self.eps) @ self.w[at + "hc_head_fn"].T
        pre = torch.sigmoid(mix * self.w[at + "hc_head_scale"] + self.w[at + "hc_head_base"]) + self.c.get("hc_eps", 1e-6)
        hidden = self.norm((pre[..., None] * x).sum(1), at + "norm.weight")
        return hidden @ self.w["head.weight"].T

    def states(self, ids):
        """The streams before each layer and after the last."""
        x = self.w["embed.weight"][ids][:, None].expand(-1, self.c["hc_mult"], -1)
        out = [x]
        for i, (kind, hashed) in enumerate(zip(self.c["types"], self.c["hashed"])):
            out.append(self.layer(f"layers.{i}.", out[-1], ids, kind, hashed))
        return out

    def mtp_logits(self, x, next_ids):
        """Of the token after the next one: a layer of its own over the last streams and the next token."""
        at = "mtp.0."
        e = self.norm(self.w["embed.weight"][next_ids], at + "enorm.weight") @ self.w[at + "e_proj.weight"].T
        h = self.norm(x, at + "hnorm.weight") @ self.w[at + "h_proj.weight"].T
        return self.head(at, self.layer(at, e[:, None] + h, next_ids, v4.SLIDING, False))


TRAPS = ["YaRN's magnitude in the scores", "entries turned by their index", "output not turned back",
         "halves in place of pairs", "Sinkhorn by columns first", "one step of Sinkhorn",
         "streams mixed by the transpose", "hash layers choose by score", "the router's bias in the weights",
         "the shared expert not clamped", "no sink", "every entry listed", "no YaRN"]
# What shows behind some thousand tokens alone.
FAR = ["one theta and YaRN for all layers", "no YaRN and one theta", "compress theta 40000"]


def published_tensors(model_dir):
    """A model directory of any form, by the published names and experts one by one."""
    out = {}
    for name, value in load_tensors(model_dir, "model").items():
        value = torch.as_tensor(value)
        name = re.sub(r"^(layers\.\d+\.attn\.)norm\.", r"\1kv_norm.", v4.upstream_name(name))
        stacked = re.match(r"(.*\.experts)\.(gate_up_proj|w2|down_proj)$", name)
        if not stacked:
            out[name] = value
            continue
        for e, part in enumerate(value):
            if stacked.group(2) == "gate_up_proj":
                half = len(part) // 2
                out[f"{stacked.group(1)}.{e}.w1.weight"], out[f"{stacked.group(1)}.{e}.w3.weight"] = part[:half], part[half:]
            else:
                out[f"{stacked.group(1)}.{e}.w2.weight"] = part
    return out


def load_adapter(folder):
    return {k: torch.as_tensor(v) for k, v in load_tensors(folder, "adapter_model").items()}


def add_adapter(tensors, folder, num_experts, loaded=None):
    """The tensors with an adapter's products added; of the grouped projection too, whose groups share A."""
    with open(os.path.join(folder, "adapter_config.json"), encoding="utf-8") as f:
        config = json.load(f)
    assert not config.get("use_rslora") and not config.get("alpha_pattern")
    out = dict(tensors)
    loaded = loaded or load_adapter(folder)

    def add(module, a, b):
        name = v4.upstream_name(module + ".weight")
        out[name] = out[name] + config["lora_alpha"] / len(a) * (b @ a)

    for key, a in loaded.items():
        found = re.match(r"base_model\.model\.(.*)\.lora_(embedding_)?A(\.weight)?$", key)
        if not found:
            continue
        path, b = found.group(1), loaded[re.sub(r"_A(\.weight)?$", r"_B\1", key)]
        if found.group(2):
            out["embed.weight"] = out["embed.weight"] + config["lora_alpha"] / len(a) * (b @ a).T
        elif not re.search(r"\.experts(\.base_layer)?$", path):
            add(path, a, b)
        else:
            rank = len(a) // num_experts
            for e in range(num_experts):
                a_e, b_e = a[e * rank:(e + 1) * rank], b[:, e::num_experts]
                at = path.removesuffix(".base_layer") + f".{e}."
                if path.endswith(".base_layer"):
                    half = len(b_e) // 2
                    add(at + "gate_proj", a_e, b_e[:half])
                    add(at + "up_proj", a_e, b_e[half:])
                else:
                    add(at + "down_proj", a_e, b_e)
    return out


def check_goldens(root, only):
    with open(os.path.join(root, "goldens.json"), encoding="utf-8") as f:
        rows = [r for r in json.load(f) if r["name"].startswith("deepseek_v4") and only in r["name"]]
    shown = {}
    for row in rows:
        with open(os.path.join(root, row["request"]), encoding="utf-8") as f:
            request = json.load(f)
        key = next((k for k in ("logits", "logprobs") if k in request.get("want", [])), None)
        if key is None or "sample" in request:
            continue
        with open(os.path.join(root, row["model"], "config.json"), encoding="utf-8") as f:
            config = json.load(f)
        with open(os.path.join(root, row["noise"]), encoding="utf-8") as f:
            limit = limit_of(key, json.load(f)[key], "f32")
        want = read_safetensors(os.path.join(root, row["expected"]))[key]
        tensors = published_tensors(os.path.join(root, row["model"]))
        begin = 0
        for seq in request["sequences"]:
            n = len(seq["tokens"])
            part, begin = want[begin:begin + n], begin + n
            weights = tensors
            if seq.get("adapter", 0):
                folder = os.path.join(root, row["adapters"][seq["adapter"] - 1])
                weights = add_adapter(tensors, folder, config["n_routed_experts"])

            def ours(wrong):
                d = Definition(config, weights, wrong)
                ids = torch.tensor(seq["tokens"])
                logits = d.head("", d.states(ids)[-1])
                if key == "logits":
                    return logits.numpy()
                lp = logits.log_softmax(-1)[torch.arange(n), torch.tensor(seq["targets"])].numpy()
                return np.where(np.array(seq.get("weights", [1.0] * n)) != 0, lp, 0)

            with torch.no_grad():
                error = relative_l2(ours(None), part)
                assert error < 2e-6, f"{row['name']}: transformers is {error:.1e} from the definition"
                print(f"{row['name']}: {n} tokens: {error:.1e}", flush=True)
                for trap in (FAR if key == "logprobs" else TRAPS) if n > 30 else []:
                    moved = relative_l2(ours(trap), part) / limit
                    shown[trap] = max(shown.get(trap, 0), moved)
    for trap, moved in shown.items():
        print(f"{trap}: {moved:.0f} limits")
    faint = [trap for trap, moved in shown.items() if moved <= VISIBLE]
    assert not faint, f"hardly shown: {faint}"


def fixed_model():
    """A model whose weights are made of their names, as the numbers below were made with the model's own code."""
    config = dict(vocab_size=64, hidden_size=32, moe_intermediate_size=24, num_hidden_layers=6, num_hash_layers=3,
                  num_attention_heads=4, head_dim=32, qk_rope_head_dim=8, q_lora_rank=16, o_groups=2, o_lora_rank=12,
                  sliding_window=8, compress_ratios=[0, 0, 4, 128, 4, 128, 0], rope_theta=1e4, compress_rope_theta=1.6e5,
                  rope_scaling=dict(type="yarn", factor=16, original_max_position_embeddings=64, beta_fast=32, beta_slow=1),
                  index_n_heads=8, index_head_dim=16, index_topk=8, n_routed_experts=8, num_experts_per_tok=3,
                  routed_scaling_factor=1.5, swiglu_limit=1.0, hc_mult=4, hc_sinkhorn_iters=20)
    d, h, q, width = 32, 32, 16, 24
    shapes = {"embed.weight": (64, d), "head.weight": (64, d), "norm.weight": (d,), "hc_head_fn": (4, 4 * d),
              "hc_head_base": (4,), "hc_head_scale": (1,)}
    blocks = [(f"layers.{i}.", r, i < 3) for i, r in enumerate(config["compress_ratios"][:6])] + [("mtp.0.", 0, False)]
    for at, ratio, hashed in blocks:
        for site in ("attn", "ffn"):
            shapes.update({f"{at}{site}_norm.weight": (d,), f"{at}hc_{site}_fn": (24, 4 * d), f"{at}hc_{site}_base": (24,),
                           f"{at}hc_{site}_scale": (3,)})
        a, f = at + "attn.", at + "ffn."
        shapes.update({a + "wq_a.weight": (q, d), a + "q_norm.weight": (q,), a + "wq_b.weight": (4 * h, q), a + "wkv.weight": (h, d),
                       a + "kv_norm.weight": (h,), a + "attn_sink": (4,), a + "wo_a.weight": (24, 64), a + "wo_b.weight": (d, 24)})
        compressors = {0: [], 4: [(a + "compressor.", 2 * h, h), (a + "indexer.compressor.", 32, 16)], 128: [(a + "compressor.", h, h)]}
        for c, out, size in compressors[ratio]:
            shapes.update({c + "wkv.weight": (out, d), c + "wgate.weight": (out, d), c + "ape": (ratio, out), c + "norm.weight": (size,)})
        if ratio == 4:
            shapes.update({a + "indexer.wq_b.weight": (128, q), a + "indexer.weights_proj.weight": (8, d)})
        shapes[f + "gate.weight"] = (8, d)
        if not hashed:
            shapes[f + "gate.bias"] = (8,)
        for e in [f"experts.{e}." for e in range(8)] + ["shared_experts."]:
            shapes.update({f + e + "w1.weight": (width, d), f + e + "w3.weight": (width, d), f + e + "w2.weight": (d, width)})
    m = "mtp.0."
    shapes.update({m + "e_proj.weight": (d, d), m + "h_proj.weight": (d, d), m + "enorm.weight": (d,), m + "hnorm.weight": (d,),
                   m + "norm.weight": (d,), m + "hc_head_fn": (4, 4 * d), m + "hc_head_base": (4,), m + "hc_head_scale": (1,)})
    tensors = {}
    for name, shape in shapes.items():
        x = 2166136261
        for byte in (name + "#21").encode():
            x = ((x ^ byte) * 16777619) % 2 ** 32
        values = []
        for _ in range(math.prod(shape)):
            x = (1664525 * x + 1013904223) % 2 ** 32
            values.append(x / 2 ** 32 * 2 - 1)
        a, b = next(((a, b) for end, a, b in [("norm.weight", 0.5, 1), ("_fn", 0.5, 0), ("_base", 0.9, 0), ("_scale", 0.5, 1),
                                              ("gate.bias", 0.3, 0), ("ape", 1.7, 0), ("attn_sink", 1.7, 0)]
                     if name.endswith(end)), (1.7 if name == "embed.weight" else 2.6 / shape[-1] ** 0.5, 0))
        tensors[name] = (torch.tensor(values) * a + b).view(shape).requires_grad_(True)
    for layer in range(3):
        tensors[f"layers.{layer}.ffn.gate.tid2eid"] = torch.tensor([[(7 * t + 3 * j + layer) % 8 for j in range(3)] for t in range(64)])
    return Definition(config, tensors)


def check_numbers():
    """Against the numbers of the own code in float64: logits, streams, multi-token prediction, losses and gradients."""
    model = fixed_model()
    ids = torch.tensor([(37 * t + 11 * (t // 7)) % 64 for t in range(260)])
    states = model.states(ids)
    logits = model.head("", states[-1])
    mtp = model.mtp_logits(states[-1], ids.roll(-1))
    loss = torch.nn.functional.cross_entropy(logits[:259], ids[1:])
    mtp_loss = torch.nn.functional.cross_entropy(mtp[:258], ids[2:])
    (loss + 0.3 * mtp_loss).backward()
    grad = lambda name: model.w[name].grad
    norm = math.sqrt(sum(w.grad.square().sum().item() for w in model.w.values() if w.requires_grad and w.grad is not None))
    rows = [("logits 0", logits[0, 0], -2.480844260), ("logits 8", logits[8, 1], -0.888147767),
            ("logits 128", logits[128, 0], 2.623427700), ("logits 255", logits[255, 3], 1.041618551),
            ("logits 259", logits[259, 3], 1.158000806), ("mean square", logits.square().mean(), 2.271239860),
            ("streams 0", states[1][259].norm(), 23.620165506), ("streams 2", states[3][259].norm(), 42.745678451),
            ("streams 5", states[6][259].norm(), 54.103760887), ("mtp 0", mtp[0, 0], 2.737123949),
            ("mtp 131", mtp[131, 3], -1.378935288), ("mtp 258", mtp[258, 1], -2.424998509), ("loss", loss, 5.450650109),
            ("mtp loss", mtp_loss, 4.905749899), ("gradient", torch.tensor(norm), 4.011226223)]
    for name, want in [("embed.weight", 0.570924909), ("hc_head_fn", 0.028225696), ("layers.0.hc_attn_fn", 0.484487598),
                       ("layers.2.hc_ffn_fn", 0.127648231), ("layers.0.attn.attn_sink", 0.015927336),
                       ("layers.2.attn.compressor.wgate.weight", 0.192382111), ("layers.2.attn.compressor.ape", 0.024464779),
                       ("layers.3.attn.wo_a.weight", 0.634927702), ("layers.0.ffn.gate.weight", 0.165662289),
                       ("layers.3.ffn.gate.weight", 0.032609417), ("layers.3.ffn.shared_experts.w2.weight", 0.110107793),
                       ("mtp.0.e_proj.weight", 0.145307328), ("mtp.0.hc_head_base", 0.001427597)]:
        rows.append((name, grad(name).norm(), want))
    assert grad("layers.2.attn.indexer.wq_b.weight") is None
    for name, got, want in rows:
        print(f"{name}: {got.item():.9f}, the own code {want:.9f}")
        assert abs(got.item() - want) < 2e-9 * max(1, abs(want)), name


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--goldens", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tests", "golden"))
    parser.add_argument("--only", default="")
    parser.add_argument("--numbers", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.numbers:
        check_numbers()
    else:
        check_goldens(args.goldens, args.only)


if __name__ == "__main__":
    main()
