#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write chats about Debian's fortune cookies as JSONL for `strata train`: real text for tools/run/run_smollm2.sh.

usage: python3 tools/data/make_fortunes.py OUT.jsonl [--count N]

Reads /usr/share/games/fortunes (package `fortunes`): plain files of entries separated by lines of "%". Needs nothing
but Python; the same files give the same bytes.
"""
import argparse
import json
import os
import sys

FOLDER = "/usr/share/games/fortunes"
FILES = ["fortunes", "literature", "wisdom", "work", "science", "people"]


def entries(path):
    with open(path, encoding="utf-8", errors="replace") as file:
        for entry in file.read().split("\n%\n"):
            text = " ".join(entry.split())
            if 40 <= len(text) <= 400:
                yield text


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("--count", type=int, default=400)
    args = parser.parse_args()
    sources = [list(entries(path)) for name in FILES if os.path.isfile(path := os.path.join(FOLDER, name))]
    if not sources:
        sys.exit(f"make_fortunes: no fortunes in {FOLDER}; apt-get install fortunes")
    # One of each file in turn, so that any count is a mix.
    mixed = [source[i] for i in range(max(map(len, sources))) for source in sources if i < len(source)]
    with open(args.out, "w", encoding="utf-8", newline="\n") as out:
        for text in mixed[:args.count]:
            out.write(json.dumps({"messages": [{"role": "user", "content": "Tell me a fortune."},
                                               {"role": "assistant", "content": text}]}) + "\n")


if __name__ == "__main__":
    main()
