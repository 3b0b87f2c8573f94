#!/usr/bin/env bash
# Does `deepnet check` foresee what a training does? Every method at 6L-6L to 100L-100L on the embedded corpus, checked
# (40 updates, warm-up compressed to 20) and trained (400 updates); ends with the verdicts beside the outcomes.
#
#   scripts/calibrate_check.sh [--dry-run] [flags of fairseq-train]      about 3 hours on 2 CPU cores
#   METHODS="deepnorm post_ln" DEPTHS="6 18" scripts/calibrate_check.sh --lr 5e-3
#   DATA=quickstart/data scripts/calibrate_check.sh                      on the quickstart's larger corpus
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/lib/common.sh
SMOKE=1
begin calibration "$@"
corpus "none"

depths="${DEPTHS:-6 18 50 100}"
numbers DEPTHS "$depths"
methods="${METHODS:-$(deepnet methods --json | python -c 'import json, sys; print(*(row["method"] for row in json.load(sys.stdin)))')}"
method_flags="$(deepnet methods --flags "${methods// /,}")"

record() {  # record METHOD DEPTH FLAGS...
    local method="$1" depth="$2" run="$out/$figure/$1-$2"
    shift 2
    run_train "$method-$depth" "{\"method\": \"$method\", \"encoder_layers\": $depth, \"decoder_layers\": $depth}" \
        --encoder-layers "$depth" --decoder-layers "$depth" $(width 64 128 2) --share-all-embeddings --dropout 0.0 \
        --lr 1e-3 --lr-scheduler inverse_sqrt --warmup-updates 200 --warmup-init-lr 1e-7 --max-tokens 1000 \
        --max-update 400 --no-save --disable-validation --log-interval 25 "$@"
    [ -z "$dry_run" ] && [ ! -f "$run/check.json" ] || return 0
    eval "deepnet check --json --seconds 3600 --compress-warmup 20 $(cat "$run/command")" >"$run/check.part" ||
        [ $? -eq 3 ] || fail "checking $run failed"
    mv "$run/check.part" "$run/check.json"
}

for depth in $depths; do
    while read -r -u 3 _ method more; do
        queue record "$method" "$depth" --method "$method" $more
    done 3<<<"$method_flags"
done
wait
[ -n "$dry_run" ] || deepnet calibration "$out/$figure"
