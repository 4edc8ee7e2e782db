#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The main job: serves the bundled model on loopback and fine-tunes it with the official Tinker SDK from PyPI, which
# lives in an environment of its own. Fails unless the evaluation loss fell by at least 30 %.
# usage: tools/run/run_served.sh PROGRAM [OUT_DIR]
set -euo pipefail
cd "$(dirname "$0")/../.."
. tools/run/serve.inc.sh
strata=${1:?usage: tools/run/run_served.sh PROGRAM [OUT_DIR]}
out=${2:-out/serve}
python=$(tools/run/sdk_python.sh)

rm -rf "$out"
mkdir -p "$out"
start_server "$out/log" "$strata" --model tiny=models/tiny-qwen3 --no-keys --listen 127.0.0.1:0 \
  --metrics-listen 127.0.0.1:0 --data "$out/data"
cat "$out/log"
echo
TINKER_TELEMETRY=0 "$python" examples/tinker_client.py "$url" tiny
stop_server
cat <<EOT

Start the server alone, on http://127.0.0.1:8000:
  $strata serve --model tiny=models/tiny-qwen3 --no-keys --data $out/data
Connect to it from $python:
  import os, tinker
  os.environ["TINKER_API_KEY"] = "tml-this-server-runs-without-keys"
  service = tinker.ServiceClient(base_url="http://127.0.0.1:8000")
  client = service.create_lora_training_client(base_model="tiny", rank=16).result()
  print(client.get_info())
EOT
