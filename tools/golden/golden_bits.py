#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the bits of goldens with those that are committed, on every CPU path that this machine has.

usage: python3 tools/golden/golden_bits.py PROGRAM [--write] [--only NAME]

One golden of each kind of block, in f32 and in bf16: losses, logprobs, hidden states and gradients of its request, and
ten optimizer steps where the golden has them. tests/golden/bits.json holds the SHA-256 of the tensors that `strata probe`
writes (names, types, shapes and bytes) for a Release build by gcc on Debian 12, by golden, type and path; a path has one
value whatever the processor, and `amx` one whatever its engine. Without --write a differing value is a fault; with it,
values of paths that this machine has are replaced. Paths that it lacks are named.
"""
import argparse
import hashlib
import json
import os
import pathlib
import platform
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden"
BITS = GOLDEN / "bits.json"
# GQA and gated MLP, sliding windows, post-norms, experts, latent attention, the delta rule, DeepSeek-V4's blocks, sinks, capped
# scores, the gated short convolution, values that are keys, experts next to an MLP, values that layers share.
NAMES = ["qwen3/main", "qwen3/train_adapters", "qwen3/train_params", "mistral_window/main", "gemma3/train_adapters",
         "qwen3_moe/main", "qwen3_moe/train_adapters", "deepseek_mla/main", "deepseek_mla/train_adapters",
         "deepseek_moe/main", "qwen3_5/main", "qwen3_5/train_adapters", "deepseek_v4/main", "deepseek_v4/train_adapters",
         "deepseek_v4_indexer/main", "gpt_oss/main", "gpt_oss/train_params", "gemma2/main",
         "gemma2/train_adapters", "lfm2/main", "lfm2/train_params", "gemma4/main", "gemma4/train_params",
         "gemma4_moe/train_adapters", "gemma4_shared/train_adapters", "gemma4_shared_small/train_params"]
LIBC = ("glibc", "2.36")  # of Debian 12
PATHS = ["amx:tiles", "amx:avx512", "amx:avx2", "avx512_bf16", "avx512", "avx2", "reference"]


def hash_of_tensors(path):
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + size])
    digest = hashlib.sha256()
    for name in sorted(header):
        if name == "__metadata__":
            continue
        tensor = header[name]
        begin, end = tensor["data_offsets"]
        digest.update(f"{name} {tensor['dtype']} {tensor['shape']}\n".encode())
        digest.update(data[8 + size + begin:8 + size + end])
    return digest.hexdigest()


def probe(program, row, dtype, path, out):
    command = [program, "probe", str(GOLDEN / row["model"]), "--request", str(GOLDEN / row["request"]), "--out", str(out),
               "--dtype", dtype]
    for adapter in row["adapters"]:
        command += ["--adapter", str(GOLDEN / adapter)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "STRATA_CPU_PATH": path})
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: {done.stderr}")
    return hash_of_tensors(out)


def has_path(program, path):
    done = subprocess.run([program, "--version"], capture_output=True, text=True,
                          env={**os.environ, "STRATA_CPU_PATH": path})
    return done.returncode == 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    rows = {row["name"]: row for row in json.loads((GOLDEN / "goldens.json").read_text())}
    bits = json.loads(BITS.read_text()) if BITS.exists() else {}
    paths = [path for path in PATHS if has_path(args.program, path)]
    compared = faults = others = 0
    written = set()
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "out.safetensors"
        for name in NAMES:
            if args.only not in name:
                continue
            for dtype in ["f32", "bf16"]:
                for path in paths:
                    key = f"{name} {dtype} {path.partition(':')[0]}"
                    got = probe(args.program, rows[name], dtype, path, out)
                    if args.write and key not in written:
                        bits[key] = got
                        written.add(key)
                    compared += 1
                    if bits.get(key) == got:
                        continue
                    if path == "reference" and platform.libc_ver() != LIBC:
                        others += 1
                        continue
                    faults += 1
                    print(f"golden_bits: {key} ({path}): got {got}, committed {bits.get(key)}")
    if args.write:
        BITS.write_text(json.dumps(bits, indent=1, sort_keys=True) + "\n")
    lacks = [path for path in PATHS if path not in paths]
    if others:
        print(f"golden_bits: {others} of the reference path differ, whose tanh is the C library's: {LIBC[1]} when committed, here "
              f"{platform.libc_ver()[1]}")
    print(f"golden_bits: {compared - faults - others} of {compared} equal" + (f"; not here: {', '.join(lacks)}" if lacks else ""))
    sys.exit(1 if faults or compared == 0 else 0)


if __name__ == "__main__":
    main()
