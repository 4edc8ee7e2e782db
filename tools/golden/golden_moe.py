# SPDX-License-Identifier: Apache-2.0
"""The reference side of goldens with experts: transformers for the base, LoRA written here.

PEFT on transformers 5 sees a layer's experts as two tensors, and drops LoRA on dense and shared MLPs when a family
has experts; so adapters are applied here, by hooks, from the files themselves, in every form a file may have:
  per expert   ...mlp.experts.3.gate_proj.lora_A.weight [r, in]
  fused        ...mlp.experts.base_layer.lora_A.weight (gate_up_proj), ...mlp.experts.lora_A.weight (down_proj):
               A [E r, in], B [out, E r] whose column j E + e is rank j of expert e (PEFT's target_parameters)
  stacked      ...mlp.experts.w1.lora_A [E, r, in], lora_B [E, out, r]; w1 gate, w3 up, w2 down
tools/golden/make_golden.py checks the fused form against PEFT itself.
"""
import json
import os
import re

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import load_file

import golden_names
import golden_reference as gr

PREFIX = "base_model.model."
# Paths of a layer's experts and of its router, in transformers.
EXPERTS = re.compile(r"\.(mlp|block_sparse_moe|layers\.\d+)\.experts$")
ROUTER = re.compile(r"\.(mlp\.gate|block_sparse_moe\.router|layers\.\d+\.router)$")
STACKED = {"w1": "gate_proj", "w3": "up_proj", "w2": "down_proj"}


def stored_names(model_dir):
    names = set()
    for name in os.listdir(model_dir):
        if name.endswith(".safetensors"):
            with safe_open(os.path.join(model_dir, name), "pt") as f:
                names |= set(f.keys())
    return names


def has_experts(model_dir):
    return any(re.search(r"\.(mlp|ffn|feed_forward|block_sparse_moe|layers\.\d+)\.(experts|input_linear)\.", name) for name in stored_names(model_dir))


def pattern_value(patterns, path, default):
    for key, value in patterns.items():
        if re.match(rf"(.*\.)?({key})$", path):
            return value
    return default


class Adapter:
    """Parameters by their keys in the file, and what they mean: {module path: (A, B, scale)}."""

    def __init__(self, folder, dtype, num_experts):
        with open(os.path.join(folder, "adapter_config.json"), encoding="utf-8") as f:
            self.config = json.load(f)
        tensors = load_file(os.path.join(folder, "adapter_model.safetensors"))
        self.params = {k: torch.nn.Parameter(v.to(dtype)) for k, v in tensors.items()}
        self.num_experts = num_experts
        paths = {re.sub(r"\.lora_(embedding_)?[AB](\.weight)?$", "", k.removeprefix(PREFIX)) for k in self.params}
        self.linear, self.experts = {}, {}
        for path in sorted(paths):
            module = path.replace("model.language_model.", "model.")
            found = re.match(r"(.*\.(?:mlp|block_sparse_moe|layers\.\d+)\.experts)(?:\.(.*))?$", module)
            if found:
                self.experts.setdefault(found.group(1), []).append((found.group(2), path))
            else:
                self.linear[module] = path

    def pair(self, path):
        keys = lambda p: [f"{PREFIX}{path}.lora_{p}.weight", f"{PREFIX}{path}.lora_{p}", f"{PREFIX}{path}.lora_embedding_{p}"]
        return [next(self.params[k] for k in keys(p) if k in self.params) for p in "AB"]

    def scale(self, path, rank):
        alpha = pattern_value(self.config.get("alpha_pattern") or {}, path, self.config["lora_alpha"])
        return alpha / (rank ** 0.5 if self.config.get("use_rslora") else rank)

    def linear_delta(self, path, x):
        if path not in self.linear:
            return None
        a, b = self.pair(self.linear[path])
        return self.scale(path, a.shape[0]) * ((x.to(a.dtype) @ a.T) @ b.T)

    def embedding_delta(self, path, ids):
        if path not in self.linear:
            return None
        a, b = self.pair(self.linear[path])
        return self.scale(path, a.shape[0]) * (a.T[ids] @ b.T)

    def expert_deltas(self, experts, e):
        """{projection: function of x} of one expert; gate_up_proj gives both halves."""
        out = {}
        for rest, path in self.experts.get(experts, []):
            if rest in STACKED:
                a, b = (t[e] for t in self.pair(path))
                out[STACKED[rest]] = self._delta(a, b, self.scale(f"{experts}.{rest}", a.shape[0]))
            elif rest is None or rest == "base_layer":
                a, b = self.pair(path)
                names = self.config.get("target_parameters") or []
                both = any(r == "base_layer" for r, _ in self.experts[experts])
                if both:
                    kind = "gate_up_proj" if rest == "base_layer" else "down_proj"
                else:
                    kind = "gate_up_proj" if any(n.endswith("gate_up_proj") for n in names) else "down_proj"
                rank = a.shape[0] // self.num_experts
                b_e = b.reshape(b.shape[0], rank, self.num_experts)[:, :, e]
                out[kind] = self._delta(a[e * rank:(e + 1) * rank], b_e, self.scale(f"{experts}.{kind}", rank))
            elif rest.split(".")[0] == str(e):
                a, b = self.pair(path)
                out[rest.split(".")[1]] = self._delta(a, b, self.scale(path, a.shape[0]))
        return out

    @staticmethod
    def _delta(a, b, scale):
        return lambda x: scale * ((x.to(a.dtype) @ a.T) @ b.T)


