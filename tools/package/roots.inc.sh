# SPDX-License-Identifier: Apache-2.0
# Roots of Debian and Ubuntu in folders, for scripts that try packages and builds in them. As root.

# find_mirror KIND: the mirror of debian or ubuntu that this machine's own apt takes, else the public one.
find_mirror() {
  local sources named
  for sources in /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources; do
    [ -f "$sources" ] || continue
    named=$(sed -nE 's/^(deb|URIs:) +(\[[^]]*\] *)?(https?:[^ ]*\/'"$1"')\/?( .*)?$/\3/p;T;q' "$sources")
    [ -z "$named" ] || { echo "$named"; return; }
  done
  [ "$1" = ubuntu ] && echo http://archive.ubuntu.com/ubuntu || echo http://deb.debian.org/debian
}

# make_root SUITE DIR: DIR is that suite and nothing else; kept once it is whole (DIR.done). Fails where no mirror has it.
make_root() {
  local suite=$1 dir=$2 kind=debian components=main script=
  [ ! -e "$dir.done" ] || return 0
  case $suite in noble) kind=ubuntu components=main,universe script=gutsy ;; esac  # Ubuntu's of all later suites
  local mirror
  mirror=$(find_mirror "$kind")
  rm -rf "$dir"
  debootstrap --variant=minbase --components="$components" "$suite" "$dir" "$mirror" $script >"$dir.log" 2>&1 || return 1
  echo "deb $mirror $suite ${components/,/ }" >"$dir/etc/apt/sources.list"
  cp -r /etc/apt/apt.conf.d "$dir/etc/apt/" 2>/dev/null || true
  cp /etc/resolv.conf /etc/hosts "$dir/etc/" 2>/dev/null || true
  touch "$dir.done"
}

# inside DIR COMMAND: in that root, with its own /proc, and /sys that nobody writes to.
inside() {
  local dir=$1
  shift
  unshare --mount --pid --fork sh -c 'mount -t proc proc "$1/proc" && mount -t sysfs -o ro sysfs "$1/sys" && mount --rbind /dev "$1/dev" && exec chroot "$1" /bin/sh -c "$2"' sh "$dir" "$*"
}
