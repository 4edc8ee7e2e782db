#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Check the house rules that a compiler does not: include allow-lists, homes of headers, places that catch, who touches tensor
memory, sizes of files and functions, ASCII.

usage: python3 tools/check/check_layers.py [--root DIR] [--sizes]
       python3 tools/check/check_layers.py --self-test      each rule must catch a tree that breaks it

Reads tools/layers.toml, and from docs/architecture.md how large a folder may be. Prints every fault with file, line and reason, and exits 1 if there is one.
--sizes prints lines and TODOs per folder. Standard library only (Python 3.11).
"""
import argparse
import collections
import fnmatch
import os
import re
import sys
import tempfile
import tomllib

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
CATCH = re.compile(r"\bcatch \(")
BUDGET = re.compile(r"^\| `([\w/]+)/` \|.*\| ([\d,]+) \|$")
STANDARD = re.compile(r"^[a-z_0-9]+$|^std[a-z]+\.h$")
CODE = (".h", ".cc", ".cu", ".cuh")
# What may hold a brace that is none of the code's: comments, strings, characters, directives.
NO_CODE = re.compile(r'''//[^\n]*|/\*.*?\*/|R"(?P<end>[^()\s]*)\(.*?\)(?P=end)"|"(?:\\.|[^"\\\n])*"'''
                     r"""|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'|^[ \t]*\#(?:\\\n|[^\n])*""", re.S | re.M)
SCOPE = re.compile(r"\s*(template\s*<.*>\s*)?(inline\s+)?(namespace|class|struct|union|enum)\b|\s*extern\s*$", re.S)


def code_of(text):
    """The text with its lines, and nothing but code on them."""
    return NO_CODE.sub(lambda found: "\n" * found.group(0).count("\n"), text)


def end_of(code, begin, pair):
    """Behind what the bracket at `begin` closes with."""
    depth = 0
    for found in re.compile("[" + re.escape(pair) + "]").finditer(code, begin):
        depth += 1 if found.group(0) == pair[0] else -1
        if depth == 0:
            return found.end()
    return len(code)


def is_function(head):
    """Whether a brace behind that begins a function's body: no initialiser, of a constructor's member neither."""
    if re.search(r"(?<!operator)[^=!<>]=[^=]", head):
        return re.search(r"=\s*\[", head) is not None
    has_members = re.search(r"\)\s*(noexcept\s*)?:(?!:)", head) is not None
    return ")" in head and not (has_members and re.search(r"[\w>]$", head))


def functions(text):
    """(name, first line, lines) of each function of a file that is in no other; rows of a table in it do not count."""
    code, begin, at = code_of(text), 0, 0
    while found := re.compile(r"[;{}(]").search(code, at):
        at = found.end()
        if found.group(0) == "(":
            at = end_of(code, found.start(), "()")
        elif found.group(0) == "{":
            head = code[begin:found.start()]
            flat = head
            while flat != (flat := re.sub(r"\{[^{}]+\}", "{}", re.sub(r"\([^()]+\)", "()", flat))):
                pass
            if SCOPE.match(flat):
                begin = at
                continue
            at = end_of(code, found.start(), "{}")
            if not is_function(flat.rstrip()):
                continue  # behind an initialiser the declaration goes on
            first = code.count("\n", 0, begin + len(head) - len(head.lstrip())) + 1
            lines = code.count("\n", 0, at) + 2 - first
            for table in re.finditer(r"=\s*\{", code[found.start():at]):
                lines -= code.count("\n", found.start() + table.end(), end_of(code, found.start() + table.end() - 1, "{}"))
            names = re.findall(r"([\w~]+)\s*\(", flat)
            yield names[0] if names else "", first, lines
            begin = at
        else:
            begin = at


