#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/data/text/kimi: a small tiktoken.model with Kimi's pattern and special tokens, and what tiktoken makes of texts.

    pip install tiktoken==0.14.0 regex
    python tools/golden/make_tiktoken_golden.py tests/data/text/kimi

The ranks are learnt from a few lines of text in several scripts, and have tokens that can be made in several ways ("aba"
of "ab" and "a", or of "a" and "ba").
"""
import base64
import collections
import json
import os
import sys

import numpy as np
import regex
import tiktoken

PATTERN = "|".join([
    r"""[\p{Han}]+""",
    r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
    r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
    r"""\p{N}{1,3}""", r""" ?[^\s\p{L}\p{N}]+[\r\n]*""", r"""\s*[\r\n]+""", r"""\s+(?!\S)""", r"""\s+"""])
LINES = ["The quick brown fox jumps over the lazy dog, and it's the dog's day; they'll say so: \"don't!\"\n",
         "def add(first, second):\n    return first + second  # 1234567 + 89\n\n\n",
         "月之暗面是一家公司。今天天气很好，我们去公园吧！ Kimi K2 模型有 1,000 亿参数。\n",
         "カタカナとひらがなと漢字、東京タワーは高い。 한국어 문장도 있습니다.\n",
         "Ελλάδα και ΑΘΗΝΑ; Москва и МОСКВА; ǅungla, naïve café, e\u0301te\u0301; עברית العربية हिन्दी ไทย\n",
         "aba abab ababa baab bab aaaaaa aaa aaaa\t\t  \r\n   x   \n  🎉🎉 👩‍👩‍👧 …—– 〇〇 ⅷ½²\n"]
NAMED = {0: "[BOS]", 1: "[EOS]", 2: "<|im_end|>", 3: "<|im_user|>", 4: "<|im_assistant|>", 10: "<|im_middle|>", 254: "[UNK]",
         255: "[PAD]"}
FORCED = [b"ab", b"ba", b"aba", b"aa", b"aaa", b"bab", b"abab", b"  ", b"   "]


def learn(num_merges):
    ranks = {bytes([b]): b for b in range(256)}
    for token in FORCED:
        ranks[token] = len(ranks)
    words = collections.Counter()
    for line in LINES:
        for piece in regex.findall("(?V1)" + PATTERN, line):
            words[tuple(bytes([b]) for b in piece.encode())] += 1
    while len(ranks) < 256 + num_merges:
        pairs = collections.Counter()
        for word, count in words.items():
            for pair in zip(word, word[1:]):
                pairs[pair] += count
        if not pairs:
            break
        best = max(pairs, key=lambda p: (pairs[p], p))
        ranks.setdefault(best[0] + best[1], len(ranks))
        joined = collections.Counter()
        for word, count in words.items():
            out, i = [], 0
            while i < len(word):
                both = i + 1 < len(word) and (word[i], word[i + 1]) == best
                out.append(word[i] + word[i + 1] if both else word[i])
                i += 2 if both else 1
            joined[tuple(out)] += count
        words = joined
    return ranks


def texts(rng):
    out = LINES + ["".join(LINES), "", " ", "[BOS]<|im_user|>user<|im_middle|>你好<|im_end|>", "[BOS", "abababab babab aabaab",
                   "漢字かな漢字abc漢字ABC", "'S it'LL IT'Ll we'VE漢's", "ſ'ſ 'ſ k'K", "\u0301\u0301漢\u0301", "a漢b字C", "A〇b々c", "\x00\x01\x7f"]
    pool = list("abABab  \n\r\t'sdlLT漢字月かナ한ЖжΑαǅʰ\u0301\u0bcd0129½⅔,.!?-_🎉\u200d\ufe0f\u3000\u00a0〇々")
    for _ in range(400):
        out.append("".join(str(c) for c in rng.choice(pool, int(rng.integers(1, 40)))))
    for _ in range(60):
        out.append("".join(str(c) for c in rng.choice(list("aab "), int(rng.integers(1, 120)))))
    return out


def main():
    folder = sys.argv[1]
    os.makedirs(folder, exist_ok=True)
    ranks = learn(420)
    with open(os.path.join(folder, "tiktoken.model"), "wb") as f:
        for token, rank in ranks.items():
            f.write(base64.b64encode(token) + b" " + str(rank).encode() + b"\n")
    first = len(ranks)
    added = {str(first + i): {"content": name, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False,
                              "special": name not in ("<|im_middle|>",)} for i, name in NAMED.items()}
    with open(os.path.join(folder, "tokenizer_config.json"), "w", encoding="utf-8") as f:
        json.dump({"added_tokens_decoder": added, "bos_token": "[BOS]", "eos_token": "[EOS]", "model_max_length": 1000000,
                   "tokenizer_class": "TikTokenTokenizer"}, f, indent=1)
        f.write("\n")
    special = {NAMED.get(i, f"<|reserved_token_{first + i}|>"): first + i for i in range(256)}
    encoding = tiktoken.Encoding("kimi", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens=special)
    with open(os.path.join(folder, "ids.jsonl"), "w", encoding="utf-8") as f:
        for text in texts(np.random.default_rng(1)) + [f"x<|reserved_token_{first + 7}|>y"]:
            ids = encoding.encode(text, allowed_special="all")
            assert encoding.decode(ids) == text
            f.write(json.dumps({"text": text, "ids": ids}) + "\n")


if __name__ == "__main__":
    main()
