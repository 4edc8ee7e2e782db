#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What PEFT's merge_and_unload makes of the goldens' models and adapters, in f32.

usage: python tools/golden/make_merged.py                              rewrite tests/golden/merged/
       python tools/golden/make_merged.py MODEL ADAPTER MERGED_DIR     compare strata merge's result with PEFT's

Of each tensor that the adapter changes the first rows are kept (MAX_VALUES values). Needs tools/requirements/golden.txt.
"""
import json
import os
import sys
import tempfile

import torch
from peft import PeftModel
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
GOLDEN = os.path.join(ROOT, "tests/golden")
MAX_VALUES = 512
# Models whose embedding and head are apart: of tied ones PEFT adds both changes to one tensor.
PAIRS = [("llama2", "a"), ("llama_bias_f16", "b"), ("mistral_nemo", "a"), ("qwen2", "a"), ("qwen3", "b"),
         ("qwen3_untied_shards", "a"), ("qwen3_moe", "b"), ("qwen3_moe_fused", "a"), ("qwen3_5_moe", "b"),
         ("deepseek_mla", "b"), ("deepseek_moe_all", "a"), ("gemma3", "b")]


def read_tensors(model_dir):
    tensors = {}
    for name in sorted(os.listdir(model_dir)):
        if name.endswith(".safetensors"):
            with safe_open(os.path.join(model_dir, name), framework="pt") as f:
                for key in f.keys():
                    tensors[key] = f.get_tensor(key)
    return tensors


def merge(model_dir, adapter_dir):
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    merged = PeftModel.from_pretrained(model, adapter_dir).merge_and_unload()
    with tempfile.TemporaryDirectory() as out:
        merged.save_pretrained(out)
        return read_tensors(out)


def compare(merged, ours):
    """The largest difference of any tensor, as part of its largest value."""
    worst = (0.0, "")
    for name, want in merged.items():
        got = ours.get(name)
        if got is None:
            sys.exit(f"{name} is missing")
        difference = (got.float() - want.float()).abs().max().item() / max(want.abs().max().item(), 1e-30)
        worst = max(worst, (difference, name))
    return worst


def write_all():
    out = os.path.join(GOLDEN, "merged")
    os.makedirs(out, exist_ok=True)
    rows = []
    for golden, adapter in PAIRS:
        model_dir, adapter_dir = (os.path.join(GOLDEN, golden, part) for part in ("model", adapter))
        base, changed = read_tensors(model_dir), {}
        for name, tensor in merge(model_dir, adapter_dir).items():
            if name in base and not torch.equal(base[name].float(), tensor.float()):
                changed[name] = tensor.float().flatten()[:MAX_VALUES].clone()
        if not changed:
            sys.exit(f"{golden}/{adapter}: nothing changed, or names differ")
        save_file(changed, os.path.join(out, f"{golden}_{adapter}.safetensors"))
        rows.append({"golden": golden, "adapter": adapter, "tensors": len(changed)})
        print(golden, adapter, len(changed))
    with open(os.path.join(out, "merged.json"), "w") as f:
        json.dump(rows, f, indent=1)


def main():
    if len(sys.argv) == 4:
        print("{:.3g} of the largest value, {}".format(*compare(merge(*sys.argv[1:3]), read_tensors(sys.argv[3]))))
    else:
        write_all()


if __name__ == "__main__":
    main()
