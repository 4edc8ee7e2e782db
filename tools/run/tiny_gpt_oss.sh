#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A tiny gpt-oss with random weights in bf16: the bundled model's pieces of text in the form of o200k's tokenizer, harmony's
# special tokens, and gpt-oss' chat template.
# usage: tools/run/tiny_gpt_oss.sh PROGRAM DIR
set -euo pipefail
root=$(realpath "$(dirname "$0")/../..")
strata=$(realpath "${1:?usage: tools/run/tiny_gpt_oss.sh PROGRAM DIR}")
out=${2:?usage: tools/run/tiny_gpt_oss.sh PROGRAM DIR}
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
"$strata" init --config gpt-oss-tiny --out "$made/named" 2>"$made/log"
cp "$root/tests/data/third_party/templates/gptoss.jinja" "$made/chat_template.jinja"
python3 - "$root" "$made" <<'EOF'
import json
import sys

root, made = sys.argv[1:]
# Words that begin with capitals or have none, with what is short for "is" or "not"; runs of three digits.
WORD_ENDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
O200K = "|".join([r"[^\r\n\p{L}\p{N}]?" + UPPER + "*" + LOWER + "+" + WORD_ENDS,
                  r"[^\r\n\p{L}\p{N}]?" + UPPER + "+" + LOWER + "*" + WORD_ENDS,
                  r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
HARMONY = ["<|startoftext|>", "<|endoftext|>", "<|return|>", "<|constrain|>", "<|channel|>", "<|start|>", "<|end|>", "<|message|>",
           "<|call|>", "<|endofprompt|>"]


def read(path):
    with open(path, encoding="utf-8") as f:
        return json.load(f)


def write(name, value):
    with open(f"{made}/{name}", "w", encoding="utf-8") as f:
        json.dump(value, f, ensure_ascii=False)


tokenizer = read(f"{root}/models/tiny-qwen3/tokenizer.json")
split, byte_level = tokenizer["pre_tokenizer"]["pretokenizers"]
split["pattern"] = {"Regex": O200K}
tokenizer["normalizer"] = None
first = len(tokenizer["model"]["vocab"])
like = tokenizer["added_tokens"][0]
tokenizer["added_tokens"] = [like | {"id": first + i, "content": text} for i, text in enumerate(HARMONY)]
ids = {text: first + i for i, text in enumerate(HARMONY)}
write("tokenizer.json", tokenizer)
write("tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|startoftext|>",
                                "eos_token": "<|return|>", "pad_token": "<|endoftext|>", "model_max_length": 131072})
ends = [ids["<|return|>"], ids["<|endoftext|>"], ids["<|call|>"]]
write("generation_config.json", {"bos_token_id": ids["<|startoftext|>"], "do_sample": True, "eos_token_id": ends,
                                 "pad_token_id": ids["<|endoftext|>"]})
write("config.json", read(f"{made}/named/config.json") | {"vocab_size": -(-(first + len(HARMONY)) // 64) * 64,
                                                          "eos_token_id": ends[0], "pad_token_id": ends[1]})
EOF
"$strata" init --config "$made" --out "$out" --seed 1
