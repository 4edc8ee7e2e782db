#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write the goldens of DeepSeek-V4's multi-token prediction and of the bias that follows loads, from the definition.

usage: python tools/golden/make_deepseek_v4_mtp.py [--out tests/golden]

transformers leaves that layer out of the model, so the truth here is golden_deepseek_v4_definition.py in float64, which
equals the published model's own code in the numbers that its --numbers checks. Layout as make_golden.py's, and rows
added to goldens.json; CASE/router_bias.json holds biases after some steps. The noise of float32 is the definition's own in
float32, or that of float64 runs whose weights are off by two units in the last place of float32, whichever is larger:
one run may be near the truth by luck. That of bfloat16 is the definition's own with all values in bfloat16, spread by such runs.
"""
import argparse
import json
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import numpy as np
import torch
from safetensors.torch import save_file

import golden_deepseek_v4 as v4
import golden_deepseek_v4_definition as definition
from golden_reference import SHAKE, joined_experts, relative_l2, save_json

CASE = "deepseek_v4_mtp"
CONFIG = dict(
    architectures=["DeepseekV4ForCausalLM"], model_type="deepseek_v4", vocab_size=53, hidden_size=12, moe_intermediate_size=10,
    num_hidden_layers=2, num_attention_heads=4, head_dim=16, qk_rope_head_dim=8, q_lora_rank=10, num_experts_per_tok=2,
    n_routed_experts=5, num_hash_layers=1, layer_types=[v4.SPARSE, v4.HEAVY], compress_rates={v4.SPARSE: 4, v4.HEAVY: 8},
    sliding_window=8, o_groups=2, o_lora_rank=6, index_n_heads=6, index_head_dim=12, index_topk=3, hc_mult=4, hc_sinkhorn_iters=20,
    hc_eps=1e-6, rms_norm_eps=1e-6, swiglu_limit=1.5, routed_scaling_factor=1.5, max_position_embeddings=8192, rope_theta=10000.0,
    compress_rope_theta=160000.0, num_nextn_predict_layers=1, tie_word_embeddings=False, torch_dtype="float32",
    rope_scaling={"type": "yarn", "factor": 16.0, "original_max_position_embeddings": 64, "beta_fast": 32, "beta_slow": 1})
# Of an adapter's modules, by their names in memory; experts one by one.
EVERY = ["model.mtp.0.e_proj", "model.mtp.0.h_proj"] + [
    f"model.{layer}.self_attn.{name}" for layer in ("layers.1", "mtp.0")
    for name in ("q_a_proj", "q_b_proj", "kv_proj", "o_a_proj", "o_b_proj")] + [
    f"model.mtp.0.mlp.{owner}.{name}" for owner in ["shared_experts"] + [f"experts.{e}" for e in range(5)]
    for name in ("gate_proj", "up_proj", "down_proj")]
SHARED = ["model.mtp.0.e_proj", "model.mtp.0.self_attn.kv_proj", "model.layers.0.self_attn.q_b_proj", "lm_head"]


def shapes(c):
    """Of all tensors, by the published names."""
    d, h, heads, k, width = c["hidden_size"], c["head_dim"], c["num_attention_heads"], c["hc_mult"], c["moe_intermediate_size"]
    q, experts, groups, o = c["q_lora_rank"], c["n_routed_experts"], c["o_groups"], c["o_lora_rank"]
    out = {"embed.weight": (c["vocab_size"], d), "head.weight": (c["vocab_size"], d)}

    def reads(at):
        out.update({at + "norm.weight": (d,), at + "hc_head_fn": (k, k * d), at + "hc_head_base": (k,), at + "hc_head_scale": (1,)})

    def compressor(at, m, size, overlap):
        rows = size * (2 if overlap else 1)
        out.update({at + "wkv.weight": (rows, d), at + "wgate.weight": (rows, d), at + "ape": (m, rows), at + "norm.weight": (size,)})

    def layer(at, kind, hashed):
        for site in ("attn", "ffn"):
            out.update({f"{at}{site}_norm.weight": (d,), f"{at}hc_{site}_fn": ((2 + k) * k, k * d),
                        f"{at}hc_{site}_base": ((2 + k) * k,), f"{at}hc_{site}_scale": (3,)})
        a, f = at + "attn.", at + "ffn."
        out.update({a + "wq_a.weight": (q, d), a + "q_norm.weight": (q,), a + "wq_b.weight": (heads * h, q), a + "wkv.weight": (h, d),
                    a + "kv_norm.weight": (h,), a + "attn_sink": (heads,), a + "wo_a.weight": (groups * o, heads * h // groups),
                    a + "wo_b.weight": (d, groups * o), f + "gate.weight": (experts, d)})
        if kind != v4.SLIDING:
            compressor(a + "compressor.", c["compress_rates"][kind], h, kind == v4.SPARSE)
        if kind == v4.SPARSE:
            compressor(a + "indexer.compressor.", c["compress_rates"][kind], c["index_head_dim"], True)
            out.update({a + "indexer.wq_b.weight": (c["index_n_heads"] * c["index_head_dim"], q),
                        a + "indexer.weights_proj.weight": (c["index_n_heads"], d)})
        if not hashed:
            out[f + "gate.bias"] = (experts,)
        for e in [f"experts.{i}." for i in range(experts)] + ["shared_experts."]:
            out.update({f + e + "w1.weight": (width, d), f + e + "w3.weight": (width, d), f + e + "w2.weight": (d, width)})

    for i, kind in enumerate(c["layer_types"]):
        layer(f"layers.{i}.", kind, i < c["num_hash_layers"])
    reads("")
    layer("mtp.0.", v4.SLIDING, False)
    reads("mtp.0.")
    out.update({"mtp.0.e_proj.weight": (d, d), "mtp.0.h_proj.weight": (d, d), "mtp.0.enorm.weight": (d,), "mtp.0.hnorm.weight": (d,)})
    return out


def draw(c, gen):
    """Weights of a size at which attention is far from uniform, as make_golden.py draws them; float32 values."""
    out = {}
    for name, shape in shapes(c).items():
        noise = torch.randn(shape, generator=gen, dtype=torch.float32)
        if name.endswith(("norm.weight", "_scale")):
            value = 1 + 0.2 * noise
        elif name.endswith(("ape", "embed.weight")):
            value = noise
        elif name.endswith(("attn_sink", "ffn.gate.weight")):
            value = 1.5 * noise / (1 if name.endswith("sink") else shape[1] ** 0.5)
        elif name.endswith("_base"):
            value = 0.6 * noise
        elif name.endswith("gate.bias"):
            value = 0.15 * noise - 0.6
        else:
            value = noise / shape[-1] ** 0.5
        out[name] = value.clone()
    for i in range(c["num_hash_layers"]):
        rows = [torch.randperm(c["n_routed_experts"], generator=gen)[: c["num_experts_per_tok"]] for _ in range(c["vocab_size"])]
        out[f"layers.{i}.ffn.gate.tid2eid"] = torch.stack(rows)
    return out


def write_adapter(folder, tensors, modules, rank, alpha, gen, embedding=False):
    """A PEFT adapter; what it adds to a product is about a third of the base's."""
    os.makedirs(folder, exist_ok=True)
    out = {}
    for module in modules:
        shape = tensors[v4.upstream_name(module + ".weight")].shape
        a = torch.randn((rank, shape[1]), generator=gen, dtype=torch.float32) / shape[1] ** 0.5
        b = 0.35 / (alpha / rank * rank ** 0.5) * torch.randn((shape[0], rank), generator=gen, dtype=torch.float32)
        out[f"base_model.model.{module}.lora_A.weight"], out[f"base_model.model.{module}.lora_B.weight"] = a, b
    if embedding:
        vocab, width = tensors["embed.weight"].shape
        at = "base_model.model.model.embed_tokens.lora_embedding_"
        out[at + "A"] = torch.randn((rank, vocab), generator=gen, dtype=torch.float32)
        out[at + "B"] = 0.35 / (alpha / rank * rank ** 0.5) * torch.randn((width, rank), generator=gen, dtype=torch.float32)
    save_file(out, os.path.join(folder, "adapter_model.safetensors"), metadata={"format": "pt"})
    names = sorted({m.rpartition(".")[2] for m in modules} | ({"embed_tokens"} if embedding else set()))
    config = dict(peft_type="LORA", task_type="CAUSAL_LM", r=rank, lora_alpha=alpha, lora_dropout=0.0, bias="none", fan_in_fan_out=False,
                  use_rslora=False, target_modules=names, base_model_name_or_path=None)
    with open(os.path.join(folder, "adapter_config.json"), "w", encoding="utf-8") as f:
        json.dump(config, f, indent=1)
        f.write("\n")


