#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Random tiny models of every family beside transformers and PEFT from PyPI (tools/golden/random_models.py).
# usage: tools/run/random_models.sh PROGRAM [option...], the options of random_models.py
# GOLDEN_PYTHON names a Python that has tools/requirements/golden.txt already; otherwise they are installed into
# build/golden (once, about 6 GB, since PyPI's torch brings its GPU libraries).
set -euo pipefail
cd "$(dirname "$0")/../.."
strata=${1:?usage: tools/run/random_models.sh PROGRAM [option...]}
shift
python=${GOLDEN_PYTHON:-}
if [ -z "$python" ]; then
  python=build/golden/bin/python
  if [ ! -e build/golden/ready ]; then
    echo "Installing torch, transformers and PEFT from PyPI into build/golden (once, about 6 GB)" >&2
    python3 -m venv --clear build/golden
    "$python" -m pip install --quiet --disable-pip-version-check -r tools/requirements/golden.txt
    touch build/golden/ready
  fi
fi
export OMP_NUM_THREADS=1
"$python" tools/golden/random_models.py --strata "$strata" --edges --keep build/random_models
"$python" tools/golden/init_names.py --strata "$strata" deepseek-v4-tiny smollm2-135m gemma3_vision qwen3_5_moe_hub deepseek_moe_no_shared
exec "$python" tools/golden/random_models.py --strata "$strata" --keep build/random_models "$@"
