# SPDX-License-Identifier: Apache-2.0
"""Llama 4's side of the goldens: configs, weights and a reference that names experts one by one, as probe does.

Experts are [E, in, out] there, the columns of gate before those of up. Adapters are applied by PEFT itself, those of experts
too. transformers counts its scale of queries from the start of what it is given: every sequence runs alone here.
"""
import re

import numpy as np

import golden_reference as gr

FAMILIES = ("llama4",)
EXPERTS = re.compile(r"(param_(?:grad|final)\.)(.*\.feed_forward\.experts)\.(gate_up|down)_proj$")
WHOLE = ["feed_forward.experts.gate_up_proj", "feed_forward.experts.down_proj"]
LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def make_config(**keys):
    from transformers import Llama4TextConfig
    return Llama4TextConfig(architectures=["Llama4ForCausalLM"], bos_token_id=None, eos_token_id=None, pad_token_id=None, **keys)


def randomise(name, value, noise):
    """Experts that are plainly chosen, and inputs for which SiLU is far from a line, so that a weight before it is not one
    behind it; whether the parameter is one of these."""
    if name.endswith("router.weight"):
        value.copy_(0.8 * noise / value.shape[1] ** 0.5)
    elif name.endswith(("gate_up_proj", "experts.down_proj")):
        value.copy_(noise / value.shape[1] ** 0.5)
    elif name.endswith("post_attention_layernorm.weight"):
        value.copy_(2.5 + 0.3 * noise)
    else:
        return False
    return True


class Llama4Reference(gr.Reference):
    """transformers and PEFT; notes how close choices of experts are."""

    # One gives two tensors, the other's output is added to in place.
    unshaken = ("feed_forward.router", "shared_expert.down_proj")

    def __init__(self, model_dir, adapter_dirs, kind):
        self.margins = []
        super().__init__(model_dir, adapter_dirs, kind)
        for path, module in self.base.named_modules():
            if path.endswith(".feed_forward.router"):
                module.register_forward_hook(self._record)

    def stored_name(self, name):
        return super().stored_name(re.sub(r"\.base_layer\b", "", name))

    def _record(self, router, _, out):
        order = out[1].double().sort(-1, descending=True).values
        if router.top_k < order.shape[1]:
            self.margins.append((order[:, router.top_k - 1] - order[:, router.top_k]).min().item())

    @staticmethod
    def stored_names(out):
        """Splits what transformers has of all experts by expert and projection."""
        result = {}
        for name, value in out.items():
            found = EXPERTS.match(name)
            if not found:
                result[name] = value
                continue
            head, path, kind = found.groups()
            for e, part in enumerate(value):
                stored = lambda projection: f"{head}{path}.{e}.{projection}_proj.weight"
                if kind == "down":
                    result[stored("down")] = part.T
                else:
                    result[stored("gate")], result[stored("up")] = np.split(part.T, 2)
        return result


def cases():
    rope = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 16.0, "low_freq_factor": 1.0, "high_freq_factor": 1.0,
            "original_max_position_embeddings": 24}
    base = dict(vocab_size=89, hidden_size=24, intermediate_size=20, intermediate_size_mlp=28, num_hidden_layers=4,
                num_attention_heads=4, num_key_value_heads=2, head_dim=8, num_local_experts=5, num_experts_per_tok=1,
                interleave_moe_layer_step=2, attention_chunk_size=8, floor_scale=8, attn_scale=0.4, rms_norm_eps=1e-5,
                max_position_embeddings=4096, tie_word_embeddings=False, rope_parameters=rope)
    return {
        # Dense layers and such with experts in turn, three that turn and one that does not; sequences of several chunks.
        "llama4": dict(family="llama4", longest=40, prompt=60, config=base, adapters=[
            dict(r=3, lora_alpha=6, target_modules=LINEAR),
            dict(r=2, lora_alpha=5, target_modules=["q_proj", "down_proj", "embed_tokens", "lm_head"], use_rslora=True)],
            requests=["main", "single", "params", "train_params", "train_adapters", "sample", "long_prompt"]),
        # PEFT's own adapter of all experts, whose A reads what their weights give.
        "llama4_experts": dict(family="llama4", seed=2, longest=36, config=dict(base, num_hidden_layers=2, num_local_experts=3), adapters=[
            dict(r=3, lora_alpha=6, target_modules=["q_proj", "o_proj"], target_parameters=WHOLE)],
            requests=["main", "params", "train_adapters"]),
        # As Maverick: no norm of queries and keys, no scaling; two experts a token, no chunks in one layer that turns.
        "llama4_bf16": dict(family="llama4", dtype="BF16", longest=30, v4=True, drop=["layer_types", "moe_layers"], config=dict(
            base, num_hidden_layers=3, num_experts_per_tok=2, interleave_moe_layer_step=1, use_qk_norm=False,
            no_rope_layers=[1, 0, 1], attention_chunk_size=11,
            rope_parameters={"rope_type": "default", "rope_theta": 500000.0}),
            adapters=[dict(r=2, lora_alpha=4, target_modules=["v_proj", "up_proj"])], requests=["main", "params", "short"]),
    }


