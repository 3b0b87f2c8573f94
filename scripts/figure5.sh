#!/usr/bin/env bash
# Figure 5 of the DeepNet paper: model update early in training against depth, N-N layers, Post-LN and DeepNorm of width
# 64 (feed-forward 128, 2 heads). The paper does not say after how many updates; 5 come closest (results/figures.md).
#
#   DATA=data-bin/iwslt14.de-en scripts/figure5.sh [--dry-run] [flags of fairseq-train]    every N from 6 to 100
#   SMOKE=1 scripts/figure5.sh       five depths on the embedded corpus: 2 minutes on 2 CPU cores
#   UPDATE=4 DEPTHS="6 50 100" ...   after another number of updates, at other depths
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/lib/common.sh
begin figure5 "$@"
full_precision
corpus "IWSLT-14 De-En"

update="${UPDATE:-5}" depths="${DEPTHS:-$(seq -s ' ' 6 100)}" tokens=4000
[ -z "$smoke" ] || { depths="${DEPTHS:-6 12 25 50 100}"; tokens=1000; }

numbers UPDATE "$update"
numbers DEPTHS "$depths"
for method in post_ln deepnorm; do
    for depth in $depths; do
        queue run_train "$method-$depth" \
            "{\"method\": \"$method\", \"encoder_layers\": $depth, \"decoder_layers\": $depth, \"update\": $update}" \
            --method "$method" --encoder-layers "$depth" --decoder-layers "$depth" $(width 64 128 2) \
            --share-all-embeddings --dropout 0.4 --weight-decay 1e-4 --max-tokens "$tokens" --lr 5e-4 \
            --lr-scheduler inverse_sqrt --warmup-updates 4000 --warmup-init-lr 1e-7 --max-update $((update + 1)) \
            --no-save --disable-validation --log-interval 1 --deepnet-probe model_update --probe-interval 1
    done
done
finish
