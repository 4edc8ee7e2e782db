#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# bench/load against a server of our own with the bundled model. Results are kept for 20 s, so that memory is level before
# the first reading; every result is fetched within that time.
# usage: tools/load.sh PROGRAM LOAD_BENCH SECONDS [bar]      bar: also fails outside the latency, memory and CPU bars
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/run/serve.inc.sh
strata=${1:?usage: tools/load.sh PROGRAM LOAD_BENCH SECONDS [bar]}
work=$(mktemp -d)
start_server "$work/log" "$strata" --model tiny=models/tiny-qwen3 --no-keys --data "$work/data" --listen 127.0.0.1:0 \
  --metrics-listen 127.0.0.1:0 --memory 2GiB --result-ttl 20s
ulimit -n "$(ulimit -Hn)"
"$2" "${url##*:}" "$server" tml-none tiny "$3" "${@:4}"
stop_server