class Checker:
    def __init__(self, root, rules):
        self.root, self.rules, self.faults = root, rules, []
        self.exempt = rules.get("exempt", {})
        self.sizes = {}
        self.included = set()  # (folder, folder that it includes)
        self.catches = collections.Counter()  # places by file

    def layer_of(self, inner):
        """The folder of [layers] that a file below src/ is in: the floor where its room has floors, else the room."""
        parts = inner.split("/")[:-1]
        names = ("/".join(parts[:count]) for count in range(len(parts), 0, -1))
        return next((name for name in names if name in self.rules["layers"]), inner.split("/")[0])

    def fault(self, path, line, message):
        self.faults.append(f"{path}:{line}: {message}" if line else f"{path}: {message}")

    def check(self):
        self.check_cycles()
        for top in ("src", "tests", "bench"):
            for path in self.files(top):
                with open(os.path.join(self.root, path), "rb") as f:
                    data = f.read()
                self.check_file(path, data)
        self.check_lists()
        self.check_budgets()
        return self.faults

    def check_lists(self):
        """What nobody needs is struck from the lists, or they would allow more than the house has."""
        for owner, allowed in self.rules["layers"].items():
            for below in allowed:
                if below != "*" and (owner, below) not in self.included:
                    self.fault("tools/layers.toml", 0, f"{owner} includes nothing of {below}: strike it")
        for path, reason in self.rules.get("catch", {}).items():
            if self.catches[path] != int(reason.split(":")[0]):
                self.fault("tools/layers.toml", 0, f"[catch]: {path} has {self.catches[path]} places, not as the list says: {reason}")

    def check_budgets(self):
        try:
            with open(os.path.join(self.root, "docs", "architecture.md"), encoding="utf-8") as f:
                rows = [match.groups() for match in map(BUDGET.match, f.read().split("\n")) if match]
        except FileNotFoundError:
            return
        for folder, budget in rows:
            lines = self.sizes.get(os.path.join("src", folder), [0, 0, 0])[1]
            if lines > int(budget.replace(",", "")):
                self.fault(f"src/{folder}", 0, f"{lines} lines, budget {budget}: say less, or change the table of "
                                               "docs/architecture.md with a reason")

    def files(self, top):
        for folder, folders, names in sorted(os.walk(os.path.join(self.root, top))):
            folders.sort()
            for name in sorted(names):
                if name.endswith(CODE):
                    yield os.path.relpath(os.path.join(folder, name), self.root)

    def check_cycles(self):
        layers = self.rules["layers"]
        state = {}

        def visit(name, trail):
            if state.get(name) == "done":
                return
            if state.get(name) == "open":
                self.fault("tools/layers.toml", 0, "cycle: " + " -> ".join(trail + [name]))
                return
            state[name] = "open"
            for below in layers.get(name, []):
                if below != "*":
                    if below not in layers:
                        self.fault("tools/layers.toml", 0, f"{name} may include unknown folder {below}")
                    visit(below, trail + [name])
            state[name] = "done"

        for name in layers:
            visit(name, [])

    def check_file(self, path, data):
        lines = data.decode("utf-8", "replace").split("\n")
        if lines and lines[-1] == "":
            lines.pop()
        top, _, inner = path.partition(os.sep)
        room = self.layer_of(inner) if top == "src" else inner.split(os.sep)[0]
        folder = os.path.join(top, room) if os.sep in inner else top
        size = self.sizes.setdefault(folder, [0, 0, 0])
        size[0] += 1
        size[1] += sum(not line.startswith("// SPDX-") for line in lines)
        size[2] += sum("TODO" in line for line in lines)
        if path not in self.exempt:
            self.check_sizes(path, lines)
        if top == "src":
            self.check_source(path, inner, lines)

    def check_sizes(self, path, lines):
        limits = self.rules["limits"]
        if len(lines) > limits["file_lines"]:
            self.fault(path, 0, f"{len(lines)} lines, limit {limits['file_lines']}: split it, or exempt it "
                                "in tools/layers.toml with a reason")
        raw = False  # inside a raw string, which is data and keeps its lines
        for number, line in enumerate(lines, 1):
            data = raw or 'R"' in line
            if data:
                raw = line.rfind(')"') <= line.rfind('R"') if 'R"' in line else ')"' not in line
            if len(line) > limits["line_columns"] and not data:
                self.fault(path, number, f"{len(line)} columns, limit {limits['line_columns']}")
        for name, first, length in functions("\n".join(lines)):
            if length > limits["function_lines"]:
                self.fault(path, first, f"{name} has {length} lines, limit {limits['function_lines']}: give its steps names")

    def check_source(self, path, inner, lines):
        header = path.endswith((".h", ".cuh"))
        owner = self.layer_of(inner)
        if owner not in self.rules["layers"]:
            self.fault(path, 0, f"folder {owner} has no row in tools/layers.toml")
        if header and not any(line.strip() == "#pragma once" for line in lines):
            self.fault(path, 0, "header without #pragma once")
        includes = []
        for number, line in enumerate(lines, 1):
            if not line.isascii():
                self.fault(path, number, "not ASCII")
            if header and re.match(r"\s*using namespace\b", line):
                self.fault(path, number, "using namespace in a header")
            self.check_tensor_memory(path, owner, number, line)
            self.check_words(path, inner, number, line)
            if re.search(r"\bgetenv\s*\(", line) and owner != "base":
                self.fault(path, number, "getenv outside base/env: add the variable there")
            if CATCH.search(line.split("//")[0]):
                self.check_catch(path, inner, number)
            if line.lstrip().startswith("#") and (found := INCLUDE.match(line)):
                includes.append((number, found.group(1), found.group(2)))
        for number, kind, name in includes:
            self.check_include(path, inner, owner, header, number, kind, name)
        self.check_own_header(path, inner, includes)

    def check_catch(self, path, inner, number):
        self.catches[inner] += 1
        if inner not in self.rules.get("catch", {}):
            self.fault(path, number, "catches: let it pass to where requests, jobs and commands end, or give the reason in "
                                     "[catch] of tools/layers.toml")

    def check_tensor_memory(self, path, owner, number, line):
        rule = self.rules["tensor_memory"]
        if owner in rule["below"] or path in rule["allowed"]:
            return
        code = line.split("//")[0]
        if found := next((m for p in rule["patterns"] if (m := re.search(p, code))), None):
            self.fault(path, number, f"'{found.group(0)}' touches tensor memory above ops/: make it an op, or copy with "
                                     "ops::to_host and from_host; who may is listed in tools/layers.toml")

    def check_words(self, path, inner, number, line):
        code = line.split("//")[0]
        for rule in self.rules["words"]:
            found = re.search(rule["pattern"], code)
            if found and not any(fnmatch.fnmatch(inner, p) for p in rule["allowed"]):
                self.fault(path, number, f"'{found.group(0)}' has no place here: {rule['reason']}")

    def check_include(self, path, inner, owner, header, number, kind, name):
        for home in self.rules.get("homes", []):
            if fnmatch.fnmatch(name, home["header"]):
                if not any(fnmatch.fnmatch(inner, p) for p in home["allowed"]):
                    self.fault(path, number, f"<{name}> has no place here: {home['reason']}; allowed in "
                                             + ", ".join(home["allowed"]))
                    return
                if kind == "<":
                    return
        if kind == "<":
            if header and not STANDARD.match(name):
                self.fault(path, number, f"<{name}> in a header: no third-party or system types in headers")
            return
        target = self.layer_of(name)
        if "/" not in name or ".." in name.split("/"):
            self.fault(path, number, f'"{name}": write includes from src/ on, as "folder/file.h"')
            return
        self.included.add((owner, target))
        if target not in self.rules["layers"]:
            self.fault(path, number, f'"{name}": folder {target} has no row in tools/layers.toml')
        elif target != owner:
            allowed = self.rules["layers"].get(owner, [])
            if "*" not in allowed and target not in allowed:
                self.fault(path, number, f'{owner}/ may not include "{name}"; it may include '
                                         + (", ".join(allowed) or "nothing"))
        if not os.path.exists(os.path.join(self.root, "src", name)):
            self.fault(path, number, f'"{name}" does not exist under src/')

    def check_own_header(self, path, inner, includes):
        own = os.path.splitext(inner)[0] + ".h"
        if path.endswith(".cc") and os.path.exists(os.path.join(self.root, "src", own)):
            if not includes or includes[0][2] != own:
                self.fault(path, 0, f'the first include must be the own header "{own}"')

    def print_sizes(self):
        print(f"{'folder':<20}{'files':>6}{'lines':>8}{'TODO':>6}")
        for folder, (files, lines, todos) in sorted(self.sizes.items()):
            print(f"{folder:<20}{files:>6}{lines:>8}{todos:>6}")
        total = [sum(column) for column in zip(*self.sizes.values())] or [0, 0, 0]
        print(f"{'total':<20}{total[0]:>6}{total[1]:>8}{total[2]:>6}")


