#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a wheel that holds the program as a script, so that `pip install` puts `strata` on the path. Its libraries are
brought in afterwards by `auditwheel repair`, which also checks the tag.

usage: python3 tools/package/make_wheel.py --program build/release/strata --version 0.2.0 --out DIR
"""
import argparse
import base64
import hashlib
import pathlib
import shutil
import stat
import subprocess
import tempfile
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
TAG = "py3-none-linux_x86_64"
TIME = (1980, 1, 1, 0, 0, 0)  # equal files make equal wheels


def metadata(version):
    return (f"Metadata-Version: 2.4\nName: strata\nVersion: {version}\n"
            "Summary: Fine-tune and serve language models on a CPU: the native program strata\n"
            "License-Expression: Apache-2.0\nLicense-File: LICENSE\nLicense-File: THIRD_PARTY.md\n"
            "Requires-Python: >=3.9\nDescription-Content-Type: text/markdown\n\n") + (ROOT / "README.md").read_text()


def stripped(program):
    with tempfile.TemporaryDirectory() as folder:
        copy = pathlib.Path(folder) / "strata"
        shutil.copy(program, copy)
        subprocess.run(["strip", copy], check=True)
        return copy.read_bytes()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("program", "version", "out"):
        parser.add_argument("--" + name, required=True)
    args = parser.parse_args()
    name = f"strata-{args.version}"
    info = name + ".dist-info"
    files = {f"{name}.data/scripts/strata": stripped(args.program),
             f"{info}/METADATA": metadata(args.version).encode(),
             f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: strata\nRoot-Is-Purelib: false\nTag: {TAG}\n".encode()}
    for path in [ROOT / "LICENSE", ROOT / "THIRD_PARTY.md", *sorted((ROOT / "LICENSES").iterdir())]:
        files[f"{info}/licenses/{path.relative_to(ROOT)}"] = path.read_bytes()
    record = ""
    for path, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        record += f"{path},sha256={digest},{len(data)}\n"
    files[f"{info}/RECORD"] = (record + f"{info}/RECORD,,\n").encode()
    out = pathlib.Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(out / f"{name}-{TAG}.whl", "w", zipfile.ZIP_DEFLATED) as wheel:
        for path, data in files.items():
            entry = zipfile.ZipInfo(path, TIME)
            mode = 0o755 if path.endswith("scripts/strata") else 0o644
            entry.external_attr = (stat.S_IFREG | mode) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            wheel.writestr(entry, data)


if __name__ == "__main__":
    main()
