#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Makes the environments of the peers, build/peers/NAME, from PyPI: NAME.txt, then NAME_no_deps.txt where there is one.
# usage: bench/peers/install.sh [peft|vllm|llama_cpp ...]
# What is there already in these versions is left alone. One that fails is named, with its log, and the others go on.
set -euo pipefail
cd "$(dirname "$0")/../.."
folder=build/peers
mkdir -p "$folder"
# Of llama.cpp, which pip compiles: this machine's instructions, and nothing that the peer does not call.
export CMAKE_ARGS="-DGGML_NATIVE=ON -DLLAMA_CURL=OFF -DLLAMA_BUILD_TOOLS=OFF -DLLAVA_BUILD=OFF"
export CMAKE_BUILD_PARALLEL_LEVEL=$(nproc)

install_peer() {
  local pip=("$folder/$1/bin/pip" install --quiet --disable-pip-version-check)
  python3 -m venv --clear "$folder/$1" &&
    "${pip[@]}" -r "bench/peers/$1.txt" &&
    { [ ! -e "bench/peers/$1_no_deps.txt" ] || "${pip[@]}" --no-deps -r "bench/peers/$1_no_deps.txt"; } &&
    cat bench/peers/"$1"*.txt >"$folder/$1/installed"
}

[ $# -gt 0 ] || set -- peft vllm llama_cpp
for peer in "$@"; do
  if cat bench/peers/"$peer"*.txt | cmp --quiet - "$folder/$peer/installed"; then continue; fi
  echo "Installing $peer into $folder/$peer (once; minutes and up to 6 GB)" >&2
  install_peer "$peer" >"$folder/$peer.install.log" 2>&1 ||
    echo "peers: $peer is left out, see $folder/$peer.install.log: $(tail -n 1 "$folder/$peer.install.log")" >&2
done