GOOD = {"src/base/a.h": "#pragma once\n#include <vector>\n",
        "src/base/a.cc": '#include "base/a.h"\nvoid f() { try { } catch (...) { } }\n',
        "docs/architecture.md": "| `base/` | what all need | 1,000 |\n",
        "src/tensor/b.h": '#pragma once\n#include "base/a.h"\n',
        "src/ops/x.cc": "auto* p = view.f32();\n", "src/model/weights/load.cc": "const HostAccess access(a);\n",
        "src/model/y.cc": "// what view.f32() would be\n",
        "src/house/low/z.h": "#pragma once\n", "src/house/high/deep/z.h": '#pragma once\n#include "house/low/z.h"\n',
        "src/house/z.h": '#pragma once\n#include "house/high/deep/z.h"\n'}
BAD = {
    "may not include": {"src/base/x.h": '#pragma once\n#include "tensor/b.h"\n'},
    "JSON stays at the edge": {"src/tensor/x.cc": "#include <boost/json.hpp>\n"},
    "SIMD lives in ops/cpu": {"src/tensor/x.cc": "#include <immintrin.h>\n"},
    "CUDA headers live": {"src/tensor/x.cc": "#include <cuda_runtime.h>\n"},
    "in a header: no third-party": {"src/base/x.h": "#pragma once\n#include <fmt/format.h>\n"},
    "without #pragma once": {"src/base/x.h": "int f();\n"},
    "using namespace in a header": {"src/base/x.h": "#pragma once\nusing namespace std;\n"},
    "not ASCII": {"src/base/x.cc": "// \u00e9\n"},
    "columns, limit": {"tests/base/x_test.cc": "//" + "x" * 100 + "\n"},
    "3: 1": {"tests/base/y_test.cc": 'auto a = R"(' + "x" * 100 + '\n)";\n//' + "x" * 100 + "\n"},
    "501 lines, limit": {"src/base/x.cc": "\n" * 501},
    "f has 61 lines": {"src/base/x.cc": "struct S {\n  S() : a{1}, b{.x = 2} {}\n};\nint f(int x = {}) {\n" + "\n" * 59 + "}\n"},
    "S has 61 lines": {"tests/base/x_test.cc": "S::S() : a{1}\n, b{2} {\n" + "\n" * 58 + "}\n"},
    "g has 61 lines": {"src/base/x.cc": "void g() {\n  int t[] = {\n1,\n2};  // {\n" + "\n" * 58 + "}\n"},
    "getenv outside": {"src/tensor/x.cc": 'auto* p = getenv("X");\n'},
    "does not exist": {"src/tensor/x.cc": '#include "base/none.h"\n'},
    "as \"folder/file.h\"": {"src/base/x.cc": '#include "a.h"\n'},
    "first include must be": {"src/base/a.cc": '#include <vector>\n#include "base/a.h"\nvoid f() { try { } catch (...) { } }\n'},
    "'.f32()' touches tensor memory": {"src/model/x.cc": "float* p = view.f32();\n"},
    "'HostAccess' touches": {"src/engine/x.cc": "const HostAccess access(backend.allocator());\n"},
    "'run_in_workers' touches": {"src/train/x.cc": "backend.run_in_workers(3, body);\n"},
    "'static_cast<const float*>' touches": {"src/sample/x.cc": "auto* p = static_cast<const float*>(view.data);\n"},
    "'cpu::' has no place": {"src/ops/y.cc": "cpu::copy(backend, x, y);\n"},
    "'is_counting' has no place": {"src/model/x.cc": "if (backend.is_counting()) return;\n"},
    "give a Batch or a sample": {"src/train/x.cc": "model::Pass pass = builder_.build(backend, weights);\n"},
    "ask the planner, or a plan": {"src/train/x.cc": "if (plan.num_stages() > 1) gather();\n"},
    "the CPU is one kind": {"src/ops/y.cc": '#include "ops/cpu/gemm.h"\n'},
    "has no row": {"src/attic/x.cc": "int x;\n"},
    "catches: let it pass": {"src/tensor/x.cc": "void f() { try { } catch (...) { } }\n"},
    "base/a.cc has 0 places": {"src/base/a.cc": '#include "base/a.h"\n// no catch (...) here\n'},
    "house/low/ may not include": {"src/house/low/deep/x.h": '#pragma once\n#include "house/high/deep/z.h"\n'},
    "house/high/ may not include": {"src/house/high/x.h": '#pragma once\n#include "house/z.h"\n'},
    "tensor/ may not include": {"src/tensor/x.h": '#pragma once\n#include "house/low/z.h"\n'},
    "src/house/low: 4 lines, budget 3": {"src/house/low/x.cc": "\n\n\n", "docs/architecture.md": "| `house/low/` | the floor | 3 |\n"},
    "includes nothing of base": {"src/tensor/b.h": "#pragma once\n"},
    "lines, budget 3": {"docs/architecture.md": "| `base/` | what all need | 3 |\n"},
}


