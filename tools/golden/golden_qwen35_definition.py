#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Qwen3.5 from its definition, in numpy and float64, read from the files alone; and the traps.

usage: python tools/golden/golden_qwen35_definition.py [--goldens tests/golden] [--only TEXT]     checks the committed goldens

A second opinion on transformers: the delta rule token by token where transformers goes by chunks, adapters added to the
weights, the same hidden states and logits; and gradients, which must be the slope of the loss along any direction. Each
trap is the definition with one thing wrong, and must move the logits of a committed request by more than 100 limits.
Sources: HF modeling_qwen3_5.py and modeling_qwen3_5_moe.py, spec of `strata probe`.
Legend: T tokens, D hidden size, Kh and Vh key and value heads of a linear layer, dk and dv their widths, K width of the
convolution, N heads and H head size of a full layer, E experts.
"""
import argparse
import json
import os
import re
import sys

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from compare_probe import limit_of, relative_l2
from golden_definition import VISIBLE, load_tensors, yarn

FAMILIES = ("qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text")
IGNORED = ("model.visual.", "mtp.")
STACKED = {"w1": "gate_proj", "w3": "up_proj", "w2": "down_proj"}


def sigmoid(x):
    return 0.5 * (1 + np.tanh(0.5 * x))


def silu(x):
    return x * sigmoid(x)


def rms(x, eps):
    return x / np.sqrt((x ** 2).mean(-1, keepdims=True) + eps)


def read_json(*path):
    with open(os.path.join(*path), encoding="utf-8") as f:
        return json.load(f)


def plain_name(name):
    """A tensor's or module's name without what its file puts before it."""
    return re.sub(r"^model\.(language_model\.)?", "", name)


class Files:
    """What a model directory and its adapters hold, as float64."""

    def __init__(self, model_dir, adapter_dirs):
        config = read_json(model_dir, "config.json")
        self.config = config.get("text_config", config)
        self.tensors = {k: v for k, v in load_tensors(model_dir, "model").items() if not k.startswith(IGNORED)}
        self.adapters = [(read_json(d, "adapter_config.json"), load_tensors(d, "adapter_model")) for d in adapter_dirs]


class Definition:
    """The base model, or one with an adapter's products added to its weights."""

    def __init__(self, files, adapter=0, wrong=None, tensors=None):
        c = self.config = files.config
        self.wrong = wrong
        self.weights = {plain_name(k): v for k, v in (tensors or files.tensors).items()}
        self.layers, self.eps = c["num_hidden_layers"], c.get("rms_norm_eps", 1e-6)
        self.heads, self.kv_heads, self.head_dim = (c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"])
        self.key_heads, self.value_heads = c["linear_num_key_heads"], c["linear_num_value_heads"]
        self.dk, self.dv = c["linear_key_head_dim"], c["linear_value_head_dim"]
        interval = c.get("full_attention_interval", 4)
        self.full = [t == "full_attention" for t in c["layer_types"]] if c.get("layer_types") else [
            (i + 1) % interval == 0 for i in range(self.layers)]
        self.stack_experts()
        self.weights.setdefault("lm_head.weight", self.weights["embed_tokens.weight"])
        self.read_rope()
        if adapter:
            self.add_adapter(*files.adapters[adapter - 1])
        self.carried = {}

    def stack_experts(self):
        """One tensor for all experts of a layer, gate rows before up rows, however the file has them."""
        for i in range(self.layers):
            at = f"layers.{i}.mlp.experts."
            if at + "0.down_proj.weight" not in self.weights:
                continue
            take = lambda name: np.stack([self.weights.pop(f"{at}{e}.{name}.weight") for e in range(self.config["num_experts"])])
            self.weights[at + "gate_up_proj"] = np.concatenate([take("gate_proj"), take("up_proj")], 1)
            self.weights[at + "down_proj"] = take("down_proj")

    def read_rope(self):
        rope = self.config.get("rope_parameters") or self.config.get("rope_scaling") or {}
        part = rope.get("partial_rotary_factor", self.config.get("partial_rotary_factor", 0.25))
        theta = rope.get("rope_theta", self.config.get("rope_theta", 10000.0))
        self.rotated = int(self.head_dim * part)
        if self.wrong == "rotation of the whole head":
            self.rotated = self.head_dim
        width = self.head_dim if self.wrong == "frequencies of the whole head" else self.rotated
        self.frequencies, self.size = theta ** (-np.arange(0, self.rotated, 2) / width), 1.0
        if rope.get("rope_type", "default") == "yarn" and self.wrong != "no YaRN":
            self.frequencies, self.size = yarn(theta, width, rope)
            self.frequencies = self.frequencies[:self.rotated // 2]
            if self.wrong == "YaRN without its factor":
                self.size = 1.0

    def add_adapter(self, config, tensors):
        self.weights = {k: v.copy() for k, v in self.weights.items()}
        find = lambda patterns, path, value: next(
            (v for k, v in (patterns or {}).items() if re.match(rf"(.*\.)?({k})$", path)), value)
        scale = lambda path, rank: find(config.get("alpha_pattern"), path, config["lora_alpha"]) / (
            rank ** 0.5 if config.get("use_rslora") else rank)
        wrapped = {k.split(".base_layer.")[0] for k in tensors if ".base_layer.lora_" in k}
        for name, a in tensors.items():
            found = re.match(r"base_model\.model\.(.*)\.lora_(embedding_)?A(\.weight)?$", name)
            if not found:
                continue
            path, b = found.group(1), tensors[re.sub(r"_A(\.weight)?$", r"_B\1", name)]
            expert = re.match(r"(.*\.mlp\.experts)(?:\.(.*))?$", path)
            if expert:
                parameters = config.get("target_parameters") or []
                self.add_to_experts(expert.group(1), expert.group(2), a, b, scale, parameters,
                                    f"base_model.model.{expert.group(1)}" in wrapped)
                continue
            delta = scale(path, len(a)) * (b @ a)
            self.weights[plain_name(path) + ".weight"] += delta.T if found.group(2) else delta

    def add_to_experts(self, path, rest, a, b, scale, parameters, both):
        at = plain_name(path) + "."
        half = self.weights[at + "gate_up_proj"].shape[1] // 2
        rows = {"gate_proj": slice(0, half), "up_proj": slice(half, None)}

        def add(name, experts, delta):
            if name in rows:
                self.weights[at + "gate_up_proj"][experts, rows[name]] += delta
            else:
                self.weights[at + name][experts] += delta

        if rest in STACKED:  # A [E, r, in], B [E, out, r]
            add(STACKED[rest], slice(None), scale(f"{path}.{rest}", a.shape[1]) * (b @ a))
        elif rest in (None, "base_layer"):  # A [E r, in], B [out, E r] whose column j E + e is rank j of expert e
            name = "gate_up_proj" if rest or not both and any(p.endswith("gate_up_proj") for p in parameters) else "down_proj"
            num = len(self.weights[at + name])
            a = a.reshape(num, -1, a.shape[1])
            b = b.reshape(len(b), -1, num).transpose(2, 0, 1)
            add(name, slice(None), scale(f"{path}.{name}", a.shape[1]) * (b @ a))
        else:
            e, name = rest.split(".")
            add(name, int(e), scale(f"{path}.{rest}", len(a)) * (b @ a))

    def linear(self, x, name):
        return x @ self.weights[name + ".weight"].T + self.weights.get(name + ".bias", 0)

    def norm(self, x, name):
        offset = 0 if self.wrong == "norms by w" or self.wrong == "norms of q and k by w" and name[-6:] in ("q_norm", "k_norm") else 1
        return rms(x, self.eps) * (self.weights[name + ".weight"] + offset)

    def convolve(self, x, i):
        """x [T, C]: each channel with the K - 1 inputs before it."""
        w = self.weights[f"layers.{i}.linear_attn.conv1d.weight"][:, 0]  # [C, K]
        if self.wrong == "convolution back to front":
            w = w[:, ::-1]
        taps = w.shape[1]
        before = np.zeros((taps - 1, x.shape[1]))
        if self.wrong == "window leaks into the next sequence":
            before = self.carried.get(("window", i), before)
            self.carried["window", i] = np.concatenate([before, x])[len(x):]
        if self.wrong == "no convolution":
            return silu(x)
        x = np.concatenate([before, x])
        y = sum(w[:, k] * x[k:len(x) - taps + 1 + k] for k in range(taps))
        return y if self.wrong == "no activation after the convolution" else silu(y)

    def delta_rule(self, q, k, v, decay, beta, i):
        """q and k [T, Vh, dk], v [T, Vh, dv], decay and beta [T, Vh] to [T, Vh, dv]. State S [Vh, dk, dv]."""
        state = np.zeros((self.value_heads, self.dk, self.dv))
        if self.wrong == "state leaks into the next sequence":
            state = self.carried.get(("state", i), state)
        out = np.empty_like(v)
        for t in range(len(q)):
            if self.wrong == "state starts anew every 64 tokens" and t % 64 == 0:
                state = np.zeros_like(state)
            old = state
            state = state * decay[t][:, None, None]
            read = np.einsum("hkv,hk->hv", old if self.wrong == "read before the decay" else state, k[t])
            if self.wrong == "no delta":
                read = 0
            state = state + np.einsum("hk,hv->hkv", k[t], beta[t][:, None] * (v[t] - read))
            out[t] = np.einsum("hkv,hk->hv", old if self.wrong == "output before the update" else state, q[t])
        self.carried["state", i] = state
        return out

    def linear_attention(self, x, i):
        at, n, wrong = f"layers.{i}.linear_attn.", len(x), self.wrong
        key_rows = self.key_heads * self.dk
        q, k, v = np.split(self.convolve(self.linear(x, at + "in_proj_qkv"), i), [key_rows, 2 * key_rows], -1)
        group = self.value_heads // self.key_heads
        spread = (lambda y: np.tile(y, (1, group, 1))) if wrong == "key heads tiled" else (lambda y: np.repeat(y, group, 1))
        q, k = (spread(y.reshape(n, self.key_heads, self.dk)) for y in (q, k))
        v = v.reshape(n, self.value_heads, self.dv)
        if wrong != "no l2 norm":
            q, k = (y / np.sqrt((y ** 2).sum(-1, keepdims=True) + 1e-6) for y in (q, k))
        if wrong != "q unscaled":
            q = q * self.dk ** -0.5
        a, b = self.linear(x, at + "in_proj_a"), self.linear(x, at + "in_proj_b")
        if wrong == "a and b exchanged":
            a, b = b, a
        beta = np.ones_like(b) if wrong == "no beta" else sigmoid(b)
        a_log = self.weights[at + "A_log"]
        rate = a_log if wrong == "A_log without exp" else -np.exp(a_log)
        step = a if wrong == "no dt_bias" else a + self.weights[at + "dt_bias"]
        decay = np.exp(np.minimum(rate * np.logaddexp(0, step), 0))
        if wrong == "no decay":
            decay = np.ones_like(decay)
        y = self.delta_rule(q, k, v, decay, beta, i)
        z = self.linear(x, at + "in_proj_z").reshape(y.shape)
        w = self.weights[at + "norm.weight"] + (wrong == "gated norm by 1 + w")
        if wrong == "gate before the gated norm":
            y = w * rms(y * silu(z), self.eps)
        elif wrong == "gated norm over all heads":
            y = w * rms(y.reshape(n, -1), self.eps).reshape(y.shape) * silu(z)
        else:
            y = w * rms(y, self.eps) * (sigmoid(z) if wrong == "sigmoid of z" else 1 if wrong == "no z" else silu(z))
        return self.linear(y.reshape(n, -1), at + "out_proj")

    def rotate(self, x):
        """x [T, heads, H]: the first `rotated` of each head, whose two halves are the parts of its pairs."""
        angle = np.arange(len(x))[:, None, None] * self.frequencies
        cos, sin = np.cos(angle) * self.size, np.sin(angle) * self.size
        turned, rest = x[..., :self.rotated], x[..., self.rotated:]
        if self.wrong == "last of the head rotated":
            rest, turned = x[..., :-self.rotated], x[..., -self.rotated:]
        if self.wrong == "interleaved pairs":
            a, b = turned[..., 0::2], turned[..., 1::2]
            turned = np.stack([a * cos - b * sin, b * cos + a * sin], -1).reshape(turned.shape)
        else:
            a, b = np.split(turned, 2, -1)
            turned = np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)
        return np.concatenate([rest, turned] if self.wrong == "last of the head rotated" else [turned, rest], -1)

    def attention(self, x, i):
        at, n = f"layers.{i}.self_attn.", len(x)
        both = self.linear(x, at + "q_proj")
        if self.wrong == "q_proj split as a whole":
            q, gate = (y.reshape(n, self.heads, -1) for y in np.split(both, 2, -1))
        else:
            q, gate = np.split(both.reshape(n, self.heads, -1), 2, -1)
        if self.wrong == "gate before query":
            q, gate = gate, q
        k, v = (self.linear(x, f"{at}{p}_proj").reshape(n, -1, self.head_dim) for p in "kv")
        q, k = self.rotate(self.norm(q, at + "q_norm")), self.rotate(self.norm(k, at + "k_norm"))
        group = self.heads // self.kv_heads
        scores = np.einsum("ihd,jhd->hij", q, np.repeat(k, group, 1)) * self.head_dim ** -0.5
        scores = np.where(np.arange(n)[:, None] >= np.arange(n), scores, -np.inf)
        p = np.exp(scores - scores.max(-1, keepdims=True))
        y = np.einsum("hij,jhd->ihd", p / p.sum(-1, keepdims=True), np.repeat(v, group, 1))
        y = y * (1 if self.wrong == "no gate of attention" else silu(gate) if self.wrong == "silu of attention's gate" else sigmoid(gate))
        return self.linear(y.reshape(n, -1), at + "o_proj")

    def gated_mlp(self, x, at):
        return self.linear(silu(self.linear(x, at + "gate_proj")) * self.linear(x, at + "up_proj"), at + "down_proj")

    def mlp(self, x, i):
        at = f"layers.{i}.mlp."
        if at + "experts.down_proj" not in self.weights:
            return self.gated_mlp(x, at)
        logits = self.linear(x, at + "gate")
        scores = np.exp(logits - logits.max(-1, keepdims=True))
        scores /= scores.sum(-1, keepdims=True)
        if self.wrong == "sigmoid of the router":
            scores = sigmoid(logits)
        chosen = np.argsort(-scores, -1, kind="stable")[:, :self.config["num_experts_per_tok"]]  # [T, k]
        weights = np.take_along_axis(scores, chosen, -1)
        if self.wrong != "weights of experts as they are":
            weights = weights / weights.sum(-1, keepdims=True)
        both = np.einsum("td,tkid->tki", x, self.weights[at + "experts.gate_up_proj"][chosen])
        gate, up = np.split(both, 2, -1)
        if self.wrong == "up before gate in experts":
            gate, up = up, gate
        out = np.einsum("tki,tkdi,tk->td", silu(gate) * up, self.weights[at + "experts.down_proj"][chosen], weights)
        if self.wrong == "no shared expert":
            return out
        shared = self.gated_mlp(x, at + "shared_expert.")
        return out + shared * (1 if self.wrong == "no gate of the shared expert" else sigmoid(self.linear(x, at + "shared_expert_gate")))

    def forward(self, ids):
        """(hidden states [L + 1, T, D], logits [T, V]) of one sequence."""
        x = self.weights["embed_tokens.weight"][ids]
        hidden = [x]
        for i in range(self.layers):
            at = f"layers.{i}."
            mixer = self.attention if self.full[i] else self.linear_attention
            x = x + mixer(self.norm(x, at + "input_layernorm"), i)
            x = x + self.mlp(self.norm(x, at + "post_attention_layernorm"), i)
            hidden.append(x)
        hidden[-1] = self.norm(x, "norm")
        return np.stack(hidden), hidden[-1] @ self.weights["lm_head.weight"].T


def run(files, request, wrong=None, tensors=None):
    """hidden_states and logits of a request, its sequences one after another."""
    kinds, carried, hidden, logits = {}, {}, [], []
    for seq in request["sequences"]:
        k = seq.get("adapter", 0)
        if k not in kinds:
            kinds[k] = Definition(files, k, wrong, tensors)
            kinds[k].carried = carried
        states, table = kinds[k].forward(seq["tokens"])
        hidden.append(states)
        logits.append(table)
    return {"hidden_states": np.concatenate(hidden, 1), "logits": np.concatenate(logits)}


def cross_entropy(request, logits):
    targets = np.concatenate([s["targets"] for s in request["sequences"]])
    weights = np.concatenate([np.float32(s.get("weights", [1.0] * len(s["tokens"]))) for s in request["sequences"]])
    top = logits.max(-1)
    logprobs = logits[np.arange(len(targets)), targets] - top - np.log(np.exp(logits - top[:, None]).sum(-1))
    return -np.sum(weights.astype(np.float64) * logprobs)


def traps(files, request):
    """Those that ought to show in this model and request."""
    c = files.config
    d = Definition(files)
    out = ["norms by w"]
    if not all(d.full):
        out += ["window leaks into the next sequence", "state leaks into the next sequence", "no convolution",
                "convolution back to front", "no activation after the convolution", "no decay", "no beta", "no l2 norm", "q unscaled",
                "read before the decay", "output before the update", "no delta", "A_log without exp", "no dt_bias",
                "a and b exchanged", "gated norm by 1 + w", "gate before the gated norm", "gated norm over all heads",
                "sigmoid of z", "no z"]
        if max(len(s["tokens"]) for s in request["sequences"]) > 64:
            out.append("state starts anew every 64 tokens")
        if 1 < d.key_heads < d.value_heads:
            out.append("key heads tiled")
    if any(d.full):
        out += ["norms of q and k by w", "interleaved pairs", "q_proj split as a whole", "gate before query",
                "no gate of attention", "silu of attention's gate"]
        if d.rotated < d.head_dim:
            out += ["rotation of the whole head", "last of the head rotated"]
            if d.rotated > 2:
                out.append("frequencies of the whole head")
        if d.size != 1:
            out += ["no YaRN", "YaRN without its factor"]
        if d.rotated == 2:
            out.remove("interleaved pairs")  # one pair is the same either way
    if "num_experts" in c:
        out += ["no shared expert", "no gate of the shared expert", "up before gate in experts"]
        if c["num_experts_per_tok"] > 1:
            out.append("sigmoid of the router")
        if c["num_experts_per_tok"] < c["num_experts"]:
            out.append("weights of experts as they are")
    return out


def is_plain(request):
    return all("loss" not in s for s in request["sequences"]) and request.get("loss", {}).get("name", "cross_entropy") == "cross_entropy"


def check_gradients(name, files, request, gradients):
    """Along a random direction of every tensor the loss rises as its gradient says. In central differences of float64 the
    third derivative has a share near 1e-10, and rounding one near 1e-8."""
    rng, step = np.random.default_rng(3), 1e-5
    loss = lambda tensors: cross_entropy(request, run(files, request, tensors=tensors)["logits"])
    for key, gradient in gradients.items():
        direction = rng.normal(size=gradient.shape)
        direction /= np.linalg.norm(direction)
        moved = lambda by: loss({**files.tensors, key: files.tensors[key] + by * direction})
        slope = (moved(step) - moved(-step)) / (2 * step)
        want = np.vdot(gradient, direction)
        bound = 1e-6 * (np.linalg.norm(gradient) + 1)
        assert abs(slope - want) < bound, f"{name}: {key}: the loss rises by {slope}, its gradient says {want}"


def check(name, model_dir, adapter_dirs, request, truth, noise, tolerance, strict):
    """Compares with what transformers computed, and plants the traps where a request wants logits of many tokens."""
    config = read_json(model_dir, "config.json")
    if config["model_type"] not in FAMILIES:
        return
    files = Files(model_dir, adapter_dirs)
    got = run(files, request)
    for key in set(got) & set(truth):
        difference = relative_l2(got[key], truth[key])
        assert difference < tolerance, f"{name}: {key}: transformers is {difference:.1e} from the definition"
    prefix = "param_grad."
    if is_plain(request):
        check_gradients(name, files, request, {k.removeprefix(prefix): v for k, v in truth.items() if k.startswith(prefix)})
    if "logits" not in truth or name.split("/")[-1] != "main":
        return
    limit = limit_of("logits", noise["logits"], "f32")
    for trap in traps(files, request):
        with np.errstate(all="ignore"):
            moved = relative_l2(run(files, request, trap)["logits"], got["logits"])
        print(f"  {name}: {trap}: logits move by {moved:.1e}, {moved / limit:.0f} limits (limit {limit:.1e})")
        # NaN is no right answer either.
        assert not strict or not moved <= VISIBLE * limit, f"{name}: '{trap}' hardly shows"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--goldens", default=os.path.join(
        os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "tests", "golden"))
    parser.add_argument("--only", default="", help="regular expression on CASE/NAME")
    args = parser.parse_args()
    from safetensors.numpy import load_file
    for row in read_json(args.goldens, "goldens.json"):
        if not row["name"].startswith("qwen3_5") or not re.search(args.only, row["name"]):
            continue
        at = lambda key: os.path.join(args.goldens, row[key])
        # Stored as float32.
        check(row["name"], at("model"), [os.path.join(args.goldens, a) for a in row["adapters"]], read_json(at("request")),
              load_file(at("expected")), read_json(at("noise")), 1e-7, strict=True)
        print(f"{row['name']}: agrees", flush=True)


if __name__ == "__main__":
    main()
