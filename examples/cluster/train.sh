#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Two stages on the two machines of the file hosts, next to this script. Strata, Open MPI and the model are on both, at
# the same paths; data and --out are on the first one alone. docs/cluster.md.
set -eu
cd "$(dirname "$0")"
exec mpirun --hostfile hosts -n 2 --map-by node --bind-to none \
  --mca odls_base_sigkill_timeout 60 ${STRATA_CPU_PATH:+-x STRATA_CPU_PATH} \
  strata train --ranks pipeline=2 --pipeline-schedule 1f1b --microbatches 8 "$@"
