#!/bin/bash
# bench/load against a server of our own with the bundled model. Results are kept for 20 s, so that memory is level before
# the first reading; every result is fetched within that time.
# usage: tools/load.sh PROGRAM LOAD_BENCH SECONDS [bar]      bar: also fails outside the latency, memory and CPU bars
set -euo pipefail
cd "$(dirname "$0")/.."
strata=${1:?usage: tools/load.sh PROGRAM LOAD_BENCH SECONDS [bar]}
work=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server" 2>/dev/null || true; wait; rm -rf "$work"' EXIT
"$strata" serve --model tiny=models/tiny-qwen3 --no-keys --data "$work/data" --listen 127.0.0.1:0 \
  --metrics-listen 127.0.0.1:0 --memory 2GiB --result-ttl 20s >"$work/log" 2>&1 &
server=$!
for _ in $(seq 200); do
  ! grep -q "listening on" "$work/log" || break
  kill -0 "$server" 2>/dev/null || { cat "$work/log" >&2; exit 1; }
  sleep 0.1
done
port=$(sed -n 's/^listening on .*:\([0-9]*\)$/\1/p' "$work/log")
ulimit -n "$(ulimit -Hn)"
"$2" "$port" "$server" tml-none tiny "$3" "${@:4}"
kill "$server"
wait "$server"
server=
