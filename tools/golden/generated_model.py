# SPDX-License-Identifier: Apache-2.0
"""A checkpoint and adapters whose numbers follow from a seed, so that a reference need not carry them.

A case is JSON: "seed"; "config", the whole config.json; "files", {file name: [[tensor, dtype, shape, mean, spread], ...]};
"adapters", [{"config": ..., "tensors": [...]}]. mean and spread are in units of 1/1024. Element i of a tensor is
mean + spread * u, u in [-1, 1) made of the tensor's name, the seed and i; a spread of 0 and a dtype of I64 make a table
of different numbers below `mean` in each row; a mean of null repeats the values of the tensor that `spread` names.
tests/golden/generated_model.h makes the same bytes.
"""
import json
import os

import numpy as np
import torch
from safetensors.torch import save_file

DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64}
UNIT = 1024


def words(seed, name, count):
    """`count` uint64 words of splitmix64, from a hash (FNV-1a) of the name and the seed on."""
    state = 0xcbf29ce484222325 ^ seed
    for byte in name.encode():
        state = (state ^ byte) * 0x100000001b3 % 2 ** 64
    with np.errstate(over="ignore"):
        x = np.uint64(state) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9e3779b97f4a7c15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xbf58476d1ce4e5b9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94d049bb133111eb)
        return x ^ (x >> np.uint64(31))


def make_tensor(seed, row, rows):
    name, dtype, shape, mean, spread = row
    if mean is None:
        return make_tensor(seed, rows[spread], rows).to(DTYPES[dtype])
    count = int(np.prod(shape, dtype=np.int64))
    if dtype == "I64":
        starts = (words(seed, name, shape[0]) % np.uint64(mean)).astype(np.int64)
        return torch.tensor((starts[:, None] + np.arange(shape[1])) % mean)
    u = (words(seed, name, count) >> np.uint64(40)).astype(np.float64) * 2.0 ** -23 - 1.0
    values = (mean / UNIT + spread / UNIT * u).astype(np.float32)
    return torch.from_numpy(values.reshape(shape)).to(DTYPES[dtype])


def write_json(path, value):
    with open(path, "w", encoding="utf-8") as f:
        json.dump(value, f, indent=1)
        f.write("\n")


def write_case(case, folder):
    """Writes folder/model and folder/0, folder/1, ... Returns the model's path and the adapters' paths."""
    model = os.path.join(folder, "model")
    os.makedirs(model, exist_ok=True)
    write_json(os.path.join(model, "config.json"), case["config"])
    rows = {row[0]: row for tensors in case["files"].values() for row in tensors}
    for name, tensors in case["files"].items():
        save_file({row[0]: make_tensor(case["seed"], row, rows) for row in tensors}, os.path.join(model, name),
                  metadata={"format": "pt"})
    if len(case["files"]) > 1:
        weight_map = {row[0]: name for name, tensors in case["files"].items() for row in tensors}
        write_json(os.path.join(model, "model.safetensors.index.json"), {"metadata": {}, "weight_map": weight_map})
    adapters = []
    for index, adapter in enumerate(case.get("adapters", [])):
        adapters.append(os.path.join(folder, str(index)))
        os.makedirs(adapters[-1], exist_ok=True)
        write_json(os.path.join(adapters[-1], "adapter_config.json"), adapter["config"])
        save_file({row[0]: make_tensor(case["seed"] + 1 + index, row, {}) for row in adapter["tensors"]},
                  os.path.join(adapters[-1], "adapter_model.safetensors"), metadata={"format": "pt"})
    return model, adapters
