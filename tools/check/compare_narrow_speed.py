#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tokens a second of `strata bench` on weights in few bits, next to other programs on the same files and threads, in turn, in one run.

usage: python tools/check/compare_narrow_speed.py --strata BIN [--threads 2] [--pairs 5] nf4 NF4_DIR
       python tools/check/compare_narrow_speed.py --strata BIN [--threads 2] [--pairs 5] gguf --server LLAMA_SERVER FILE.gguf ...

nf4    bitsandbytes and PEFT (tools/requirements/golden.txt) on a directory that `strata convert --type nf4` wrote: forward and
       backward of 2,048 tokens, an adapter of rank 32 on every projection, nothing recomputed (train_s2048_remat --recompute none)
gguf   llama.cpp's llama-server, one process a file: prefill512 is its own time of a prompt of 512 tokens, decode1 its own of 32
       tokens behind a prompt of 128; decode8 comes from the median time between two tokens of eight such streams at once
Prints every pair, and medians with their ratio; a pair is one timed run of each. One that is not timed comes first.
"""
import argparse
import http.client
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time

os.environ.setdefault("HF_HUB_OFFLINE", "1")

TRAIN_TOKENS, PROMPT, STEPS, STREAMS, RANK = 2048, 128, 32, 8, 32


def strata_rate(args, model, work, *options):
    command = [args.strata, "bench", work, "--model", model, "--threads", str(args.threads), "--repeat", "1", "--json", *options]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: {done.stderr}")
    return json.loads(done.stdout)["tokens_per_s"]


def compare(args, name, ours, theirs):
    theirs()
    pairs = []
    for _ in range(args.pairs):
        pairs.append((ours(), theirs()))
        print(f"  {name}: {pairs[-1][0]:.2f}, {pairs[-1][1]:.2f}", flush=True)
    mine, other = (statistics.median(values) for values in zip(*pairs))
    ratios = [a / b for a, b in pairs]
    print(f"{name}: strata {mine:.2f} tokens/s, theirs {other:.2f}: {statistics.median(ratios):.2f} times "
          f"({min(ratios):.2f} to {max(ratios):.2f})", flush=True)


def bitsandbytes_step(args):
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM
    torch.manual_seed(1)
    torch.set_num_threads(args.threads)
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.bfloat16)
    config = LoraConfig(r=RANK, lora_alpha=RANK, target_modules="all-linear", task_type="CAUSAL_LM")
    model = get_peft_model(model, config).train()
    vocabulary = model.config.get_text_config().vocab_size

    def step():
        ids = torch.randint(0, vocabulary, (1, TRAIN_TOKENS))
        start = time.perf_counter()
        model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
        rate = TRAIN_TOKENS / (time.perf_counter() - start)
        model.zero_grad(set_to_none=True)
        return rate

    return step


class LlamaServer:
    def __init__(self, args, model):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.source = random.Random(1)
        threads = str(args.threads)
        self.process = subprocess.Popen(
            [args.server, "-m", model, "-t", threads, "-tb", threads, "-c", str(STREAMS * 1024), "-np", str(STREAMS), "--host",
             "127.0.0.1", "--port", str(self.port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(600):
            try:
                if self.ask("GET", "/health", None).status == 200:
                    return
            except OSError:
                pass
            if self.process.poll() is not None:
                sys.exit(f"{args.server} -m {model}: ended with {self.process.returncode}")
            time.sleep(0.2)
        sys.exit(f"{args.server} -m {model}: does not answer")

    def ask(self, method, path, body):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        connection.request(method, path, body and json.dumps(body), {"Content-Type": "application/json"})
        return connection.getresponse()

    def complete(self, prompt, tokens, stream=False):
        body = {"prompt": [self.source.randrange(300, 150000) for _ in range(prompt)], "n_predict": tokens, "temperature": 0,
                "cache_prompt": False, "ignore_eos": True, "stream": stream}
        answer = self.ask("POST", "/completion", body)
        if answer.status != 200:
            sys.exit(f"llama-server: {answer.status} {answer.read()[:400]!r}")
        return answer

    def prefill(self):
        return json.loads(self.complete(512, 1).read())["timings"]["prompt_per_second"]

    def decode1(self):
        return json.loads(self.complete(PROMPT, STEPS).read())["timings"]["predicted_per_second"]

    def decode8(self):
        arrivals = [[] for _ in range(STREAMS)]

        def run(times):
            for line in self.complete(PROMPT, 2 * STEPS, stream=True):
                if line.startswith(b"data: "):
                    times.append(time.perf_counter())

        threads = [threading.Thread(target=run, args=(times,)) for times in arrivals]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        first, last = max(times[0] for times in arrivals), min(times[-1] for times in arrivals)
        gaps = [b - a for times in arrivals for a, b in zip(times, times[1:]) if first <= a and b <= last]
        if not gaps:
            sys.exit("llama-server: the streams never ran together")
        return STREAMS / statistics.median(gaps)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--strata", required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--pairs", type=int, default=5)
    kinds = parser.add_subparsers(dest="kind", required=True)
    kinds.add_parser("nf4").add_argument("model")
    gguf = kinds.add_parser("gguf")
    gguf.add_argument("--server", required=True)
    gguf.add_argument("models", nargs="+")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # which ends the server too
    if args.kind == "nf4":
        step = bitsandbytes_step(args)
        return compare(args, "train", lambda: strata_rate(args, args.model, "train_s2048_remat", "--recompute", "none"), step)
    for model in args.models:
        server = LlamaServer(args, model)
        try:
            for work, theirs in [("decode1", server.decode1), ("decode8", server.decode8), ("prefill512", server.prefill)]:
                compare(args, f"{os.path.basename(model)} {work}", lambda w=work: strata_rate(args, model, w), theirs)
        finally:
            server.process.terminate()
            server.process.wait()


if __name__ == "__main__":
    main()
