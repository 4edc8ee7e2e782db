# SPDX-License-Identifier: Apache-2.0
"""What a schema costs: eight answers at once with a JSON schema of 50 properties against eight without, in turn.

usage: python3 tests/e2e/schema_speed.py PROGRAM [--config NAME] [--tokens N] [--pairs N] [--threads N] [--keep DIR]

The model is a random one of a published shape (qwen3-0.6b), with a tokenizer of as many made-up texts as it has tokens.
It is served by `strata serve`; each pair is eight samples of --tokens (64) tokens, then the same with a schema that the
server has compiled. Prints each pair, and as the last line JSON: the median of the ratios of tokens a second, and the
seconds to the first token of a request with a new schema, and of one without. Needs Python alone.
"""
import argparse
import json
import pathlib
import random
import statistics
import subprocess
import tempfile
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import openai_serving

KINDS = [{"type": "string"}, {"type": "integer"}, {"type": "number"}, {"type": "boolean"}, {"enum": ["red", "green", "blue"]},
         {"type": "array", "items": {"type": "string"}}]


def schema(mark):
    """50 properties, none of which may be left out."""
    properties = {f"{mark}_property_{i}": KINDS[i % len(KINDS)] for i in range(50)}
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def byte_letters():
    """How byte-level tokenizers write each byte, in the order of the letters."""
    plain = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or 174 <= b <= 255]
    others = [b for b in range(256) if b not in plain]
    return [chr(b) for b in plain] + [chr(256 + i) for i in range(len(others))]


def write_tokenizer(path, vocab_size):
    """Bytes, then words of made-up letters, some behind a space, and one special token at the end."""
    draw = random.Random(0)
    tokens = dict.fromkeys(byte_letters())
    while len(tokens) < vocab_size - 1:
        word = "".join(draw.choice("etaoinshrdlucmfwypvbgkjqxz") for _ in range(draw.randint(2, 9)))
        tokens[("", "\u0120")[draw.random() < 0.5] + word] = None
    added = [{"id": vocab_size - 1, "content": "<|end|>", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
              "special": True}]
    path.write_text(json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "post_processor": None, "decoder": {"type": "ByteLevel"},
        "model": {"type": "BPE", "vocab": {token: i for i, token in enumerate(tokens)}, "merges": []}}))


def make_model(strata, config, folder):
    if not (folder / "config.json").exists():
        subprocess.run([strata, "init", "--config", config, "--out", folder], check=True)
    facts = json.loads((folder / "config.json").read_text())
    facts["eos_token_id"] = facts["vocab_size"] - 1
    (folder / "config.json").write_text(json.dumps(facts))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": facts["vocab_size"] - 1}))
    write_tokenizer(folder / "tokenizer.json", facts["vocab_size"])


def ask(url, tokens, seed, wanted=None):
    body = {"model": "m", "prompt": list(range(1000, 1064)), "max_tokens": tokens, "temperature": 1, "seed": seed}
    if wanted is not None:
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "n", "schema": wanted}}
    request = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode(), {
        "Content-Type": "application/json", "Authorization": f"Bearer {openai_serving.KEY}"})
    with urllib.request.urlopen(request, timeout=600) as answer:
        return json.loads(answer.read())["usage"]["completion_tokens"]


def timed(work):
    begin = time.monotonic()
    return work(), time.monotonic() - begin


def speed(url, tokens, seed, wanted=None):
    with ThreadPoolExecutor(8) as pool:
        counts, seconds = timed(lambda: list(pool.map(lambda i: ask(url, tokens, seed + i, wanted), range(8))))
    return sum(counts) / seconds


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--config", default="qwen3-0.6b")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--threads", default="0")
    parser.add_argument("--keep", type=pathlib.Path, help="the model's folder, for other runs")
    options = parser.parse_args()
    strata = str(pathlib.Path(options.program).resolve())
    with tempfile.TemporaryDirectory() as temporary:
        model = options.keep or pathlib.Path(temporary) / "model"
        make_model(strata, options.config, model)
        with openai_serving.serving(strata, pathlib.Path(temporary), "--model", f"m={model}", "--threads", options.threads) as (url, _):
            known = schema("a")
            speed(url, 8, 1000, known)
            ratios = []
            for pair in range(options.pairs):
                without, bound = speed(url, options.tokens, 8 * pair), speed(url, options.tokens, 8 * pair, known)
                ratios.append(bound / without)
                print(f"{without:.1f} tokens/s without, {bound:.1f} with: {ratios[-1]:.3f}", flush=True)
            news = [(timed(lambda: ask(url, 1, i))[1], timed(lambda: ask(url, 1, i, schema(f"n{i}")))[1]) for i in range(options.pairs)]
    print(json.dumps({"ratio": round(statistics.median(ratios), 3), "ratios": [round(r, 3) for r in ratios],
                      "first_token_s": round(statistics.median(n[0] for n in news), 3),
                      "first_token_new_schema_s": round(statistics.median(n[1] for n in news), 3)}))


if __name__ == "__main__":
    main()
