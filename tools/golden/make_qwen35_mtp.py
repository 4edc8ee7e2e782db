#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write the goldens of Qwen3.5's multi-token prediction, from transformers' parts.

usage: python tools/golden/make_qwen35_mtp.py [--out tests/golden] [--only CASE]

transformers leaves that layer out of the model, but has the parts: MtpLayer of modeling_layers.py around a decoder layer of
the family, fed with the next tokens' embeddings and with what the decoder's final norm made. The truth is these in float64
(golden_reference.lifted_module), the noise as make_deepseek_v4_mtp.py has it. Each trap is the same with one thing wrong, and
must move multi-token prediction's logits by more than a hundredth: [h ; e] for [e ; h], the state before the final norm,
norms that multiply by w. Legend: T tokens, D hidden size.
"""
import argparse
import json
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import numpy as np
import torch
from safetensors.torch import save_file

import golden_qwen35
import make_deepseek_v4_mtp as v4
from golden_definition import load_tensors
from golden_reference import SHAKE, lifted_module, relative_l2

ROPE = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5, "mrope_section": [1, 1, 0],
        "mrope_interleaved": True}
LINEAR, FULL = "linear_attention", "full_attention"
BASE = dict(vocab_size=59, hidden_size=20, num_attention_heads=4, num_key_value_heads=2, head_dim=16, linear_num_key_heads=2,
            linear_num_value_heads=4, linear_key_head_dim=16, linear_value_head_dim=16, linear_conv_kernel_dim=4,
            rms_norm_eps=1e-6, max_position_embeddings=4096, rope_parameters=ROPE, layer_types=[LINEAR, FULL, LINEAR],
            num_hidden_layers=3, bos_token_id=None, eos_token_id=None, pad_token_id=None)
EXPERTS = dict(moe_intermediate_size=12, shared_expert_intermediate_size=16, num_experts=5, num_experts_per_tok=2)
PROJECTIONS = [f"self_attn.{n}_proj" for n in "qkvo"]
MLP = [f"mlp.{n}_proj" for n in ("gate", "up", "down")]
HEAD = ["model.mtp.0." + n for n in ["fc"] + PROJECTIONS]
TRAPS = ("hidden first", "state before the norm", "plain norms")


def case(name, kind, whole, config, adapters):
    return dict(name=name, kind=kind, whole=whole, adapters=adapters, config=config)


CASES = [
    case("qwen3_5_mtp", "Qwen3_5", False, dict(BASE, intermediate_size=24, tie_word_embeddings=False),
         [(HEAD + ["model.mtp.0." + n for n in MLP] + ["model.layers.0.linear_attn.in_proj_qkv", "model.layers.1.self_attn.q_proj"],
           3, 8, False),
          (["model.mtp.0.fc", "model.mtp.0.self_attn.v_proj", "model.layers.2.linear_attn.out_proj", "lm_head"], 2, 6, True)]),
    # Tied, inside a multimodal checkpoint.
    case("qwen3_5_moe_mtp", "Qwen3_5Moe", True, dict(BASE, **EXPERTS, tie_word_embeddings=True),
         [(HEAD + ["model.mtp.0.mlp.shared_expert.up_proj", "model.layers.0.linear_attn.in_proj_z"], 3, 8, False),
          (["model.layers.1.self_attn.o_proj"], 2, 6, False)]),
]


def stored(name, whole):
    """The name in the files of what the reference calls so."""
    if name.startswith("mtp."):
        for own, file in (("eh_proj", "fc"), ("enorm", "pre_fc_norm_embedding"), ("hnorm", "pre_fc_norm_hidden"), ("post_norm", "norm")):
            if name == f"mtp.{own}.weight":
                return f"mtp.{file}.weight"
        return name.replace("mtp.mtp_block.", "mtp.layers.0.")
    return name.replace("model.", "model.language_model.", 1) if whole else name


def of_module(module, whole):
    """The file's name of the weight that an adapter's module has; adapters have a text model's names."""
    at = module.find("mtp.0.")
    if at < 0:
        return stored(module + ".weight", whole)
    own = module[at + len("mtp.0."):]
    return ("mtp." if own == "fc" else "mtp.layers.0.") + own + ".weight"


class Whole(torch.nn.Module):
    """The decoder, and the layer behind it."""

    def __init__(self, kind, config, modelling):
        from transformers.modeling_layers import MtpLayer
        super().__init__()
        self.main = getattr(modelling, kind + "ForCausalLM")(config)
        own = type(config)(**{**config.to_dict(), "layer_types": [FULL], "num_hidden_layers": 1})
        own._attn_implementation = own._experts_implementation = "eager"
        self.mtp = MtpLayer(own, getattr(modelling, kind + "DecoderLayer"), getattr(modelling, kind + "RMSNorm"), 0)

    def forward(self, ids, wrong=None):
        decoder = self.main.model
        if wrong == "state before the norm":
            kept = []
            hook = decoder.norm.register_forward_hook(lambda _, args, out: kept.append(args[0]))
        hidden = decoder(input_ids=ids[None], use_cache=False).last_hidden_state
        logits = self.main.lm_head(hidden)[0]
        if len(ids) == 1:
            return logits, logits[:0]
        embedded = decoder.embed_tokens(ids[1:])[None]
        before = hidden[:, :-1]
        if wrong == "state before the norm":
            hook.remove()
            before = kept[0][:, :-1]
        n = len(ids) - 1
        places = torch.arange(n)[None]
        mask = torch.full((n, n), torch.finfo(embedded.dtype).min, dtype=embedded.dtype).triu(1)[None, None]
        self.mtp.config.mtp_hidden_states_first = wrong == "hidden first"
        out = self.mtp(embedded, before, position_embeddings=decoder.rotary_emb(embedded, places), attention_mask=mask,
                       position_ids=places, cache=None)
        return logits, self.main.lm_head(out)[0]


