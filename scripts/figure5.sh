#!/usr/bin/env bash
# Reproduce Figure 5 of the DeepNet paper: model update early in training against depth, for N-N layers of Post-LN and
# DeepNorm, width 64 (feed-forward 128, 2 heads). The paper does not state the number of updates; here it is 5
# (results/figures.md).
#
#   scripts/figure5.sh [--dry-run] [flags of fairseq-train]    every N from 6 to 100
#   SMOKE=1 scripts/figure5.sh       five depths in miniature
#   UPDATE=4 DEPTHS="6 50 100" ...   another number of updates, other depths
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"  # if run by sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/lib/common.sh
begin figure5 1 "$@"
precision=fp32  # fp16 is too coarse for the first updates' changes of the output
prepare iwslt14_de_en

update="${UPDATE:-5}" depths="${DEPTHS:-$(seq -s ' ' 6 100)}"
[ -z "$smoke" ] || depths="${DEPTHS:-6 12 25 50 100}"
numbers UPDATE "$update"
numbers DEPTHS "$depths"
iwslt14_setting
miniature 6
width 64 128 2

record() {  # record METHOD DEPTH
    layers "$1" "$2"
    queue run_train "$1-$2" "$facts, \"update\": $update" --method "$1" "${layer_flags[@]}" "${setting[@]}" \
        "${width_flags[@]}" --dropout 0.4 --lr 5e-4 --warmup-updates 4000 --max-update $((update + 1)) --no-save \
        --disable-validation --log-interval 1 --deepnet-probe model_update --probe-interval 1
}

for variant in post_ln deepnorm; do
    for depth in $depths; do record "$variant" "$depth"; done
done
finish figure 5
