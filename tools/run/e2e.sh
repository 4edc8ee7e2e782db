#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The acceptance list of the Tinker protocol against a server of our own: conformance items over the wire, lifetimes and
# restarts, a tour with the official SDK of four versions, and gpt-oss from random weights to a served model. The SDKs come
# from PyPI (tools/run/sdk_python.sh).
# With STRATA_STAGES=2 in the environment, which is an option of serve, all servers have their models in two stages.
# usage: tools/run/e2e.sh PROGRAM [SDK_VERSION ...]
set -euo pipefail
cd "$(dirname "$0")/../.."
. tools/run/serve.inc.sh
strata=$(realpath "${1:?usage: tools/run/e2e.sh PROGRAM [SDK_VERSION ...]}")
shift
versions=("$@")
[ ${#versions[@]} -gt 0 ] && is_whole=no || is_whole=yes
[ "$is_whole" = no ] || versions=(0.38.0 0.36.0 0.30.4 0.25.0)
model=$PWD/models/tiny-qwen3
work=$(mktemp -d)
export E2E_ITEMS=$work/items

one=$("$strata" keygen)
two=$("$strata" keygen)
printf '%s alice\n%s bob\n' "$one" "$two" >"$work/keys"
chmod 600 "$work/keys"
port=$((20000 + RANDOM % 20000))
STRATA_LOG=4 start_server "$work/log" "$strata" --model "tiny=$model" --alias also-tiny=tiny --keys "$work/keys" --data "$work/data" \
  --listen "127.0.0.1:$port" --metrics-listen 127.0.0.1:0 --public-url "http://127.0.0.1:$port/box/strata" \
  --poll-hold 11 --max-adapters 128  # of two tenants, one of whom has some 50 models alive

cd tests/e2e
for version in "${versions[@]}"; do
  python=$(../../tools/run/sdk_python.sh "$version")
  TINKER_TELEMETRY=1 "$python" sdk_tour.py "$url" "$one"
done
python=$(../../tools/run/sdk_python.sh 0.38.0)
"$python" conformance.py "$url" "$one" "$two"
"$python" lifetimes.py "$strata" "$model"
"$python" tenants.py "$strata" "$model"
"$python" tls.py "$strata" "$model"
"$python" openai_sdk.py "$strata" "$model"
../../tools/run/tiny_qwen35.sh "$strata" "$work/tiny-qwen3.5"
"$python" states.py "$strata" "$work/tiny-qwen3.5"
../../tools/run/tiny_gpt_oss.sh "$strata" "$work/tiny-gpt-oss"
"$python" gpt_oss.py "$strata" "$work/tiny-gpt-oss" "$work/gpt-oss"
../../tools/run/tiny_gemma4.sh "$strata" "$work/tiny-gemma4"
"$python" gemma4.py "$strata" "$work/tiny-gemma4" "$work/gemma4"
if [ "$is_whole" = yes ] || [ -n "${GOLDEN_PYTHON:-}" ] || [ -e ../../build/golden/ready ]; then
  "$(../../tools/run/golden_python.sh)" gpt_oss_peft.py "$work/gpt-oss"
  "$(../../tools/run/golden_python.sh)" gemma4_peft.py "$work/gemma4"
else
  echo "gpt-oss and Gemma 4 in transformers and PEFT: left out, since they are not installed; make e2e without SDKS installs them"
fi
"$python" -c 'import pyrage' 2>/dev/null || "$python" -m pip install --quiet --disable-pip-version-check pyrage==1.4.0
"$python" state_items.py --strata "$strata" --model "$model"
stop_server
# Nothing of a key or of a signed URL's token may stand in the log, however chatty.
if grep -F -e "$one" -e "$two" -e "token=" "$work/log"; then
  echo "e2e: the log holds a secret" >&2
  exit 1
fi
"$python" count.py "$E2E_ITEMS"
echo "e2e: all passed"
