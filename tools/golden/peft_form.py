# SPDX-License-Identifier: Apache-2.0
"""Adapters of experts in the form that PEFT 0.21 takes on transformers 5, built here from the older form of a pair an expert.

A layer's experts are two tensors there, gate_up_proj and down_proj, which target_parameters adapts:
  ...mlp.experts.base_layer.lora_A.weight  gate_up_proj, the inner wrapper: A [E 2r, in], of expert e gate's r rows and then up's
  ...mlp.experts.lora_A.weight             down_proj, the outer one: A [E r, in]
  ...lora_B.weight                         [out, E R]; column j E + e is rank j of expert e. Of gate_up_proj gate's outputs
                                           have gate's ranks alone and up's outputs up's
PEFT takes gate_proj, up_proj and down_proj in target_modules of such a model for the experts' own, so those of dense layers and
of shared experts are named by target_parameters too, as "...gate_proj.weight". Scales are alpha / rank by module.
"""
import json
import os
import re

import torch
from safetensors.torch import load_file, save_file

from golden_moe import PREFIX, pattern_value

EXPERT = re.compile(r"(.*\.mlp\.experts)\.(\d+)\.(gate_proj|up_proj|down_proj)$")
# PEFT would take these for the experts' in target_modules; o_a_proj of DeepSeek-V4 is no plain linear layer.
AS_PARAMETERS = ("gate_proj", "up_proj", "down_proj", "o_a_proj")


def read_pairs(folder):
    """{module path: (A, B, rank, alpha, embedding)} of a file with a pair for each module."""
    tensors = load_file(os.path.join(folder, "adapter_model.safetensors"))
    with open(os.path.join(folder, "adapter_config.json"), encoding="utf-8") as f:
        config = json.load(f)
    pairs = {}
    for name, value in tensors.items():
        found = re.match(rf"{re.escape(PREFIX)}(.*)\.lora_(embedding_)?A(\.weight)?$", name)
        if found:
            path = found.group(1)
            alpha = pattern_value(config.get("alpha_pattern") or {}, path, config["lora_alpha"])
            pairs[path] = (value, tensors[name.replace("lora_A", "lora_B").replace("embedding_A", "embedding_B")],
                           value.shape[0], alpha, bool(found.group(2)))
    return pairs, config


def fused_b(parts):
    """[E][out, R] -> [out, E R]."""
    stacked = torch.stack(parts)
    return stacked.permute(1, 2, 0).reshape(stacked.shape[1], -1).contiguous()


def fuse_layer(experts):
    """experts: {projection: [(A, B)] by expert} -> {tensor: (A, B, rank)}."""
    out = {}
    halves = [experts[n] for n in ("gate_proj", "up_proj") if n in experts]
    if halves:
        num, width = len(halves[0]), halves[0][0][1].shape[0]
        a = torch.cat([torch.cat([h[e][0] for h in halves]) for e in range(num)])
        b = []
        for e in range(num):
            blocks = [h[e][1] for h in halves]
            if len(halves) == 2:
                b.append(torch.block_diag(*blocks))
            else:
                zero = torch.zeros_like(blocks[0])
                b.append(torch.cat([blocks[0], zero] if "gate_proj" in experts else [zero, blocks[0]]))
        out["gate_up_proj"] = (a, fused_b(b), a.shape[0] // num)
    if "down_proj" in experts:
        pairs = experts["down_proj"]
        a = torch.cat([p[0] for p in pairs])
        out["down_proj"] = (a, fused_b([p[1] for p in pairs]), a.shape[0] // len(pairs))
    return out


def to_peft(source, folder):
    pairs, config = read_pairs(source)
    assert not config.get("use_rslora")
    tensors, modules, parameters, ranks, alphas = {}, [], [], {}, {}
    layers = {}
    for path, (a, b, rank, alpha, embedding) in sorted(pairs.items()):
        found = EXPERT.match(path)
        if found:
            layer = layers.setdefault(found.group(1), {"alpha": alpha, "rank": rank})
            layer.setdefault(found.group(3), {})[int(found.group(2))] = (a, b)
            continue
        kind = "embedding_" if embedding else ""
        tensors[f"{PREFIX}{path}.lora_{kind}A" + ("" if embedding else ".weight")] = a
        tensors[f"{PREFIX}{path}.lora_{kind}B" + ("" if embedding else ".weight")] = b
        key = path
        if path.split(".")[-1] in AS_PARAMETERS:
            key = path + ".weight"
            parameters.append(key)
        else:
            modules.append(path)
        ranks[key], alphas[key] = rank, alpha
    for path, layer in layers.items():
        experts = {n: [p for _, p in sorted(layer[n].items())] for n in ("gate_proj", "up_proj", "down_proj") if n in layer}
        fused = fuse_layer(experts)
        for name, (a, b, rank) in fused.items():
            inner = name == "gate_up_proj" and "down_proj" in fused
            key = f"{PREFIX}{path}" + (".base_layer" if inner else "")
            tensors[f"{key}.lora_A.weight"], tensors[f"{key}.lora_B.weight"] = a, b
            parameters.append(f"{path}.{name}")
            ranks[f"{path}.{name}"], alphas[f"{path}.{name}"] = rank, layer["alpha"] * rank / layer["rank"]
    os.makedirs(folder, exist_ok=True)
    save_file({k: v.contiguous() for k, v in tensors.items()}, os.path.join(folder, "adapter_model.safetensors"),
              metadata={"format": "pt"})
    r, alpha = config["r"], config["lora_alpha"]
    out = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": r, "lora_alpha": alpha, "bias": "none",
           "base_model_name_or_path": None, "use_rslora": False, "inference_mode": True, "lora_dropout": 0.0,
           "target_modules": modules, "target_parameters": parameters,
           "rank_pattern": {k: v for k, v in ranks.items() if v != r},
           "alpha_pattern": {k: v for k, v in alphas.items() if v != alpha}}
    with open(os.path.join(folder, "adapter_config.json"), "w", encoding="utf-8") as f:
        json.dump(out, f, indent=1)
