#!/usr/bin/env bash
# Checks that run no code: style, types (about half a minute the first time, then seconds), and the scripts themselves.
# scripts/test.sh begins with them.
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"  # sh scripts/check.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/setup.sh
ruff check .
ruff format --check .
mypy
shellcheck --shell=bash --external-sources scripts/*.sh scripts/lib/*.sh .ci/run
