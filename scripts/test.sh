#!/usr/bin/env bash
# Run dev/check.sh and the test suite (8 to 16 minutes on 2 idle cores); arguments go to pytest:
#   scripts/test.sh                       the default suite
#   scripts/test.sh -m smoke              whole paths, from archives to a report, as in CI (half an hour)
#   scripts/test.sh -m slow               tests that train for minutes
#   scripts/test.sh -m gpu                tests that need a CUDA device
#   scripts/test.sh -m peers              tests with optional packages, as torchscale: pip install '.[bench]'
#   scripts/test.sh tests/core/test_initialisation.py    one file; -k WORD: tests with WORD in their name
#   scripts/test.sh --methods-from FOLDER tests/core/test_methods.py   includes the methods in a folder of your own
#   COVERAGE=1 scripts/test.sh            records the lines that run; dev/coverage.sh reports them
#   TEST_PROCESSES=4 scripts/test.sh      runs tests in 4 processes; by default in 2, on one core in 1
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"  # if run by sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/setup.sh
dev/check.sh
read -r processes threads < <(python -m deepnet_fairseq.threads 64 2)  # the tests' models are narrow
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-$threads}"
coverage=()
[ -z "${COVERAGE:-}" ] || coverage=(--cov --cov-append --cov-report=)
exec pytest -n "${TEST_PROCESSES:-$processes}" --dist loadfile --no-loadscope-reorder "${coverage[@]}" "$@"
