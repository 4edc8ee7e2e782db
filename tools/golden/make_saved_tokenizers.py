#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/data/text/saved_tokenizers.jsonl: each tokenizer of build/tokenizers, loaded by transformers and saved
as people save them (truncated, padded, with more tokens, with a begin and an end token, with a template, in older
forms). A row has what the saved tokenizer.json says other than the one it was made of, without vocabulary and merges,
which stay, and what transformers makes of texts and a conversation with the saved folder.

    pip install tokenizers==0.23.3 transformers==5.24.0 jinja2==3.1.6
    python tools/data/make_test_tokenizers.py --download build/tokenizers
    python tools/golden/make_saved_tokenizers.py build/tokenizers
"""
import json
import pathlib
import shutil
import struct
import sys
import tempfile

import tokenizers
import transformers
from transformers import AddedToken, AutoTokenizer

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from make_text_golden import NAMES, OUT, fnv, ids_bytes  # noqa: E402

TEMPLATE = OUT.parent / "third_party/templates/qwen3.jinja"
EVERY = 61  # of samples.bin
END = {"llama3": ("<|begin_of_text|>", "<|end_of_text|>"), "deepseek": ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"),
       "gemma3": ("<bos>", "<eos>"), "smollm2": ("<|im_start|>", "<|im_end|>"), "qwen3": (None, "<|im_end|>"),
       "qwen2.5": (None, "<|im_end|>"), "qwen3.5": (None, "<|im_end|>")}
CLASSES = {"qwen3": "Qwen2Tokenizer", "qwen2.5": "Qwen2Tokenizer", "gemma3": "GemmaTokenizer", "smollm2": "GPT2Tokenizer",
           "mistral": "LlamaTokenizer", "mistral-metaspace": "LlamaTokenizer", "mistral-v3": "LlamaTokenizer"}
ADDED = ["<my_tool>", "newword", AddedToken("LEFT", lstrip=True), AddedToken("RIGHT", rstrip=True),
         AddedToken("WORD", single_word=True), AddedToken("AsItIs", normalized=False)]
TEXTS_OF_ADDED = ["a <my_tool>newword b", "x  LEFT RIGHT  y", "WORD, SWORD WORDS", "AsItIs as AsItIs", "<|x|> <|y|>", "<pad!>"]
CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"},
        {"role": "user", "content": "Bye"}]


def sample_texts():
    data, texts, pos = (OUT / "samples.bin").read_bytes(), [], 0
    while pos < len(data):
        size, = struct.unpack_from("<I", data, pos)
        texts.append(data[pos + 4:pos + 4 + size].decode(errors="replace"))
        pos += 4 + size
    return texts[::EVERY] + TEXTS_OF_ADDED


def source(folder, name, tokenizer_class, work):
    out = work / f"{name}-{tokenizer_class}"
    out.mkdir()
    shutil.copy(folder / f"{name}.json", out / "tokenizer.json")
    begin, end = END.get(name, ("<s>", "</s>"))
    config = {"tokenizer_class": tokenizer_class, "eos_token": end, **({"bos_token": begin} if begin else {})}
    (out / "tokenizer_config.json").write_text(json.dumps(config))
    return out


def truncated(tokenizer):
    tokenizer(["one two three four"], truncation=True, max_length=3)


def padded(tokenizer):
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    tokenizer(["one two", "one"], padding="max_length", truncation=True, max_length=16)


def with_template(tokenizer):
    tokenizer.chat_template = TEMPLATE.read_text()


def nothing(tokenizer):
    pass


# Form: what loading is told, what is done, what saving is told.
FORMS = {
    "as it is": ({}, nothing, {}),
    "truncation": ({}, truncated, {}),
    "padding": ({}, padded, {}),
    "left padding": ({"padding_side": "left", "model_max_length": 77}, padded, {}),
    "added tokens": ({}, lambda t: t.add_tokens(ADDED), {}),
    "special tokens": ({}, lambda t: t.add_special_tokens({"pad_token": "<pad!>", "extra_special_tokens": ["<|x|>", "<|y|>"]}), {}),
    "begin token": ({"add_bos_token": True}, nothing, {}),
    "end token": ({"add_bos_token": True, "add_eos_token": True}, nothing, {}),
    "no begin token": ({"add_bos_token": False}, nothing, {}),
    "template": ({}, with_template, {}),
    "template in the config": ({}, with_template, {"save_jinja_files": False}),
}


def in_older_form(saved):
    """As `tokenizers` before 0.15 wrote it: merges as texts, add_prefix_space, none of the later options."""
    model = saved["model"]
    model["merges"] = [" ".join(pair) for pair in model["merges"]]
    for key in ["ignore_merges", "byte_fallback"]:
        if model.get(key) is False:
            del model[key]
    parts = [saved["pre_tokenizer"] or {}, saved["decoder"] or {}]
    parts += parts[0].get("pretokenizers", []) + parts[1].get("decoders", [])
    for part in parts:
        if part.get("type") == "Metaspace" and part["split"] and part["prepend_scheme"] in ["always", "never"]:
            part["add_prefix_space"] = part.pop("prepend_scheme") == "always"
            del part["split"]
    return saved


def read_json(path):
    return json.loads(path.read_text())


def difference(saved, base):
    """Members of the file and of its model that are others than in the file it was made of."""
    pairs = [tuple(m.split(" ")) if isinstance(m, str) else tuple(m) for m in base["model"]["merges"]]
    now = [tuple(m.split(" ")) if isinstance(m, str) else tuple(m) for m in saved["model"]["merges"]]
    assert saved["model"]["vocab"] == base["model"]["vocab"] and now == pairs
    keys = [k for k in {**base, **saved} if k not in ("model", "added_tokens")]
    row = {"set": {k: saved[k] for k in keys if k in saved and saved.get(k) != base.get(k, "none")},
           "model": {k: v for k, v in saved["model"].items() if k not in ("vocab", "merges")},
           "merges": "texts" if isinstance(saved["model"]["merges"][0], str) else "pairs"}
    old, new = ({t["id"]: t for t in f["added_tokens"]} for f in [base, saved])
    assert list(new) == sorted(new)
    row["added_tokens"] = {"dropped": [i for i in old if old[i] != new.get(i)], "new": [t for i, t in new.items() if t != old.get(i)]}
    return row


def expectation(folder, texts):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = decoded = fnv(b"")
    for text in texts:
        plain = tokenizer(text, add_special_tokens=False, truncation=False, padding=False)["input_ids"]
        special = tokenizer(text, truncation=False, padding=False)["input_ids"]
        ids = fnv(ids_bytes(plain) + b"|" + ids_bytes(special), ids)
        for skip in [False, True]:
            decoded = fnv(tokenizer.decode(special, skip_special_tokens=skip).encode() + b"\0", decoded)
    row = {"ids": f"{ids:016x}", "decoded": f"{decoded:016x}"}
    if tokenizer.chat_template:
        text = tokenizer.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=True)
        config = read_json(folder / "tokenizer_config.json")
        row |= {"rendered": f"{fnv(text.encode()):016x}", "has_jinja": (folder / "chat_template.jinja").exists(),
                "config": {k: v for k, v in config.items() if k != "chat_template"}}
    return row


def main():
    if (tokenizers.__version__, transformers.__version__) != ("0.23.3", "5.24.0"):
        sys.exit("wanted tokenizers 0.23.3 and transformers 5.24.0")
    folder, texts = pathlib.Path(sys.argv[1]), sample_texts()
    with tempfile.TemporaryDirectory() as temporary, open(OUT / "saved_tokenizers.jsonl", "w") as out:
        work = pathlib.Path(temporary)
        for name in NAMES:
            base = read_json(folder / f"{name}.json")
            for tokenizer_class in dict.fromkeys(["PreTrainedTokenizerFast", CLASSES.get(name, "PreTrainedTokenizerFast")]):
                loaded = source(folder, name, tokenizer_class, work)
                for form, (told, change, saving) in FORMS.items():
                    if tokenizer_class != "PreTrainedTokenizerFast" and form not in ["as it is", "padding", "end token"]:
                        continue
                    tokenizer = AutoTokenizer.from_pretrained(loaded, **told)
                    change(tokenizer)
                    saved = work / "saved"
                    tokenizer.save_pretrained(saved, **saving)
                    forms = {form: read_json(saved / "tokenizer.json")}
                    if form == "as it is":
                        forms["older form"] = in_older_form(read_json(saved / "tokenizer.json"))
                    for title, written in forms.items():
                        (saved / "tokenizer.json").write_text(json.dumps(written))
                        row = {"tokenizer": name, "class": tokenizer_class, "form": title, **difference(written, base),
                               **expectation(saved, texts)}
                        out.write(json.dumps(row, ensure_ascii=False) + "\n")
                    shutil.rmtree(saved)
                print(name, tokenizer_class, flush=True)


if __name__ == "__main__":
    main()
