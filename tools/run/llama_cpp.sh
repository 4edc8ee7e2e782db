#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# GGUF files of strata in llama.cpp (tools/check/compare_llama_cpp.py).
# usage: tools/run/llama_cpp.sh PROGRAM
# LLAMA_CPP_PYTHON names a Python that has tools/requirements/llama_cpp.txt already; otherwise that is built in
# build/llama_cpp (once, a quarter of an hour on two cores).
set -euo pipefail
cd "$(dirname "$0")/../.."
strata=${1:?usage: tools/run/llama_cpp.sh PROGRAM}
python=${LLAMA_CPP_PYTHON:-}
if [ -z "$python" ]; then
  python=build/llama_cpp/bin/python
  if [ ! -e build/llama_cpp/ready ]; then
    echo "Building llama.cpp from PyPI's llama-cpp-python in build/llama_cpp (once)" >&2
    python3 -m venv --clear build/llama_cpp
    "$python" -m pip install --quiet --disable-pip-version-check -r tools/requirements/llama_cpp.txt
    touch build/llama_cpp/ready
  fi
fi
exec "$python" tools/check/compare_llama_cpp.py "$strata"
