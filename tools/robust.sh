#!/bin/bash
# Hostile requests against the table in docs/hostile.md, and kill -9 of the whole server under load.
# usage: tools/robust.sh PROGRAM [KILLS, 3]
set -euo pipefail
cd "$(dirname "$0")/.."
strata=$(realpath "${1:?usage: tools/robust.sh PROGRAM [KILLS]}")
venv=build/sdk-0.38.0
if [ ! -e "$venv/ready" ]; then
  python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check -r tools/requirements-tinker-0.38.0.txt
  touch "$venv/ready"
fi
"$venv/bin/python" tests/e2e/hostile.py "$strata" models/tiny-qwen3 --check docs/hostile.md
"$venv/bin/python" tests/e2e/kill.py "$strata" models/tiny-qwen3 "${2:-3}"
