#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Check docs/dev/known-bugs.md: every row is there, and every test that it names exists in tests/.

usage: python3 tools/check/check_known_bugs.py

A guard is one or more `Suite.Test`, `hostile: <row of docs/hostile.md>` or `<file of tests/e2e>: <function>` in backquotes,
or "later: <subject>", or "does not apply: <reason>".
Standard library only.
"""
import os
import re
import string
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
IDS = (list(string.ascii_lowercase[:24])
       + ["base-load", "no-state", "whole-names", "partial", "kv-shape", "one-writer", "checksum",
          "deep-stacks", "recompute-names"]
       + [f"W{i}" for i in range(1, 16)] + [f"S{i}" for i in range(1, 23)]
       + [f"V{i}" for i in range(1, 13)]
       + ["fact 3"] + [f"{kind}{i}" for kind, most in (("C", 7), ("H", 10), ("M", 13), ("N", 8), ("L", 11))
                       for i in range(1, most + 1)])
TEST = re.compile(r"\b(?:TEST|TEST_P|TEST_F|TYPED_TEST|RC_GTEST_PROP|RC_GTEST_FIXTURE_PROP)"
                  r"\(\s*(\w+)\s*,\s*(\w+)")


def tests_in_tree():
    found = set()
    for folder, _, names in os.walk(os.path.join(ROOT, "tests")):
        for name in names:
            if name.endswith(".cc"):
                with open(os.path.join(folder, name), encoding="utf-8") as f:
                    found.update(f"{suite}.{test}" for suite, test in TEST.findall(f.read()))
    for name in os.listdir(os.path.join(ROOT, "tests", "e2e")):
        if name.endswith(".py"):
            with open(os.path.join(ROOT, "tests", "e2e", name), encoding="utf-8") as f:
                found.update(f"{name}: {function}" for function in re.findall(r"^def (\w+)", f.read(), re.M))
    with open(os.path.join(ROOT, "docs", "hostile.md"), encoding="utf-8") as f:
        found.update(f"hostile: {row}" for row in re.findall(r"^\| (.+?) \| .+ \|$", f.read(), re.M))
    return found


def faults_of(text, tests):
    faults, seen = [], []
    for line in text.split("\n"):
        cells = [c.strip() for c in line.strip().strip("|").split("|")]
        if not line.startswith("| ") or cells[0] == "id":
            continue
        if len(cells) != 3 or not cells[1]:
            faults.append(f"row '{cells[0]}': wanted id, behaviour and guard")
            continue
        seen.append(cells[0])
        guard = cells[2]
        named = re.findall(r"`(\w+\.\w+|hostile: [^`]+|\w+\.py: \w+)`", guard)
        faults += [f"row '{cells[0]}': no test {t} in tests/" for t in named if t not in tests]
        if not named and not re.match(r"(later|does not apply): \S", guard):
            faults.append(f"row '{cells[0]}': guard '{guard}' is neither a test nor later: nor does not apply:")
    faults += [f"row '{i}' is missing" for i in IDS if i not in seen]
    faults += [f"row '{i}' is not known or comes twice" for i in seen if i not in IDS or seen.count(i) > 1]
    return faults, seen


def self_test():
    good = "\n".join(f"| {i} | x | `A.B` |" for i in IDS)
    assert not faults_of(good, {"A.B"})[0]
    assert len(faults_of(good, {"A.C"})[0]) == len(IDS)
    assert faults_of(good.replace("| a | x | `A.B` |", ""), {"A.B"})[0] == ["row 'a' is missing"]
    assert "neither" in faults_of(good.replace("| a | x | `A.B` |", "| a | x | soon |"), {"A.B"})[0][0]


def main():
    self_test()
    with open(os.path.join(ROOT, "docs", "dev", "known-bugs.md"), encoding="utf-8") as f:
        faults, seen = faults_of(f.read(), tests_in_tree())
    for line in faults:
        print(f"docs/dev/known-bugs.md: {line}")
    if faults:
        sys.exit(f"check_known_bugs: {len(faults)} faults")
    print(f"check_known_bugs: ok, {len(seen)} rows")


if __name__ == "__main__":
    main()
