#!/usr/bin/env bash
# Test that trainings survive kills and full disks. Small trainings on 1 and 2 processes are killed (SIGKILL) KILLS
# times at random moments, part of them inside saves, with a full disk in a quarter of the starts, and restarted each
# time. They must end equal to undisturbed ones bit for bit, with no checkpoint lost. Prints a table; exits with 1 on a
# difference.
#
#   dev/faults.sh [KILLS]            kills KILLS times in all trainings together (default 60)
#   SEED=7 dev/faults.sh             draws the random moments by this seed; the same on a machine that is as fast
#   dev/faults.sh --help             prints all options
#
# Hardware: 2 CPU cores. Time: a few minutes. results/faults.md lists the faults.
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"  # if run by sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/setup.sh
export OMP_NUM_THREADS=1  # a process with threads cannot be forked
exec python -m tests.faults "$@"
