#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Ten thousand tenants on one server, two hundred of them busy, two hostile.
# usage: tools/run/many_tenants.sh PROGRAM [SECONDS, 600]
set -euo pipefail
cd "$(dirname "$0")/../.."
strata=$(realpath "${1:?usage: tools/run/many_tenants.sh PROGRAM [SECONDS]}")
"$(tools/run/sdk_python.sh)" tests/e2e/many_tenants.py "$strata" models/tiny-qwen3 "${2:-600}"
