#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The live page in headless Chromium against a server of our own: a run of the official SDK, its curve seen to grow, what
# other tenants see, and hostile text.
# usage: tools/run/page.sh PROGRAM [PICTURES]     PICTURES: a folder for page.png and its narrow and dark versions
set -euo pipefail
cd "$(dirname "$0")/../.."
strata=$(realpath "${1:?usage: tools/run/page.sh PROGRAM [PICTURES]}")
exec "$(tools/run/sdk_python.sh)" tests/e2e/page.py "$strata" models/tiny-qwen3 "${@:2}"