class MoeReference(gr.Reference):
    """gr.Reference for models with experts."""

    def __init__(self, model_dir, adapter_dirs, kind):
        self.active = None
        self.adapters = []
        super().__init__(model_dir, adapter_dirs, kind)
        self.stored = stored_names(model_dir)
        self.margins = []
        for path, module in self.base.named_modules():
            if EXPERTS.search(path):
                self._patch(path, module)
            if ROUTER.search(path):
                module.register_forward_hook(self._record)
        # The grouped product of torch wants widths that are multiples of 16 bytes.
        self.base.set_experts_implementation("eager")

    def _record(self, gate, _, out):
        """The gap between the last chosen expert and the first that is not, of every token."""
        if not hasattr(gate, "top_k"):  # Gemma 4's gives what softmax made
            logits, k = out[0].double().log(), gate.config.top_k_experts
        else:
            logits, k = out[0].double(), gate.top_k
        scores = logits.softmax(-1)
        if hasattr(gate, "e_score_correction_bias"):
            scores = logits.sigmoid() + gate.e_score_correction_bias.double()
            groups = scores.view(len(scores), gate.num_group, -1)
            if gate.num_group > gate.topk_group:
                best = groups.topk(2, -1)[0].sum(-1).sort(-1, descending=True)
                gaps = best.values[:, gate.topk_group - 1] - best.values[:, gate.topk_group]
                self.margins.append(gaps.min().item())
                keep = torch.zeros_like(best.values).scatter(1, best.indices[:, :gate.topk_group], 1.0)
                scores = groups.masked_fill(keep[..., None] == 0, float("-inf")).flatten(1)
        elif getattr(gate, "topk_method", None) == "group_limited_greedy":
            groups = scores.view(len(scores), gate.num_group, -1)
            best = groups.max(-1).values.sort(-1, descending=True)
            if gate.num_group > gate.topk_group:
                self.margins.append((best.values[:, gate.topk_group - 1] - best.values[:, gate.topk_group]).min().item())
            keep = torch.zeros_like(best.values).scatter(1, best.indices[:, :gate.topk_group], 1.0)
            scores = groups.masked_fill(keep[..., None] == 0, 0.0).flatten(1)
        order = scores.sort(-1, descending=True).values
        if k < order.shape[1]:
            self.margins.append((order[:, k - 1] - order[:, k]).min().item())

    def _add_adapter(self, folder, index):
        dtype = torch.float32 if self.kind == "bf16_peft" else gr.DTYPES[self.kind]
        config = self.base.config
        num = getattr(config, "num_experts", None) or config.num_local_experts
        self.adapters.append(Adapter(folder, dtype, num))
        if index > 1:
            return
        for path, module in self.base.named_modules():
            if isinstance(module, torch.nn.Linear):
                module.register_forward_hook(self._hook(path, Adapter.linear_delta))
            if isinstance(module, torch.nn.Embedding):
                module.register_forward_hook(self._hook(path, Adapter.embedding_delta))

    def _hook(self, path, delta_of):
        def hook(module, args, y):
            delta = delta_of(self.active, path, args[0]) if self.active else None
            scale = getattr(module, "embed_scale", 1.0)  # of Gemma's embedding, which PEFT heeds
            return y if delta is None else y + scale * delta.to(y.dtype)
        return hook

    def _patch(self, path, module):
        plain = module.forward

        def forward(x, index, weights):
            if self.active is None or path not in self.active.experts:
                return plain(x, index, weights)
            out = torch.zeros_like(x)
            for e in range(module.gate_up_proj.shape[0]):
                token, slot = torch.where(index == e)
                if len(token) == 0:
                    continue
                delta = self.active.expert_deltas(path, e)
                rows = x[token]
                both = rows @ module.gate_up_proj[e].T
                if "gate_up_proj" in delta:
                    both = both + delta["gate_up_proj"](rows).to(both.dtype)
                gate, up = both.chunk(2, -1)
                if "gate_proj" in delta:
                    gate = gate + delta["gate_proj"](rows).to(gate.dtype)
                if "up_proj" in delta:
                    up = up + delta["up_proj"](rows).to(up.dtype)
                hidden = self.activated(module, gate, up)
                y = hidden @ module.down_proj[e].T
                if "down_proj" in delta:
                    y = y + delta["down_proj"](hidden).to(y.dtype)
                out = out.index_add(0, token, (y * weights[token, slot, None]).to(out.dtype))
            return out

        module.forward = forward

    def activated(self, module, gate, up):
        return module.act_fn(gate) * up

    def _name_parameters(self):
        self.base_params = {self.stored_name(k): v for k, v in self.base.named_parameters()}
        self.adapter_params = {k + 1: a.params for k, a in enumerate(self.adapters)}
        for params in [self.base_params, *self.adapter_params.values()]:
            for value in params.values():
                value.requires_grad_(True)

    def activate(self, adapter):
        self.active = self.adapters[adapter - 1] if adapter else None

    def stored_names(self, out):
        """Splits fused tensors where the file holds one tensor for each expert; then their names are the file's."""
        result = {}
        for name, value in out.items():
            found = re.match(r"(param_(?:grad|final)\.)(.*\.mlp\.experts)\.(gate_up_proj|down_proj)$", name)
            if not found or f"{found.group(2)}.{found.group(3)}" in self.stored:
                result[name] = value
                continue
            head, path, kind = found.groups()
            for e, part in enumerate(value):
                if kind == "down_proj":
                    result[f"{head}{path}.{e}.down_proj.weight"] = part
                else:
                    half = part.shape[0] // 2
                    result[f"{head}{path}.{e}.gate_proj.weight"] = part[:half]
                    result[f"{head}{path}.{e}.up_proj.weight"] = part[half:]
        return {golden_names.name_in_file(name, self.stored): value for name, value in result.items()}


