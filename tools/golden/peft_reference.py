# SPDX-License-Identifier: Apache-2.0
"""What PEFT itself computes with an adapter of a model with experts, in whichever form its file is (golden_moe.py).

PEFT 0.21 on transformers 5 loads one form alone (peft_form.py). So the file's tensors are put in that form by operations
that gradients pass: PEFT loads it, every tensor in its place, runs, and its gradients come back to the file's tensors.
"""
import json
import os
import tempfile
import warnings

import numpy as np
import torch
from safetensors.torch import save_file

import golden_moe
import golden_reference as gr
import golden_run
import peft_form

PREFIX = golden_moe.PREFIX


def put_experts(adapter, path, out):
    """A layer's experts as PEFT's one or two tensors, their scales in B: {key: tensor}, {parameter: rank}."""
    rows = dict(adapter.experts[path])
    pairs, whole = {}, {}
    for rest, name in rows.items():
        a, b = adapter.pair(name)
        if rest in golden_moe.STACKED:
            scale = adapter.scale(f"{path}.{rest}", a.shape[1])
            pairs[golden_moe.STACKED[rest]] = [(a[e], scale * b[e]) for e in range(adapter.num_experts)]
        elif rest is None or rest == "base_layer":
            targets = adapter.config.get("target_parameters") or []
            alone = "gate_up_proj" if any(t.endswith("gate_up_proj") for t in targets) else "down_proj"
            kind = alone if len(rows) == 1 else "gate_up_proj" if rest == "base_layer" else "down_proj"
            rank = a.shape[0] // adapter.num_experts
            whole[kind] = (a, adapter.scale(f"{path}.{kind}", rank) * b, rank)
        else:
            expert, kind = rest.split(".")
            pairs.setdefault(kind, {})[int(expert)] = (a, adapter.scale(name, a.shape[0]) * b)
    ordered = {k: [p for _, p in sorted(v.items())] if isinstance(v, dict) else v for k, v in pairs.items()}
    whole.update(peft_form.fuse_layer(ordered))
    for kind, (a, b, _) in whole.items():
        inner = kind == "gate_up_proj" and "down_proj" in whole
        key = f"{PREFIX}{path}" + (".base_layer" if inner else "")
        out[f"{key}.lora_A.weight"], out[f"{key}.lora_B.weight"] = a, b
    return {f"{path}.{kind}": rank for kind, (_, _, rank) in whole.items()}


def put(adapter):
    """({key of PEFT's: tensor}, adapter_config.json)."""
    tensors, modules, ranks = {}, [], {}
    for module, path in adapter.linear.items():
        a, b = adapter.pair(path)
        is_embedding = f"{PREFIX}{path}.lora_embedding_A" in adapter.params
        rank = a.shape[0]
        kind, end = ("embedding_", "") if is_embedding else ("", ".weight")
        tensors[f"{PREFIX}{module}.lora_{kind}A{end}"] = a
        tensors[f"{PREFIX}{module}.lora_{kind}B{end}"] = adapter.scale(path, rank) * b
        as_parameter = module.split(".")[-1] in peft_form.AS_PARAMETERS
        ranks[module + ".weight" if as_parameter else module] = rank
        modules += [] if as_parameter else [module]
    for path in adapter.experts:
        ranks.update(put_experts(adapter, path, tensors))
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 1, "lora_alpha": 1, "bias": "none", "base_model_name_or_path": None,
              "use_rslora": False, "inference_mode": False, "lora_dropout": 0.0, "target_modules": modules,
              "target_parameters": [k for k in ranks if k not in modules], "rank_pattern": ranks, "alpha_pattern": ranks}
    return tensors, config


def load(base, tensors, config):
    """(PEFT model, {its name of a tensor: the tensor}): every tensor has a place and every place a tensor."""
    from peft import PeftModel
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        save_file({k: v.detach().contiguous() for k, v in tensors.items()}, os.path.join(folder, "adapter_model.safetensors"))
        with open(os.path.join(folder, "adapter_config.json"), "w", encoding="utf-8") as f:
            json.dump(config, f)
        warnings.simplefilter("ignore")  # keys of rank_pattern that name parameters: PEFT looks among modules alone, and heeds them
        model = PeftModel.from_pretrained(base, folder, autocast_adapter_dtype=False, is_trainable=True).eval()
    places = {k.replace(".default", ""): k for k in model.state_dict() if ".lora_" in k}
    if set(places) != set(tensors):
        raise AssertionError(f"PEFT has no place for {sorted(set(tensors) ^ set(places))[:3]}")
    stored = {places[k]: v for k, v in tensors.items()}
    for name, value in model.state_dict().items():
        assert name not in stored or torch.equal(value.double(), stored[name].double()), name
    return model, stored


def run(model_dir, folder, sequences):
    """(logits of all rows, {key of the file: gradient of the sum of losses}) in float64."""
    adapter = golden_run.make_reference(model_dir, [folder], "f64").adapters[0]
    base = golden_run.make_reference(model_dir, [], "f64").base
    model, stored = load(base, *put(adapter))
    for value in adapter.params.values():
        value.requires_grad_(True)
    logits, total = [], torch.zeros((), dtype=torch.float64)
    for seq in sequences:
        tokens = torch.tensor([seq["tokens"]])
        rows = torch.func.functional_call(model, stored, (), {"input_ids": tokens, "use_cache": False}).logits[0]
        logits.append(gr.to_numpy(rows))
        total = total + gr.sequence_loss({}, seq, rows)[1].sum()
    grads = torch.autograd.grad(total, list(adapter.params.values()), allow_unused=True)
    return np.concatenate(logits), {k: gr.to_numpy(g) if g is not None else 0 * gr.to_numpy(v) for (k, v), g in zip(adapter.params.items(), grads)}
