#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What bitsandbytes makes of a golden's projections in nf4: tests/golden/nf4.safetensors.

usage: python tools/golden/make_nf4.py                      needs tools/requirements/golden.txt and bitsandbytes==0.50.2
       python tools/golden/make_nf4.py MODEL NF4_DIR        load what strata convert --type nf4 wrote in transformers, and
                                                            compare its weights with bitsandbytes' own of MODEL
"""
import os
import sys

import torch
from bitsandbytes.functional import dequantize_4bit, quantize_4bit
from safetensors import safe_open
from safetensors.torch import save_file

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
GOLDEN = os.path.join(ROOT, "tests/golden")


def projections(model_dir):
    with safe_open(os.path.join(model_dir, "model.safetensors"), framework="pt") as f:
        return {k: f.get_tensor(k) for k in f.keys() if k.endswith("_proj.weight")}


def write():
    out = {}
    for name, weight in projections(os.path.join(GOLDEN, "qwen3_bf16/model")).items():
        codes, state = quantize_4bit(weight, blocksize=64, quant_type="nf4")
        out[name] = codes
        out |= {f"{name}.{key}": value for key, value in state.as_dict(packed=True).items()}
    save_file(out, os.path.join(GOLDEN, "nf4.safetensors"))
    print(len(out), "tensors")


def compare(model_dir, nf4_dir):
    from transformers import AutoModelForCausalLM
    model = AutoModelForCausalLM.from_pretrained(nf4_dir, dtype=torch.bfloat16)
    modules, count = dict(model.named_modules()), 0
    for name, weight in projections(model_dir).items():
        got = modules[name.removesuffix(".weight")].weight
        want = dequantize_4bit(*quantize_4bit(weight, blocksize=64, quant_type="nf4"))
        assert torch.equal(dequantize_4bit(got.data, got.quant_state), want), name
        count += 1
    logits = model(torch.arange(3, 20)[None]).logits
    print(f"{count} weights equal in transformers; logits finite: {bool(logits.isfinite().all())}")


if __name__ == "__main__":
    compare(*sys.argv[1:]) if len(sys.argv) == 3 else write()