SMALL = {"layers": {"base": [], "tensor": ["base"], "ops": [], "model": [], "engine": [], "train": [], "sample": [],
                    "house": ["house/high"], "house/low": [], "house/high": ["house/low"]}, "catch": {"base/a.cc": "1: a reason"}}


def run_tree(files, rules):
    with tempfile.TemporaryDirectory() as root:
        for path, text in files.items():
            full = os.path.join(root, path)
            os.makedirs(os.path.dirname(full), exist_ok=True)
            with open(full, "w", encoding="utf-8") as f:
                f.write(text)
        return Checker(root, rules).check()


def self_test(all_rules):
    rules = {**all_rules, **SMALL}
    clean = run_tree(GOOD, rules)
    assert not clean, clean
    for words, files in BAD.items():
        faults = run_tree({**GOOD, **files}, rules)
        assert len(faults) == 1 and words in faults[0], (words, faults)
    cyclic = {**rules, "layers": {**rules["layers"], "base": ["tensor"]}}
    assert any("cycle" in f for f in run_tree(GOOD, cyclic))
    print(f"check_layers: self test passed, {len(BAD) + 2} trees")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--root", default=ROOT)
    parser.add_argument("--sizes", action="store_true")
    parser.add_argument("--self-test", action="store_true")
    args = parser.parse_args()
    with open(os.path.join(ROOT, "tools", "layers.toml"), "rb") as f:
        rules = tomllib.load(f)
    if args.self_test:
        self_test(rules)
        return
    checker = Checker(args.root, rules)
    faults = checker.check()
    if args.sizes:
        checker.print_sizes()
    for line in faults:
        print(line)
    if faults:
        sys.exit(f"check_layers: {len(faults)} faults")
    print("check_layers: ok")


if __name__ == "__main__":
    main()
