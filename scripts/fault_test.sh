#!/usr/bin/env bash
# Does a training survive? Small ones on 1 and on 2 processes, killed (SIGKILL) KILLS times at random moments, a part of
# them inside saves, with the disk full in a quarter of its lives, each time started again; beside one that is left alone:
# equal at the end, bit for bit, and no checkpoint lost. Prints a table; exits with 1 and one line on any difference.
#
#   scripts/fault_test.sh [KILLS]            default 60
#   SEED=7 scripts/fault_test.sh             the kills of another time, as far as the machine's speed is the same
#   scripts/fault_test.sh --help             more
#
# Hardware: 2 CPU cores. Time: a few minutes. results/faults.md says what is injected.
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"  # sh scripts/fault_test.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/setup.sh
export OMP_NUM_THREADS=1  # a process with threads cannot be forked
exec python -m tests.faults "$@"
