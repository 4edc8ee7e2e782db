#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The scripts below tools/ import each other without a circle: imports inside functions count too.

usage: python3 tools/check/check_python_imports.py [--self-test]
"""
import ast
import os
import sys

TOOLS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def imports_of(text):
    """Names of all modules that a script imports anywhere."""
    names = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names.add(node.module)
    return names


def find_circle(graph):
    """A list of modules in which each imports the next and the last the first, or None."""
    done, path = set(), []

    def visit(name):
        if name in path:
            return path[path.index(name):]
        if name in done:
            return None
        path.append(name)
        for other in sorted(graph[name] & graph.keys()):
            circle = visit(other)
            if circle:
                return circle
        done.add(path.pop())
        return None

    return next((circle for circle in map(visit, sorted(graph)) if circle), None)


def folder_graph(folder):
    graph = {}
    for name in os.listdir(folder):
        if name.endswith(".py"):
            with open(os.path.join(folder, name), encoding="utf-8") as f:
                graph[name[:-3]] = imports_of(f.read())
    return graph


def self_test():
    assert imports_of("import a, b.c\ndef f():\n  from d import e\n") == {"a", "b.c", "d"}
    assert find_circle({"a": {"b"}, "b": {"c", "json"}, "c": set()}) is None
    assert find_circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c"]
    assert find_circle({"a": {"a"}}) == ["a"]


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    count, faults = 0, []
    for folder, _, names in os.walk(TOOLS):
        graph = folder_graph(folder)
        count += len(graph)
        circle = find_circle(graph)
        if circle:
            faults.append(f"{os.path.relpath(folder, TOOLS)}: {' -> '.join([*circle, circle[0]])}")
    if faults:
        sys.exit("check_python_imports: scripts import each other in a circle: " + "; ".join(faults))
    print(f"check_python_imports: {count} scripts without a circle")


if __name__ == "__main__":
    main()
