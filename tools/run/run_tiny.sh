#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The main job on the bundled model: fine-tune it with LoRA on examples/answers.jsonl, show samples before and after,
# and fail unless the evaluation loss fell by at least 30 %.
# usage: tools/run/run_tiny.sh PROGRAM [OUT_DIR]
set -euo pipefail
cd "$(dirname "$0")/../.."
strata=${1:?usage: tools/run/run_tiny.sh PROGRAM [OUT_DIR]}
out=${2:-out/run}
model=models/tiny-qwen3
questions=("What is 7 plus 5?" "What does a cow say?" "What is the opposite of hot?")

ask() {  # heading, then options of strata chat
  echo
  echo "$1"
  shift
  for question in "${questions[@]}"; do
    printf '  %-30s ' "$question"
    "$strata" chat --model "$model" --prompt "$question" --temperature 0 --max-tokens 40 "$@" 2>/dev/null | tr '\n' ' '
    echo
  done
}

rm -rf "$out"
ask "Before:"
echo
result=$("$strata" train --model "$model" --data examples/answers.jsonl --eval examples/answers_heldout.jsonl \
  --out "$out" --rank 16 --alpha 32 --lr 1e-3 --epochs 3 --batch-tokens 512 --json)
ask "After (adapter in $out):" --adapter "$out"
echo
# {"steps":..,"eval_loss_before":A,"eval_loss":B,..}: B must be at most 0.7 A.
echo "$result" | awk -F'[:,}]' '{
  for (i = 1; i < NF; i++) {
    if ($i ~ /"eval_loss_before"/) before = $(i + 1)
    if ($i ~ /"eval_loss"$/) after = $(i + 1)
  }
  fall = 100 * (1 - after / before)
  printf "Evaluation loss: %.3f -> %.3f nats per token, %.0f %% less.\n", before, after, fall
  if (!(before > 0) || !(fall >= 30)) { print "FAILED: it must fall by at least 30 %."; exit 1 }
}'
echo "Talk to it:  $strata chat --model $model --adapter $out"
