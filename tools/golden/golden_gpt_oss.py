# SPDX-License-Identifier: Apache-2.0
"""gpt-oss' side of the goldens: configs, weights, adapters as PEFT saves them, and a reference that applies them.

Experts are [E, in, out] there, with biases, gate and up in alternating columns; probe names them one by one. transformers'
eager attention takes its softmax in the model's type: in float32 and float64 that is what the model means.
"""
import json
import os
import re

import numpy as np
import torch

import golden_moe
import golden_reference as gr

FAMILIES = ("gpt_oss",)
EXPERTS = re.compile(r"(param_(?:grad|final)\.)(.*\.mlp\.experts)\.(gate_up|down)_proj(_bias)?$")


def make_config(**keys):
    from transformers import GptOssConfig
    return GptOssConfig(architectures=["GptOssForCausalLM"], bos_token_id=None, eos_token_id=None, pad_token_id=None,
                        **keys)


def randomise(name, value, noise):
    """Sinks of the size of scores, experts that are plainly chosen; whether the parameter is one of these."""
    if name.endswith("sinks"):
        value.copy_(1.5 * noise + 0.5)
    elif name.endswith("router.weight"):
        value.copy_(1.5 * noise / value.shape[1] ** 0.5)
    elif name.endswith("router.bias"):
        value.copy_(0.5 * noise)
    elif name.endswith(("gate_up_proj", "down_proj")):
        value.copy_(noise / value.shape[1] ** 0.5)
    else:
        return False
    return True


def rewrite(folder, spec):
    """Leaves out keys whose defaults count."""
    path = os.path.join(folder, "config.json")
    with open(path, encoding="utf-8") as f:
        config = json.load(f)
    for key in spec.get("left_out", []):
        del config[key]
    config.update(spec.get("added", {}))
    with open(path, "w", encoding="utf-8") as f:
        json.dump(config, f, indent=1)
        f.write("\n")


class GptOssReference(golden_moe.MoeReference):
    """transformers for the base, adapters of experts applied here."""

    def __init__(self, model_dir, adapter_dirs, kind):
        super().__init__(model_dir, adapter_dirs, kind)
        for path, module in self.base.named_modules():
            if path.endswith(".mlp.router"):
                module.register_forward_hook(self._record_logits)

    def _record_logits(self, router, _, out):
        order = out[0].double().sort(-1, descending=True).values
        if router.top_k < order.shape[1]:
            self.margins.append((order[:, router.top_k - 1] - order[:, router.top_k]).min().item())

    def _patch(self, path, module):
        plain = module.forward

        def forward(x, index, weights):
            if self.active is None or path not in self.active.experts:
                return plain(x, index, weights)
            out = torch.zeros_like(x)
            for e in range(module.num_experts):
                token, slot = torch.where(index == e)
                if len(token) == 0:
                    continue
                delta = self.active.expert_deltas(path, e)
                rows = x[token]
                both = rows @ module.gate_up_proj[e] + module.gate_up_proj_bias[e]
                if "gate_up_proj" in delta:
                    both = both + delta["gate_up_proj"](rows).to(both.dtype)
                hidden = module._apply_gate(both)
                y = hidden @ module.down_proj[e] + module.down_proj_bias[e]
                if "down_proj" in delta:
                    y = y + delta["down_proj"](hidden).to(y.dtype)
                out = out.index_add(0, token, (y * weights[token, slot, None]).to(out.dtype))
            return out

        module.forward = forward

    def stored_names(self, out):
        """Splits what transformers has of all experts by expert and projection."""
        result = {}
        for name, value in out.items():
            found = EXPERTS.match(name)
            if not found:
                result[name] = value
                continue
            head, path, kind, bias = found.groups()
            for e, part in enumerate(value):
                part = part if bias else part.T
                stored = lambda projection: f"{head}{path}.{e}.{projection}_proj.{'bias' if bias else 'weight'}"
                if kind == "down":
                    result[stored("down")] = part
                else:
                    result[stored("gate")], result[stored("up")] = part[::2], part[1::2]
        return result


def check_against_peft(model_dir, folder):
    """What PEFT computes with its own file is what this file computes."""
    from peft import PeftModel
    with open(os.path.join(model_dir, "config.json"), encoding="utf-8") as f:
        vocab = json.load(f)["vocab_size"]
    ids = [i % vocab for i in (5, 9, 3, 17, 2)]
    ours = GptOssReference(model_dir, [folder], "f64").forward(ids, 1)[1]
    plain = GptOssReference(model_dir, [], "f64")
    peft = PeftModel.from_pretrained(plain.base, folder, autocast_adapter_dtype=False)
    theirs = peft(input_ids=torch.tensor([ids])).logits[0]
    difference = gr.relative_l2(gr.to_numpy(ours), gr.to_numpy(theirs))
    assert difference < 1e-12, f"{folder}: PEFT computes something else: {difference:.1e}"


