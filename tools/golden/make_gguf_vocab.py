#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the vocabulary of a tokenizer.json as a GGUF file without tensors, as llama.cpp's convert_hf_to_gguf.py does.

usage: python tools/golden/make_gguf_vocab.py TOKENIZER.json OUT.gguf --pre NAME     byte-level BPE
       python tools/golden/make_gguf_vocab.py TOKENIZER.json OUT.gguf --sentencepiece

Plain Python but for gguf-py. A tokenizer.json has no scores: a token's is the place of the first merge that makes it,
which was ordered by them.
"""
import argparse
import json
import sys

import gguf

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6


def write_vocabulary(w, tokenizer, pre, template=None):
    """Adds the keys of the tokenizer, a parsed tokenizer.json; `pre` is None for SentencePiece's form."""
    vocab = tokenizer["model"]["vocab"]
    added = {t["id"]: t for t in tokenizer["added_tokens"]}
    by_id = {i: t for t, i in vocab.items()}
    size = max(list(by_id) + list(added)) + 1
    tokens, types, scores, ranks = [], [], [], {}
    for rank, merge in enumerate(tokenizer["model"]["merges"]):
        ranks.setdefault("".join(merge.split(" ") if isinstance(merge, str) else merge), -float(rank))
    for i in range(size):
        text = by_id.get(i)
        kind = NORMAL
        if i in added:
            text = added[i]["content"]
            looks_special = text.startswith("<\uff5c") and text.endswith("\uff5c>")
            kind = CONTROL if added[i]["special"] or looks_special else USER_DEFINED
            if kind == USER_DEFINED:
                text = text.replace("\u2581", " ")
            if text == tokenizer["model"].get("unk_token"):
                kind = UNKNOWN
        elif text is None:
            text, kind = f"[PAD{i}]", UNUSED
        elif pre is None and len(text) == 6 and text.startswith("<0x"):
            kind = BYTE
        tokens.append(text)
        types.append(kind)
        scores.append(ranks.get(text, -1e9))
    w.add_tokenizer_model("llama" if pre is None else "gpt2")
    w.add_token_list(tokens)
    w.add_token_types(types)
    if pre is None:
        w.add_token_scores(scores)
        w.add_add_space_prefix(any(n.get("type") == "Prepend" for n in (tokenizer["normalizer"] or {}).get("normalizers", [])))
        if tokenizer["model"].get("unk_token"):
            w.add_unk_token_id(vocab[tokenizer["model"]["unk_token"]])
    else:
        w.add_tokenizer_pre(pre)
        w.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in tokenizer["model"]["merges"]])
    before = template_ids(tokenizer["post_processor"])
    w.add_add_bos_token(bool(before))
    if before:
        w.add_bos_token_id(before[0])
    if template:
        w.add_chat_template(template)


def template_ids(post):
    if post is None:
        return []
    if post["type"] == "Sequence":
        return [i for p in post["processors"] for i in template_ids(p)]
    if post["type"] != "TemplateProcessing":
        return []
    first = post["single"][0]
    return post["special_tokens"][first["SpecialToken"]["id"]]["ids"] if "SpecialToken" in first else []


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tokenizer")
    parser.add_argument("out")
    form = parser.add_mutually_exclusive_group(required=True)
    form.add_argument("--pre")
    form.add_argument("--sentencepiece", action="store_true")
    args = parser.parse_args()
    with open(args.tokenizer) as f:
        tokenizer = json.load(f)
    w = gguf.GGUFWriter(args.out, "llama")
    write_vocabulary(w, tokenizer, args.pre)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
