#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Check that every source file names its licence in its first two lines.

usage: python3 tools/check/check_licence.py
"""
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
LINE = "SPDX-License-Identifier: Apache-2.0"
ENDINGS = (".h", ".cc", ".cu", ".cuh", ".py", ".sh", ".cmake", ".toml", ".proto", ".cc.in", "CMakeLists.txt", "Containerfile")


def main():
    listed = subprocess.run(["git", "ls-files", "src", "tests", "bench", "tools", "cmake", "examples", "CMakeLists.txt", ".ci/run"],
                            cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    faults = []
    for name in listed:
        if not name.endswith(ENDINGS) or "/third_party/" in name or not (ROOT / name).exists():
            continue
        with open(ROOT / name, encoding="utf-8") as file:
            if not any(LINE in file.readline() for _ in range(2)):
                faults.append(f"{name}: its first lines lack {LINE!r}")
    print("\n".join(faults) or "check_licence: ok")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
