#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Weights in NVFP4 and FP8 as compressed-tensors writes them, with what it makes of them on the CPU, and the same bytes
in ModelOpt's form, whose values follow its formula: tests/checkpoint/data/nvfp4 (model.safetensors, want.safetensors).

usage: python tools/golden/make_nvfp4.py       needs tools/requirements/golden.txt and nvfp4.txt
"""
import os

import torch
from compressed_tensors.compressors import BaseCompressor, unpack_fp4_from_uint8
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.lifecycle.forward import dequantize
from safetensors.torch import save_file

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
DATA = os.path.join(ROOT, "tests/checkpoint/data/nvfp4")
# rows, columns
SHAPES = [(48, 128), (20, 96), (6, 544), (5, 48), (3, 16)] + [(2, 32)] * 40
FP8 = [(24, 160, "channel", torch.bfloat16), (16, 96, "tensor", torch.bfloat16), (8, 64, "channel", torch.float32)]


def nvfp4(i, rows, cols, weights, want):
    """One matrix in compressed-tensors' form, and one in ModelOpt's with the inverse scale of the tensor."""
    args = QuantizationArgs(num_bits=4, type="float", strategy="tensor_group", group_size=16)
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    compressor = BaseCompressor.get_value_from_registry("nvfp4-pack-quantized")
    weight = torch.randn(rows, cols) * 0.05 * (1 + i)
    weight[0, :16] = 0  # a group of zeroes
    global_scale = (448 * 6 / weight.abs().max()).reshape(1)
    largest = weight.reshape(rows, -1, 16).abs().amax(-1)
    scale = (largest / 6 * global_scale).to(torch.float8_e4m3fn)
    packed = compressor.compress({"weight": weight, "weight_scale": scale.float(), "weight_global_scale": global_scale},
                                 scheme)
    name = f"ct.{i}"
    weights |= {f"{name}.{key}": value for key, value in packed.items()}
    weights[f"{name}.input_global_scale"] = torch.ones(1)
    codes = unpack_fp4_from_uint8(packed["weight_packed"], rows, cols, dtype=torch.float32)
    want[f"{name}.weight"] = dequantize(codes, packed["weight_scale"].float(), args=args, global_scale=global_scale,
                                        dtype=torch.float32)
    theirs = compressor.decompress(packed, scheme)["weight"]
    assert theirs.dtype == torch.bfloat16 and torch.equal(theirs, want[f"{name}.weight"].bfloat16())
    name = f"opt.{i}"
    factor = (weight.abs().max() / (448 * 6)).float()
    weights |= {f"{name}.weight": packed["weight_packed"].clone(), f"{name}.weight_scale": packed["weight_scale"].clone(),
                f"{name}.weight_scale_2": factor if i % 2 else factor.reshape(1), f"{name}.input_scale": torch.tensor(1.0)}
    scales = packed["weight_scale"].float() * factor
    want[f"{name}.weight"] = codes * scales.repeat_interleave(16, 1)


def fp8(i, rows, cols, strategy, dtype, weights, want):
    args = QuantizationArgs(num_bits=8, type="float", strategy=strategy)
    compressor = BaseCompressor.get_value_from_registry("float-quantized")
    name = f"fp8.{i}"
    weight = (torch.randn(rows, cols) * 60).clamp(-448, 448).to(torch.float8_e4m3fn)
    scale = (torch.rand(rows if strategy == "channel" else 1, 1) * 1e-3 + 1e-4).to(dtype)
    scale = scale if strategy == "channel" else scale[0]
    weights |= {f"{name}.weight": weight, f"{name}.weight_scale": scale, f"{name}.k_scale": torch.tensor(0.5)}
    want[f"{name}.weight"] = weight.float() * scale.float()
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    theirs = compressor.decompress({"weight": weight, "weight_scale": scale}, scheme)["weight"]
    assert torch.equal(theirs.bfloat16(), want[f"{name}.weight"].bfloat16())


def main():
    torch.manual_seed(0)
    weights, want = {}, {}
    for i, (rows, cols) in enumerate(SHAPES):
        nvfp4(i, rows, cols, weights, want)
    for i, row in enumerate(FP8):
        fp8(i, *row, weights, want)
    os.makedirs(DATA, exist_ok=True)
    save_file({k: v.contiguous() for k, v in weights.items()}, os.path.join(DATA, "model.safetensors"))
    save_file(want, os.path.join(DATA, "want.safetensors"))
    print(len(want), "weights")


if __name__ == "__main__":
    main()
