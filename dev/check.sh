#!/usr/bin/env bash
# Check style, types and the shell scripts without running code of the package; half a minute the first time, then
# seconds. scripts/test.sh begins with these checks.
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"  # if run by sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/setup.sh
ruff check .
ruff format --check .
mypy
shellcheck --shell=bash --external-sources scripts/*.sh scripts/lib/entry.sh dev/*.sh .ci/run