class Reference:
    """The definition over leaves of one type: the base's tensors and the adapters'."""

    CONFIG = CONFIG
    BESIDE = "mtp"  # the request's name for the factor of the loss beside the decoder's

    def __init__(self, root, dtype, shake=None):
        self.dtype = dtype
        gen = torch.Generator().manual_seed(shake or 0)

        def leaf(name, value):
            if name.endswith("tid2eid"):
                return value
            if shake is not None:
                value = value * (1 + SHAKE * torch.randn(value.shape, generator=gen, dtype=torch.float64))
            return value.to(dtype).requires_grad_(True)

        self.base = {k: leaf(k, v) for k, v in definition.published_tensors(os.path.join(root, "model")).items()}
        self.folders = [os.path.join(root, name) for name in ("a", "b")]
        self.adapters = [{k: leaf(k, v) for k, v in definition.load_adapter(f).items()} for f in self.folders]
        self.margins = []

    def params(self):
        return {k: v for k, v in self.base.items() if not k.endswith(("gate.bias", "tid2eid"))}

    def model(self, adapter):
        tensors = self.base
        if adapter:
            tensors = definition.add_adapter(tensors, self.folders[adapter - 1], self.CONFIG["n_routed_experts"],
                                             self.adapters[adapter - 1])
        return definition.Definition(self.CONFIG, tensors)

    def logits(self, seq):
        """[n, V], and [n, V] of multi-token prediction, whose last row is zero."""
        model, ids = self.model(seq.get("adapter", 0)), torch.tensor(seq["tokens"])
        last = model.states(ids)[-1]
        logits = model.head("", last)
        mtp = model.mtp_logits(last[:-1], ids[1:]) if len(ids) > 1 else logits[:0]
        self.margins += model.margins
        return logits, torch.cat([mtp, torch.zeros_like(logits[:1])])

    def losses(self, seq):
        """Cross-entropy of each token, and of multi-token prediction, which takes the next row's target and weight."""
        n = len(seq["tokens"])
        targets = torch.tensor(seq["targets"])
        weights = torch.tensor(np.array(seq.get("weights", [1.0] * n), np.float32).astype(np.float64)).to(self.dtype)
        wide = torch.float32 if self.dtype == torch.bfloat16 else self.dtype
        logits, mtp = self.logits(seq)
        lp = logits.to(wide).log_softmax(-1)[torch.arange(n), targets]
        mtp_lp = mtp.to(wide).log_softmax(-1)[torch.arange(n), targets.roll(-1)]
        mtp_weights = torch.cat([weights[1:], torch.zeros_like(weights[:1])])
        own = torch.where(weights != 0, -weights.to(wide) * lp, torch.zeros_like(lp))
        ahead = torch.where(mtp_weights != 0, -mtp_weights.to(wide) * mtp_lp, torch.zeros_like(lp))
        return logits, mtp, torch.where(weights != 0, lp, torch.zeros_like(lp)), own, ahead

    def zero_grad(self):
        for params in [self.base, *self.adapters]:
            for value in params.values():
                value.grad = None

    def backward(self, request):
        """What losses() gives, of all sequences: the decoder's loss and the one beside it are the last two."""
        self.zero_grad()
        factor = float(np.float32(request[self.BESIDE]))
        parts = []
        for seq in request["sequences"]:
            values = self.losses(seq)
            (values[-2].sum() + factor * values[-1].sum()).backward()
            parts.append([value.detach().double() for value in values])
        return [torch.cat(p).numpy() for p in zip(*parts)]

    def values(self, request, wants):
        out = {}
        logits, mtp, lp, loss, mtp_loss = self.backward(request)
        if "logits" in wants:
            out.update({"logits": logits, "mtp_logits": mtp})
        if "logprobs" in wants:
            out["logprobs"] = lp
        if "loss" in wants:
            out.update({"loss": loss, "mtp_loss": mtp_loss, "loss_sum": loss.sum(keepdims=True),
                        "mtp_loss_sum": mtp_loss.sum(keepdims=True)})
        return out

    def step_loss(self, request):
        return self.backward(request)[-2].sum()

    def run(self, request):
        wants = request["want"]
        out = self.values(request, wants)
        grads = lambda params: {k: (v.grad if v.grad is not None else torch.zeros_like(v)).double().numpy() for k, v in params.items()}
        if "adapter_grads" in wants:
            for k, params in enumerate(self.adapters):
                out.update({f"adapter_grad.{k + 1}.{n}": g for n, g in grads(params).items()})
        if "param_grads" in wants:
            out.update({f"param_grad.{n}": g for n, g in grads(self.params()).items()})
        if "train" in request:
            self.train(request, out)
        return out

    def train(self, request, out):
        train = request["train"]
        models = [self.params()] if train["what"] == "params" else self.adapters
        optimizers = [torch.optim.AdamW(list(m.values()), lr=train["lr"], betas=(0.9, 0.95), eps=train["eps"],
                                        weight_decay=train["weight_decay"], foreach=False) for m in models]
        losses, norms = [], []
        for _ in range(train["steps"]):
            losses.append(self.step_loss(request))
            row = []
            for params, optimizer in zip(models, optimizers):
                for value in params.values():
                    if value.grad is None:
                        value.grad = torch.zeros_like(value)
                norm = sum((p.grad.double() ** 2).sum().item() for p in params.values()) ** 0.5
                row.append(norm)
                if norm > train["grad_clip_norm"] > 0:
                    for value in params.values():
                        value.grad.mul_(train["grad_clip_norm"] / norm)
                optimizer.step()
            norms.append(row[0] if train["what"] == "params" else row)
        out["train.loss"], out["train.grad_norm"] = np.array(losses), np.array(norms)
        for k, params in enumerate(models):
            head = "param_final." if train["what"] == "params" else f"adapter_final.{k + 1}."
            out.update({head + n: p.detach().double().numpy() for n, p in params.items()})


