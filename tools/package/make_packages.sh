#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Debs for Debian 12 (the program; the plugin for ranks), a tarball for x86-64 Linux with glibc 2.36, and a wheel.
# usage: tools/package/make_packages.sh BUILD_DIR OUT_DIR
set -euo pipefail
cd "$(dirname "$0")/../.."
build=$(realpath "${1:?usage: make_packages.sh BUILD_DIR OUT_DIR}")
mkdir -p "${2:?usage: make_packages.sh BUILD_DIR OUT_DIR}"
out=$(realpath "$2")
version=$(sed -n 's/^project(strata VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

(cd "$build" && cpack -G DEB -B "$work/deb" >"$work/cpack.log" 2>&1) || { cat "$work/cpack.log" >&2; exit 1; }
mv "$work"/deb/*.deb "$out/"

# What glibc does not bring stands beside the program, which finds it there.
folder=strata-$version-linux-x86_64
cmake --install "$build" --prefix "$work/$folder" >"$work/install.log" 2>&1 || { cat "$work/install.log" >&2; exit 1; }
rm -r "$work/$folder/lib/systemd"  # of a place that is not known yet; share/doc has the unit to copy
mkdir -p "$work/$folder/lib/strata"
ldd "$work/$folder/bin/strata" | awk '$2 == "=>" {print $3}' |
  grep -vE '/(libc|libm|libpthread|libdl|librt|libresolv|ld-linux-x86-64)\.so' |
  while read -r library; do cp -L "$library" "$work/$folder/lib/strata/"; done
patchelf --set-rpath '$ORIGIN/../lib/strata' "$work/$folder/bin/strata"
for library in "$work/$folder"/lib/strata/*; do patchelf --set-rpath '$ORIGIN' "$library"; done
tar -C "$work" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 0)}" \
  -czf "$out/$folder.tar.gz" "$folder"

python3 tools/package/make_wheel.py --program "$build/strata" --version "$version" --out "$work/wheel"
"${AUDITWHEEL:-auditwheel}" repair --plat manylinux_2_36_x86_64 --wheel-dir "$out" "$work"/wheel/*.whl >"$work/wheel.log" 2>&1 ||
  { cat "$work/wheel.log" >&2; exit 1; }
ls -l "$out"
