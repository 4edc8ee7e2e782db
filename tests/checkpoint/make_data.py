#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/checkpoint/data: files made by the packages whose formats we read.

Needs safetensors, torch, transformers and peft. The tests read the committed files without Python.
"""
import json
import os
import pathlib
import sys

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from peft.tuners.lora import LoraLayer
from peft.utils.other import get_pattern_key
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

DATA = pathlib.Path(__file__).parent / "data"


def single_file():
    every = np.arange(0, 65536, 64, dtype=np.uint16) + np.arange(1024, dtype=np.uint16) % 64
    tensors = {
        "bf16": torch.from_numpy(every.view(np.int16).copy()).view(torch.bfloat16).reshape(32, 32),
        "f16": torch.from_numpy(every.view(np.float16).copy()).reshape(2, 512),
        "f32.counting": torch.arange(24, dtype=torch.float32).reshape(2, 3, 4) / 8,
        "i64.ids": torch.arange(5),
        "scalar": torch.tensor(-2.5),
        "empty": torch.zeros(0, 7),
        "six.axes": torch.zeros(1, 1, 2, 1, 1, 1),
        "na\u00efve \"quoted\"\n": torch.ones(1, dtype=torch.float16),
    }
    save_file(tensors, DATA / "single.safetensors", metadata={"format": "pt", "note": "caf\u00e9"})


def adapter(name, embeddings, **options):
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=13, hidden_size=8, intermediate_size=12, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, tie_word_embeddings=False))
    targets = ["q_proj", "down_proj"] + (["embed_tokens", "lm_head"] if embeddings else [])
    model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", target_modules=targets, **options))
    for key, tensor in model.named_parameters():
        if "lora_" in key:
            values = torch.arange(tensor.numel(), dtype=torch.float32) % 17 / 16 - tensor.numel() / 64
            tensor.data.copy_(values.reshape(tensor.shape))
    model.save_pretrained(DATA / name)
    (DATA / name / "README.md").unlink()
    # What PEFT made of the config: the oracle of rank, alpha and scaling.
    wanted = {}
    for path, module in model.base_model.model.named_modules():
        if isinstance(module, LoraLayer):
            a = module.lora_embedding_A if "default" in module.lora_embedding_A else module.lora_A
            shape = getattr(a["default"], "weight", a["default"]).shape
            wanted[path] = {"r": module.r["default"], "alpha": float(module.lora_alpha["default"]),
                            "scaling": float(module.scaling["default"]), "a": list(shape)}
    lines = [f"{path} {w['r']} {w['alpha']!r} {w['scaling']!r}" for path, w in sorted(wanted.items())]
    (DATA / name / "wanted.txt").write_text("\n".join(lines) + "\n")


def pattern_table():
    """Which key of a list decides for a module, according to PEFT itself."""
    modules = ["model.layers.0.self_attn.q_proj", "model.layers.1.self_attn.q_proj",
               "model.layers.11.mlp.down_proj", "model.layers.1.mlp.down_proj", "lm_head",
               "model.embed_tokens", "model.embed_tokens_extra", "model.q_proj_norm", "my_lm_head",
               "model.lm_head", "q_proj"]
    lists = [["q_proj"], ["self_attn.q_proj", "q_proj"], ["q_proj", "self_attn.q_proj"],
             ["layers.1.mlp.down_proj"], [r"layers\.1\..*"], [r"model.layers.(0|1).self_attn.q_proj"],
             [r".*\.layers\.1.*_proj"], ["lm_head"], [r"lm_head|embed_tokens"], ["_proj"], [r"\w+_proj"],
             [r"^model.layers.0.*"], [r"model\.layers\.\d+\.mlp\.down_proj", "lm_head"], [r"[a-z_]+"],
             ["embed_tokens.*"], [r"(?:.*_attn)\.(q|k)_proj"], ["proj"], [r".*"], [r"layers.1"], [""]]
    rows = []
    for keys in lists:
        for module in modules:
            key = get_pattern_key(keys, module)
            rows.append({"keys": keys, "module": module, "match": keys.index(key) if key in keys else -1})
    text = "".join("\t".join([row["module"], str(row["match"]), *row["keys"]]) + "\n" for row in rows)
    (DATA / "patterns.tsv").write_text(text)


def main():
    os.makedirs(DATA, exist_ok=True)
    single_file()
    adapter("peft_plain", False, r=2, lora_alpha=6)
    adapter("peft_rich", True, r=4, lora_alpha=7, use_rslora=True,
            rank_pattern={"q_proj": 2, r"layers\.1\.mlp\..*": 3, "lm_head": 5},
            alpha_pattern={"model.layers.1.self_attn.q_proj": 1.5, "embed_tokens": 3})
    pattern_table()
    json.dump({"torch": torch.__version__}, sys.stdout)


if __name__ == "__main__":
    main()
