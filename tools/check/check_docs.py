#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Check how the documents are written: at most 120 columns, a README of at most 90 lines, links that lead somewhere, and no
word of our own where the field has one; of the sources likewise their identifiers, texts and comments.

usage: python3 tools/check/check_docs.py
Prints every fault with file and line, and exits with 1 if there is one. A row of a table cannot be wrapped, so outside the
README it may be longer.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
COLUMNS, README_LINES = 120, 90
# What the field calls otherwise: recompute, evaluation loss, ...
OURS = {r"\bma(?:de|kes?|king) again\b": "recompute", r"\bheld[- ]out\b": "evaluation", r"\blies\b": "is", r"\ba datum alone\b": "one datum",
        r"\brooms?\b": "budget, space, capacity or folder", r"\bbeside\b": "with, next to, besides or against"}
# A pass is the engine's: what the server reads and hands on has a name of its own.
PASS = re.compile(r"\bk?Pass(?=[A-Z]\w*[a-z])|\bkPass\b|\b[a-z]+_pass\b|\bpass_[a-z]+")
LINK = re.compile(r"\]\(([^)#\s]+)(#[^)]*)?\)")


def pages():
    return [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "THIRD_PARTY.md")
            if (ROOT / name).exists()] + sorted((ROOT / "docs").glob("*.md"))


# What was written before the list was: the log and the changelog are history.
def is_checked(page):
    return page.name not in ("log.md", "CHANGELOG.md")


def faults_of(page):
    lines = page.read_text(encoding="utf-8").split("\n")
    name = page.relative_to(ROOT)
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
            for ours, theirs in OURS.items():
                if re.search(ours, line, re.I):
                    yield f"{name}:{number}: '{re.search(ours, line, re.I).group()}': say '{theirs}'"


def faults_of_source(path):
    """Parts of identifiers are words: PassRoom, has_room."""
    text = re.sub(r"([a-z0-9])([A-Z])", r"\1 \2", path.read_text(encoding="utf-8")).replace("_", " ")
    for number, line in enumerate(text.split("\n"), 1):
        for ours, theirs in OURS.items():
            if re.search(ours, line, re.I):
                yield f"{path.relative_to(ROOT)}:{number}: '{re.search(ours, line, re.I).group()}': say '{theirs}'"
    if path.is_relative_to(ROOT / "src" / "server"):
        for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1):
            if PASS.search(line):
                yield f"{path.relative_to(ROOT)}:{number}: '{PASS.search(line).group()}': a pass is the engine's"



def sources():
    return [path for path in sorted((ROOT / "src").rglob("*")) if path.suffix in (".h", ".cc")]


def main():
    faults = [fault for page in pages() for fault in faults_of(page)]
    faults += [fault for path in sources() for fault in faults_of_source(path)]
    print("\n".join(faults[:40]) or "check_docs: ok")
    if len(faults) > 40:
        print(f"and {len(faults) - 40} more")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
