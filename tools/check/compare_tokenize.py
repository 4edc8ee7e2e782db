#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Encoding speed of Strata and of Hugging Face `tokenizers` on the same text, one thread each.

    pip install tokenizers==0.23.3
    python tools/check/compare_tokenize.py build/bench/tokenize_bench TEXT_FILE build/tokenizers/*.json
"""
import os
import pathlib
import statistics
import subprocess
import sys
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"
from tokenizers import Tokenizer  # noqa: E402

REPEATS, DOCUMENT = 5, 4096


def main():
    bench, text_file, *files = sys.argv[1:]
    text = pathlib.Path(text_file).read_bytes()
    documents = [text[i:i + DOCUMENT].decode(errors="replace") for i in range(0, len(text), DOCUMENT)]
    for path in files:
        tokenizer = Tokenizer.from_file(path)
        times = []
        for _ in range(REPEATS):
            begin = time.perf_counter()
            count = sum(len(tokenizer.encode(d, add_special_tokens=False)) for d in documents)
            times.append(time.perf_counter() - begin)
        ours = subprocess.run([bench, path, text_file], capture_output=True, text=True, check=True).stdout
        speed = len(text) / 1e6 / statistics.median(times)
        print(f"{pathlib.Path(path).stem}: tokenizers {speed:.1f} MB/s, {count} tokens; strata: {ours.splitlines()[-1]}")


if __name__ == "__main__":
    main()
