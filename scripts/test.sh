#!/usr/bin/env bash
# Runs the test suite (about 10 minutes on 2 cores); arguments go to pytest:
#   scripts/test.sh                       the default suite
#   scripts/test.sh -m smoke              whole paths, from archives to a report, as CI runs them too
#   scripts/test.sh -m slow               training runs of minutes;  -m gpu: with a CUDA device;  -m peers
#   scripts/test.sh tests/test_init.py    one file
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/setup.sh
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"  # one process a core; threads of two processes slow each other 10-fold
ruff check .
ruff format --check .
exec pytest -n "${TEST_PROCESSES:-2}" --dist loadfile --no-loadscope-reorder "$@"
