#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Names that batches of sources would change (strata_batches in cmake/strata.cmake).

A name in the unnamed namespace of one source hides a name of a header in the sources that are compiled behind it. Where
the compiler sees two of a kind it says so; where it does not, another function, constant or type is used in silence.
So in a folder that is compiled in batches no source may have such a name, if another one uses the header's."""

import pathlib
import re
import sys
import tempfile

WORD = r"[a-z_]\w*|k[A-Z]\w*"
FUNCTION = re.compile(rf"^(?:[\w:<>,&*\[\]]+[ ])+[&*]?({WORD})\([^;{{}}]*\)[^;{{}}()]*\{{", re.M)
CONSTANT = re.compile(r"^(?:constexpr|const)\b[^;{}=]*?\b(k[A-Z]\w*)(?:\[\w*\])*\s*[={]", re.M)
TYPE = re.compile(r"^(?:struct|class|enum class|enum) ([A-Z]\w*)", re.M)
ALIAS = re.compile(r"^using ([A-Z]\w*) =", re.M)
DECLARED = re.compile(rf"^(?:[\w:<>,&*\[\]]+[ ])+[&*]?({WORD})(?:\(|;| =)", re.M)
INCLUDE = re.compile(r'^#include "([^"]+)"', re.M)
CALL = re.compile(r"strata_(?:library|test)\(\w+([^)]*)\)|strata_batches\(\w+([^)]*)\)")


def plain(text: str) -> str:
    """Without comments and what is in quotes."""
    return re.sub(r'"(?:\\.|[^"\\\n])*"', '""', re.sub(r"//[^\n]*", "", text))


def unnamed(text: str) -> str:
    """What is inside unnamed namespaces."""
    inside = []
    for start in re.finditer(r"\bnamespace \{", text):
        depth, at = 1, start.end()
        while depth and at < len(text):
            depth += {"{": 1, "}": -1}.get(text[at], 0)
            at += 1
        inside.append(text[start.end() : at - 1])
    return "\n".join(inside)


def own_names(text: str) -> set:
    inside = unnamed(text)
    return {name for kind in (FUNCTION, CONSTANT, TYPE, ALIAS) for name in kind.findall(inside)}


class Headers:
    """What our headers declare outside of classes, by the sources that include them."""

    def __init__(self, root: pathlib.Path):
        self.root = root
        self.names = {}
        self.reached = {}
        for header in [*(root / "src").rglob("*.h"), *(root / "tests").rglob("*.h")]:
            text = plain(header.read_text())
            self.names[header] = {n for kind in (DECLARED, CONSTANT, TYPE, ALIAS) for n in kind.findall(text)}

    def reach(self, path: pathlib.Path) -> set:
        if path not in self.reached:
            self.reached[path] = set()
            for included in INCLUDE.findall(path.read_text()):
                for top in (self.root / "src", self.root):
                    header = top / included
                    if header in self.names:
                        self.reached[path] |= {header} | self.reach(header)
        return self.reached[path]

    def of(self, source: pathlib.Path) -> dict:
        return {name: header for header in sorted(self.reach(source)) for name in self.names[header]}


def batched_sources(cmake: pathlib.Path) -> list:
    """The sources of a folder that may be compiled together."""
    call = CALL.search(cmake.read_text())
    if call is None:
        return []
    words = (call[1] or call[2] or "").split()
    if "SEPARATE" in words:
        return []
    ends = {"LINK", "PRIVATE_LINK", "SHARDS", "ENVIRONMENT", "EXCEPT"}
    alone = set()
    for word in words[words.index("ALONE") + 1 :] if "ALONE" in words else []:
        if word in ends:
            break
        alone.add(word)
    if "EXCEPT" in words:
        alone.add(words[words.index("EXCEPT") + 1])
    return [s for s in sorted(cmake.parent.rglob("*.cc")) if s.name not in alone and s.parent.name not in alone]


def faults_of(root: pathlib.Path) -> list:
    headers = Headers(root)
    faults = []
    for cmake in sorted([*(root / "src").rglob("CMakeLists.txt"), *(root / "tests").rglob("CMakeLists.txt")]):
        before = {}  # names of sources that are compiled before
        for source in batched_sources(cmake):
            text = plain(source.read_text())
            own = own_names(text)
            declared = headers.of(source)
            for name in sorted((before.keys() & declared.keys()) - own):
                if re.search(rf"(?<![\w.>:]){name}\b", text):
                    faults.append(
                        f"{before[name].relative_to(root)}: its own {name} may hide that of "
                        f"{declared[name].relative_to(root)} in {source.relative_to(root)}, compiled in one batch: "
                        "give it another name"
                    )
            before.update({name: source for name in own})
    return faults


def self_test() -> None:
    """A hidden constant and a hidden function are found; names that nobody else uses are not."""
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        (root / "src/a").mkdir(parents=True)
        (root / "tests").mkdir()
        (root / "src/a/CMakeLists.txt").write_text("strata_library(a ALONE c.cc LINK b)\n")
        (root / "src/a/a.h").write_text("constexpr int kMost = 256;\nint count(long x);\nint other();\n")
        (root / "src/a/b.cc").write_text("namespace {\nconstexpr int kMost = 64;\nint other() { return 1; }\n}  // namespace\n")
        (root / "src/a/c.cc").write_text("namespace {\nint count(int x) { return x; }\n}  // namespace\n")
        (root / "src/a/d.cc").write_text('#include "a/a.h"\nint f() { return count(kMost); }\n')
        found = faults_of(root)
        assert len(found) == 1 and "its own kMost" in found[0] and "d.cc" in found[0], found
        (root / "src/a/CMakeLists.txt").write_text("strata_library(a LINK b)\n")
        assert len(faults_of(root)) == 2
        (root / "src/a/CMakeLists.txt").write_text("strata_library(a SEPARATE LINK b)\n")
        assert not faults_of(root)


def main() -> int:
    self_test()
    faults = faults_of(pathlib.Path(__file__).resolve().parents[2])
    for fault in faults:
        print(fault)
    print(f"check_batches: {len(faults)} faults" if faults else "check_batches: ok")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
