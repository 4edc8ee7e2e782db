#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/data/text/: what Hugging Face `tokenizers`, transformers and jinja2 make of strings, conversations
and templates. Every expected value comes from them; nothing of ours runs here.

    pip install -r tools/requirements/text.txt
    python tools/data/make_test_tokenizers.py --download build/tokenizers
    python tools/golden/make_text_golden.py build/tokenizers
"""
import datetime
import json
import pathlib
import random
import struct
import sys
import unicodedata

import tokenizers
import transformers
import transformers.utils.chat_template_utils as chat_utils
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from jinja_snippets import VARIABLES, snippets  # noqa: E402
from text_conversations import conversation, thinking_conversation, turn_conversation  # noqa: E402
from text_features import TEXTS, features  # noqa: E402
from text_samples import family_samples, samples  # noqa: E402

ROOT = pathlib.Path(__file__).parent.parent.parent
OUT = ROOT / "tests/data/text"
TEMPLATES = [ROOT / "tests/data/third_party/templates", OUT / "templates"]
NAMES = ["llama3", "deepseek", "qwen3", "qwen2.5", "qwen3.5", "mistral", "mistral-metaspace", "mistral-v3", "tekken", "gemma3",
         "smollm2"]
NUM_SAMPLES, NUM_INVALID, NUM_FAMILY_SAMPLES = 5200, 300, 600
NUM_CONVERSATIONS, NUM_TURN_CONVERSATIONS, NUM_THINKING_CONVERSATIONS, SEED = 200, 300, 200, 20260101
NOW = "2026-01-31"
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


def fnv(data, value=0xCBF29CE484222325):
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return value


def ids_bytes(ids):
    return struct.pack(f"<{len(ids)}i", *ids)


def random_ids(index, size):
    """Twelve ids from a generator that the test writes down too."""
    state, out = index, []
    for _ in range(12):
        state = (state * 6364136223846793005 + 1442695040888963407) & 0xFFFFFFFFFFFFFFFF
        out.append((state >> 33) % size)
    return out


def invalid_bytes(rng):
    data = bytearray(rng.choice(samples(400, 3)).encode())
    for _ in range(rng.randrange(1, 6)):
        at = rng.randrange(len(data) + 1)
        bad = [b"\xff", b"\xc3", b"\xe2\x82", b"\xf0\x9f\x98", b"\xed\xa0\x80", b"\xc0\xaf", b"\xf4\x90\x80\x80", b"\x80"]
        data[at:at + rng.randrange(2)] = rng.choice([*bad, bytes([rng.randrange(256)])])
    return bytes(data)


def tokenizer_goldens(folder):
    rng = random.Random(SEED)
    texts = [s.encode() for s in samples(NUM_SAMPLES, SEED)] + [invalid_bytes(rng) for _ in range(NUM_INVALID)]
    texts += [s.encode() for s in family_samples(NUM_FAMILY_SAMPLES, SEED + 2)]
    with open(OUT / "samples.bin", "wb") as out:
        for text in texts:
            out.write(struct.pack("<I", len(text)) + text)
    strings = [text.decode(errors="replace") for text in texts]
    for name in NAMES:
        tokenizer = Tokenizer.from_file(str(folder / f"{name}.json"))
        size = max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1
        plain = tokenizer.encode_batch(strings, add_special_tokens=False)
        special = tokenizer.encode_batch(strings, add_special_tokens=True)
        with open(OUT / f"{name}.bin", "wb") as out:
            for i, (a, b) in enumerate(zip(plain, special)):
                encoded = fnv(ids_bytes(a.ids) + b"|" + ids_bytes(b.ids))
                cut = len(a.ids) // 2
                decoded = [tokenizer.decode(ids, skip_special_tokens=skip) for ids, skip in [
                    (b.ids, False), (b.ids, True), (a.ids[:cut], False), (a.ids[cut:], False),
                    (random_ids(i, size), False), (random_ids(i, size), True)]]
                out.write(struct.pack("<QQ", encoded, fnv("\0".join(decoded).encode())))


def decode_or_none(tokenizer, ids):
    """Strip panics in the library when a token is shorter than what it may take; then nothing is expected."""
    try:
        return tokenizer.decode(ids, skip_special_tokens=False)
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        return None


def feature_goldens():
    with open(OUT / "features.jsonl", "w") as out:
        for title, spec in features():
            tokenizer = Tokenizer.from_str(json.dumps(spec))
            ids = [tokenizer.encode(t, add_special_tokens=True).ids for t in TEXTS]
            decoded = [decode_or_none(tokenizer, i) for i in ids]
            row = {"title": title, "tokenizer": spec, "texts": TEXTS, "ids": ids, "decoded": decoded}
            out.write(json.dumps(row) + "\n")


class FixedDate(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls.fromisoformat(NOW)


def chat_goldens(tokenizer):
    rng = random.Random(SEED)
    texts = [s for s in samples(1500, SEED + 1) if s]
    # Of characters newer than its own Unicode, Python's repr of a dict shows the number.
    short = [s for s in texts if len(s) < 120 and not any(unicodedata.category(c) == "Cn" for c in s)]
    files = sorted(path for folder in TEMPLATES for path in folder.glob("*.jinja"))
    sources = {path.stem: path.read_bytes().decode() for path in files}
    counts = {name: 0 for name in sources}
    with open(OUT / "conversations.jsonl", "w") as out:
        requests = [conversation(rng, texts) for _ in range(NUM_CONVERSATIONS)]
        requests += [turn_conversation(rng, short) for _ in range(NUM_TURN_CONVERSATIONS)]
        requests += [thinking_conversation(rng, short) for _ in range(NUM_THINKING_CONVERSATIONS)]
        for request in requests:
            expect = {}
            for name, source in sources.items():
                tokenizer.chat_template = source
                try:
                    text = tokenizer.apply_chat_template(
                        json.loads(json.dumps(request["messages"])), tools=request.get("tools"),
                        add_generation_prompt=request["add_generation_prompt"], tokenize=False,
                        **request.get("vars", {}))
                    expect[name] = f"{fnv(text.encode()):016x}"
                    counts[name] += 1
                except Exception:
                    expect[name] = "error"
            out.write(json.dumps({**request, "expect": expect}) + "\n")
    print("rendered without error:", counts)


def snippet_goldens(tokenizer):
    with open(OUT / "snippets.jsonl", "w") as out:
        for source in snippets():
            tokenizer.chat_template = source
            row = {"template": source}
            try:
                row["text"] = tokenizer.apply_chat_template(
                    [{"role": "user", "content": "hi"}], tokenize=False, **VARIABLES)
            except Exception as error:
                row["error"] = str(error)
            out.write(json.dumps(row) + "\n")
    (OUT / "snippet_vars.json").write_text(json.dumps(VARIABLES, ensure_ascii=False) + "\n")


def main():
    if (tokenizers.__version__, transformers.__version__) != ("0.23.3", "5.24.0"):
        sys.exit("wanted the versions in tools/requirements/text.txt")
    folder = pathlib.Path(sys.argv[1])
    OUT.mkdir(parents=True, exist_ok=True)
    tokenizer_goldens(folder)
    feature_goldens()
    chat_utils.datetime = FixedDate
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(folder / "smollm2.json"), **TOKENS)
    chat_goldens(tokenizer)
    snippet_goldens(tokenizer)


if __name__ == "__main__":
    main()
