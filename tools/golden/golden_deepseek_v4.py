# SPDX-License-Identifier: Apache-2.0
"""Golden cases of DeepSeek-V4 for make_golden.py: sliding, compressed sparse and heavily compressed attention, residual
streams, hash layers and scored ones.

form:  saved     the names that transformers 5 writes, experts one by one
       hf        the names that it has in memory (model.layers.N.self_attn...), experts as two tensors a layer
       upstream  the names and the config keys of the published files (layers.N.attn..., compress_ratios)
Adapters have the names of memory in every form. In bfloat16 files the parameters of the streams, sinks, position
biases and the routers' biases stay float32, as published.
"""
import json
import os
import re

import numpy as np
import torch

import golden_moe

FAMILIES = ("deepseek_v4",)
SLIDING, SPARSE, HEAVY = "sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"
ATTENTION = ["q_a_proj", "q_b_proj", "kv_proj", "o_a_proj", "o_b_proj", "gate_proj", "weights_proj"]
RATIOS = {SLIDING: 0, SPARSE: 4, HEAVY: 128}
FLOAT32 = re.compile(r"(_hc\.(fn|base|scale)|hc_head\.hc_\w+|\.sinks|\.position_bias|e_score_correction_bias)$")
# From the names in memory to those of the published files, in this order.
UPSTREAM = [(r"^lm_head\.", "head."), (r"\.self_attn\.", ".attn."), (r"\.mlp\.", ".ffn."), (r"\.compressor\.indexer\.scorer\.", ".indexer."),
            (r"\.compressor\.indexer\.q_b_proj", ".indexer.wq_b"), (r"\.compressor\.indexer\.", ".indexer.compressor."),
            (r"\.compressor\.kv_norm", ".compressor.norm"), (r"\.position_bias", ".ape"),
            (r"\.input_layernorm", ".attn_norm"), (r"\.post_attention_layernorm", ".ffn_norm"),
            (r"\.(attn|ffn)_hc\.", r".hc_\1_"), (r"\.sinks", ".attn_sink"), (r"\.q_a_norm", ".q_norm"),
            (r"\.q_a_proj", ".wq_a"), (r"\.q_b_proj", ".wq_b"), (r"\.o_a_proj", ".wo_a"), (r"\.o_b_proj", ".wo_b"),
            (r"(experts(?:\.\d+)?)\.gate_proj", r"\1.w1"), (r"(experts(?:\.\d+)?)\.up_proj", r"\1.w3"), (r"(experts(?:\.\d+)?)\.down_proj", r"\1.w2"),
            (r"\.kv_proj", ".wkv"), (r"\.gate_proj", ".wgate"), (r"e_score_correction_bias", "bias"),
            (r"^model\.embed_tokens", "embed"), (r"^model\.hc_head\.hc_", "hc_head_"), (r"^model\.", "")]


def upstream_name(name):
    for pattern, replacement in UPSTREAM:
        name = re.sub(pattern, replacement, name)
    return name


def saved_name(name):
    """What save_pretrained of transformers 5.23 calls it."""
    if name.startswith(("model.hc_head.", "model.embed_tokens.", "model.norm.")):
        return name
    new = upstream_name(name).replace(".attn.kv_norm.", ".attn.norm.")
    return new if name.startswith("lm_head.") else "model." + new


def make_config(**keys):
    from transformers import DeepseekV4Config
    return DeepseekV4Config(architectures=["DeepseekV4ForCausalLM"], num_nextn_predict_layers=0, **keys)


def randomise(name, value, noise):
    """Draws a parameter in the family's own way; False for those that are drawn as everywhere."""
    if name.endswith("position_bias"):
        value.copy_(noise)
    elif name.endswith("sinks"):
        value.copy_(1.5 * noise)
    elif name.endswith(("hc.base", "hc_base")):
        value.copy_(0.6 * noise)
    elif name.endswith(("hc.scale", "hc_scale")):
        value.copy_(1 + 0.3 * noise)
    elif "embed_tokens" in name:
        value.copy_(noise)
    else:
        return False
    return True


def randomise_tables(model, gen):
    """Each token of a hash layer gets experts of its own, all different."""
    for name, table in model.named_buffers():
        if name.endswith("tid2eid"):
            owner = model.get_submodule(name.rpartition(".")[0])
            rows = [torch.randperm(owner.num_experts, generator=gen)[: owner.top_k] for _ in range(len(table))]
            table.copy_(torch.stack(rows))