class Maker:
    CONFIG, REFERENCE = CONFIG, Reference

    def __init__(self, root, seed):
        self.root, self.rng = root, np.random.default_rng(seed)

    def sequence(self, n, adapter, gap):
        """No choice of experts or entries is closer than the gap."""
        while True:
            seq = {"tokens": [int(t) for t in self.rng.integers(0, self.CONFIG["vocab_size"], n)], "adapter": adapter}
            reference = self.REFERENCE(self.root, torch.float64)
            with torch.no_grad():
                reference.logits(seq)
            if min(reference.margins, default=1) > gap:
                break
        seq["targets"] = [int(t) for t in self.rng.integers(0, self.CONFIG["vocab_size"], n)]
        seq["weights"] = [float(w) for w in np.where(self.rng.random(n) < 0.7, 1.0, self.rng.choice([0.0, 0.25, 1.75, -0.5], n))]
        return seq

    def requests(self):
        take = lambda lengths, adapters, gap=1e-4: [self.sequence(n, k, gap) for n, k in zip(lengths, adapters)]
        every = ["logits", "logprobs", "loss"]
        step = dict(steps=4, lr=0.01, eps=1e-4, weight_decay=0.05, grad_clip_norm=2.0)
        return {"main": {"sequences": take([26, 1, 2, 13, 9], [1, 0, 1, 0, 2]), "want": every + ["adapter_grads"], "mtp": 0.3},
                # Few tokens, whose choices bfloat16 shares.
                "short": {"sequences": take([7, 1, 6, 5], [0, 2, 1, 2], 0.02), "want": every + ["adapter_grads", "param_grads"], "mtp": 0.5},
                "params": {"sequences": take([21, 1, 9], [0, 0, 2]), "want": ["loss", "param_grads"], "mtp": 0.3},
                "train_params": {"sequences": take([17, 9], [0, 0]), "want": [], "mtp": 0.3, "train": {"what": "params", **step}},
                "train_adapters": {"sequences": take([17, 9], [1, 2]), "want": [], "mtp": 0.3, "train": {"what": "adapters", **step}}}


