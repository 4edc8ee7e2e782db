#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tokens a second of `strata bench` beside transformers and PEFT on the same model and threads, in turn, in one run.

usage: python tools/check/compare_transformers_speed.py --strata BIN MODEL_DIR [--dtype bf16|f32] [--threads 2] [--rounds 3]
                                                                         [--only train|decode1|decode8]

MODEL_DIR: a Hugging Face directory; `strata init --config FOLDER --out MODEL_DIR` makes one with random weights.
train    forward and backward of 2,048 tokens, an adapter of rank 32 on every projection (gdn_train_s2048)
decode1  32 tokens behind a prompt of 128, greedy, with transformers' cache (gdn_decode1)
decode8  the same for eight sequences at once (gdn_decode8)
transformers runs its own Python path of torch, eagerly. Prints the medians and their ratio; a round is one timed run of
each after one that is not timed.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time

os.environ.setdefault("HF_HUB_OFFLINE", "1")

TRAIN_TOKENS, PROMPT, STEPS, RANK = 2048, 128, 32, 32


def strata_rate(args, work):
    command = [args.strata, "bench", work, "--model", args.model, "--dtype", args.dtype, "--threads", str(args.threads),
               "--repeat", "1", "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: {done.stderr}")
    return json.loads(done.stdout)["tokens_per_s"]


class Transformers:
    def __init__(self, args):
        import torch
        from transformers import AutoModelForCausalLM
        self.torch = torch
        torch.manual_seed(1)
        torch.set_num_threads(args.threads)
        dtype = {"bf16": torch.bfloat16, "f32": torch.float32}[args.dtype]
        self.load = lambda: AutoModelForCausalLM.from_pretrained(args.model, dtype=dtype)
        self.plain, self.wrapped = self.load().eval(), None

    def tokens(self, *shape):
        return self.torch.randint(0, self.plain.config.get_text_config().vocab_size, shape)

    def train(self):
        from peft import LoraConfig, get_peft_model
        if self.wrapped is None:
            self.wrapped = get_peft_model(self.load(), LoraConfig(r=RANK, lora_alpha=RANK, target_modules="all-linear",
                                                                  task_type="CAUSAL_LM")).train()
        ids = self.tokens(1, TRAIN_TOKENS)
        start = time.perf_counter()
        self.wrapped(input_ids=ids, labels=ids, use_cache=False).loss.backward()
        rate = TRAIN_TOKENS / (time.perf_counter() - start)
        self.wrapped.zero_grad(set_to_none=True)
        return rate

    def decode(self, batch):
        with self.torch.inference_mode():
            out = self.plain(input_ids=self.tokens(batch, PROMPT), use_cache=True)
            start = time.perf_counter()
            for _ in range(STEPS):
                ids = out.logits[:, -1:].argmax(-1)
                out = self.plain(input_ids=ids, past_key_values=out.past_key_values, use_cache=True)
            return batch * STEPS / (time.perf_counter() - start)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--strata", required=True)
    parser.add_argument("--dtype", default="bf16", choices=["bf16", "f32"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=["train", "decode1", "decode8"])
    args = parser.parse_args()
    peer = Transformers(args)
    works = {"train": ("gdn_train_s2048", peer.train), "decode1": ("gdn_decode1", lambda: peer.decode(1)),
             "decode8": ("gdn_decode8", lambda: peer.decode(8))}
    for name, (work, run) in works.items():
        if args.only not in (None, name):
            continue
        run()
        pairs = [(strata_rate(args, work), run()) for _ in range(args.rounds)]
        ours, theirs = (statistics.median(values) for values in zip(*pairs))
        single = ", ".join(f"{a / b:.1f}" for a, b in pairs)
        print(f"{name:8} strata {ours:8.1f} tokens/s, transformers {theirs:8.1f}: {ours / theirs:.1f} times ({single})", flush=True)


if __name__ == "__main__":
    main()
