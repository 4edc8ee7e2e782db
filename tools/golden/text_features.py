# SPDX-License-Identifier: Apache-2.0
"""Small tokenizer.json documents that differ in one feature each, for tools/golden/make_text_golden.py."""

SAMPLES = ["", " ", "a", "ab ab", " ab", "ab  ab ", "aab abb", "ab<x>ab", "ab <x> ab", "<x><x>", "a<x>b", " <x> ", "<xy>",
           "<x", "word<x>word", "a\u00e9b", "e\u0301e", "\u7684\u7684a", "\U0001F600", "a1b22c333", "12ab", "\u0661\u00b2x",
           "ab\nab\t ab", "\u2581ab\u2581", "ab--ab", "--ab--", "ab, ab.", "zz", "\x00", "ab\u00a0ab", "the end", "THE", "<x>ab",
           "<x> ab", "ab\u3000<x>\u2003ab", "a.b.c", "..", "aXbX", "XX", "q\u0327\u0301", "\u00c5\u212b\ufb01", "\ud55c\u1112\u1161\u11ab"]
TEXTS = SAMPLES

MERGES = ["a b", "ab ab", "\u2581 ab", "t h", "th e", "\u2581 the", "\u2581 \u2581", "- -", "b b", "X X"]


def model(byte_fallback=False, unk="<unk>", fuse_unk=False, ignore_merges=False, extra=()):
    tokens = ["<unk>", "<x>"] + ([f"<0x{b:02X}>" for b in range(256)] if byte_fallback else [])
    tokens += list("abtheX\u2581-123 .,") + ["\u00e9", "\u7684", "\u0120", "\u010a"]
    tokens += [m.replace(" ", "", 1) for m in MERGES] + list(extra)
    return {"type": "BPE", "dropout": None, "unk_token": unk, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": fuse_unk, "byte_fallback": byte_fallback,
            "ignore_merges": ignore_merges, "vocab": {t: i for i, t in enumerate(tokens)},
            "merges": [m.split(" ") for m in MERGES]}


def document(added=(), **parts):
    spec = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
            "pre_tokenizer": None, "post_processor": None, "decoder": None, "model": model()}
    spec.update(parts)
    vocab = spec["model"]["vocab"]
    base = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    new = len(vocab)
    for token in added:
        index = vocab.get(token["content"])
        if index is None:
            index, new = new, new + 1
        spec["added_tokens"].append({"id": index, **base, **token})
    return spec


def split(pattern, behavior, invert=False):
    return {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}


def features():
    yield "plain", document()
    yield "no unk", document(model=model(unk=None))
    yield "fuse_unk", document(model=model(fuse_unk=True))
    yield "byte_fallback", document(model=model(byte_fallback=True))
    yield "byte_fallback and fuse_unk", document(model=model(byte_fallback=True, fuse_unk=True))
    yield "ignore_merges", document(model=model(ignore_merges=True, extra=["aab", "e\u0301e"]))
    for flags in [{}, {"lstrip": True}, {"rstrip": True}, {"lstrip": True, "rstrip": True}, {"single_word": True},
                  {"normalized": True}, {"special": False}, {"special": False, "normalized": True, "single_word": True}]:
        yield f"added {flags}", document(added=[{"content": "<x>", **flags}, {"content": "<xy>"}, {"content": "ab", **flags}])
    yield "added longest", document(added=[{"content": "<x"}, {"content": "<x>"}, {"content": "<x><x>"}, {"content": " <x>"}])
    prepend = {"type": "Sequence", "normalizers": [
        {"type": "Prepend", "prepend": "\u2581"}, {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]}
    for normalized in [False, True]:
        yield f"prepend, added normalized {normalized}", document(
            added=[{"content": "<x>", "normalized": normalized}, {"content": "ab ab", "normalized": normalized}],
            normalizer=prepend, model=model(byte_fallback=True))
    yield "nfc", document(normalizer={"type": "NFC"})
    yield "nfc, added normalized", document(normalizer={"type": "NFC"}, added=[{"content": "e\u0301", "normalized": True}])
    yield "replace by expression", document(normalizer={"type": "Replace", "pattern": {"Regex": "[ \\t]+"}, "content": "\u2581"})
    yield "replace by nothing", document(normalizer={"type": "Replace", "pattern": {"String": "a"}, "content": ""})
    for behavior in ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"]:
        for invert in [False, True]:
            yield f"split {behavior} {invert}", document(pre_tokenizer=split({"String": "-"}, behavior, invert))
        yield f"split expression {behavior}", document(pre_tokenizer=split({"Regex": "[ab]+?|\\s"}, behavior))
    for pattern in ["a*", "(?:ab)+", "a{2}|b", "(?i:THE)|x", "[^a-c&&[^\\s]]", "(?<=a)b", "(?<!a)b", "a(?=b)", "a(?!b)",
                    "a++b", "(?>a|ab)b", "\\bab\\b", "^a|b$", "\\A.|.\\z", "[\\p{Lu}\\p{Nd}]", "\\P{L}+", "\\p{^L}", "\\w+|\\W",
                    "\\d{1,2}", "[\\]\\-a]", "\\x61|\\u0062", "a??b", "(a|b){1,2}?", "[[ab]&&[b]]", ".+?e", "\\p{Han}+", "a{,2}"]:
        yield f"pattern {pattern}", document(pre_tokenizer=split({"Regex": pattern}, "Isolated"))
    for individual in [False, True]:
        yield f"digits {individual}", document(pre_tokenizer={"type": "Digits", "individual_digits": individual})
    for scheme in ["first", "never", "always"]:
        for cut in [False, True]:
            meta = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": scheme, "split": cut}
            yield f"metaspace {scheme} {cut}", document(
                pre_tokenizer=meta, decoder=meta, added=[{"content": "<x>"}], model=model(byte_fallback=True))
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    for prefix in [False, True]:
        for regex in [False, True]:
            yield f"byte level {prefix} {regex}", document(
                pre_tokenizer={**byte_level, "add_prefix_space": prefix, "use_regex": regex}, decoder=byte_level,
                added=[{"content": "<x>"}, {"content": "a b\u0120"}])
    yield "byte level without unk", document(pre_tokenizer=byte_level, decoder=byte_level, model=model(unk=None))
    decoders = {"Sequence": [{"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
                             {"type": "ByteFallback"}, {"type": "Fuse"},
                             {"type": "Strip", "content": " ", "start": 1, "stop": 0}],
                "strip each": [{"type": "Strip", "content": "a", "start": 1, "stop": 0}],
                "strip end": [{"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 0, "stop": 2}],
                "fuse replace": [{"type": "Fuse"}, {"type": "Replace", "pattern": {"String": "a"}, "content": "oo"}],
                "replace expression": [{"type": "Replace", "pattern": {"Regex": "[ab]+"}, "content": "_"}],
                "fallback": [{"type": "ByteFallback"}]}
    for title, steps in decoders.items():
        yield f"decoder {title}", document(decoder={"type": "Sequence", "decoders": steps}, model=model(byte_fallback=True))
    special = {"<x>": {"id": "<x>", "ids": [1], "tokens": ["<x>"]}, "<unk>": {"id": "<unk>", "ids": [0], "tokens": ["<unk>"]}}

    def template(*items):
        single = [{"Sequence": {"id": "A", "type_id": 0}} if i == "A" else {"SpecialToken": {"id": i, "type_id": 0}} for i in items]
        pair = single + [{"Sequence": {"id": "B", "type_id": 1}}]
        return {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": special}

    yield "template", document(post_processor=template("<x>", "A", "<unk>", "<x>"))
