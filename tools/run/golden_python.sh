#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Prints the path of a Python that has tools/requirements/golden.txt: GOLDEN_PYTHON where it names one, else build/golden,
# which is installed the first time (about 6 GB, since PyPI's torch brings its GPU libraries).
set -euo pipefail
cd "$(dirname "$0")/../.."
if [ -n "${GOLDEN_PYTHON:-}" ]; then
  echo "$GOLDEN_PYTHON"
  exit
fi
if [ ! -e build/golden/ready ]; then
  echo "Installing torch, transformers and PEFT from PyPI into build/golden (once, about 6 GB)" >&2
  python3 -m venv --clear build/golden
  build/golden/bin/python -m pip install --quiet --disable-pip-version-check -r tools/requirements/golden.txt >&2
  touch build/golden/ready
fi
echo "$PWD/build/golden/bin/python"
