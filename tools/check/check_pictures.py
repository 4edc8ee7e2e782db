#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Check that the pictures in docs/ show what the tree holds.

usage: python3 tools/check/check_pictures.py            exits 1 and says what to run when a picture is stale
       python3 tools/check/check_pictures.py --keep     after `make page PICTURES=docs`: keeps the hash of the page's sources

docs/page.png     of the page whose sources (src/server/tinker/view/assets) have the hash in docs/page.sources
docs/speed.svg    what tools/docs/make_speed_svg.py draws from docs/peers.md
"""
import hashlib
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
KEPT = ROOT / "docs" / "page.sources"


def page_hash():
    found = hashlib.sha256()
    for path in sorted((ROOT / "src" / "server" / "tinker" / "view" / "assets").iterdir()):
        found.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()


def main():
    if sys.argv[1:] == ["--keep"]:
        KEPT.write_text(page_hash() + "\n")
        return
    if sys.argv[1:]:
        sys.exit(__doc__)
    faults = []
    if not KEPT.exists() or KEPT.read_text().strip() != page_hash():
        faults.append("docs/page.png shows an older page: run `make page PICTURES=docs` and look at it")
    speed = [sys.executable, ROOT / "tools" / "docs" / "make_speed_svg.py", "--check"]
    if subprocess.run(speed).returncode != 0:
        faults.append("docs/speed.svg is stale")
    print("\n".join(faults) or "check_pictures: ok")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
