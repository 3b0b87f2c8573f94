#!/usr/bin/env bash
# Reproduce Figure 3 of the DeepNet paper: gradient norms of the decoder's layers at the first update, for 18L-18L and
# 6L-6L to 24L-24L, and validation curves of 18L-18L, with Post-LN and Post-LN-init. IWSLT-14 De-En, 30 epochs (33,000
# updates).
#
#   scripts/figure3.sh [--dry-run] [flags of fairseq-train]
#   SMOKE=1 scripts/figure3.sh       width 64 in miniature
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"  # if run by sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/lib/common.sh
begin figure3 1 "$@"
prepare iwslt14_de_en

depths="${DEPTHS:-$(seq -s ' ' 6 24)}" length=(--max-epoch 30)
iwslt14_setting
if [ -n "$smoke" ]; then
    depths="${DEPTHS:-6 12 18 24}" length=(--max-update 400 --validate-interval-updates 40)
fi
miniature 400
numbers DEPTHS "$depths"

record() {  # record METHOD DEPTH PART FLAGS...
    layers "$1" "$2"
    queue run_kept "$3-$1-$2" "$facts, \"part\": \"$3\"" --method "$1" --init-profile fairseq_head \
        "${layer_flags[@]}" "${setting[@]}" --max-update 0 "${@:4}"
}

for variant in post_ln post_ln_init; do
    record "$variant" 18 curve "${length[@]}" --no-epoch-checkpoints --log-interval 20
    for depth in $depths; do
        record "$variant" "$depth" profile --max-update 1 --no-save --disable-validation --log-interval 1 \
            --deepnet-probe gradient_norm --probe-interval 1
    done
done
finish figure 3