def fuse_experts(folder):
    """Rewrites a model directory of one file: the experts of a layer as two tensors."""
    from safetensors.torch import save_file
    path = os.path.join(folder, "model.safetensors")
    tensors = load_file(path)
    layers = sorted({k.split(".experts.")[0] for k in tensors if ".experts." in k})
    for layer in layers:
        num = 1 + max(int(k.split(".experts.")[1].split(".")[0]) for k in tensors if k.startswith(layer + ".experts."))
        take = lambda e, name: tensors.pop(f"{layer}.experts.{e}.{name}.weight")
        both = [torch.cat([take(e, "gate_proj"), take(e, "up_proj")]) for e in range(num)]
        down = [take(e, "down_proj") for e in range(num)]
        tensors[f"{layer}.experts.gate_up_proj"] = torch.stack(both)
        tensors[f"{layer}.experts.down_proj"] = torch.stack(down)
    save_file(tensors, path, metadata={"format": "pt"})


def make_adapter(folder, model_dir, spec, gen):
    """An adapter of random size. spec: form (per_expert, fused, stacked), r, lora_alpha, expert_r, modules (suffixes of
    plain linear modules), experts (projections), use_rslora, whole (names as of a multimodal model)."""
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    tensors, ranks = {}, {}
    rank, alpha, form = spec["r"], spec["lora_alpha"], spec["form"]
    expert_rank = spec.get("expert_r", rank)
    slope = lambda r: alpha / (r ** 0.5 if spec.get("use_rslora") else r)

    def draw(shape, size):
        return size * torch.randn(shape, generator=gen)

    def add(path, inputs, outputs, r):
        tensors[f"{PREFIX}{path}.lora_A.weight"] = draw((r, inputs), inputs ** -0.5)
        tensors[f"{PREFIX}{path}.lora_B.weight"] = draw((outputs, r), 0.35 / (slope(r) * r ** 0.5))
        if r != rank:
            ranks[path] = r

    for path, module in model.named_modules():
        if spec.get("whole"):
            path = re.sub(r"^model\.", "model.language_model.", path)
        if isinstance(module, torch.nn.Embedding) and path.endswith("embed_tokens") and "embed_tokens" in spec.get("modules", []):
            tensors[f"{PREFIX}{path}.lora_embedding_A"] = draw((rank, module.num_embeddings), 1.0)
            tensors[f"{PREFIX}{path}.lora_embedding_B"] = draw((module.embedding_dim, rank), 0.35 / (slope(rank) * rank ** 0.5))
        if isinstance(module, torch.nn.Linear) and not ROUTER.search(path) and path.split(".")[-1] in spec.get("modules", []):
            add(path, module.in_features, module.out_features, rank)
        if not EXPERTS.search(path) or not spec.get("experts"):
            continue
        num, both, width = module.gate_up_proj.shape
        shapes = {"gate_proj": (width, both // 2), "up_proj": (width, both // 2), "down_proj": (both // 2, width),
                  "gate_up_proj": (width, both)}
        for name in spec["experts"]:
            inputs, outputs = shapes[name]
            if form == "per_expert":
                for e in range(num):
                    add(f"{path}.{e}.{name}", inputs, outputs, expert_rank)
                continue
            a = draw((num, expert_rank, inputs), inputs ** -0.5)
            b = draw((num, outputs, expert_rank), 0.35 / (slope(expert_rank) * expert_rank ** 0.5))
            if form == "stacked":
                key = f"{PREFIX}{path}." + {v: k for k, v in STACKED.items()}[name]
                tensors[f"{key}.lora_A"], tensors[f"{key}.lora_B"] = a, b
            else:
                nested = name == "gate_up_proj" and "down_proj" in spec["experts"]
                key = f"{PREFIX}{path}" + (".base_layer" if nested else "")
                tensors[f"{key}.lora_A.weight"] = a.reshape(-1, inputs).contiguous()
                tensors[f"{key}.lora_B.weight"] = b.permute(1, 2, 0).reshape(outputs, -1).contiguous()
            if expert_rank != rank:
                short = {v: k for k, v in STACKED.items()}[name] if form == "stacked" else name
                ranks[f"{path}.{short}"] = expert_rank
    os.makedirs(folder, exist_ok=True)
    save_file({k: v.contiguous() for k, v in tensors.items()}, os.path.join(folder, "adapter_model.safetensors"),
              metadata={"format": "pt"})
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": alpha, "bias": "none",
              "base_model_name_or_path": None, "use_rslora": bool(spec.get("use_rslora")),
              "target_modules": sorted(spec.get("modules", []) + (spec.get("experts", []) if form == "per_expert" else [])),
              "rank_pattern": {re.escape(k).replace("\\_", "_"): v for k, v in ranks.items()},
              "alpha_pattern": {}, "inference_mode": True, "lora_dropout": 0.0}
    if form == "fused":
        owner = {"granitemoe": "block_sparse_moe.", "gemma4_text": ""}.get(model.config.model_type, "mlp.")
        config["target_parameters"] = [f"{owner}experts.{n}" for n in spec["experts"]]
    with open(os.path.join(folder, "adapter_config.json"), "w", encoding="utf-8") as f:
        json.dump(config, f, indent=1)
        f.write("\n")


