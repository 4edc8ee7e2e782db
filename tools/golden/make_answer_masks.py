#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/data/answer_masks.jsonl: which tokens of conversations transformers says a model writes, by the
{% generation %} blocks of TRL's training templates (return_assistant_tokens_mask).

    pip install -r tools/requirements/text.txt
    python tools/golden/make_answer_masks.py

Each line is a conversation, and of each template the number of tokens and the runs [begin, end) of those in the mask.
"""
import copy
import json
import pathlib
import random
import sys

import transformers
from transformers import PreTrainedTokenizerFast

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from make_conversation_golden import conversation  # noqa: E402

ROOT = pathlib.Path(__file__).parent.parent.parent
OUT = ROOT / "tests/data/answer_masks.jsonl"
TEMPLATES = ROOT / "tests/data/third_party/training_templates"
NUM_CONVERSATIONS, SEED = 24, 20261130


def runs_of(mask):
    runs = []
    for index, value in enumerate(mask):
        if not value:
            continue
        if runs and runs[-1][1] == index:
            runs[-1][1] = index + 1
        else:
            runs.append([index, index + 1])
    return runs


def main():
    if transformers.__version__ != "5.24.0":
        sys.exit("wanted the versions in tools/requirements/text.txt")
    rng = random.Random(SEED)
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(ROOT / "models/tiny-qwen3/tokenizer.json"),
                                        bos_token="<|endoftext|>", eos_token="<|im_end|>")
    with open(OUT, "w") as out:
        for index in range(NUM_CONVERSATIONS):
            request = conversation(rng, index)
            masks = {}
            for path in sorted(TEMPLATES.glob("*.jinja")):
                made = tokenizer.apply_chat_template(
                    copy.deepcopy(request["messages"]), tools=request.get("tools"),
                    chat_template=path.read_bytes().decode(), return_dict=True, return_assistant_tokens_mask=True)
                masks[path.stem] = {"tokens": len(made["input_ids"]), "runs": runs_of(made["assistant_masks"])}
            out.write(json.dumps({**request, "masks": masks}) + "\n")


if __name__ == "__main__":
    main()
