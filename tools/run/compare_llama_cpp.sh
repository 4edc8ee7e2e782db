#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Strata beside llama.cpp on GGUF files (tools/golden/compare_llama_cpp.py): the committed files of every architecture and
# SmolLM2's, logits and greedy text; tokens of the vocabularies that llama.cpp ships.
# usage: tools/run/compare_llama_cpp.sh PROGRAM
# LLAMA_CPP_PYTHON names a Python that has tools/requirements/llama_cpp.txt already; otherwise they are installed into
# build/llama_cpp (once; pip compiles llama.cpp, about ten minutes on two cores). SMOLLM2_GGUF names SmolLM2's file;
# otherwise it is the one of out/smollm2, if make run-smollm2 was run.
set -euo pipefail
cd "$(dirname "$0")/../.."
strata=${1:?usage: tools/run/compare_llama_cpp.sh PROGRAM}
folder=build/llama_cpp
version=$(sed -n 's/^llama-cpp-python==//p' tools/requirements/llama_cpp.txt)
python=${LLAMA_CPP_PYTHON:-$folder/bin/python}
mkdir -p "$folder"
if [ ! -x "$python" ]; then
  python3 -m venv --clear "$folder"
fi
source=$folder/source/llama_cpp_python-$version
if [ ! -d "$source" ]; then
  echo "Downloading llama-cpp-python $version" >&2
  "$python" -m pip download --quiet --disable-pip-version-check --no-deps --no-binary :all: \
    --dest "$folder/sdist" "llama-cpp-python==$version"
  mkdir -p "$folder/source"
  tar -xzf "$folder/sdist/llama_cpp_python-$version.tar.gz" -C "$folder/source"
fi
if [ -z "${LLAMA_CPP_PYTHON:-}" ] && [ ! -e "$folder/ready" ]; then
  echo "Compiling llama.cpp into $folder (once)" >&2
  CMAKE_ARGS="-DGGML_NATIVE=ON -DGGML_OPENMP=OFF -DLLAMA_CURL=OFF -DLLAMA_BUILD_TOOLS=OFF -DLLAVA_BUILD=OFF" \
    CMAKE_BUILD_PARALLEL_LEVEL=$(nproc) "$python" -m pip install --quiet --disable-pip-version-check \
    -r tools/requirements/llama_cpp.txt
  touch "$folder/ready"
fi
export OMP_NUM_THREADS=1
compare=("$python" tools/golden/compare_llama_cpp.py)
files=()
while read -r name; do files+=("tests/golden/gguf/$name"); done < <(sed -n 's/.*"file": "\(.*\)".*/\1/p' tests/golden/gguf/files.json)
smollm2=${SMOLLM2_GGUF:-out/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf}
if [ -f "$smollm2" ]; then
  "${compare[@]}" greedy "$strata" "$smollm2" "The capital of France is" "Once upon a time" "def fibonacci(n):"
  files+=("$smollm2")
else
  echo "---- SmolLM2: $smollm2 is not there; make run-smollm2 downloads it" >&2
fi
"${compare[@]}" models "$strata" "${files[@]}"
vocabularies=()
for file in "$source"/vendor/llama.cpp/models/ggml-vocab-*.gguf; do
  [[ $file == *llama-bpe.gguf ]] || vocabularies+=("$file")
done
"${compare[@]}" tokens "$strata" "${vocabularies[@]}" "$source/vendor/llama.cpp/models/ggml-vocab-llama-bpe.gguf"
