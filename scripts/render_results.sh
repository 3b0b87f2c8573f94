#!/usr/bin/env bash
# Render everything recorded in results/runs: the tables' pages, the figures, the index, and the table of methods.
# This trains nothing, and a second call changes nothing.
#
#   scripts/render_results.sh                        renders the existing records
#   scripts/render_results.sh RUNS...                first records the finished runs in RUNS, OUT folders of scripts
#   scripts/render_results.sh quickstart=quickstart  NAME=RUNS: records the runs as results/runs/NAME.jsonl
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"  # if run by sh
set -euo pipefail
start="$PWD"
case "${1:-}" in -h | --help) sed -n '2,7s/^# \{0,1\}//p' "$0"; exit ;; esac
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/setup.sh
source scripts/setup.sh

for words in "$@"; do
    name="" runs="$words"
    [[ "$words" != *=* ]] || name="${words%%=*}" runs="${words#*=}"
    python -m results.records keep "$(cd "$start" && realpath -m -- "$runs")" "results/runs${name:+/$name.jsonl}"
done
python -m results.records render results
python -m dev.methods_page docs/methods.md
