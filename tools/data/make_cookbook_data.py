#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the data sets that recipes of the cookbook look up by name, as folders of those names, made by hand.

usage: make_cookbook_data.py CHATS.jsonl DIR     (CHATS: lines of {"messages": [...]})
"""
import json
import pathlib
import random
import sys

LANGUAGES = {
    "en": "The house on the hill is for sale and the garden is large.",
    "de": "Das Haus auf dem Berg ist zu verkaufen und der Garten ist nicht klein.",
    "fr": "La maison sur la colline est belle et le jardin est grand, merci.",
    "es": "La casa de la colina no es para mi hermano, gracias por todo.",
    "tr": "Bu ev ve bahçe çok güzel ama benim için değil.",
    "el": "Το σπίτι στον λόφο είναι μεγάλο.",
    "ru": "Дом на холме большой и красивый.",
    "zh": "山上的房子很大。",
}


def write(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def sums(rng, count):
    for _ in range(count):
        a, b = rng.randrange(50), rng.randrange(50)
        yield {"question": f"Ann has {a} apples and Ben has {b}. How many do they have?",
               "answer": f"They have {a} + {b} = <<{a}+{b}={a + b}>>{a + b} apples.\n#### {a + b}"}


def main():
    chats = [json.loads(line) for line in pathlib.Path(sys.argv[1]).read_text().splitlines()]
    root = pathlib.Path(sys.argv[2])
    rows = [{"prompt": str(i), "prompt_id": str(i), "category": "Chat", "messages": chat["messages"]}
            for i, chat in enumerate(chats)]
    robots = root / "HuggingFaceH4" / "no_robots"
    write(robots / "train.jsonl", rows[:-16])
    write(robots / "test.jsonl", rows[-16:])
    rng = random.Random(1)
    gsm8k = root / "openai" / "gsm8k"
    write(gsm8k / "main" / "train.jsonl", sums(rng, 256))
    write(gsm8k / "main" / "test.jsonl", sums(rng, 32))
    (gsm8k / "README.md").write_text("""---
configs:
- config_name: main
  data_files:
  - split: train
    path: main/train.jsonl
  - split: test
    path: main/test.jsonl
---
""")
    write(root / "languages.jsonl", [
        {"messages": [{"role": "user", "content": text}, {"role": "assistant", "content": label}]}
        for _ in range(4) for label, text in LANGUAGES.items()])


if __name__ == "__main__":
    main()