def make_whole(spec, dtype):
    import transformers
    config = getattr(transformers, spec["kind"] + "TextConfig")(**spec["config"])
    # The grouped product of torch takes no float64.
    config._attn_implementation = config._experts_implementation = "eager"
    name = type(config).__module__.replace("configuration_", "modeling_")
    if dtype == torch.float64:
        rope = lifted_module("transformers.modeling_rope_utils")
        modelling = lifted_module(name, [("ROPE_INIT_FUNCTIONS", rope.ROPE_INIT_FUNCTIONS)])
    else:
        import importlib
        modelling = importlib.import_module(name)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64 if dtype == torch.float64 else torch.float32)
    whole = Whole(spec["kind"], config, modelling).eval()
    torch.set_default_dtype(before)
    return whole.to(torch.bfloat16) if dtype == torch.bfloat16 else whole


class Reference(v4.Reference):
    """The reference over leaves of one type, as make_deepseek_v4_mtp.py has it of the definition."""

    SPEC = None

    def __init__(self, root, dtype, shake=None):
        self.dtype, self.margins = dtype, []
        gen = torch.Generator().manual_seed(shake or 0)

        def leaf(value):
            value = torch.as_tensor(value)
            if shake is not None:
                value = value * (1 + SHAKE * torch.randn(value.shape, generator=gen, dtype=torch.float64))
            return value.to(dtype).requires_grad_(True)

        load = lambda *parts: {k: leaf(v) for k, v in load_tensors(*parts).items()}
        self.base = load(os.path.join(root, "model"), "model")
        self.folders = [os.path.join(root, name) for name in ("a", "b")]
        self.adapters = [load(folder, "adapter_model") for folder in self.folders]
        self.module = make_whole(self.SPEC, dtype)
        for _, part in self.module.named_modules():
            if type(part).__name__.endswith("TopKRouter"):
                part.register_forward_hook(self.record)

    def record(self, router, args, out):
        """The gap between the last chosen expert and the first that is not, of every token."""
        logits = torch.nn.functional.linear(args[0].reshape(-1, args[0].shape[-1]), router.weight).double()
        order = logits.softmax(-1).sort(-1, descending=True).values
        k = self.SPEC["config"]["num_experts_per_tok"]
        self.margins.append((order[:, k - 1] - order[:, k]).min().item())

    def params(self):
        return {k: v for k, v in self.base.items() if not k.startswith("model.visual.")}

    def tensors(self, adapter):
        """With the adapter's products added; what it adds to the embedding is apart, since the head does not have it."""
        out, embedding = dict(self.base), None
        if not adapter:
            return out, embedding
        with open(os.path.join(self.folders[adapter - 1], "adapter_config.json"), encoding="utf-8") as f:
            config = json.load(f)
        loaded = self.adapters[adapter - 1]
        for key, a in loaded.items():
            module = key.removeprefix("base_model.model.")
            if key.endswith("lora_A.weight"):
                name = of_module(module.removesuffix(".lora_A.weight"), self.SPEC["whole"])
                out[name] = out[name] + config["lora_alpha"] / len(a) * (loaded[key.replace("lora_A", "lora_B")] @ a)
            elif key.endswith("lora_embedding_A"):
                embedding = config["lora_alpha"] / len(a) * (loaded[key[:-1] + "B"] @ a).T
        return out, embedding

    def logits(self, seq, wrong=None):
        """[T, V], and [T, V] of multi-token prediction, whose last row is zero."""
        tensors, embedding = self.tensors(seq.get("adapter", 0))
        state = {}
        for name, value in self.module.state_dict(keep_vars=True).items():
            own = name.removeprefix("main.")
            if own == "lm_head.weight" and self.SPEC["config"]["tie_word_embeddings"]:
                own = "model.embed_tokens.weight"
            file = stored(own, self.SPEC["whole"])
            state[name] = tensors[file]
            if own == "model.embed_tokens.weight" and embedding is not None:
                state[name] = state[name] + embedding
        if wrong == "plain norms":
            for end in ("enorm", "hnorm"):
                state[f"mtp.{end}.weight"] = state[f"mtp.{end}.weight"] - 1
        logits, mtp = torch.func.functional_call(self.module, state, (torch.tensor(seq["tokens"]), wrong), tie_weights=False)
        return logits, torch.cat([mtp, torch.zeros_like(logits[:1])])


