#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/checkpoint/data/python_re.tsv: what CPython's re makes of keys of rank_pattern.

usage: python3.11 tools/golden/make_python_re.py

First the modules, then a row for each key: the key, and "error" where PEFT's expression of it is none, else a character
for each module, 1 where the key decides for it as in PEFT's get_pattern_key. Keys are those below, and random ones.
"""
import pathlib
import random
import re
import sys
import warnings

OUT = pathlib.Path(__file__).parent.parent.parent / "tests/checkpoint/data/python_re.tsv"
MODULES = ["a", "aa", "aaa", "aaaa", "aaaab", "ab", "b", "A", "1", "-", "{2}a", "a{x}", "a{2", "a.b", "b.aa", "x.1-a",
           "[a]"]
KEYS = r"""
a{02,2}? a{2}? a{2,2}? a{2}?b? (?:a{2})?b? a{1,2}+ a{1,2}+a a{2}+ (a[ab]*){2}+ a{2,3}?b? a{,2} a{,} a{,}b a{2,} a{02}
a{0,02}+b
a+* a** a*** a+?+ a+++ a??? a?+? a{2}{3} a{2}* a{2}?* a{2}+? a*{2} a{,}{2} (?:a*){2} (a{2}){3} (?:a+)* a++ a*+a a?+ a??
a*?b
{2}a a|{2} ({2}) ^{2}a {,}a {2 {x}a a{x} a{2 a{ a{} {a} {} {{2} a|* (?:*) ^* $* \b* \b{2} (?=a)* (?=a){2}
[\d-a] [\d-] [-\d] [a-\d] [\w-.] [\s-a] [\d\-a] [1-\d] [a\d-] [^\d-a] [^\d-] [a-b-c] [a-] [-a] [--a] [+--] [a--]
[a[bc]] [[a] [a&&b] [&&a] [a&b] [%-&&] []a] [^]a] [] [a [b-a] [\]a] [\b] [\B] [\z] [\p] [a|b] [a||b] [a~~b] [$.*]
\Aa a\Z a\z \x61 \u0061 \e \p{L} \P{L} \pL \h \R \K \G \N \a \_ \- \. \{ \1 (a)\1 \0 \
(?i)a a(?i) (?i:a) (?-i:A) (?i:a(?-i:a)) (?s:.) (?P<n>a) (?P=n) (?#a)a (?>a+)a (?>a|aa)b? (?<=a)b (?<!a)b (?<=ab)b
(?<=a|b)b
(?!a). (?=a). (?:a|) (|a) (a|)* (a|b)*? (?:) () (?R) (?&n) (?|a) (?'n'a) ) a) a)|(b a)(b ?:a ?=a ?a *a +a | ^a$ a$b a^b
.* .*+
""".split()
ATOMS = ["a", "a", "b", "1", ".", "[ab]", "[^a]", "[a-b]", "[\\d-]", "[\\da-b]", "[\\d-a]", "\\d", "\\w", "\\S", "\\.",
         "{", "}", "-", "^", "$", "\\b", "\\B"]
GROUPS = ["(", "(?:", "(?:", "(?i:", "(?>", "(?=", "(?!", "(?<=", "(?<!"]
REPEATS = ["*", "+", "?", "{2}", "{02,2}", "{1,2}", "{,2}", "{1,}", "{,}"]
RANDOM = 800


def made_key(rng, depth=2):
    out = ""
    for _ in range(rng.randint(1, 3)):
        group = depth > 0 and rng.random() < 0.35
        out += rng.choice(GROUPS) + made_key(rng, depth - 1) + ")" if group else rng.choice(ATOMS)
        if rng.random() < 0.4:
            out += rng.choice(REPEATS) + rng.choice(["", "", "", "?", "+", "*", "{2}"])
        if rng.random() < 0.1:
            out += "|"
    return out


def answers(key):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        try:
            expression = re.compile(rf"(.*\.)?({key})$")
        except (re.error, OverflowError):
            return "error"
    return "".join(str(int(bool(expression.match(module)) or module == key)) for module in MODULES)


def main():
    if sys.version_info[:2] != (3, 11):
        sys.exit("wanted CPython 3.11, whose answers these are")
    rng = random.Random(11)
    keys = list(dict.fromkeys(KEYS + [made_key(rng) for _ in range(RANDOM)]))
    rows = ["\t".join(["", *MODULES])] + [f"{key}\t{answers(key)}" for key in keys]
    OUT.write_text("\n".join(rows) + "\n")


if __name__ == "__main__":
    main()
