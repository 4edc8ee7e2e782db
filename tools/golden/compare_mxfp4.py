#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Loads what strata convert --type mxfp4 wrote of a gpt-oss in transformers, and compares its experts with gguf-py's MXFP4
of the model that it was made of.

usage: python tools/golden/compare_mxfp4.py MODEL MXFP4_DIR        needs tools/requirements/golden.txt
"""
import sys

import gguf
import torch
from transformers import AutoModelForCausalLM, Mxfp4Config

KIND = gguf.GGMLQuantizationType.MXFP4


def load(folder, **options):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, device_map="cpu", **options)


def main(model_dir, mxfp4_dir):
    plain = load(model_dir).state_dict()
    packed = load(mxfp4_dir, quantization_config=Mxfp4Config(dequantize=True))
    count = 0
    for name, got in packed.state_dict().items():
        want = plain[name]
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            rows = want.transpose(1, 2).float().numpy()  # blocks run along the inputs
            rounded = gguf.quants.dequantize(gguf.quants.quantize(rows, KIND), KIND)
            want = torch.from_numpy(rounded.reshape(rows.shape)).transpose(1, 2).to(got.dtype)
            count += 1
        assert torch.equal(got, want), name
    logits = packed(torch.arange(3, 20)[None]).logits
    print(f"{count} tensors in 4 bits equal in transformers; logits finite: {bool(logits.isfinite().all())}")


if __name__ == "__main__":
    main(*sys.argv[1:])