def cases():
    base = dict(vocab_size=101, hidden_size=24, intermediate_size=36, moe_intermediate_size=20,
                num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, head_dim=8, num_experts=6,
                num_experts_per_tok=2, norm_topk_prob=True, rms_norm_eps=1e-6, max_position_embeddings=256,
                tie_word_embeddings=False, rope_parameters={"rope_type": "default", "rope_theta": 10000.0})
    latent = dict(vocab_size=101, hidden_size=32, intermediate_size=36, moe_intermediate_size=12,
                  num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4, q_lora_rank=10, kv_lora_rank=14,
                  qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=6, rms_norm_eps=1e-5,
                  max_position_embeddings=256, tie_word_embeddings=False, first_k_dense_replace=1,
                  num_nextn_predict_layers=0, n_routed_experts=8, n_shared_experts=2, n_group=4, topk_group=2,
                  num_experts_per_tok=3, routed_scaling_factor=1.7, norm_topk_prob=True,
                  rope_parameters={"rope_type": "default", "rope_theta": 10000.0})
    each = ["gate_proj", "up_proj", "down_proj"]
    whole = ["gate_up_proj", "down_proj"]
    return {
        # Experts one by one, a dense layer in the middle; every form of adapter.
        "qwen3_moe": dict(family="qwen3_moe", config=dict(base, mlp_only_layers=[1]), adapters=[
            dict(form="per_expert", r=4, expert_r=2, lora_alpha=8, modules=["q_proj", *each], experts=each),
            dict(form="fused", r=3, lora_alpha=6, modules=["v_proj", "o_proj"], experts=whole, peft=True),
            dict(form="stacked", r=2, lora_alpha=6, modules=["k_proj"], experts=each, use_rslora=True)],
            requests=["main", "single", "params", "train_adapters", "sample", "short"]),
        # Experts as two tensors a layer, every second layer, weights that do not sum to one.
        "qwen3_moe_fused": dict(family="qwen3_moe", seed=2, fused=True, config=dict(
            base, num_hidden_layers=2, decoder_sparse_step=2, norm_topk_prob=False, num_experts=7, num_experts_per_tok=3,
            tie_word_embeddings=True), adapters=[
                dict(form="fused", r=2, expert_r=1, lora_alpha=5, modules=["q_proj"], experts=["gate_up_proj"])],
            requests=["main", "params", "train_params", "train_clip", "short"]),
        "qwen3_moe_bf16": dict(family="qwen3_moe", dtype="BF16", shards=2, config=dict(
            base, num_hidden_layers=1, num_experts=5, num_experts_per_tok=1, norm_topk_prob=False), adapters=[],
            requests=["main", "params", "short"]),
        # Groups, negative biases, shared experts behind a dense layer.
        "deepseek_moe": dict(family="deepseek_v3", config=latent, adapters=[
            dict(form="per_expert", r=3, expert_r=1, lora_alpha=6, modules=["q_a_proj", "kv_b_proj", *each],
                 experts=each)],
            requests=["main", "params", "train_adapters", "train_params", "sample", "short"]),
        "deepseek_moe_all": dict(family="deepseek_v3", fused=True, config=dict(
            latent, num_hidden_layers=1, first_k_dense_replace=0, q_lora_rank=None, n_group=1, topk_group=1,
            n_shared_experts=1, norm_topk_prob=False), adapters=[
                dict(form="fused", r=2, lora_alpha=4, modules=["o_proj"], experts=whole)],
            requests=["main", "params", "train_clip"]),
        # The correction bias stays float32 where all else is bfloat16; adapters of shared experts and one projection.
        "glm4_moe_lite": dict(family="glm4_moe_lite", dtype="BF16", shards=2, config=dict(
            {k: v for k, v in latent.items() if k not in ("first_k_dense_replace", "num_nextn_predict_layers")},
            mlp_layer_types=["dense", "sparse"], n_group=1, topk_group=1, n_shared_experts=1), adapters=[
                dict(form="stacked", r=3, lora_alpha=6, modules=["kv_a_proj_with_mqa", "up_proj"], experts=["up_proj"])],
            requests=["main", "params", "short"]),
    }