def draw(spec, gen):
    """Tensors as golden_qwen35.py draws them, of the layer behind the decoder's too; float32 values, by the files' names."""
    whole = make_whole(spec, torch.float32)
    out = {}
    for name, value in whole.state_dict().items():
        own = name.removeprefix("main.")
        if own == "lm_head.weight" and spec["config"]["tie_word_embeddings"]:
            continue
        noise = torch.randn(value.shape, generator=gen, dtype=torch.float32)
        value = torch.empty_like(noise)
        if not golden_qwen35.randomise(own, value, noise, whole.main.config, gen):
            value.copy_(noise if "embed_tokens" in own else 1.5 * noise / value.shape[-1] ** 0.5)
        out[stored(own, spec["whole"])] = value.contiguous()
    return out


def write_model(folder, spec, tensors):
    import transformers
    os.makedirs(folder, exist_ok=True)
    text = dict(getattr(transformers, spec["kind"] + "TextConfig")(**spec["config"]).to_dict(), mtp_num_hidden_layers=1,
                mtp_use_dedicated_embeddings=False)
    config = dict(text, architectures=[spec["kind"] + "ForCausalLM"])
    if spec["whole"]:
        config = dict(architectures=[spec["kind"] + "ForConditionalGeneration"], model_type=text["model_type"].removesuffix("_text"),
                      text_config=text, vision_config=dict(golden_qwen35.VISION), tie_word_embeddings=text["tie_word_embeddings"],
                      image_token_id=59, video_token_id=60, vision_start_token_id=61, vision_end_token_id=62)
        tensors = {**tensors, "model.visual.pos_embed.weight": torch.zeros(4, 8, dtype=torch.float32)}
    save_file(tensors, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as f:
        json.dump(config, f, indent=1)
        f.write("\n")


def write_adapter(folder, spec, tensors, modules, rank, alpha, embedding, gen):
    """A PEFT adapter; what it adds to a product is about a third of the base's."""
    os.makedirs(folder, exist_ok=True)
    out = {}
    size = 0.35 / (alpha / rank * rank ** 0.5)
    draw_b = lambda rows: size * torch.randn((rows, rank), generator=gen, dtype=torch.float32)
    for module in modules:
        rows, cols = tensors[of_module(module, spec["whole"])].shape
        out[f"base_model.model.{module}.lora_A.weight"] = torch.randn((rank, cols), generator=gen, dtype=torch.float32) / cols ** 0.5
        out[f"base_model.model.{module}.lora_B.weight"] = draw_b(rows)
    if embedding:
        vocab, width = tensors["model.embed_tokens.weight"].shape
        at = "base_model.model.model.embed_tokens.lora_embedding_"
        out[at + "A"], out[at + "B"] = torch.randn((rank, vocab), generator=gen, dtype=torch.float32), draw_b(width)
    save_file(out, os.path.join(folder, "adapter_model.safetensors"), metadata={"format": "pt"})
    names = sorted({m.rpartition(".")[2] for m in modules} | ({"embed_tokens"} if embedding else set()))
    config = dict(peft_type="LORA", task_type="CAUSAL_LM", r=rank, lora_alpha=alpha, lora_dropout=0.0, bias="none", fan_in_fan_out=False,
                  use_rslora=False, target_modules=names, base_model_name_or_path=None)
    with open(os.path.join(folder, "adapter_config.json"), "w", encoding="utf-8") as f:
        json.dump(config, f, indent=1)
        f.write("\n")


class Maker(v4.Maker):
    def requests(self):
        out = super().requests()
        # A chunk of the delta rule and the row behind it.
        out["main"]["sequences"][0] = self.sequence(66, 1, 1e-5)
        return out


def check_traps(reference, request):
    """How far each moves the logits of multi-token prediction, of their size."""
    for wrong in TRAPS:
        with torch.no_grad():
            got, want = [reference.logits(request["sequences"][0], w)[1].double().numpy() for w in (wrong, None)]
        moved = relative_l2(got, want)
        print(f"  trap: {wrong}: {moved:.3f}", flush=True)
        assert moved > 0.01, wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tests", "golden"))
    parser.add_argument("--only", help="a case")
    args = parser.parse_args()
    torch.set_num_threads(1)
    for spec in [spec for spec in CASES if args.only in (None, spec["name"])]:
        root = os.path.join(args.out, spec["name"])
        gen = torch.Generator().manual_seed(7)
        tensors = draw(spec, gen)
        write_model(os.path.join(root, "model"), spec, tensors)
        for name, adapter in zip("ab", spec["adapters"]):
            write_adapter(os.path.join(root, name), spec, tensors, *adapter, gen)
        Reference.SPEC = spec
        Maker.CONFIG, Maker.REFERENCE = spec["config"], Reference
        maker = Maker(root, 7)
        requests = maker.requests()
        maker.requests = lambda: requests
        check_traps(Reference(root, torch.float64), requests["main"])
        v4.write_goldens(args.out, spec["name"], maker)


if __name__ == "__main__":
    main()
