#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Pre-trains models/tiny-qwen3 again, from random weights, with Strata itself; resumes where it was stopped.
# usage: tools/run/pretrain_tiny.sh PROGRAM [OUT_DIR]
# The result is OUT_DIR (out/tiny-qwen3); copy its model.safetensors over the bundled one to keep it.
set -euo pipefail
cd "$(dirname "$0")/../.."
strata=${1:?usage: tools/run/pretrain_tiny.sh PROGRAM [OUT_DIR]}
out=${2:-out/tiny-qwen3}
mkdir -p out
[ -f out/tiny-corpus.jsonl ] || python3 tools/data/make_tiny_corpus.py out/tiny-corpus.jsonl --documents 100000
[ -f out/tiny-init/model.safetensors ] || "$strata" init --config models/tiny-qwen3 --out out/tiny-init --seed 0
"$strata" train --method full --model out/tiny-init --data out/tiny-corpus.jsonl --out "$out" --resume \
  --lr 3e-3 --steps 1100 --warmup-steps 40 --batch-tokens 4096 --micro-tokens 4096 --weight-decay 0.01 \
  --eval-fraction 0.002 --save-every 50
for prompt in "What is 3 plus 4?" "What does a cow say?" "Tell me a story."; do
  "$strata" chat --model "$out" --prompt "$prompt" --temperature 0 --max-tokens 60
done
