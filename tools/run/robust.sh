#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Hostile requests against the table in docs/hostile.md, and in random order beside honest tenants; limits of what requests
# hold; a server under the systemd unit's restrictions, and what it tells a service manager; keys of backups and loose
# folders; memory beside its plan, of a server and of training in random configurations; and kill -9 of the whole server
# under load.
# usage: tools/run/robust.sh PROGRAM [KILLS, 3] [MIXED_SECONDS, 30]
set -euo pipefail
cd "$(dirname "$0")/../.."
strata=$(realpath "${1:?usage: tools/run/robust.sh PROGRAM [KILLS] [MIXED_SECONDS]}")
python=$(tools/run/sdk_python.sh)
"$python" tests/e2e/hostile.py "$strata" models/tiny-qwen3 --check docs/hostile.md
"$python" tests/e2e/closed.py "$strata" models/tiny-qwen3
"$python" tests/e2e/notify.py "$strata" models/tiny-qwen3
"$python" tests/e2e/guarded_files.py "$strata" models/tiny-qwen3
"$python" tests/e2e/budgets.py "$strata" models/tiny-qwen3
"$python" tests/e2e/mixed.py "$strata" models/tiny-qwen3 "${3:-30}"
"$python" tests/e2e/memory.py "$strata" models/tiny-qwen3
"$python" tests/e2e/random_memory.py "$strata" models/tiny-qwen3
"$python" tests/e2e/kill.py "$strata" models/tiny-qwen3 "${2:-3}"
