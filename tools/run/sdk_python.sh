#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Prints the path of a Python that has the official tinker package of one version, installed from PyPI into an
# environment of its own, build/sdk-VERSION, the first time.
# usage: tools/run/sdk_python.sh [VERSION]
set -euo pipefail
cd "$(dirname "$0")/../.."
version=${1:-0.38.0}
venv=build/sdk-$version
if [ ! -e "$venv/ready" ]; then
  echo "Installing tinker $version from PyPI into $venv" >&2
  python3 -m venv --clear "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check -r "tools/requirements/tinker-$version.txt" >&2
  touch "$venv/ready"
fi
# OpenAI's package beside the newest.
if [ "$version" = 0.38.0 ] && [ ! -e "$venv/openai" ]; then
  "$venv/bin/pip" install --quiet --disable-pip-version-check -r tools/requirements/openai.txt >&2
  touch "$venv/openai"
fi
echo "$PWD/$venv/bin/python"
