#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Unpacks the sources of XGrammar that tools/requirements/xgrammar.txt names into build/third_party, from the package
# index that pip is configured for, or from XGRAMMAR_SDIST=FILE on a machine without a network. CMake builds its C++
# core with the program (src/structured). Does nothing where they are there. Where they cannot be had it says why and
# succeeds: the program is then built without answers that fit a schema.
set -eu
cd "$(dirname "$0")/.."
requirement=tools/requirements/xgrammar.txt
version=$(sed -n 's/^xgrammar==\([0-9.]*\) .*/\1/p' "$requirement")
hash=$(sed -n 's/.*--hash=sha256://p' "$requirement")
target=build/third_party/xgrammar-$version
[ ! -d "$target" ] || exit 0

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
give_up() {
  echo "built without answers that fit a schema (tools/fetch_xgrammar.sh failed: $1)" >&2
  exit 0
}

if [ -n "${XGRAMMAR_SDIST:-}" ]; then
  cp "$XGRAMMAR_SDIST" "$work/xgrammar-$version.tar.gz" || give_up "XGRAMMAR_SDIST=$XGRAMMAR_SDIST cannot be read"
else
  # pip asks what a source file depends on, for which it would install the package's build tools. A backend of our own
  # answers in their place, since nothing of the Python package is built.
  mkdir "$work/scikit_build_core"
  : >"$work/scikit_build_core/__init__.py"
  cat >"$work/scikit_build_core/build.py" <<PYTHON
import pathlib
def prepare_metadata_for_build_wheel(directory, settings=None):
    folder = pathlib.Path(directory, "xgrammar-$version.dist-info")
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: xgrammar\nVersion: $version\n")
    return folder.name
PYTHON
  PYTHONPATH=$work python3 -m pip download --quiet --disable-pip-version-check --no-deps --no-build-isolation \
    --require-hashes --requirement "$requirement" --dest "$work" >"$work/log" 2>&1 ||
    give_up "pip download: $(grep -v '^ *$' "$work/log" | tail -n 1); XGRAMMAR_SDIST=FILE takes a file that is there"
fi
echo "$hash  $work/xgrammar-$version.tar.gz" | sha256sum --check --status ||
  give_up "the sha256 of the file is not that of $requirement"
tar -C "$work" -xzf "$work/xgrammar-$version.tar.gz"
mkdir -p build/third_party
mv "$work/xgrammar-$version" "$target"
