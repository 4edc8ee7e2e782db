#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write goldens: tiny random models, PEFT adapters, probe requests, and what transformers and PEFT answer.

usage: python tools/golden/make_golden.py                              rewrite tests/golden/ (a few minutes)
       python tools/golden/make_golden.py --only llama2,qwen3          rewrite some cases
       python tools/golden/make_golden.py --out DIR --seed 7 --count 5 --family qwen3
                                                                random further models, not committed
       families: llama qwen3 qwen3_moe deepseek_v3 glm4_moe_lite qwen2 mistral (some as ministral) gemma3 qwen3_5
       qwen3_5_moe (these three alone and in multimodal checkpoints) deepseek_v4 granite granitemoe smollm3 ministral3
       gemma gemma2 mixtral glm4_moe olmo2 olmo3 glm4 phi3 deepseek_v2 gpt_oss lfm2 qwen3_next gemma4
       gemma4_unified llama4

Layout under the output folder:
  CASE/model/ CASE/a/ CASE/b/    a Hugging Face model directory and PEFT adapters
  CASE/NAME.json                 a request for `strata probe`
  CASE/NAME.safetensors          its expected output: computed in float64, stored as F32
  CASE/NAME.noise.json           per tensor, how far transformers itself is in f32 and in bf16
  goldens.json                   the list of all: name, model, adapters, request, expected, noise
