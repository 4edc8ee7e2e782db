#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write the dataset of `make run`: chats whose answers have a fixed form that the bundled model lacks:
thanks and a farewell after the answer.

usage: python3 tools/data/make_run_dataset.py OUT_DIR

Writes answers.jsonl (400 chats) and answers_heldout.jsonl (80 chats; no question of it is in the first).
The committed files in examples/ are this script's output, byte for byte. Needs nothing but Python.
"""
import json
import os
import sys

import make_tiny_corpus as corpus

NUM_TRAIN = 400
NUM_HELD_OUT = 80


def chats(count, seed):
    r = corpus.Random(seed)
    seen = set()
    while len(seen) < count:
        asked, answer, _, _ = corpus.question(r)
        if asked in seen:
            continue
        seen.add(asked)
        yield {"messages": [{"role": "user", "content": asked},
                            {"role": "assistant", "content": f"{answer} Thank you. Have a nice day."}]}


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    rows = [json.dumps(row) + "\n" for row in chats(NUM_TRAIN + NUM_HELD_OUT, seed=7)]
    os.makedirs(sys.argv[1], exist_ok=True)
    for name, part in (("answers.jsonl", rows[:NUM_TRAIN]), ("answers_heldout.jsonl", rows[NUM_TRAIN:])):
        with open(os.path.join(sys.argv[1], name), "w", encoding="utf-8", newline="\n") as out:
            out.writelines(part)


if __name__ == "__main__":
    main()
