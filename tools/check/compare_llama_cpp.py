#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Holds the GGUF files that strata writes against llama.cpp: base, merged and adapter files of the goldens' models.

usage: python tools/check/compare_llama_cpp.py STRATA          needs tools/requirements/llama_cpp.txt, which builds llama.cpp

Of each model F16 and BF16 files are written. llama.cpp chooses 64 tokens by greed; strata's logits (f32) of the same
tokens, from the same file, must differ by at most twice what llama.cpp's own F16 and BF16 files differ by, and must
choose the same tokens wherever the best two are further apart than that. Experts apart (CHOICES).
"""
import json
import os
import subprocess
import sys
import tempfile

import llama_cpp
import numpy as np
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
GOLDEN = os.path.join(ROOT, "tests/golden")
# golden, config that GGUF can say (tools/golden/make_gguf.py), adapter
MODELS = [("llama2", None, "a"), ("llama31", None, "b"), ("qwen2", None, "b"), ("qwen3", None, "a"), ("qwen3_moe", None, "b"),
          ("gemma3", "gemma3.json", "b")]
# Of goldens that llama.cpp cannot run (a layer without experts), random weights of another config.
ALTERED = {"qwen3_moe": {"mlp_only_layers": [], "initializer_range": 0.25}}
NUM_TOKENS = 64
# Where a router chooses between two experts that are about equal, one of two right answers differs as a whole: the part
# of positions at which that may be.
CHOICES = {"qwen3_moe": 0.05}


def logits_in(path):
    """The logits of a probe's file, which are F32."""
    with open(path, "rb") as f:
        header = json.loads(f.read(int.from_bytes(f.read(8), "little")))
        begin = f.tell()
        name = next(name for name in header if "logits" in name)
        f.seek(begin + header[name]["data_offsets"][0])
        shape = header[name]["shape"]
        return np.frombuffer(f.read(4 * int(np.prod(shape))), dtype="<f4").reshape(shape)


def run(*arguments):
    done = subprocess.run(arguments, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(arguments)}\n{done.stdout}{done.stderr}")


def greedy(path, prompt, lora=None):
    """The tokens that llama.cpp chooses, and its logits [prompt + chosen - 1, V]."""
    llama = llama_cpp.Llama(path, n_ctx=128, logits_all=True, verbose=False, n_threads=2, lora_path=lora)
    tokens, rows = list(prompt), []
    llama.eval(tokens)
    for _ in range(NUM_TOKENS):
        chosen = int(np.argmax(llama.scores[llama.n_tokens - 1]))
        tokens.append(chosen)
        llama.eval([chosen])
    rows = np.array(llama.scores[:len(tokens) - 1])
    return tokens, rows


def forced(path, tokens):
    """llama.cpp's logits of given tokens."""
    llama = llama_cpp.Llama(path[0], n_ctx=128, logits_all=True, verbose=False, n_threads=2, lora_path=path[1])
    llama.eval(tokens[:-1])
    return np.array(llama.scores[:len(tokens) - 1])


def ours(strata, folder, model, tokens, adapter=None):
    request = {"sequences": [{"tokens": tokens[:-1]}], "want": ["logits"]}
    if adapter:
        request["sequences"][0]["adapter"] = 1
    with open(os.path.join(folder, "r.json"), "w") as f:
        json.dump(request, f)
    out = os.path.join(folder, "o.safetensors")
    run(strata, "probe", "--model", model, *(["--adapter", adapter] if adapter else []), "--dtype", "f32", "--request",
        f.name, "--out", out)
    return logits_in(out)


def model_of(strata, golden, config, folder):
    source = os.path.join(GOLDEN, golden, "model")
    if golden in ALTERED:
        with open(os.path.join(source, "config.json")) as f:
            changed = json.load(f) | ALTERED[golden]
        with open(os.path.join(folder, "config.json"), "w") as f:
            json.dump(changed, f)
        run(strata, "init", "--config", f.name, "--dtype", "f32", "--seed", "1", "--out", os.path.join(folder, "model"))
        return os.path.join(folder, "model")
    if config is None:
        return source
    model = os.path.join(folder, "model")
    os.makedirs(model)
    for name in os.listdir(source):
        os.symlink(os.path.join(source, name), os.path.join(model, name))
    os.remove(os.path.join(model, "config.json"))
    os.symlink(os.path.join(GOLDEN, "gguf", config), os.path.join(model, "config.json"))
    return model


def check(strata, golden, config, adapter):
    faults = 0
    with tempfile.TemporaryDirectory() as folder:
        model, adapter = model_of(strata, golden, config, folder), os.path.join(GOLDEN, golden, adapter)
        files = {}
        for kind in ("f16", "bf16"):
            for name, more in (("base", []), ("merged", ["--adapter", adapter])):
                path = os.path.join(folder, f"{name}.{kind}.gguf")
                run(strata, "convert", "--model", model, *more, "--to", "gguf", "--type", kind, "--out", path)
                files[name, kind] = (path, None)
        lora = os.path.join(folder, "lora.gguf")
        run(strata, "convert", "--model", model, "--adapter", adapter, "--to", "gguf-lora", "--out", lora)
        for kind in ("f16", "bf16"):
            files["adapter", kind] = (files["base", kind][0], lora)
        prompt = [3, 17, 29, 5, 41, 11, 8, 60]
        for name in ("base", "merged", "adapter"):
            tokens, theirs = greedy(*files[name, "f16"][:1], prompt, files[name, "f16"][1])
            other = forced(files[name, "bf16"], tokens)
            allowed = 2 * np.abs(theirs - other).max()
            for kind, logits in (("f16", theirs), ("bf16", other)):
                own = ours(strata, folder, files[name, kind][0], tokens, adapter if name == "adapter" else None)
                differences = np.abs(own - logits).max(axis=1)
                over = differences > allowed
                best = np.sort(own, axis=1)
                clear = (best[:, -1] - best[:, -2] > allowed) & ~over
                same = own.argmax(1) == logits.argmax(1)
                chosen = slice(len(prompt) - 1, None)
                fine = over.mean() <= CHOICES.get(golden, 0) and same[clear].all()
                faults += not fine
                print(f"{golden:10} {name:8} {kind:4} largest difference {differences.max():.2e}, median "
                      f"{np.median(differences):.2e}, allowed {allowed:.2e}, {over.sum()} of {len(over)} over it; "
                      f"{same[chosen].sum()} of {NUM_TOKENS} tokens equal, {clear[chosen].sum()} clear"
                      f"{'' if fine else '  FAILED'}", flush=True)
    return faults


def main():
    faults = sum(check(os.path.abspath(sys.argv[1]), *row) for row in MODELS)
    print(f"llama.cpp by llama-cpp-python {llama_cpp.__version__}: " + ("passed" if faults == 0 else f"{faults} faults"))
    return faults != 0


if __name__ == "__main__":
    sys.exit(main())
