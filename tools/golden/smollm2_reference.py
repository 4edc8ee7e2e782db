#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Check `strata probe` against transformers and PEFT on SmolLM2-135M-Instruct, a real model, in float32.

usage: python tools/golden/smollm2_reference.py write MODEL OUT     make requests and expected outputs (minutes)
       python tools/golden/smollm2_reference.py compare MODEL OUT --strata BIN [--threads N]

MODEL is the directory that tools/data/smollm2_to_hf.py writes. The text is Debian's package fortunes.
  logprobs  1,000 tokens of real text: within 5e-4 of transformers, token by token
  greedy    continuations of six beginnings: equal wherever the reference's margin is above 1e-3
  lora      12 AdamW steps of a fresh rank-8 PEFT adapter on all projections, no dropout: losses agree
            to 1e-4 relative in the first six steps
"""
import argparse
import json
import os
import re
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np

from compare_probe import read_safetensors

FORTUNES = "/usr/share/games/fortunes"
LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def real_texts(names):
    """The fortunes of some files, in order."""
    texts = []
    for name in names:
        path = os.path.join(FORTUNES, name)
        if not os.path.exists(path):
            sys.exit(f"smollm2_reference: {path} is missing (apt-get install fortunes)")
        with open(path, encoding="utf-8", errors="replace") as f:
            texts += [t.strip() for t in re.split(r"\n%\n", f.read()) if t.strip()]
    return texts


def logprob_request(tokenizer, texts):
    """Uneven sequences whose targets add up to 1,000 tokens."""
    sequences, left = [], 1000
    for length in [400, 1, 170, 37, 1000]:
        ids = []
        while len(ids) < length + 1 and texts:
            ids += tokenizer(texts.pop(0) + "\n\n").input_ids
        n = min(length, left)
        sequences.append({"tokens": ids[:n], "targets": ids[1:n + 1]})
        left -= n
    assert left == 0
    return {"sequences": sequences, "want": ["logprobs", "loss"]}


def greedy_request(tokenizer, texts):
    prompts = [tokenizer(t).input_ids[:n] for t, n in zip(texts, [5, 12, 30, 64])]
    for question in ["What is the capital of France?", "Name three colours of the rainbow."]:
        prompts.append(tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], add_generation_prompt=True, return_dict=False))
    sample = [{"tokens": p, "max_tokens": 32, "temperature": 0} for p in prompts]
    return {"sequences": [{"tokens": prompts[0]}], "want": [], "sample": sample}


def lora_request(tokenizer, texts):
    sequences = []
    for text in texts[:6]:
        ids = tokenizer(text).input_ids[:97]
        weight = float(np.float32(1 / 256))
        sequences.append({"tokens": ids[:-1], "targets": ids[1:], "adapter": 1,
                          "weights": [weight] * (len(ids) - 1)})
    return {"sequences": sequences, "want": ["loss", "adapter_grads"], "train": {
        "what": "adapters", "steps": 12, "lr": 0.002, "grad_clip_norm": 1.0}}


def make_fresh_adapter(model_dir, out):
    """PEFT's own initialisation, saved, so that both sides start from the same numbers."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", r=8, lora_alpha=16, lora_dropout=0.0,
                                     target_modules=LINEAR)).save_pretrained(out)
    os.remove(os.path.join(out, "README.md"))


def write(args):
    import torch
    from safetensors.numpy import save_file
    from transformers import AutoTokenizer

    import golden_reference as gr
    import golden_run
    torch.manual_seed(0)
    os.makedirs(args.out, exist_ok=True)
    adapter = os.path.join(args.out, "adapter")
    make_fresh_adapter(args.model, adapter)
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    texts = real_texts(["science", "literature", "wisdom"])
    requests = {"logprobs": (logprob_request(tokenizer, texts), []),
                "greedy": (greedy_request(tokenizer, texts), []),
                "lora": (lora_request(tokenizer, texts[10:]), [adapter])}
    for name, (request, adapters) in requests.items():
        margins = []
        values = golden_run.run_request(args.model, adapters, request, "f32", margins)
        stem = os.path.join(args.out, name)
        gr.save_json(stem + ".json", request)
        save_file({k: np.ascontiguousarray(v, np.float32) for k, v in values.items()}, stem + ".safetensors")
        gr.save_json(stem + ".margins.json", margins)
        print(f"{name}: {len(values)} tensors", flush=True)


def run(args, name, adapters):
    out = os.path.join(args.out, name + ".got.safetensors")
    command = [args.strata, "probe", "--model", args.model, "--request",
               os.path.join(args.out, name + ".json"), "--out", out]
    for adapter in adapters:
        command += ["--adapter", adapter]
    if args.threads:
        command += ["--threads", str(args.threads)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"FAIL {name}: exit {done.returncode}\n{done.stderr[-2000:]}")
    return read_safetensors(out), read_safetensors(os.path.join(args.out, name + ".safetensors"))


def compare_logprobs(args):
    got, want = run(args, "logprobs", [])
    worst = float(np.abs(got["logprobs"] - want["logprobs"]).max())
    print(f"logprobs: {got['logprobs'].size} tokens, largest difference {worst:.2e} (limit 5e-4)")
    return got["logprobs"].shape == want["logprobs"].shape and worst <= 5e-4


def compare_greedy(args):
    got, want = run(args, "greedy", [])
    with open(os.path.join(args.out, "greedy.margins.json"), encoding="utf-8") as f:
        margins = json.load(f)
    good, compared, at = True, 0, 0
    for i in range(len([k for k in want if k.endswith(".tokens")])):
        ours, theirs = got[f"sample.{i}.tokens"], want[f"sample.{i}.tokens"]
        for t in range(len(theirs)):
            if margins[at + t] <= 1e-3:
                print(f"greedy: continuation {i} compared up to {t}, margin {margins[at + t]:.1e}")
                break
            compared += 1
            if t >= len(ours) or ours[t] != theirs[t]:
                good = False
                print(f"greedy: continuation {i} differs at {t}, margin {margins[at + t]:.1e}")
                break
        at += len(theirs)
    print(f"greedy: {compared} of {at} tokens compared, {'equal' if good else 'DIFFERENT'}")
    return good


def compare_lora(args):
    got, want = run(args, "lora", [os.path.join(args.out, "adapter")])
    errors = np.abs(got["train.loss"] / want["train.loss"] - 1)
    print("lora: step, loss, reference, relative difference (limit 1e-4 in the first six)")
    for step, (a, b, e) in enumerate(zip(got["train.loss"], want["train.loss"], errors)):
        print(f"  {step + 1:2d} {a:.6f} {b:.6f} {e:.1e}")
    names = sorted(k for k in want if k.startswith("adapter_grad."))
    grads = max(np.linalg.norm(got[k] - want[k]) / max(np.linalg.norm(want[k]), 1e-30) for k in names)
    print(f"lora: largest relative L2 difference of {len(names)} gradients {grads:.1e}")
    fell = got["train.loss"][-1] < 0.9 * got["train.loss"][0]
    return bool((errors[:6] <= 1e-4).all() and fell)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=["write", "compare"])
    parser.add_argument("model")
    parser.add_argument("out")
    parser.add_argument("--strata")
    parser.add_argument("--threads", type=int)
    args = parser.parse_args()
    if args.what == "write":
        write(args)
        return
    if not args.strata:
        parser.error("compare needs --strata")
    good = [compare_logprobs(args), compare_greedy(args), compare_lora(args)]
    print("PASS" if all(good) else "FAIL")
    sys.exit(0 if all(good) else 1)


if __name__ == "__main__":
    main()