def stays_float32(name):
    return bool(FLOAT32.search(name))


def rewrite(folder, spec):
    """From what save_pretrained writes to the form of the case."""
    from safetensors.torch import load_file, save_file
    form = spec.get("form", "saved")
    if form != "upstream":
        return
    for name in sorted(os.listdir(folder)):
        if name.endswith(".safetensors"):
            path = os.path.join(folder, name)
            tensors = {}
            for key, value in load_file(path).items():
                key = re.sub(r"^model\.(layers\.\d+\.attn\.)norm\.", r"model.\1kv_norm.", key)
                key = re.sub(r"^model\.embed_tokens", "embed", re.sub(r"^model\.hc_head\.hc_", "hc_head_", key))
                tensors[key.removeprefix("model.")] = value.to(torch.int32) if key.endswith("tid2eid") else value
            save_file(tensors, path, metadata={"format": "pt"})
    path = os.path.join(folder, "config.json")
    with open(path, encoding="utf-8") as f:
        config = json.load(f)
    types, rope = config.pop("layer_types"), config.pop("rope_parameters")
    assert config.pop("compress_rates") == {SPARSE: 4, HEAVY: 128}
    config["compress_ratios"] = [RATIOS[t] for t in types] + [0]  # the MTP layer's comes last
    config["num_hash_layers"] = config.pop("mlp_layer_types").count("hash_moe")
    config.pop("partial_rotary_factor")
    keys = ("factor", "original_max_position_embeddings", "beta_fast", "beta_slow")
    config["rope_scaling"] = {"type": "yarn", **{k: rope["compress"][k] for k in keys}}
    config["torch_dtype"] = config.pop("dtype")
    config["topk_method"] = "noaux_tc"
    config["num_nextn_predict_layers"] = 0
    config["transformers_version"] = "4.57.1"
    with open(path, "w", encoding="utf-8") as f:
        json.dump(config, f, indent=1)
        f.write("\n")