def random_case(family, seed):
    """A model nobody chose, with adapters and requests drawn from the seed too."""
    rng = np.random.default_rng([seed, 14])
    pick = lambda *values: values[int(rng.integers(len(values)))]
    some = lambda names: sorted(str(n) for n in rng.permutation(names)[: int(rng.integers(1, len(names) + 1))])
    kv, layers, top_k, longest = pick(1, 2, 3), pick(1, 2, 3, 4, 5), pick(1, 1, 2, 3), pick(20, 33, 65, 100)
    config = dict(vocab_size=int(rng.integers(50, 300)), hidden_size=int(rng.integers(12, 60)),
                  intermediate_size=int(rng.integers(3, 40)), intermediate_size_mlp=int(rng.integers(3, 60)),
                  num_hidden_layers=layers, num_attention_heads=kv * pick(1, 2, 3), num_key_value_heads=kv,
                  head_dim=2 * int(rng.integers(2, 13)), num_local_experts=pick(top_k, 4, 5, 8), num_experts_per_tok=top_k,
                  use_qk_norm=bool(pick(0, 1, 1)), attention_chunk_size=pick(1, 2, 7, 8, 16, 64, 200),
                  attn_temperature_tuning=bool(pick(0, 1, 1)), floor_scale=pick(3, 8, 20), attn_scale=pick(0.1, 0.5),
                  attention_bias=bool(pick(0, 0, 1)), rms_norm_eps=pick(1e-5, 1e-6), max_position_embeddings=512,
                  tie_word_embeddings=bool(pick(0, 0, 1)), rope_parameters={"rope_type": "default", "rope_theta": pick(1e4, 5e5)})
    config["num_local_experts"] = max(config["num_local_experts"], top_k)
    config.update(pick({}, {"no_rope_layers": [int(pick(0, 1, 1)) for _ in range(layers)]}, {"no_rope_layer_interval": pick(1, 2, 3)}))
    config.update(pick({}, {"interleave_moe_layer_step": 2}, {"moe_layers": [i for i in range(layers) if pick(0, 1)]}))
    if pick(0, 1):
        low = pick(1.0, 1.0, 2.0)
        config["rope_parameters"].update(rope_type="llama3", factor=pick(4.0, 16.0), low_freq_factor=low,
                                         high_freq_factor=low * pick(1.0, 4.0), original_max_position_embeddings=pick(16, 40))
    adapters = [dict(r=int(rng.integers(1, 9)), lora_alpha=int(rng.integers(1, 20)), use_rslora=bool(pick(0, 0, 1)),
                     target_modules=sorted({"o_proj", *some(LINEAR + ["embed_tokens", "lm_head"])})) for _ in range(pick(1, 2, 3))]
    return dict(family=family, config=config, seed=seed, longest=longest, dtype=pick("F32", "F32", "BF16"), shards=pick(1, 1, 2),
                v4=bool(pick(0, 1)), adapters=adapters, requests=["main", "single", "params", "train_adapters", "sample"])