def noise_of(reference, root, name, request, truth):
    noise = {key: {"f32": 0.0} for key in truth}
    shaken = [reference(root, torch.float64, shake=seed).run(request) for seed in range(1, 9)]
    for got in [reference(root, torch.float32).run(request)] + shaken[:3]:
        for key, value in got.items():
            noise[key]["f32"] = max(noise[key]["f32"], relative_l2(value, truth[key]) if truth[key].any() else 0.0)
    if name != "short":
        return noise  # bfloat16 may choose other experts, and its errors would say nothing
    with_experts = lambda tensors: {**tensors, **joined_experts(tensors)}
    got, truth = with_experts(reference(root, torch.bfloat16).run(request)), with_experts(truth)
    shaken = [with_experts(run) for run in shaken]
    errors = {key: relative_l2(got[key], value) for key, value in truth.items() if value.any()}
    # One run's error in a tensor of few elements is large or small by luck: how far each moves beside the others is what
    # shaken runs say, and the size is that at which the median tensor moves as far as it did.
    moves = {key: np.mean([relative_l2(run[key], truth[key]) ** 2 for run in shaken]) ** 0.5 for key in errors}
    usual = float(np.median([errors[key] / moves[key] for key in errors if moves[key] > 0]))
    for key in truth:
        noise.setdefault(key, {})["bf16"] = max(errors[key], float(moves[key] * usual)) if key in errors else 0.0
    return noise


