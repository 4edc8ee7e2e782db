#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Random tiny models of every family beside transformers and PEFT from PyPI (tools/golden/random_models.py), in an
# environment of their own (golden_python.sh).
# usage: tools/run/random_models.sh PROGRAM [option...], the options of random_models.py
set -euo pipefail
cd "$(dirname "$0")/../.."
strata=${1:?usage: tools/run/random_models.sh PROGRAM [option...]}
shift
python=$(tools/run/golden_python.sh)
export OMP_NUM_THREADS=1
"$python" tools/golden/random_models.py --strata "$strata" --edges --keep build/random_models
"$python" tools/golden/init_names.py --strata "$strata" deepseek-v4-tiny smollm2-135m gemma3_vision qwen3_5_moe_hub deepseek_moe_no_shared
exec "$python" tools/golden/random_models.py --strata "$strata" --keep build/random_models "$@"
