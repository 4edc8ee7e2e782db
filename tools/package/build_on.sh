#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Builds the program on another Debian or Ubuntu, in a root of its own, and trains and generates with it there.
# usage: tools/package/build_on.sh SUITE ROOT_DIR [tests]     as root; SUITE: trixie (Debian 13), noble (Ubuntu 24.04), bookworm;
#        tests: builds the tests too and runs the fast suite. ROOT_DIR, with what was installed, is kept for the next run.
set -Eeuo pipefail
cd "$(dirname "$0")/../.."
. tools/package/roots.inc.sh
suite=${1:?usage: build_on.sh SUITE ROOT_DIR [tests]}
mkdir -p "${2:?usage: build_on.sh SUITE ROOT_DIR [tests]}"
root=$(realpath "$2")/$suite
wanted=${3:-}
jobs=${JOBS:-$(nproc)}

if ! make_root "$suite" "$root"; then
  echo "build on $suite: no root; debootstrap said:" >&2
  tail -n 5 "$root.log" >&2
  exit 1
fi
rm -rf "$root/src"
mkdir -p "$root/src"
git ls-files -z --cached --others --exclude-standard | tar --null -T - --ignore-failed-read -cf - | tar -C "$root/src" -xf -
tools/fetch_xgrammar.sh
# What the network gave this machine, which the root may not reach.
for kept in build/third_party build/tokenizers; do
  [ ! -d "$kept" ] || tar -cf - "$kept" | tar -C "$root/src" -xf -
done
[ "$wanted" = tests ] && install=test target=all options=-DSTRATA_TESTS=ON || { install=run target=strata options=; }
inside "$root" "cd /src && . /etc/os-release && echo \"build on \$PRETTY_NAME\" && tools/install.sh $install &&
  g++ --version | head -n 1 && cmake --version | head -n 1 &&
  cmake -S . -B build -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_COMPILER=g++ --log-level=WARNING $options &&
  cmake --build build --target $target -j $jobs && build/strata --version &&
  build/strata train models/tiny-qwen3 --data examples/answers.jsonl --out /tmp/adapter-\$\$ --steps 2 &&
  build/strata chat /tmp/adapter-\$\$ --prompt 'What is 7 plus 5?' --temperature 0"
if [ "$wanted" = tests ]; then
  inside "$root" "cd /src && ctest --test-dir build -j2 -LE slow --output-on-failure --no-tests=error"
fi
echo "build on $suite: passed"
