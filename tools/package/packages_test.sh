#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Installs each package in a fresh root of its own, runs the program there, and takes the package out again.
# usage: tools/package/packages_test.sh PACKAGES_DIR ROOT_DIR     as root; ROOT_DIR: a folder for Debian roots, kept for the next run
set -Eeuo pipefail
cd "$(dirname "$0")/../.."
. tools/package/roots.inc.sh
packages=$(realpath "${1:?usage: packages_test.sh PACKAGES_DIR ROOT_DIR}")
mkdir -p "${2:?usage: packages_test.sh PACKAGES_DIR ROOT_DIR}"
roots=$(realpath "$2")
version=$(sed -n 's/^project(strata VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
failed=0 passed=0 skipped=0
trap 'echo "packages: line $LINENO failed; the last output is in $roots/log and $roots/SUITE.log" >&2' ERR

check() {  # check NAME COMMAND...: counts it
  local name=$1
  shift
  if "$@" >"$roots/log" 2>&1; then
    passed=$((passed + 1)); echo "packages: $name: passed"
  else
    failed=$((failed + 1)); echo "packages: $name: FAILED"; tail -n 20 "$roots/log"
  fi
}

fresh_root() {  # fresh_root NAME SUITE: that suite and nothing else
  make_root "$2" "$roots/$2" || { echo "packages: debootstrap of $2 failed" >&2; tail -n 20 "$roots/$2.log" >&2; exit 1; }
  rm -rf "${roots:?}/$1"
  cp -a "$roots/$2" "$roots/$1"
  mkdir -p "$roots/$1/tmp/packages"
  cp -r models/tiny-qwen3 examples/answers.jsonl "$roots/$1/tmp/"
  cp "$packages"/* "$roots/$1/tmp/packages/"
}

in_root() {  # in_root NAME COMMAND
  inside "$roots/$1" "$2"
}

runs='strata --version | grep -q "strata '$version'" && cd /tmp &&
      strata train --model tiny-qwen3 --data answers.jsonl --out adapter --steps 2 &&
      strata generate --model tiny-qwen3 --adapter adapter --prompt "7 plus 5" --max-tokens 4 --temperature 0'

fresh_root deb bookworm
check "deb installs" in_root deb 'apt-get update -q && apt-get install -y -q --no-install-recommends /tmp/packages/strata_*.deb'
check "deb runs" in_root deb "$runs"
check "deb brings man pages and completions" in_root deb 'test -e /usr/share/man/man1/strata-train.1 -o -e /usr/share/man/man1/strata-train.1.gz &&
  test -s /usr/share/bash-completion/completions/strata && test -s /usr/share/zsh/vendor-completions/_strata'
check "deb says what --db needs" in_root deb 'cd /tmp; ! strata serve --model t=tiny-qwen3 --no-keys --data s --db postgresql:///x 2>err; grep -q libpq5 err'
# A server that keeps its state where the unit has it; the state is the administrator's and outlives the package.
check "deb brings a unit that is not enabled" in_root deb 'grep -q "^ExecStart=/usr/bin/strata serve" /lib/systemd/system/strata.service &&
  ! find /etc/systemd -name "strata*" | grep -q .'
check "the plugin for ranks installs" in_root deb 'apt-get install -y -q --no-install-recommends /tmp/packages/strata-mpi_*.deb'
check "two ranks train" in_root deb 'cd /tmp && mpirun --allow-run-as-root --oversubscribe --bind-to none -n 2 strata train \
  --model tiny-qwen3 --data answers.jsonl --out ranks --steps 2 --ranks pipeline=2'
check "deb is purged" in_root deb 'mkdir -p /var/lib/strata/kept /etc/systemd/system/multi-user.target.wants &&
  ln -s /lib/systemd/system/strata.service /etc/systemd/system/multi-user.target.wants/ && apt-get purge -y -q strata && test -d /var/lib/strata/kept &&
  ! find / -xdev \( -path /tmp -o -path /proc -o -path /var/lib/strata -o -path "/var/log/*" -o -path "/var/cache/*" \) -prune -o -iname "*strata*" -print | grep .'

for suite in bookworm trixie; do  # both need glibc 2.36 alone
  fresh_root tarball $suite
  check "tarball unpacks on $suite" in_root tarball 'tar -C /opt -xzf /tmp/packages/strata-*-linux-x86_64.tar.gz && ln -s /opt/strata-*/bin/strata /usr/local/bin/strata'
  check "tarball runs on $suite" in_root tarball "$runs"

  fresh_root wheel $suite
  check "python is there on $suite" in_root wheel 'apt-get update -q && apt-get install -y -q --no-install-recommends python3-venv'
  check "wheel installs on $suite" in_root wheel 'python3 -m venv /opt/venv && /opt/venv/bin/pip install --no-index /tmp/packages/strata-*.whl && ln -s /opt/venv/bin/strata /usr/local/bin/strata'
  check "wheel runs on $suite" in_root wheel "$runs"
  check "wheel is taken out on $suite" in_root wheel '/opt/venv/bin/pip uninstall -y strata && ! test -e /opt/venv/bin/strata'
done

container() {  # builds the container file on our own root, without a registry
  local store="--root $roots/containers --runroot $roots/containers-run --storage-driver vfs" base context
  base=$(buildah $store from scratch)
  buildah $store add "$base" "$roots/bookworm" / && buildah $store commit "$base" localhost/debian:12-slim || return 1
  context=$(mktemp -d)
  cp examples/container/Containerfile "$packages"/strata_*.deb "$context/"
  buildah $store bud --isolation chroot --build-arg BASE=localhost/debian:12-slim -t strata "$context" || return 1
  rm -rf "$context"
  base=$(buildah $store from localhost/strata)
  buildah $store run --isolation chroot "$base" -- strata --version | grep -q "strata $version"
}
if command -v buildah >/dev/null; then
  check "container builds and runs" container
else
  skipped=$((skipped + 1)); echo "packages: container: skipped, buildah is not installed"
fi
echo "packages: $passed passed, $failed failed, $skipped skipped"
exit $((failed > 0))
