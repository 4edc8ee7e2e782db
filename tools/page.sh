#!/bin/bash
# The live page in headless Chromium against a server of our own: a run of the official SDK, its curve seen to grow, what
# other tenants see, and hostile text. Installs the SDK from PyPI into build/sdk-0.38.0.
# usage: tools/page.sh PROGRAM [SCREENSHOT.png]
set -euo pipefail
cd "$(dirname "$0")/.."
strata=$(realpath "${1:?usage: tools/page.sh PROGRAM [SCREENSHOT.png]}")
venv=build/sdk-0.38.0
if [ ! -e "$venv/ready" ]; then
  python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check -r tools/requirements-tinker-0.38.0.txt
  touch "$venv/ready"
fi
exec "$venv/bin/python" tests/e2e/page.py "$strata" models/tiny-qwen3 "${@:2}"
