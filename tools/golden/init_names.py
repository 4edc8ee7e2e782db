#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The names, shapes and types of tensors that `strata init` writes are those that transformers saves.

usage: python tools/golden/init_names.py --write tests/golden/init_names.json
                                           what tests/golden/init_names_test.cc compares with: of a tiny config of every family
       python tools/golden/init_names.py --strata build/release/strata [NAME ...]
                                           runs `strata init` on these configs and the named ones (some take gigabytes; NAME
                                           chooses), has transformers load each file, and wants nothing missing or unexpected
Needs tools/requirements/golden.txt.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import warnings

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
warnings.filterwarnings("ignore")

import torch
from safetensors import safe_open

import make_golden

NAMED = ["qwen3-0.6b", "qwen3.5-0.8b", "deepseek-v4-tiny", "gpt-oss-tiny", "smollm2-135m", "llama-3.2-1b", "llama2-7b"]
# Golden cases whose configs differ in what tensors there are.
CASES = ["llama_bias_f16", "llama_tied_embed", "qwen3", "qwen2", "mistral_nemo", "ministral", "gemma3", "gemma3_vision",
         "qwen3_5", "qwen3_5_equal", "qwen3_5_vision", "qwen3_moe", "deepseek_mla", "deepseek_moe", "deepseek_moe_all",
         "deepseek_yarn", "glm4_moe_lite", "qwen3_5_moe", "qwen3_5_moe_hub", "deepseek_v4", "deepseek_v4_upstream",
         "deepseek_v4_odd", "deepseek_v4_no_layers", "granite", "granitemoe", "mixtral", "glm4_moe", "olmo2", "glm4", "phi3",
         "gpt_oss", "gemma2", "lfm2", "qwen3_next", "gemma4", "gemma4_whole", "gemma4_moe", "llama4"]
# Cases of which keys are changed.
CHANGED = {"deepseek_moe_no_shared": ("deepseek_moe", {"n_shared_experts": 0})}


def read_config(name):
    if name in CHANGED:
        base, keys = CHANGED[name]
        return {**read_config(base), **keys}
    with open(os.path.join(make_golden.ROOT, "tests", "golden", name, "model", "config.json"), encoding="utf-8") as f:
        return json.load(f)


def file_tensors(folder):
    """[[name, dtype, shape]] of a folder's only file."""
    with safe_open(os.path.join(folder, "model.safetensors"), "pt") as f:
        return sorted([key, f.get_slice(key).get_dtype(), f.get_slice(key).get_shape()] for key in f.keys())


def saved_tensors(config):
    """What transformers saves of a new model, of a multimodal one the text model; no type where it differs by tensor."""
    from transformers import AutoConfig, AutoModelForCausalLM
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as f:
            json.dump(config, f)
        text = AutoConfig.from_pretrained(folder).get_text_config()
        AutoModelForCausalLM.from_config(text).save_pretrained(folder)
        return [[name, shape] for name, _, shape in file_tensors(folder)]


def write(path):
    rows = []
    for name in [*CASES, *CHANGED]:
        rows.append({"name": name, "config": read_config(name), "tensors": saved_tensors(read_config(name))})
        print(f"{name}: {len(rows[-1]['tensors'])} tensors", flush=True)
    with open(path, "w", encoding="utf-8") as f:
        f.write("[\n" + ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows) + "\n]\n")


def init(strata, config, folder, *options):
    subprocess.run([strata, "init", "--config", config, "--out", folder, *options], check=True, capture_output=True)


def check(strata, name, *options):
    """One line; whether transformers takes each tensor and has no other."""
    from transformers import AutoModelForCausalLM
    with tempfile.TemporaryDirectory() as work:
        config, folder = os.path.join(work, "config.json"), os.path.join(work, "out")
        if name not in NAMED:
            with open(config, "w", encoding="utf-8") as f:
                json.dump(read_config(name), f)
        init(strata, name if name in NAMED else config, folder, *options)
        _, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
        faults = {kind: sorted(str(key) for key in info[kind]) for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")}
        if "--mtp" in options:
            faults["unexpected_keys"] = [key for key in faults["unexpected_keys"] if not key.startswith("mtp.")]
        count = sum(map(len, faults.values()))
        print(f"{'FAIL' if count else 'ok  '} {name} {' '.join(options)}: {len(file_tensors(folder))} tensors, "
              + ", ".join(f"{len(v)} {k.removesuffix('_keys')}" for k, v in faults.items())
              + (f": {[v[0] for v in faults.values() if v]}" if count else ""), flush=True)
        return count == 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--strata")
    parser.add_argument("--write")
    parser.add_argument("names", nargs="*", default=[])
    args = parser.parse_args()
    from transformers.utils import logging
    logging.set_verbosity_error()
    torch.set_num_threads(1)
    if args.write:
        return write(args.write)
    if not args.strata:
        parser.error("--strata or --write is required")
    right = True
    for name in args.names or [*NAMED, *CASES, *CHANGED]:
        right &= check(args.strata, name)
    if not args.names:
        right &= check(args.strata, "deepseek_v4_mtp", "--mtp")
    sys.exit(0 if right else 1)


if __name__ == "__main__":
    main()
