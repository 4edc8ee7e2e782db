#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What transformers renders of every fifth line of tests/data/text/conversations.jsonl through every chat template that trl
carries: tests/data/text/trl_templates.jsonl. Most have licences under which they are not kept here, so a row has one hash of all that a
template rendered, and the token that it has behind an answer, which ends a turn; build/tokenizers/trl is where tools/data/make_test_tokenizers.py puts them for the test.

usage: python tools/golden/make_trl_templates.py build/tokenizers             needs tools/requirements/text.txt
"""
import datetime
import json
import pathlib
import re
import sys

from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils as chat_utils

DATA = pathlib.Path(__file__).parent.parent.parent / "tests/data/text"
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


class FixedDate(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls.fromisoformat("2026-01-31")


def fnv(data):
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return value


def render(tokenizer, request):
    try:
        text = tokenizer.apply_chat_template(
            json.loads(json.dumps(request["messages"])), tools=request.get("tools"),
            add_generation_prompt=request["add_generation_prompt"], tokenize=False, **request.get("vars", {}))
        return f"{fnv(text.encode()):016x}"
    except Exception:
        return "error"


def end_of_turn(tokenizer):
    """The token behind the last answer; nothing where the text behind it begins with none, or where a template refuses these messages."""
    answer = "0123456789"
    messages = [{"role": "user", "content": "Count."}, {"role": "assistant", "content": answer}]
    try:
        text = tokenizer.apply_chat_template(messages, tokenize=False)
    except Exception:
        return None
    token = re.search(answer + r"[ \n]*(<[^<>\s]+>)", text)
    return token and token[1]


def main(folder):
    chat_utils.datetime = FixedDate
    folder = pathlib.Path(folder)
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(folder / "smollm2.json"), **TOKENS)
    requests = [json.loads(line) for line in (DATA / "conversations.jsonl").read_text().splitlines()[::5]]
    with open(DATA / "trl_templates.jsonl", "w") as out:
        for path in sorted((folder / "trl").glob("*.jinja")):
            tokenizer.chat_template = path.read_bytes().decode()
            rendered = [render(tokenizer, request) for request in requests]
            row = {"template": path.stem, "end": end_of_turn(tokenizer), "errors": rendered.count("error"),
                   "hash": f"{fnv(chr(10).join(rendered).encode()):016x}"}
            out.write(json.dumps(row) + "\n")
            print(row)


if __name__ == "__main__":
    main(*sys.argv[1:])