def write_goldens(out, case, maker):
    """The maker's requests with what its reference makes of them, and their rows."""
    root, reference = maker.root, maker.REFERENCE
    with open(os.path.join(out, "goldens.json"), encoding="utf-8") as f:
        rows = [row for row in json.load(f) if not row["name"].startswith(case + "/")]
    for name, request in maker.requests().items():
        truth = reference(root, torch.float64).run(request)
        save_json(os.path.join(root, name + ".json"), request)
        save_file({k: torch.tensor(v).float().contiguous() for k, v in truth.items()}, os.path.join(root, name + ".safetensors"))
        save_json(os.path.join(root, name + ".noise.json"), noise_of(reference, root, name, request, truth))
        at = lambda end: f"{case}/{name}{end}"
        rows.append({"name": at(""), "model": f"{case}/model", "adapters": [f"{case}/a", f"{case}/b"], "request": at(".json"),
                     "expected": at(".safetensors"), "noise": at(".noise.json")})
        print(at(""), flush=True)
    with open(os.path.join(out, "goldens.json"), "w", encoding="utf-8") as f:
        json.dump(sorted(rows, key=lambda row: row["name"]), f, indent=1)
        f.write("\n")


def router_bias(root, rng):
    """Biases that follow loads for some steps of frozen weights, from the definition's choices."""
    rate, steps = 0.0625, 5
    while True:
        sequences = [[int(t) for t in rng.integers(0, CONFIG["vocab_size"], n)] for n in (23, 1, 14)]
        reference = Reference(root, torch.float64)
        names = [k for k in reference.base if k.endswith("gate.bias")]
        biases = {k: reference.base[k].detach().float().numpy() for k in names}
        for _ in range(steps):
            loads = {k: np.zeros(CONFIG["n_routed_experts"], np.int64) for k in names}
            for tokens in sequences:
                tensors = {**reference.base, **{k: torch.tensor(v.astype(np.float64)) for k, v in biases.items()}}
                model, ids = definition.Definition(CONFIG, tensors), torch.tensor(tokens)
                with torch.no_grad():
                    last = model.states(ids)[-1]
                    if len(tokens) > 1:
                        model.mtp_logits(last[:-1], ids[1:])
                reference.margins += model.margins
                for k in names:
                    loads[k] += np.array(model.loads.get(k.removesuffix("gate.bias"), loads[k] * 0))
            for k in names:
                sign = np.sign(loads[k].sum() - loads[k] * len(loads[k])).astype(np.float32)
                biases[k] = biases[k] + np.float32(rate) * sign
        if min(reference.margins) > 1e-4:
            return {"rate": rate, "steps": steps, "sequences": sequences,
                    "biases": {k: [float(v) for v in value] for k, value in biases.items()}}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tests", "golden"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    root = os.path.join(args.out, CASE)
    os.makedirs(os.path.join(root, "model"), exist_ok=True)
    gen = torch.Generator().manual_seed(7)
    tensors = draw(CONFIG, gen)
    save_file(tensors, os.path.join(root, "model", "model.safetensors"), metadata={"format": "pt"})
    with open(os.path.join(root, "model", "config.json"), "w", encoding="utf-8") as f:
        json.dump(CONFIG, f, indent=1)
        f.write("\n")
    write_adapter(os.path.join(root, "a"), tensors, EVERY, 3, 8, gen)
    write_adapter(os.path.join(root, "b"), tensors, SHARED, 2, 6, gen, embedding=True)
    write_goldens(args.out, CASE, Maker(root, 7))
    save_json(os.path.join(root, "router_bias.json"), router_bias(root, np.random.default_rng(3)))


if __name__ == "__main__":
    main()
