#!/usr/bin/env bash
# Run scripts/check.sh and the test suite (5 to 9 minutes on 2 idle cores); arguments go to pytest:
#   scripts/test.sh                       the default suite
#   scripts/test.sh -m smoke              whole paths, from archives to a report, as in CI (half an hour)
#   scripts/test.sh -m slow               trainings of minutes
#   scripts/test.sh -m gpu                tests that need a CUDA device
#   scripts/test.sh -m peers              tests against torchscale: pip install '.[bench]'
#   scripts/test.sh tests/test_init.py    one file; -k WORD: tests with WORD in their name
#   scripts/test.sh --methods-from FOLDER tests/test_methods.py   includes the methods in a folder of your own
#   COVERAGE=1 scripts/test.sh            records the lines that run; scripts/coverage.sh reports them
#   TEST_PROCESSES=4 scripts/test.sh      number of processes, 2 by default
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"  # if run by sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/setup.sh
scripts/check.sh
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"  # threads of several processes slow each other down ten-fold
coverage=()
[ -z "${COVERAGE:-}" ] || coverage=(--cov --cov-append --cov-report=)
exec pytest -n "${TEST_PROCESSES:-2}" --dist loadfile --no-loadscope-reorder "${coverage[@]}" "$@"