class V4Reference(golden_moe.MoeReference):
    """MoeReference with the streams as hidden states, margins of the indexer, clamped experts and grouped adapters."""

    def __init__(self, model_dir, adapter_dirs, kind):
        super().__init__(model_dir, adapter_dirs, kind)
        from safetensors import safe_open
        self.shapes = {}
        for name in os.listdir(model_dir):
            if name.endswith(".safetensors"):
                with safe_open(os.path.join(model_dir, name), "pt") as f:
                    self.shapes.update({k: f.get_slice(k).get_shape() for k in f.keys()})
        self.base.model.hc_head.register_forward_pre_hook(lambda _, args: setattr(self, "streams", args[0][0]))
        for path, module in self.base.named_modules():
            if path.endswith("indexer"):
                module.scorer.register_forward_hook(self._record_scores(module))

    def _record_scores(self, indexer):
        def record(_, __, scores):
            scores = scores[0].detach().double()
            for t, row in enumerate(scores):
                seen = row[: (t + 1) // indexer.compress_rate].sort(descending=True).values
                if len(seen) > indexer.index_topk:
                    self.margins.append((seen[indexer.index_topk - 1] - seen[indexer.index_topk]).item())
        return record

    def _record(self, gate, _, out):
        if hasattr(gate, "tid2eid"):
            return
        scores = torch.nn.functional.softplus(out[0].detach().double()).sqrt() + gate.e_score_correction_bias.double()
        order = scores.sort(-1, descending=True).values
        if gate.top_k < order.shape[1]:
            self.margins.append((order[:, gate.top_k - 1] - order[:, gate.top_k]).min().item())

    def activated(self, module, gate, up):
        return module.act_fn(gate.clamp(max=module.limit)) * up.clamp(min=-module.limit, max=module.limit)

    def _hook(self, path, delta_of):
        if not path.endswith("o_a_proj"):
            return super()._hook(path, delta_of)

        def hook(module, args, y):
            if self.active is None or path not in self.active.linear:
                return y
            a, b = self.active.pair(self.active.linear[path])
            scale = self.active.scale(path, a.shape[0])
            # One A for all groups; the rows of B belong to the groups as those of the weight do.
            h = args[0].to(a.dtype) @ a.T
            return y + (scale * torch.einsum("...gr,gor->...go", h, b.view(module.n_groups, -1, b.shape[1]))).to(y.dtype)
        return hook

    def forward(self, tokens, adapter):
        self.activate(adapter)
        out = self.base(input_ids=torch.tensor([tokens]), output_hidden_states=True, use_cache=False)
        hidden = [h[0].flatten(1) for h in (out.hidden_states or [])[:self.num_layers]] + [self.streams.flatten(1)]
        assert len(hidden) == self.num_layers + 1, len(hidden)
        self.final_hidden = self.normed
        return torch.stack(hidden), out.logits[0]

    def stored_name(self, name):
        return name

    def stored_names(self, out):
        """Names of the file, in whatever form it is; experts one by one where it has them so."""
        result = {}
        for key, value in out.items():
            found = re.match(r"(param_(?:grad|final)\.)(.*)$", key)
            if not found:
                result[key] = value
                continue
            head, name = found.groups()
            for part_name, part in self._parts(name, value):
                stored = next(n for n in (part_name, saved_name(part_name), upstream_name(part_name)) if n in self.shapes)
                assert list(part.shape) == list(self.shapes[stored]), (stored, part.shape)
                result[head + stored] = part
        return result

    def _parts(self, name, value):
        found = re.match(r"(.*\.mlp\.experts)\.(gate_up_proj|down_proj)$", name)
        if not found or name in self.shapes:
            return [(name, value)]
        path, kind = found.groups()
        if kind == "down_proj":
            return [(f"{path}.{e}.down_proj.weight", v) for e, v in enumerate(value)]
        half = value.shape[1] // 2
        return [(f"{path}.{e}.{n}.weight", v[s]) for e, v in enumerate(value)
                for n, s in (("gate_proj", slice(0, half)), ("up_proj", slice(half, None)))]


def cases():
    yarn = {"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 64, "beta_fast": 32, "beta_slow": 1}
    base = dict(vocab_size=59, hidden_size=12, moe_intermediate_size=10, num_hidden_layers=4, num_attention_heads=4, head_dim=16,
                qk_rope_head_dim=8, q_lora_rank=10, num_experts_per_tok=2, n_routed_experts=5, num_hash_layers=1,
                layer_types=[SLIDING, SPARSE, HEAVY, SPARSE], compress_rates={SPARSE: 4, HEAVY: 8}, sliding_window=8, o_groups=2,
                o_lora_rank=6, index_n_heads=6, index_head_dim=12, index_topk=3, hc_mult=4, hc_sinkhorn_iters=20, swiglu_limit=1.0,
                max_position_embeddings=8192, rope_parameters=yarn)
    three = dict(base, hc_mult=3, hc_sinkhorn_iters=7, num_hidden_layers=3, layer_types=[HEAVY, SPARSE, SLIDING], sliding_window=5,
                 num_attention_heads=6, o_groups=3, num_hash_layers=0, compress_rates={SPARSE: 3, HEAVY: 7}, index_topk=2,
                 routed_scaling_factor=2.5, hidden_size=14)
    published = dict(base, num_hidden_layers=3, layer_types=[SPARSE, HEAVY, SLIDING], compress_rates={SPARSE: 4, HEAVY: 128},
                     num_hash_layers=2, index_topk=1, swiglu_limit=10.0)
    each = ["gate_proj", "up_proj", "down_proj"]
    every = dict(form="per_expert", r=3, expert_r=2, lora_alpha=8, modules=ATTENTION + each, experts=each)
    common = dict(form="per_expert", r=2, lora_alpha=6, modules=["q_a_proj", "q_b_proj", "kv_proj", "o_b_proj"], experts=[])
    fused = dict(form="fused", r=2, lora_alpha=6, modules=["o_a_proj", "kv_proj", "embed_tokens", "lm_head"],
                 experts=["gate_up_proj", "down_proj"])
    return {
        "deepseek_v4": dict(family="deepseek_v4", seed=5, config=base, longest=41, lengths=[66, 1, 17, 7, 33], prompt=37, slower=5,
                            adapters=[every, common], requests=["main", "params", "train_adapters", "sample"]),
        # Three streams, seven steps, ratios that no length is a multiple of, no hash layer; experts as two tensors.
        "deepseek_v4_odd": dict(family="deepseek_v4", seed=6, form="hf", config=three, longest=37, lengths=[45, 2, 7, 6, 21], prompt=34,
                                slower=5, adapters=[fused], requests=["main", "params", "train_params", "train_clip", "sample"]),
        # The published names and keys, in bfloat16 but for what they keep in float32. No clamp: where one is crossed
        # bfloat16's rounding decides whether there is a gradient, and errors would say nothing.
        "deepseek_v4_upstream": dict(family="deepseek_v4", seed=5, form="upstream", dtype="BF16", config=published, longest=40,
                                     lengths=[139, 1, 9, 4, 24], adapters=[every, common],
                                     requests=["main", "params", "short"]),
        # A window, YaRN and both ratios behind 5,000 tokens, where a wrong theta shows.
        "deepseek_v4_long": dict(family="deepseek_v4", seed=5, config=dict(
            base, num_hidden_layers=3, layer_types=[SLIDING, SPARSE, HEAVY], index_topk=2048, sliding_window=128,
            compress_rates={SPARSE: 4, HEAVY: 128}, num_attention_heads=2, o_groups=1,
            rope_parameters=dict(yarn, original_max_position_embeddings=1024)), adapters=[], requests=["behind"]),
        # One stream is still a stream: hidden states are not normed, and the head has a weight.
        "deepseek_v4_no_layers": dict(family="deepseek_v4", seed=5, config=dict(base, num_hidden_layers=0, layer_types=[], hc_mult=1),
                                      adapters=[], requests=["main", "params"]),
    }


def random_case(family, seed):
    """A model nobody chose, in any of the forms."""
    rng = np.random.default_rng([seed, 11])
    pick = lambda *values: values[int(rng.integers(len(values)))]
    form, layers, longest = pick("saved", "hf", "upstream"), pick(1, 2, 3, 5), pick(20, 33, 65, 130)
    types = [str(t) for t in rng.choice([SLIDING, SPARSE, HEAVY], layers)]
    groups = pick(1, 2, 3)
    rotated = pick(2, 4, 8)
    top_k = pick(1, 2, 3)
    rates = {SPARSE: 4, HEAVY: 128} if form == "upstream" else {SPARSE: pick(1, 2, 3, 4, 5), HEAVY: pick(2, 8, 13, 32)}
    config = dict(vocab_size=int(rng.integers(50, 300)), hidden_size=int(rng.integers(6, 40)),
                  moe_intermediate_size=int(rng.integers(3, 20)), num_hidden_layers=layers, layer_types=types,
                  num_attention_heads=groups * pick(1, 2, 3), head_dim=rotated + 2 * int(rng.integers(0, 9)), qk_rope_head_dim=rotated,
                  q_lora_rank=int(rng.integers(3, 20)), num_experts_per_tok=top_k, n_routed_experts=pick(top_k, 4, 7),
                  num_hash_layers=int(rng.integers(0, layers + 1)), compress_rates=rates, sliding_window=int(rng.integers(1, 40)),
                  o_groups=groups, o_lora_rank=int(rng.integers(2, 9)), index_n_heads=int(rng.integers(4, 9)),
                  index_head_dim=rotated + 2 * int(rng.integers(0, 9)), index_topk=int(rng.integers(1, 12)), hc_mult=pick(1, 2, 3, 4, 4, 5),
                  hc_sinkhorn_iters=pick(1, 2, 7, 20, 20), swiglu_limit=pick(0.7, 2.0, 10.0), routed_scaling_factor=pick(1.0, 1.5, 2.5),
                  rms_norm_eps=pick(1e-5, 1e-6), max_position_embeddings=8192,
                  rope_parameters={"rope_type": "yarn", "factor": pick(4.0, 16.0), "original_max_position_embeddings": pick(16, 64, 256),
                                   "beta_fast": 32, "beta_slow": 1})
    each = ["gate_proj", "up_proj", "down_proj"]
    names = [str(n) for n in rng.permutation(ATTENTION)[: int(rng.integers(1, len(ATTENTION) + 1))]]
    kind = pick("per_expert", "fused")
    adapters = [dict(form=kind, r=int(rng.integers(1, 6)), expert_r=pick(1, 2), lora_alpha=int(rng.integers(1, 12)), modules=names + each,
                     experts=each if kind == "per_expert" else ["gate_up_proj", "down_proj"]) for _ in range(pick(1, 2))]
    requests = ["main", "params", pick("train_params", "train_adapters", "train_clip"), "sample"]
    return dict(family=family, form=form, config=config, seed=seed, longest=longest, prompt=pick(30, longest), slower=5,
                dtype=pick("F32", "F32", "BF16"), adapters=adapters, requests=requests)
