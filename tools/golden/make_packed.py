#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Weights in bitsandbytes' 4 bits and in FP8, and what bitsandbytes and transformers make of them on the CPU:
tests/checkpoint/data/packed (model.safetensors, want.safetensors) and packed_blocks (the same of other blocks); and
weights in full types with the nf4 that bitsandbytes makes of them: full.

usage: python tools/golden/make_packed.py                         needs tools/requirements/golden.txt
"""
import json
import os

import torch
from bitsandbytes.functional import dequantize_4bit, quantize_4bit
from safetensors.torch import save_file
from transformers.integrations.finegrained_fp8 import Fp8Dequantize

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
DATA = os.path.join(ROOT, "tests/checkpoint/data")
# rows, columns, block size, type of values
BNB4 = [(48, 128, 64, torch.bfloat16), (24, 192, 128, torch.float32), (20, 200, 64, torch.bfloat16),
        (16, 72, 64, torch.float16), (16, 320, 64, torch.float16), (3, 352, 256, torch.bfloat16)]
# rows, columns, rows and columns of the grid of scales, their type
FP8 = [(256, 384, 2, 3, torch.float32), (128, 256, 1, 2, torch.bfloat16), (40, 96, 40, 1, torch.float32),
       (24, 160, 1, 1, torch.float32)]
# rows, columns, type of values
FULL = [(12, 128, torch.bfloat16), (6, 192, torch.float32), (5, 64, torch.float32), (4, 320, torch.float16),
        (6, 200, torch.bfloat16), (3, 72, torch.float32), (1, 40, torch.bfloat16)]
OTHER_BLOCKS = [(128, 96, 2, 3, torch.float32), (64, 64, 1, 2, torch.float32)]  # of 64 x 32


def bnb4(weights, want):
    for i, (rows, cols, block, dtype) in enumerate(BNB4):
        for kind in ("nf4", "fp4"):
            for nested in (False, True):
                name = f"bnb.{i}.{kind}{'.nested' if nested else ''}.weight"
                weight = torch.randn(rows, cols).to(dtype) * 0.05
                codes, state = quantize_4bit(weight, blocksize=block, quant_type=kind, compress_statistics=nested)
                weights[name] = codes
                weights |= {f"{name}.{k}": v for k, v in state.as_dict(packed=True).items()}
                state.shape = torch.Size([1, rows * cols])  # its CPU kernel misreads blocks that rows do not divide into
                want[name] = dequantize_4bit(codes, state).reshape(rows, cols)


def fp8(rows_of, weights, want):
    for i, (rows, cols, grid_rows, grid_cols, dtype) in enumerate(rows_of):
        name = f"fp8.{i}.weight"
        weights[name] = (torch.randn(rows, cols) * 60).clamp(-448, 448).to(torch.float8_e4m3fn)
        scale = (torch.rand(grid_rows, grid_cols) * 1e-3 + 1e-4).to(dtype)
        want[name] = Fp8Dequantize(None)._dequantize_one(weights[name], scale, torch.float32)
        weights[f"{name}_scale_inv" if grid_cols > 1 else f"{name}_scale"] = scale if scale.numel() > 1 else scale[0, 0]


def full(weights, want):
    for i, (rows, cols, dtype) in enumerate(FULL):
        name = f"full.{i}.weight"
        weights[name] = weight = (torch.randn(rows, cols) * 0.05).to(dtype)
        weight[0, :40] = 0  # a block of zeroes, or the beginning of one
        if i == 0:
            weight[1, :64] = 0
        codes, state = quantize_4bit(weight, blocksize=64, quant_type="nf4")
        state.shape = torch.Size([1, rows * cols])  # as above
        want[name] = dequantize_4bit(codes, state).reshape(rows, cols)
        want[f"{name}.absmax"] = state.absmax
        pairs = codes.flatten()
        want[f"{name}.codes"] = torch.stack([pairs >> 4, pairs & 15], 1).flatten()[:rows * cols].float()


def save(folder, weights, want, config):
    out = os.path.join(DATA, folder)
    os.makedirs(out, exist_ok=True)
    save_file(weights, os.path.join(out, "model.safetensors"))
    save_file(want, os.path.join(out, "want.safetensors"))
    with open(os.path.join(out, "config.json"), "w") as f:
        f.write(json.dumps(config) + "\n")
    print(folder, len(want), "weights")


def main():
    torch.manual_seed(0)
    weights, want = {}, {}
    bnb4(weights, want)
    fp8(FP8, weights, want)
    save("packed", weights, want, {})
    weights, want = {}, {}
    fp8(OTHER_BLOCKS, weights, want)
    save("packed_blocks", weights, want, {"quantization_config": {"quant_method": "fp8", "weight_block_size": [64, 32]}})
    weights, want = {}, {}
    full(weights, want)
    save("full", weights, want, {})


if __name__ == "__main__":
    main()
