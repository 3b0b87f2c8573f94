#!/usr/bin/env bash
# Figure 3 of the DeepNet paper: gradient norms of the decoder's layers at the first update, 18L-18L and 6L-6L to
# 24L-24L, and validation curves of 18L-18L, for Post-LN and Post-LN-init. IWSLT-14 De-En, 30 epochs (33,000 updates).
#
#   DATA=data-bin/iwslt14.de-en scripts/figure3.sh [--dry-run] [flags of fairseq-train]
#   SMOKE=1 scripts/figure3.sh       width 64 on the embedded corpus: 4 minutes on 2 CPU cores
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/lib/common.sh
begin figure3 "$@"
corpus "IWSLT-14 De-En"

depths="${DEPTHS:-$(seq -s ' ' 6 24)}"
setting=($(width 512 2048 8) --max-tokens 4000 --dropout 0.4 --weight-decay 1e-4 --lr 5e-4 --lr-scheduler inverse_sqrt
    --warmup-updates 4000 --warmup-init-lr 1e-7)
length=(--max-epoch 30)
if [ -n "$smoke" ]; then
    depths="${DEPTHS:-6 12 18 24}"
    setting=($(width 64 128 2) --max-tokens 1000 --dropout 0.0 --lr 1e-3 --lr-scheduler inverse_sqrt --warmup-updates 100
        --warmup-init-lr 1e-7)
    length=(--max-update 400 --validate-interval-updates 40)
fi

numbers DEPTHS "$depths"

record() {  # record METHOD DEPTH PART FLAGS...
    local method="$1" depth="$2" part="$3"
    shift 3
    queue run_train "$part-$method-$depth" \
        "{\"method\": \"$method\", \"encoder_layers\": $depth, \"decoder_layers\": $depth, \"part\": \"$part\"}" \
        --method "$method" --init-profile fairseq_head --encoder-layers "$depth" --decoder-layers "$depth" \
        --share-all-embeddings "${setting[@]}" "$@"
}

for method in post_ln post_ln_init; do
    record "$method" 18 curve "${length[@]}" --no-epoch-checkpoints --log-interval 20
    for depth in $depths; do
        record "$method" "$depth" profile --max-update 1 --no-save --disable-validation --log-interval 1 \
            --deepnet-probe gradient_norm --probe-interval 1
    done
done
finish