A family with an entry in golden_definition.py or golden_qwen35_definition.py is also computed from its definition, and
every trap listed there must, in a committed case, change the logits by more than 100 times the limit of the comparison
(the erf GELU by 20).
Needs tools/requirements/golden.txt. tools/golden/compare_probe.py and tests/golden/ read the result.
"""
import argparse
import json
import os
import re
import shutil
import sys
import warnings

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
warnings.filterwarnings("ignore")

import numpy as np
import torch
from safetensors.numpy import save_file

import golden_deepseek
import golden_deepseek_v4
import golden_definition
import golden_gemma3
import golden_gpt_oss
import golden_llama4
import golden_moe
import golden_qwen35
import golden_qwen35_definition
import golden_readers
import golden_reference as gr
import golden_run
import golden_window
from golden_window import ALL_LINEAR

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LLAMA3_ROPE = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
               "high_freq_factor": 4.0, "original_max_position_embeddings": 40}
DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def make_config(family, **keys):
    if family in golden_deepseek_v4.FAMILIES:
        return golden_deepseek_v4.make_config(**keys)
    if family in golden_readers.FAMILIES:
        return golden_readers.make_config(family, **keys)
    if family in golden_gpt_oss.FAMILIES:
        return golden_gpt_oss.make_config(**keys)
    if family in golden_llama4.FAMILIES:
        return golden_llama4.make_config(**keys)
    if family in golden_window.FAMILIES:
        return golden_window.make_config(family, **keys)
    if family not in ("llama", "qwen3", "qwen3_moe"):
        return golden_deepseek.make_config(family, **keys)
    from transformers import LlamaConfig, Qwen3Config, Qwen3MoeConfig
    cls = {"llama": LlamaConfig, "qwen3": Qwen3Config, "qwen3_moe": Qwen3MoeConfig}[family]
    arch = {"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM", "qwen3_moe": "Qwen3MoeForCausalLM"}[family]
    return cls(architectures=[arch], bos_token_id=None, eos_token_id=None, **keys)


def randomise(model, gen):
    """Weights of a size at which attention is far from uniform and logits are of order one."""
    with torch.no_grad():
        for name, value in model.named_parameters():
            noise = torch.randn(value.shape, generator=gen)
            if model.config.model_type.startswith(("qwen3_5", "qwen3_next")) and golden_qwen35.randomise(
                    name, value, noise, model.config, gen):
                continue
            if golden_readers.randomise(name, value, noise, model.config):
                continue
            if model.config.model_type == "deepseek_v4" and golden_deepseek_v4.randomise(name, value, noise):
                continue
            if model.config.model_type == "gpt_oss" and golden_gpt_oss.randomise(name, value, noise):
                continue
            if model.config.model_type == "llama4_text" and golden_llama4.randomise(name, value, noise):
                continue
            if "norm" in name and model.config.model_type.startswith("gemma3"):
                golden_gemma3.randomise_norm(name, value, noise)
            elif "norm" in name:
                value.copy_(1 + 0.2 * noise)
            elif name.endswith("bias"):
                value.copy_(0.2 * noise)
            elif "embed_tokens" in name and not model.config.tie_word_embeddings:
                value.copy_(0.5 * noise)
            elif name.endswith("mlp.gate.weight"):
                # Scores that differ plainly, and experts that few or no tokens choose.
                value.copy_(1.5 * noise / value.shape[1] ** 0.5)
            else:
                value.copy_(noise / value.shape[-1] ** 0.5)
        for name, value in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                # Of the size of the scores' differences, mostly negative.
                value.copy_(0.15 * torch.randn(value.shape, generator=gen) - 0.6)
            if name.endswith("layer_scalar"):
                value.copy_(1.2 + 0.2 * torch.randn(value.shape, generator=gen))
        golden_deepseek_v4.randomise_tables(model, gen)


def rewrite_config_v4(path, dtype):
    """The form transformers 4 wrote: rope_theta and rope_scaling at the top, torch_dtype."""
    with open(path, encoding="utf-8") as f:
        config = json.load(f)
    rope = config.pop("rope_parameters")
    config.pop("dtype", None)
    config["rope_theta"] = rope.pop("rope_theta")
    if rope["rope_type"] == "default":
        config["rope_scaling"] = None
    else:
        config["rope_scaling"] = {**rope, "type": rope["rope_type"]}
    config["torch_dtype"] = str(dtype).removeprefix("torch.")
    config["transformers_version"] = "4.46.0"
    config["pretraining_tp"] = 1
    # Qwen3's default is a number.
    if config["model_type"] != "qwen3" and (config.get("head_dim") or 0) * config["num_attention_heads"] == config["hidden_size"]:
        del config["head_dim"]
    write_pretty(path, config)


def write_pretty(path, value):
    with open(path, "w", encoding="utf-8") as f:
        json.dump(value, f, indent=1)
        f.write("\n")


def make_model(folder, spec, gen):
    from transformers import AutoModelForCausalLM
    dtype = DTYPES[spec.get("dtype", "F32")]
    gemma, qwen35 = spec["family"] == "gemma3", spec["family"] in golden_qwen35.FAMILIES
    if qwen35:
        model = golden_qwen35.build(spec)
    else:
        config = golden_gemma3.make_config(spec.get("form", "text"), **spec["config"]) if gemma else make_config(
            spec["family"], **spec["config"])
        model = AutoModelForCausalLM.from_config(config)
    randomise(model, gen)
    with torch.no_grad():
        # Logits of a trained model's size, whose probabilities span many orders of magnitude.
        gr.final_norm(model).weight.mul_(spec.get("sharpness", 1))
    biases = {n: b.clone() for n, b in model.named_buffers() if n.endswith("e_score_correction_bias")}
    v4 = spec["family"] in golden_deepseek_v4.FAMILIES
    stays = golden_deepseek_v4.stays_float32 if v4 else lambda n: golden_qwen35.stays_float32(n, spec)
    float32 = {n: p.detach().clone() for n, p in model.named_parameters() if stays(n)}
    model = model.to(dtype)
    for name, value in float32.items():
        model.get_parameter(name).data = value
    for name, value in biases.items():
        owner, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(owner), leaf, torch.nn.Buffer(value))  # stays float32
    model.config.dtype = dtype
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    # The form on the hub is transformers' own choice for Gemma 3; its names in memory are the other one. For Qwen3.5 it is
    # the other way about.
    model.save_pretrained(folder, save_original_format=spec.get("form") != ("hub" if qwen35 else "hf" if v4 else "language_model"),
                          max_shard_size=int(size / (spec["shards"] - 0.5)) if spec.get("shards", 1) > 1 else "1GB")
    if spec.get("fused"):
        golden_moe.fuse_experts(folder)
    if os.path.exists(os.path.join(folder, "generation_config.json")):
        os.remove(os.path.join(folder, "generation_config.json"))
    path = os.path.join(folder, "config.json")
    if gemma:
        golden_gemma3.rewrite(folder, spec, dtype)
        return
    if qwen35:
        golden_qwen35.rewrite(folder, spec, dtype, gen)
        return
    if v4:
        golden_deepseek_v4.rewrite(folder, spec)
        return
    if spec["family"] in golden_gpt_oss.FAMILIES:
        golden_gpt_oss.rewrite(folder, spec)
        return
    if spec.get("v4"):
        rewrite_config_v4(path, dtype)
    golden_window.rewrite_config(path, spec)
    golden_readers.rewrite_config(path, spec)
    golden_readers.add_unused_kv(folder, spec, gen)


def make_adapter(folder, model_dir, spec, gen):
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText
    if "form" in spec:
        golden_moe.make_adapter(folder, model_dir, spec, gen)
        if spec.get("peft"):
            golden_moe.check_against_peft(model_dir, folder, list(range(23)))
        return
    spec = dict(spec)
    copies = spec.pop("copies", False)
    kind = AutoModelForImageTextToText if spec.pop("whole", False) else AutoModelForCausalLM
    model = kind.from_pretrained(model_dir, dtype=torch.float32)
    model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **spec))
    with torch.no_grad():
        for name, value in model.named_parameters():
            if "lora_" in name:
                # The adapter's share of a product is about a third of the base's, whatever its scaling.
                module = model.get_submodule(name[: name.index(".lora_")])
                size = 1.0 if "_A" in name else 0.35 / (module.scaling["default"] * value.shape[1] ** 0.5)
                width = 1 if "lora_embedding_A" in name or "_B" in name else value.shape[1]
                value.copy_(size * torch.randn(value.shape, generator=gen) / width ** 0.5)
    model.save_pretrained(folder, save_embedding_layers="auto" if copies else False)
    for extra in ["README.md", ".gitattributes"]:
        if os.path.exists(os.path.join(folder, extra)):
            os.remove(os.path.join(folder, extra))
    path = os.path.join(folder, "adapter_config.json")
    with open(path, encoding="utf-8") as f:
        config = json.load(f)
    config["base_model_name_or_path"] = None
    if not isinstance(config["target_modules"], str):  # a list, or one regular expression
        config["target_modules"] = sorted(config["target_modules"])
    write_pretty(path, config)
    if spec.get("target_parameters") and model.config.model_type in golden_gpt_oss.FAMILIES:
        golden_gpt_oss.check_against_peft(model_dir, folder)


def f32_list(values):
    return [float(np.float32(v)) for v in values]


class Maker:
    """Draws requests for one model."""

    # No choice of experts closer than this: float32 then chooses as float64 does.
    ROUTING_GAP = 3e-5
    # Far enough apart for bfloat16.
    WIDE_GAP = 0.02

    def __init__(self, rng, vocab, model_dir, adapters, prompt=None, slower=1, lengths=None):
        # prompt: a length for sampling; slower: what learning rates are divided by, where depth makes steps chaotic;
        # lengths: of the sequences of the main request.
        self.prompt, self.slower, self.chosen_lengths = prompt, slower, lengths
        self.rng, self.vocab, self.model_dir, self.adapters = rng, vocab, model_dir, adapters
        self.gap = self.ROUTING_GAP
        self.router = golden_run.make_reference(model_dir, adapters, "f64") if golden_moe.has_experts(model_dir) else None

    def ids(self, n):
        return [int(t) for t in self.rng.integers(0, self.vocab, n)]

    def routed_ids(self, n, adapter):
        """Ids none of whose choices of experts is close."""
        while True:
            ids = self.ids(n)
            if self.router is None:
                return ids
            self.router.margins.clear()
            with torch.no_grad():
                self.router.forward(ids, adapter)
            if min(self.router.margins, default=1.0) > self.gap:
                return ids

    def short(self, want):
        """Few tokens, so routed that bfloat16 agrees."""
        self.gap = self.WIDE_GAP
        num = len(self.adapters)
        request = {"sequences": [self.sequence(n, k) for n, k in zip([9, 1, 8, 9, 12], [0, num, min(1, num), max(num - 1, 0), num])],
                   "want": want}
        self.gap = self.ROUTING_GAP
        return request

    def weights(self, n):
        w = np.where(self.rng.random(n) < 0.7, 1.0, self.rng.choice([0.0, 0.0, 0.25, 1.75, -0.5], n))
        return f32_list(w)

    def sequence(self, n, adapter, loss=None, weights=True):
        seq = {"tokens": self.routed_ids(n, adapter), "targets": self.ids(n)}
        if adapter:
            seq["adapter"] = adapter
        if weights:
            seq["weights"] = self.weights(n)
        if loss:
            seq["loss"] = loss
        return seq

    def fill_policy(self, request):
        """q and A of the policy losses: ratios on both sides of each bound, so far from it that no
        bf16 rounding crosses it: there a gradient jumps, and errors would say nothing."""
        plain = {"sequences": [{k: s[k] for k in ("tokens", "targets", "adapter") if k in s}
                               for s in request["sequences"]], "want": ["logprobs"]}
        lp = golden_run.run_request(self.model_dir, self.adapters, plain, "f64")["logprobs"]
        begin = 0
        for seq in request["sequences"]:
            n = len(seq["tokens"])
            if seq.get("loss", request.get("loss", {"name": "cross_entropy"}))["name"] != "cross_entropy":
                ratio = self.rng.choice([0.3, 0.5, 0.94, 0.99, 1.03, 1.7, 2.1], n)
                seq["logprobs"] = f32_list(lp[begin:begin + n] - np.log(ratio))
                seq["advantages"] = f32_list(self.rng.normal(0.4, 1.0, n))
                masked = [t for t in range(n) if seq.get("weights", [1] * n)[t] == 0]
                for t in masked[:1]:
                    # Infinite in float32: a masked token must not care.
                    seq["logprobs"][t], seq["advantages"][t] = 1e39, -1e39
            begin += n

    def lengths(self, longest):
        return self.chosen_lengths or [longest, 1, 17, int(self.rng.integers(8, 16)), int(self.rng.integers(16, longest))]

    def main(self, longest, want):
        ppo = {"name": "ppo", "config": {"clip_low_threshold": 0.7, "clip_high_threshold": 1.3}}
        losses = [None, None, {"name": "importance_sampling"}, ppo, {"name": "cispo"}]
        num = len(self.adapters)
        # The sequences of an adapter are not neighbours, and none has the short ones alone.
        choice = [[0, 0, 0, 0, 0], [1, 0, 1, 0, 1], [1, 0, 2, 1, 2], [1, 0, 2, 3, 3]][num]
        request = {"sequences": [self.sequence(n, k, l) for n, k, l in
                                 zip(self.lengths(longest), choice, losses)], "want": want}
        request["sequences"].append(self.sequence(5, 0, {"name": "ppo"}, weights=False))
        self.fill_policy(request)
        return request

    def plain(self, longest, adapters):
        return {"sequences": [self.sequence(n, k) for n, k in zip([9, longest, 1], adapters)], "want": []}

    def train(self, longest, adapters, want, train):
        """A request none of whose first signs is left to rounding, nor any choice of experts, nor where ten steps lead;
        or None."""
        for _ in range(50):
            request = {**self.plain(longest, adapters), "want": want, "train": train}
            margins, routing = [], [1.0]
            first = {**request, "want": [], "train": {**train, "steps": 1}}
            golden_run.run_request(self.model_dir, self.adapters, first, "f64", margins)
            if min(margins) <= 1e-5:
                continue
            golden_run.run_request(self.model_dir, self.adapters, request, "f64", routing=routing)
            if min(routing) > self.ROUTING_GAP and golden_run.is_firm(self.model_dir, self.adapters, {**request, "want": []}):
                return request
        return None

    def long_prompt(self):
        """A prompt behind 2048 tokens, which an engine reads in chunks."""
        entry = {"tokens": self.ids(2050), "max_tokens": 3, "temperature": 0, "adapter": len(self.adapters)}
        margins = []
        golden_run.run_request(self.model_dir, self.adapters, {"sample": [entry]}, "f64", margins)
        if min(margins) < 2e-4:
            return None
        return {"sequences": [self.sequence(40, 0)], "want": ["logprobs"], "sample": [entry]}

    def sample(self, longest):
        num = len(self.adapters)
        entries = [{"tokens": self.ids(3), "max_tokens": 12, "temperature": 0,
                    "prompt_logprobs": True, "topk_prompt_logprobs": 4},
                   {"tokens": self.ids(longest), "max_tokens": 7, "temperature": 0.7, "top_k": 1,
                    "adapter": min(1, num), "seed": 5},
                   {"tokens": self.ids(1), "max_tokens": 9, "temperature": 1.3, "top_p": 1e-6,
                    "adapter": num, "topk_prompt_logprobs": 2},
                   {"tokens": self.ids(11), "max_tokens": 10, "temperature": 0, "adapter": num,
                    "prompt_logprobs": True}]
        margins, routing = [], [1.0]
        free = golden_run.run_request(self.model_dir, self.adapters, {"sample": entries}, "f64", margins, routing)
        if min(margins) < 2e-4 or min(routing) <= self.ROUTING_GAP:
            return None
        entries[3]["stop"] = [self.vocab - 1, int(free["sample.3.tokens"][4])]
        return {"sequences": [self.sequence(4, 0)], "want": ["logprobs"], "sample": entries}

    def requests(self, kinds, longest):
        every = ["hidden_states", "logits", "logprobs", "loss", "adapter_grads"]
        num = len(self.adapters)
        out = {}
        if "main" in kinds:
            out["main"] = self.main(longest, every if num else every[:-1])
        if "single" in kinds:
            # One token sees one key: no gradient reaches q and k, and it must be exactly zero.
            out["single"] = {"sequences": [self.sequence(1, num, weights=False) for _ in range(9)],
                             "want": every + ["param_grads"]}
        if "short" in kinds:
            out["short"] = self.short(every + ["param_grads"] if num else every[:-1] + ["param_grads"])
        if "params" in kinds:
            out["params"] = {**self.plain(longest, [0, min(1, num), num]), "want": ["loss", "param_grads"]}
        for n in (int(kind.removeprefix("lone_")) for kind in kinds if kind.startswith("lone_")):
            out[f"lone_{n}"] = {"sequences": [self.sequence(n, num)], "want": every if num else every[:-1]}
        if "head" in kinds:
            # The sum over a real vocabulary: thousands of small terms after the target's large one, as
            # frequent tokens have low ids.
            out["head"] = {**self.plain(longest, [0, 1, 1]), "want": ["logprobs", "loss", "adapter_grads"]}
            for seq in out["head"]["sequences"]:
                seq["targets"] = [t % 40 for t in seq["targets"]]
        if "behind" in kinds:
            # One sequence, long enough for every window, ratio and frequency of a rotary table.
            out["behind"] = {"sequences": [self.sequence(5100, 0)], "want": ["logprobs"]}
        if "train_params" in kinds:
            out["train_params"] = self.train(longest, [0, 0, min(1, num)], [], {
                "what": "params", "steps": 10, "lr": 0.003, "weight_decay": 0.1, "grad_clip_norm": 1.5})
        if "train_adapters" in kinds:
            out["train_adapters"] = self.train(longest, [1, num, num], ["loss"], {
                "what": "adapters", "steps": 10, "lr": 0.01 / self.slower})
        if "train_clip" in kinds:
            # The last adapter sits out: untouched, norm zero.
            out["train_clip"] = self.train(longest, [1, 0, 1], [], {
                "what": "adapters", "steps": 10, "lr": 0.005, "beta1": 0.8, "beta2": 0.99, "eps": 1e-8,
                "weight_decay": 0.05, "grad_clip_norm": 0.75})
        if "sample" in kinds:
            request = None
            while request is None:
                request = self.sample(self.prompt or longest)
            out["sample"] = request
        if "long_prompt" in kinds:
            request = None
            while request is None:
                request = self.long_prompt()
            out["long_prompt"] = request
        missing = [k for k, request in out.items() if request is None]
        if missing:
            print(f"make_golden: {self.model_dir}: left out {missing}: gradients or choices of experts are too close, "
                  "or rounding leads training elsewhere")
        return {k: request for k, request in out.items() if request is not None}


def spread_noise(noise, model_dir, adapters, request, truth, kinds=("bf16", "bf16_peft")):
    """Noise of these kinds, mostly of bf16: transformers' own, or what shaken runs say is usual for the tensor, whichever is larger.

    The gradients of a delta net's decays have as many elements as there are heads, those of a hyper-connection's scale
    three or one, and one or two of these outweigh the rest: the error of one run is one draw, in float32 too, a tenth or
    ten times of what rounding usually does. A shake (of float32's
    size, where errors are linear) says how far each tensor moves beside the others; bf16's size is that at which the
    median tensor moves as far as it did in transformers.
    """
    SHAKES = 8
    shaken = [golden_run.run_request(model_dir, adapters, request, "f64", shake=100 + i) for i in range(SHAKES)]
    moves = {name: np.mean([gr.relative_l2(run[name], value) ** 2 for run in shaken]) ** 0.5
             for name, value in truth.items() if value.any()}
    for kind in kinds:
        ratios = [noise[name][kind] / move for name, move in moves.items() if move > 0 and noise[name].get(kind)]
        for name, move in moves.items():
            if noise[name].get(kind):
                noise[name][kind] = max(noise[name][kind], float(move * np.median(ratios)))
    return noise


def make_case(root, name, spec, committed):
    folder = os.path.join(root, name)
    shutil.rmtree(folder, ignore_errors=True)
    seed = spec.get("seed", sum(ord(c) * 31 ** i for i, c in enumerate(name)) % 2 ** 31)
    gen, rng = torch.Generator().manual_seed(seed), np.random.default_rng(seed)
    model_dir = os.path.join(folder, "model")
    make_model(model_dir, spec, gen)
    adapters = []
    for key, adapter in zip("abcdef", spec.get("adapters", [])):
        adapters.append(os.path.join(folder, key))
        make_adapter(adapters[-1], model_dir, adapter, gen)
    check_rope_shows(model_dir, spec)
    golden_definition.check(name, model_dir, adapters, spec["config"]["vocab_size"], spec.get("longest", 33),
                            committed)
    maker = Maker(rng, spec["config"]["vocab_size"], model_dir, adapters, spec.get("prompt"), spec.get("slower", 1),
                  spec.get("lengths"))
    rows = []
    for key, request in maker.requests(spec["requests"], spec.get("longest", 33)).items():
        routing = [1.0]
        truth = golden_run.run_request(model_dir, adapters, request, "f64", routing=routing)
        noise = golden_run.measure_noise(model_dir, adapters, request, truth)
        golden_qwen35_definition.check(f"{name}/{key}", model_dir, adapters, request, truth, noise, 1e-10, committed)
        if min(routing) < maker.WIDE_GAP:
            # Rounding to bfloat16 sends some tokens to other experts: its error says nothing.
            noise = {k: {"f32": v["f32"]} for k, v in noise.items() if "f32" in v}
        elif name.startswith(("qwen3_5", "qwen3_next", "deepseek_v4")) and not {"train", "sample"} & request.keys():
            noise = spread_noise(noise, model_dir, adapters, request, truth)
        if name.startswith("deepseek_v4") and not {"train", "sample", "behind"} & {key, *request}:
            noise = spread_noise(noise, model_dir, adapters, request, truth, ("f32",))
        stem = os.path.join(folder, key)
        gr.save_json(stem + ".json", request)
        save_file({k: np.ascontiguousarray(v, np.float32) for k, v in truth.items()},
                  stem + ".safetensors")
        write_pretty(stem + ".noise.json", {
            k: {kind: float(f"{e:.3g}") for kind, e in v.items()} for k, v in sorted(noise.items())})
        rows.append({"name": f"{name}/{key}", "model": f"{name}/model",
                     "adapters": [f"{name}/{os.path.basename(a)}" for a in adapters],
                     "request": f"{name}/{key}.json", "expected": f"{name}/{key}.safetensors",
                     "noise": f"{name}/{key}.noise.json"})
        worst = {kind: max((v.get(kind, 0) for v in noise.values()), default=0)
                 for kind in ("f32", "bf16", "bf16_peft")}
        print(f"{name}/{key}: {len(truth)} tensors, worst noise "
              + " ".join(f"{k} {v:.1e}" for k, v in worst.items()), flush=True)
    return rows


def check_rope_shows(model_dir, spec):
    """A golden of scaled RoPE must differ plainly from one without scaling."""
    rope = spec["config"].get("rope_parameters", {})
    v4 = spec["family"] in golden_deepseek_v4.FAMILIES  # its definition sees to it
    if v4 or rope.get("rope_type", "default") == "default" or spec["config"]["num_hidden_layers"] == 0:
        return
    ids = np.random.default_rng(0).integers(0, spec["config"]["vocab_size"], spec["longest"]).tolist()
    ref = golden_run.make_reference(model_dir, [], "f64")
    scaled = ref.forward(ids, 0)[1]
    for part in ref.base.modules():
        if hasattr(part, "inv_freq"):
            part.inv_freq = part.compute_default_rope_parameters(part.config)[0]
            # Those that longrope chooses of.
            part.original_inv_freq = part.long_inv_freq = part.inv_freq
    change = gr.relative_l2(gr.to_numpy(ref.forward(ids, 0)[1]), gr.to_numpy(scaled))
    assert change > 1e-2, f"RoPE scaling changes the logits by only {change:.1e}"


def committed_cases():
    base = dict(vocab_size=131, hidden_size=48, intermediate_size=44, num_hidden_layers=2,
                num_attention_heads=4, num_key_value_heads=4, head_dim=12, rms_norm_eps=1e-5,
                max_position_embeddings=256, tie_word_embeddings=False,
                rope_parameters={"rope_type": "default", "rope_theta": 10000.0})
    gqa = dict(base, hidden_size=60, num_attention_heads=6, num_key_value_heads=2, head_dim=16,
               rope_parameters=LLAMA3_ROPE)
    qwen = dict(base, hidden_size=40, num_attention_heads=6, num_key_value_heads=3, head_dim=10,
                vocab_size=113, rms_norm_eps=1e-6, tie_word_embeddings=True,
                rope_parameters={"rope_type": "default", "rope_theta": 1000000.0})
    small = dict(r=3, lora_alpha=16, target_modules=ALL_LINEAR)
    pattern = dict(r=8, lora_alpha=24, target_modules=["q_proj", "v_proj", "down_proj", "gate_proj"],
                   rank_pattern={"layers.1.self_attn.q_proj": 5, ".*\\.down_proj": 2},
                   alpha_pattern={"v_proj": 40, "model.layers.0.mlp.gate_proj": 7})
    rslora = dict(r=8, lora_alpha=12, target_modules=ALL_LINEAR, use_rslora=True)
    head = dict(r=4, lora_alpha=8, target_modules=["embed_tokens", "lm_head", "q_proj"])
    embed = dict(r=2, lora_alpha=6, target_modules=["embed_tokens", "up_proj"], copies=True)
    return {
        "llama2": dict(family="llama", config=base, v4=True, adapters=[small, pattern],
                       requests=["main", "single", "params", "train_adapters", "train_clip", "sample"]),
        "llama31": dict(family="llama", config=dict(gqa, tie_word_embeddings=True), longest=70,
                        adapters=[rslora, dict(pattern, layers_to_transform=[1])],
                        requests=["main", "params", "train_adapters", "sample"]),
        "llama31_v4_shards": dict(family="llama", config=dict(gqa, num_hidden_layers=3), longest=70,
                                  v4=True, shards=3, dtype="BF16", adapters=[small],
                                  requests=["main", "train_params"]),
        "llama_bias_f16": dict(family="llama", dtype="F16", adapters=[small, rslora], requests=[
            "main", "params", "train_params"], config=dict(
                base, attention_bias=True, mlp_bias=True, num_key_value_heads=1, hidden_size=40,
                head_dim=10)),
        "llama_tied_embed": dict(family="llama", config=dict(gqa, tie_word_embeddings=True, vocab_size=97),
                                 longest=45, adapters=[head, embed],
                                 requests=["main", "params", "train_adapters", "sample"]),
        "qwen3": dict(family="qwen3", config=qwen, adapters=[small, rslora],
                      requests=["main", "single", "params", "train_adapters", "train_params", "sample"]),
        "qwen3_untied_shards": dict(family="qwen3", shards=2, adapters=[dict(head, copies=True), embed],
                                    config=dict(qwen, tie_word_embeddings=False, head_dim=16, num_attention_heads=2,
                                                num_key_value_heads=1, num_hidden_layers=3),
                                    requests=["main", "params", "train_clip"]),
        "qwen3_bf16": dict(family="qwen3", dtype="BF16", adapters=[pattern, embed], v4=True,
                           config=dict(qwen, head_dim=8, num_key_value_heads=2, vocab_size=200),
                           requests=["main", "params"]),
        "qwen3_wide": dict(family="qwen3", dtype="BF16", adapters=[small], requests=["head"], sharpness=2, config=dict(
            qwen, vocab_size=50001, hidden_size=12, intermediate_size=20, num_hidden_layers=1,
            num_attention_heads=2, num_key_value_heads=1)),
        "zero_layers": dict(family="llama", config=dict(base, num_hidden_layers=0), adapters=[
            dict(head, target_modules=["embed_tokens", "lm_head"])],
            requests=["main", "params", "train_adapters", "sample"]),
        "zero_layers_tied": dict(family="qwen3", config=dict(qwen, num_hidden_layers=0),
                                 requests=["main", "train_params"]),
    }


def random_case(family, seed):
    """A model nobody chose: its shape, adapters and requests all drawn from the seed."""
    rng = np.random.default_rng([seed, {"llama": 1, "qwen3": 2}[family]])
    pick = lambda *values: values[int(rng.integers(len(values)))]
    kv, group = pick(1, 2, 3, 4), pick(1, 1, 2, 3, 5)
    heads = kv * group
    head_dim, longest = 2 * int(rng.integers(2, 17)), pick(20, 33, 65, 100, 150)
    width = heads * int(rng.integers(24 // heads + 1, 100 // heads))
    config = dict(vocab_size=int(rng.integers(50, 400)), hidden_size=width,
                  intermediate_size=int(rng.integers(15, 150)), num_hidden_layers=pick(1, 2, 3, 4),
                  num_attention_heads=heads, num_key_value_heads=kv, head_dim=head_dim,
                  rms_norm_eps=pick(1e-5, 1e-6), max_position_embeddings=512,
                  tie_word_embeddings=bool(pick(0, 1)),
                  rope_parameters={"rope_type": "default", "rope_theta": pick(1e4, 1e5, 1e6)})
    if family == "llama":
        config.update(attention_bias=bool(pick(0, 0, 1)), mlp_bias=bool(pick(0, 0, 1)))
        if longest >= 60 and head_dim >= 10 and pick(0, 1, 1):
            config["rope_parameters"] = dict(LLAMA3_ROPE, factor=pick(4.0, 8.0, 32.0))
    adapters = golden_window.random_adapters(rng)
    return dict(family=family, config=config, seed=seed, longest=longest, v4=bool(pick(0, 1)),
                dtype=pick("F32", "F32", "F16", "BF16"), shards=pick(1, 1, 2, 4), adapters=adapters,
                requests=["main", "single", "params", pick("train_params", "train_adapters", "train_clip"), "sample"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", help="folder for random cases (default: the committed ones)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--family", choices=["llama", "qwen3", "qwen3_moe", "deepseek_v3", "glm4_moe_lite", "qwen2",
                                                "mistral", "gemma3", "qwen3_5", "qwen3_5_moe", "qwen3_next", "deepseek_v4", "gpt_oss", "llama4",
                                                *golden_readers.FAMILIES],
                        default="llama")
    parser.add_argument("--only", help="comma list of committed cases to rewrite")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    root = args.out or os.path.join(ROOT, "tests", "golden")
    if args.out:
        draw = {"llama": random_case, "qwen3": random_case, "qwen2": golden_window.random_case,
                "mistral": golden_window.random_case, "gemma3": golden_gemma3.random_case,
                **dict.fromkeys(golden_qwen35.FAMILIES, golden_qwen35.random_case),
                "deepseek_v4": golden_deepseek_v4.random_case, "gpt_oss": golden_gpt_oss.random_case, "llama4": golden_llama4.random_case,
                **dict.fromkeys(golden_readers.FAMILIES, golden_readers.random_case)}.get(
                    args.family, golden_moe.random_case)
        cases = {f"{args.family}_{s}": draw(args.family, s)
                 for s in range(args.seed, args.seed + args.count)}
    else:
        cases = {**committed_cases(), **golden_deepseek.cases(), **golden_moe.cases(), **golden_window.cases(),
                 **golden_gemma3.cases(), **golden_qwen35.cases(), **golden_deepseek_v4.cases(),
                 **golden_readers.cases(), **golden_gpt_oss.cases(), **golden_llama4.cases()}
        if args.only:
            cases = {k: v for k, v in cases.items() if k in args.only.split(",")}
    os.makedirs(root, exist_ok=True)
    index = os.path.join(root, "goldens.json")
    rows = []
    if os.path.exists(index):
        with open(index, encoding="utf-8") as f:
            rows = json.load(f)
    for name, spec in cases.items():
        rows = [r for r in rows if not r["name"].startswith(name + "/")]
        rows += make_case(root, name, spec, not args.out)
        write_pretty(index, sorted(rows, key=lambda r: r["name"]))


if __name__ == "__main__":
    main()
