# SPDX-License-Identifier: Apache-2.0
# Sourced by the scripts that start a server of their own. It sets `server` and `url`; when the script ends, so do the
# server and the folder that the script may have named in `work`. `ranks` (pipeline=2): as so many processes of mpirun,
# which hands SIGUSR2 on.
server=
url=
work=
ranks=
stop_server() {  # and takes its exit status; 3: what a test had left unfinished was dropped
  local pid=$server
  server=
  local signal=TERM
  [ -z "$ranks" ] || signal=USR2
  [ -z "$pid" ] || { kill -$signal "$pid" && { wait "$pid" || [ $? -eq 3 ]; }; }
}
trap 'stop_server || true; [ -z "$work" ] || rm -rf "$work"' EXIT

start_server() {  # log file, program, options of strata serve; returns when it listens
  local log=$1 program=$2
  shift 2
  : >"$log"  # here already: the server's own process may open it late
  local command=("$program" serve "$@")
  [ -z "$ranks" ] || command=(mpirun --oversubscribe --allow-run-as-root --bind-to none -n "${ranks#*=}" "${command[@]}" --ranks "$ranks")
  "${command[@]}" >"$log" 2>&1 &
  server=$!
  for _ in $(seq 300); do
    url=$(sed -n 's|^listening on ||p' "$log")
    [ -z "$url" ] || return 0
    kill -0 "$server" 2>/dev/null || { server=; break; }
    sleep 0.1
  done
  cat "$log" >&2
  return 1
}
