#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs the Debian packages that a make target needs, and only those that are missing: of Debian 12 and 13 and Ubuntu
# 24.04, whose names differ; elsewhere those of Debian 13 are tried.
# usage: tools/install.sh run|sdk|browser|test|ranks|clang|format|smollm2|package|peers
# Works as root or with sudo; asks nothing; does nothing when all is there.
set -eu

system=$(. /etc/os-release 2>/dev/null && echo "${ID:-} ${VERSION_ID:-}" || true)
case "$system" in
  "debian 12") boost=1.81 postgresql=15 ;;
  "ubuntu 24.04") boost=1.83 postgresql=16 ;;
  *) boost=1.83 postgresql=17 ;;  # Debian 13
esac

run="g++ cmake ninja-build ccache libboost$boost-dev libboost-json$boost-dev libfmt-dev libspdlog-dev libcli11-dev libutf8proc-dev libssl-dev libsqlite3-dev libpq-dev libtomlplusplus-dev libyaml-cpp-dev libprotobuf-dev protobuf-compiler libzstd-dev zlib1g-dev libedit-dev python3 python3-pip"
test="$run libgtest-dev libgmock-dev librapidcheck-dev libbenchmark-dev clang-format-19 postgresql-$postgresql systemd"
ranks="libopenmpi-dev openmpi-bin iproute2"
case "${1:-}" in
  run) packages="$run" ;;
  sdk) packages="$run python3-venv openssl" ;;
  browser) packages="$run python3-venv chromium chromium-driver" ;;
  test) packages="$test $ranks" ;;
  ranks) packages="$run $ranks" ;;
  clang) packages="$test clang-19 clang-tidy-19 libclang-rt-19-dev llvm-19" ;;
  format) packages="clang-format-19" ;;
  package) packages="$run python3-venv binutils dpkg-dev patchelf debootstrap buildah" ;;
  smollm2) packages="$run python3-venv fortunes" ;;
  peers) packages="$run python3-venv python3-dev libtcmalloc-minimal4" ;;
  *) echo "usage: tools/install.sh run|sdk|browser|test|ranks|clang|format|smollm2|package|peers" >&2; exit 2 ;;
esac

is_installed() {
  [ "$(dpkg-query -W -f='${Status}' "$1" 2>/dev/null)" = "install ok installed" ]
}
missing=""
for package in $packages; do
  is_installed "$package" || missing="$missing $package"
done
[ -n "$missing" ] || exit 0

if ! command -v apt-get >/dev/null 2>&1; then
  echo "install: apt-get not found; Strata builds on Debian 12 and 13 and Ubuntu 24.04. Install by hand:$missing" >&2
  exit 1
fi
as_root=""
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null 2>&1; then
    echo "install: not root and no sudo; as root: apt-get install$missing" >&2
    exit 1
  fi
  as_root="sudo"
fi

echo "install:$missing"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
apt_get() {
  $as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=300 \
    -o Acquire::Retries=3 "$@" </dev/null >"$log" 2>&1
}
# The package lists may be old or absent: a failed update is reported only if the install fails too.
apt_get update || cp "$log" "$log.update"
# $missing is a list of words.
if ! apt_get install --no-install-recommends $missing; then
  [ ! -f "$log.update" ] || { echo "install: apt-get update said:" >&2; tail -n 20 "$log.update" >&2; }
  echo "install: apt-get install$missing failed:" >&2
  case "$system" in
    "debian 12" | "debian 13" | "ubuntu 24.04") ;;
    *) echo "install: this is $system; the names are those of Debian 13, and nobody has tried them here" >&2 ;;
  esac
  tail -n 30 "$log" >&2
  rm -f "$log.update"
  exit 1
fi
rm -f "$log.update"
