#!/usr/bin/env bash
# Renders everything recorded in results/runs: the tables' pages, the figures, the index; and the table of methods.
# Trains nothing; a second call changes nothing.
#
#   scripts/render_results.sh                        from the records that are there
#   scripts/render_results.sh RUNS...                after recording the finished runs in RUNS, folders as a script's OUT
#   scripts/render_results.sh quickstart=quickstart  the quickstart's runs, as results/runs/quickstart.jsonl; so any NAME=RUNS
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"  # sh scripts/render_results.sh
set -euo pipefail
start="$PWD"
case "${1:-}" in -h | --help) sed -n '2,7s/^# \{0,1\}//p' "$0"; exit ;; esac
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/setup.sh
source scripts/setup.sh

for words in "$@"; do
    name="" runs="$words"
    [[ "$words" != *=* ]] || name="${words%%=*}" runs="${words#*=}"
    python -m scripts.records keep "$(cd "$start" && realpath -m -- "$runs")" "results/runs${name:+/$name.jsonl}"
done
python -m scripts.records render results
python -m scripts.methods_page docs/methods.md