EACH = ["gate_proj", "up_proj", "down_proj"]
WHOLE = ["gate_up_proj", "down_proj"]


def random_adapter(rng, attention):
    """In one of the forms, or made by PEFT itself, which turns names of projections into whole tensors."""
    pick = lambda *values: values[int(rng.integers(len(values)))]
    some = lambda names: [str(n) for n in rng.permutation(names)[: int(rng.integers(1, len(names) + 1))]]
    rank = int(rng.integers(1, 9))
    spec = dict(r=rank, lora_alpha=int(rng.integers(1, 20)), use_rslora=bool(pick(0, 0, 1)))
    form = pick("per_expert", "fused", "stacked", "peft")
    if form == "peft":
        return dict(spec, use_rslora=False, target_modules=sorted(set(some(attention) + pick([], EACH, EACH))))
    experts = pick([], some(WHOLE) if form == "fused" else some(EACH), WHOLE if form == "fused" else EACH)
    modules = some(attention + EACH + ["embed_tokens", "lm_head"])
    return dict(spec, form=form, expert_r=pick(rank, 1, 2), modules=modules, experts=experts)


def random_case(family, seed):
    """A model nobody chose, with adapters and requests drawn from the seed too."""
    rng = np.random.default_rng([seed, {"qwen3_moe": 3, "deepseek_v3": 4, "glm4_moe_lite": 5}[family]])
    pick = lambda *values: values[int(rng.integers(len(values)))]
    layers, top_k = pick(1, 2, 2, 3), pick(1, 2, 2, 3, 4)
    heads = pick(1, 2, 3, 4)
    config = dict(vocab_size=int(rng.integers(50, 300)), hidden_size=int(rng.integers(12, 60)),
                  intermediate_size=int(rng.integers(8, 60)), moe_intermediate_size=int(rng.integers(3, 40)),
                  num_hidden_layers=layers, num_experts_per_tok=top_k, norm_topk_prob=bool(pick(0, 1)),
                  max_position_embeddings=512, rms_norm_eps=pick(1e-5, 1e-6), tie_word_embeddings=bool(pick(0, 1)),
                  rope_parameters={"rope_type": "default", "rope_theta": pick(1e4, 1e6)})
    attention = ["q_proj", "k_proj", "v_proj", "o_proj"]
    longest = pick(20, 33, 70)
    if family == "qwen3_moe":
        config.update(num_experts=pick(top_k, 5, 8, 16), num_attention_heads=heads * pick(1, 2, 3), head_dim=pick(4, 10, 16),
                      num_key_value_heads=heads, decoder_sparse_step=pick(1, 1, 2),
                      mlp_only_layers=pick([], [], [0], [layers - 1]), attention_bias=bool(pick(0, 0, 1)))
        sparse = [i for i in range(layers) if (i + 1) % config["decoder_sparse_step"] == 0 and i not in config["mlp_only_layers"]]
    else:
        attention = ["q_proj", "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"]
        groups, size = pick((1, 5), (1, 8), (2, 4), (4, 2), (3, 5))
        keep = int(rng.integers(1, groups + 1))
        config.update(num_attention_heads=heads, num_key_value_heads=heads, q_lora_rank=pick(None, 7, 16),
                      kv_lora_rank=pick(5, 12, 30), qk_nope_head_dim=pick(3, 8, 12), qk_rope_head_dim=pick(2, 6, 8),
                      v_head_dim=pick(4, 9, 14), n_routed_experts=groups * size, n_group=groups, topk_group=keep,
                      num_experts_per_tok=min(top_k, keep * size), n_shared_experts=pick(1, 1, 2, 3),
                      routed_scaling_factor=pick(1.0, 2.5), attention_bias=bool(pick(0, 0, 1)), num_nextn_predict_layers=0)
        dense = int(rng.integers(0, layers + 1))
        if family == "deepseek_v3":
            config.update(first_k_dense_replace=dense, rope_interleave=bool(pick(0, 1, 1)))
        else:
            del config["num_nextn_predict_layers"]
            config["mlp_layer_types"] = ["dense"] * dense + ["sparse"] * (layers - dense)
        if longest > 40 and pick(0, 1, 1):
            yarn = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": pick(4.0, 20.0), "beta_fast": pick(32, 8),
                    "beta_slow": 1, "original_max_position_embeddings": 24}
            yarn.update(pick({}, {"mscale_all_dim": 0.9}, {"mscale": 1.0, "mscale_all_dim": 1.0}, {"mscale": 0.6, "mscale_all_dim": 1.2}))
            config["rope_parameters"] = yarn
        sparse = range(dense, layers)
    adapters = [random_adapter(rng, attention) for _ in range(pick(1, 2, 3))]
    if not len(sparse):
        # Without experts it is PEFT itself that answers, which wants gate_proj and up_proj together in these families.
        adapters = [dict(r=a["r"], lora_alpha=a["lora_alpha"], target_modules=attention) for a in adapters]
    shards = pick(1, 1, 2)
    requests = ["main", "single", "params", pick("train_params", "train_adapters", "train_clip"), "sample"]
    return dict(family=family, config=config, seed=seed, longest=longest, shards=shards, fused=shards == 1 and len(sparse) and bool(pick(0, 1)),
                dtype=pick("F32", "F32", "BF16"), v4=bool(pick(0, 1)), adapters=adapters,
                requests=requests + (["short"] if len(sparse) == 1 and top_k < 3 else []))


def check_against_peft(model_dir, folder, ids):
    """What PEFT computes with the adapter, as far as it loads all of it, is what this file computes."""
    from peft import PeftModel
    ref = MoeReference(model_dir, [folder], "f64")
    ours = ref.forward(ids, 1)[1]
    plain = MoeReference(model_dir, [], "f64")
    peft = PeftModel.from_pretrained(plain.base, folder, autocast_adapter_dtype=False)
    theirs = peft(input_ids=torch.tensor([ids])).logits[0]
    difference = gr.relative_l2(gr.to_numpy(ours), gr.to_numpy(theirs))
    assert difference < 1e-12, f"{folder}: PEFT computes something else: {difference:.1e}"
