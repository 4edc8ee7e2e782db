#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Check how the documents are written: at most 120 columns, a README of at most 90 lines, links that lead somewhere, and no
word of our own where the field has one; of the sources likewise their identifiers, texts and comments.

usage: python3 tools/check/check_docs.py
       python3 tools/check/check_docs.py --self-test      each rule must catch a tree that breaks it
Prints every fault with file and line, and exits with 1 if there is one. A row of a table cannot be wrapped, so outside the
README it may be longer.
"""
import pathlib
import re
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
COLUMNS, README_LINES = 120, 90
# What the field calls otherwise: recompute, evaluation loss, ...
OURS = {r"\bma(?:de|kes?|king) again\b": "recompute", r"\bheld[- ]out\b": "evaluation", r"\blies\b": "is", r"\ba datum alone\b": "one datum",
        r"\brooms?\b": "budget, space, capacity or folder", r"\bbeside\b": "with, next to, besides or against"}
# A pass is the engine's: what the server reads and hands on has a name of its own.
NO_PASSES = ("server", "scheduler")
JSON_PASS = re.compile(r"\bJSON pass|\bpasses (?:and samples|may be JSON)\b")
PASS = re.compile(r"\bk?Pass(?=[A-Z]\w*[a-z])|\bkPass\b|\b[a-z]+_pass\b|\bpass_(?!tokens\b)[a-z]+|[*&] ?pass\b|\bpass(?:->|\.[a-z]+[.(])|\bpasses and samples\b")
LINK = re.compile(r"\]\(([^)#\s]+)(#[^)]*)?\)")


def pages(root):
    return [root / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "THIRD_PARTY.md")
            if (root / name).exists()] + sorted((root / "docs").rglob("*.md"))


# What was written before the list was: the log and the changelog are history.
def is_checked(page):
    return page.parent.name != "log" and page.name != "CHANGELOG.md"


def own_words(line):
    for ours, theirs in OURS.items():
        if found := re.search(ours, line, re.I):
            yield f"'{found.group()}': say '{theirs}'"


def faults_of(root, page):
    lines = page.read_text(encoding="utf-8").split("\n")
    name = page.relative_to(root)
    if page.name == "README.md" and len(lines) - 1 > README_LINES:
        yield f"{name}: {len(lines) - 1} lines, at most {README_LINES}"
    for number, line in enumerate(lines, 1):
        table = line.startswith("|")
        if len(line) > COLUMNS and not (table and page.name != "README.md"):
            yield f"{name}:{number}: {len(line)} columns, at most {COLUMNS}"
        for target, _ in LINK.findall(line):
            if "://" not in target and not (page.parent / target).exists():
                yield f"{name}:{number}: {target} is not there"
        if is_checked(page):
            for fault in own_words(line):
                yield f"{name}:{number}: {fault}"
            if found := JSON_PASS.search(line):
                yield f"{name}:{number}: '{found.group()}': a pass is the engine's"


def faults_of_source(root, path):
    """Parts of identifiers are words: PassRoom, has_room."""
    source = path.read_text(encoding="utf-8")
    words = re.sub(r"([a-z0-9])([A-Z])", r"\1 \2", source).replace("_", " ")
    for number, line in enumerate(words.split("\n"), 1):
        for fault in own_words(line):
            yield f"{path.relative_to(root)}:{number}: {fault}"
    if not any(path.is_relative_to(root / "src" / folder) for folder in NO_PASSES):
        return
    for number, line in enumerate(source.split("\n"), 1):
        if found := PASS.search(line):
            yield f"{path.relative_to(root)}:{number}: '{found.group()}': a pass is the engine's"


def sources(root):
    return [path for path in sorted((root / "src").rglob("*")) if path.suffix in (".h", ".cc")]


def faults_in(root):
    return ([fault for page in pages(root) for fault in faults_of(root, page)]
            + [fault for path in sources(root) for fault in faults_of_source(root, path)])


GOOD = {"README.md": "A [page](docs/a.md), and [another](https://example.org).\n" + "x" * COLUMNS + "\n",
        "docs/a.md": "| " + "a row that cannot be wrapped " * 9 + "|\n", "docs/dev/log/2026-11.md": "what was made again\n",
        "CHANGELOG.md": "rooms\n", "src/engine/pass.cc": "run_pass(*pass, kPassTokens);\n",
        "src/server/a.cc": "passes_(batch); // may pass. memory for a pass\n"}
BAD = {
    "README.md: 91 lines": {"README.md": "x\n" * (README_LINES + 1)},
    "121 columns": {"docs/b.md": "x" * (COLUMNS + 1)},
    "README.md:1: 121 columns": {"README.md": "|" + "x" * COLUMNS},
    "docs/none.md is not there": {"README.md": "a [page](docs/none.md)\n"},
    "'made again': say 'recompute'": {"docs/b.md": "what is made again\n"},
    "'makes again'": {"src/model/a.cc": "// whoever makes again\n"},
    "'held-out': say 'evaluation'": {"docs/b.md": "a held-out loss\n"},
    "'held out'": {"src/model/a.h": "int held_out = 0;\n"},
    "'lies': say 'is'": {"docs/b.md": "where it lies\n"},
    "'a datum alone'": {"docs/b.md": "a datum alone\n"},
    "'Room': say 'budget": {"src/model/a.cc": "int PassRoom = 0;\n"},
    "'room': say 'budget": {"src/model/a.cc": "bool has_room();\n"},
    "'beside': say 'with": {"src/model/a.cc": 'fail("beside it");\n'},
    "'Pass': a pass": {"src/server/a.h": "struct PassBody;\n"},
    "'kPass': a pass": {"src/server/a.h": "enum { kPass };\n"},
    "'read_pass': a pass": {"src/server/a.h": "void read_pass();\n"},
    "'pass_bytes': a pass": {"src/server/a.h": "int pass_bytes;\n"},
    "'* pass': a pass": {"src/server/a.cc": "const auto* pass = find();\n"},
    "'& pass': a pass": {"src/server/a.cc": "void f(const Body& pass);\n"},
    "'pass->': a pass": {"src/server/a.cc": "use(pass->data);\n"},
    "'pass.data.': a pass": {"src/server/a.cc": "use(pass.data.size());\n"},
    "'pass->': a pass is": {"src/scheduler/a.cc": "use(pass->data);\n"},
    "'JSON pass': a pass": {"docs/b.md": "a JSON pass\n"},
    "'passes and samples': a pass": {"src/server/a.cc": 'say("of passes and samples");\n'},
}


def run_tree(files):
    with tempfile.TemporaryDirectory() as folder:
        for path, text in files.items():
            full = pathlib.Path(folder, path)
            full.parent.mkdir(parents=True, exist_ok=True)
            full.write_text(text, encoding="utf-8")
        return faults_in(pathlib.Path(folder))


def self_test():
    clean = run_tree(GOOD)
    assert not clean, clean
    for words, files in BAD.items():
        faults = run_tree({**GOOD, **files})
        assert len(faults) == 1 and words in faults[0], (words, faults)
    print(f"check_docs: self test passed, {len(BAD) + 1} trees")


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    faults = faults_in(ROOT)
    print("\n".join(faults[:40]) or "check_docs: ok")
    if len(faults) > 40:
        print(f"and {len(faults) - 40} more")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
