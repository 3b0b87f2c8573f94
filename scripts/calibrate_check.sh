#!/usr/bin/env bash
# Measure how well `deepnet check` predicts trainings. Every method at 6L-6L to 100L-100L is checked (40 updates,
# warm-up compressed to 20) and trained (400 updates) on a miniature corpus; a table compares verdicts with outcomes.
#
#   scripts/calibrate_check.sh [--dry-run] [flags of fairseq-train]
#   METHODS="deepnorm post_ln" DEPTHS="6 18" scripts/calibrate_check.sh --lr 5e-3
#   DATA=quickstart/data scripts/calibrate_check.sh                      on the quickstart's larger corpus
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"  # if run by sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/lib/common.sh
SMOKE=1
begin calibration 1 "$@"
prepare iwslt14_de_en

iwslt14_setting
miniature 400

record() {  # record METHOD DEPTH FLAGS...
    local run="$out/$experiment/$1-$2"
    layers "$1" "$2"
    run_train "$1-$2" "$facts" "${layer_flags[@]}" "${setting[@]}" --warmup-updates 200 --no-save --disable-validation \
        --log-interval 25 "${@:3}"
    [ -z "$dry_run" ] && [ ! -f "$run/check.json" ] || return 0
    eval "deepnet check --json --seconds 3600 --compress-warmup 20 $(cat "$run/command")" >"$run/check.part" ||
        [ $? -eq 3 ] || fail "checking $run failed"
    mv "$run/check.part" "$run/check.json"
}

chosen "${METHODS:-$(deepnet methods --names)}" "${DEPTHS:-6 18 50 100}"
rows "${DEPTHS:-6 18 50 100}" record
wait
[ -n "$dry_run" ] || python scripts/calibration_table.py "$out/$experiment"