def cases():
    rope = {"rope_type": "yarn", "rope_theta": 1000.0, "factor": 8.0, "beta_fast": 8.0, "beta_slow": 1.0,
            "truncate": False, "original_max_position_embeddings": 200}
    base = dict(vocab_size=97, hidden_size=24, intermediate_size=20, num_hidden_layers=3, num_attention_heads=4,
                num_key_value_heads=2, head_dim=16, num_local_experts=6, num_experts_per_tok=2, sliding_window=14,
                swiglu_limit=1.1, max_position_embeddings=512, rope_parameters=rope)
    attention = ["q_proj", "k_proj", "v_proj", "o_proj"]
    whole = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
    return {
        # A window, a full layer and a window; a clamp that is met; experts with and without adapters.
        "gpt_oss": dict(family="gpt_oss", longest=70, config=base, adapters=[
            dict(r=3, lora_alpha=6, target_modules=attention, target_parameters=whole),
            dict(r=2, lora_alpha=5, target_modules=["q_proj"], target_parameters=whole[:1])],
            requests=["main", "single", "params", "train_params", "train_adapters", "sample", "short"]),
        # What files may leave out: the window of 128, YaRN from 4,096, the clamp at 7, types of layers.
        "gpt_oss_bf16": dict(family="gpt_oss", dtype="BF16", longest=150, prompt=140, config=dict(
            {k: v for k, v in base.items() if k not in ("sliding_window", "swiglu_limit", "rope_parameters")},
            num_hidden_layers=2, num_key_value_heads=1, num_local_experts=5), adapters=[
                dict(r=2, lora_alpha=4, target_modules=["v_proj", "o_proj"], target_parameters=whole[1:])],
            left_out=["sliding_window", "swiglu_limit", "swiglu_alpha", "rope_parameters", "layer_types", "attention_bias"],
            added={"initial_context_length": 4096, "experts_per_token": 2},
            requests=["main", "params", "sample", "short"]),
    }


def random_case(family, seed):
    """A model nobody chose, with adapters and requests drawn from the seed too."""
    rng = np.random.default_rng([seed, 13])
    pick = lambda *values: values[int(rng.integers(len(values)))]
    some = lambda names: sorted(str(n) for n in rng.permutation(names)[: int(rng.integers(0, len(names) + 1))])
    kv, top_k, longest, layers = pick(1, 2, 3), pick(1, 2, 3, 4), pick(20, 33, 65, 100, 150), pick(1, 2, 3, 4)
    rope = pick(None, {"rope_type": "default", "rope_theta": 1e4}, *[
        {"rope_type": "yarn", "rope_theta": pick(1e3, 1e4), "factor": pick(4.0, 8.0), "beta_fast": pick(32.0, 8.0),
         "beta_slow": 1.0, "truncate": truncate, "original_max_position_embeddings": pick(40, 200)}
        for truncate in (False, False, True)])
    config = dict(vocab_size=int(rng.integers(50, 300)), hidden_size=int(rng.integers(12, 60)),
                  intermediate_size=int(rng.integers(3, 40)), num_hidden_layers=layers,
                  num_attention_heads=kv * pick(1, 2, 3), num_key_value_heads=kv, head_dim=2 * int(rng.integers(2, 13)),
                  num_local_experts=pick(top_k, 5, 8, 16), num_experts_per_tok=top_k,
                  sliding_window=pick(1, 2, 7, 16, 40, 128), swiglu_limit=pick(0.7, 1.3, 7.0), swiglu_alpha=pick(1.702, 1.0),
                  attention_bias=bool(pick(1, 1, 0)), max_position_embeddings=512)
    if rope:
        config["rope_parameters"] = rope
    config["num_local_experts"] = max(config["num_local_experts"], top_k)
    if pick(0, 0, 1):
        config["layer_types"] = [pick("sliding_attention", "full_attention") for _ in range(layers)]
    whole = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
    adapters = [dict(r=int(rng.integers(1, 9)), lora_alpha=int(rng.integers(1, 20)), use_rslora=bool(pick(0, 0, 1)),
                     target_modules=some(["q_proj", "k_proj", "v_proj"]) + ["o_proj"], target_parameters=some(whole))
                for _ in range(pick(1, 2, 3))]
    return dict(family=family, config=config, seed=seed, longest=longest, dtype=pick("F32", "F32", "BF16"),
                shards=pick(1, 1, 2), adapters=adapters, requests=["main", "single", "params", "train_adapters", "sample"])
