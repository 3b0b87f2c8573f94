#!/usr/bin/env bash
# Figure 7 of the DeepNet paper: validation loss of 18L-18L DeepNorm on WMT-17 En-De over 30,000 updates, one
# hyper-parameter changed at a time: learning rate, batch size, width.
#
#   DATA=data-bin/wmt17.en-de scripts/figure7.sh [--dry-run] [flags of fairseq-train]
#   SMOKE=1 scripts/figure7.sh       6L-6L of width 64 on the embedded corpus: 4 minutes on 2 CPU cores
# An update is the paper's 128 batches of 4096 tokens whatever GPUS is, by accumulation.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/lib/common.sh
begin figure7 "$@"
corpus "WMT-17 En-De"

tokens=4096 depth=18 unit=64 lrs="5e-4 1e-3 1.5e-3"
sizes="512-2048-8 768-3072-12 1024-4096-16" base_size=512-2048-8 base_lr=1.5e-3
setting=(--dropout 0.4 --weight-decay 1e-4 --lr-scheduler inverse_sqrt --warmup-updates 4000 --warmup-init-lr 1e-7
    --max-update 30000 --validate-interval-updates 1000)
# the sweep of widths is the paper's Table 6
size_setting=(--dropout 0.4 --weight-decay 0.0 --clip-norm 1.0 --adam-eps 1e-6 --lr 5e-4)
if [ -n "$smoke" ]; then
    tokens=500 depth=6 unit=1 sizes="32-64-2 64-128-2 128-256-4" base_size=64-128-2
    setting=(--dropout 0.0 --lr-scheduler inverse_sqrt --warmup-updates 100 --warmup-init-lr 1e-7 --max-update 300
        --validate-interval-updates 30)
    size_setting=(--lr 1e-3)
fi

record() {  # record PANEL VALUE SIZE BATCHES FLAGS...; BATCHES of TOKENS tokens make an update
    local panel="$1" value="$2" size="$3" batches="$4"
    shift 4
    queue run_train "$panel-$value" \
        "{\"method\": \"deepnorm\", \"encoder_layers\": $depth, \"decoder_layers\": $depth, \"panel\": \"$panel\", \"value\": \"$value\"}" \
        --method deepnorm --encoder-layers "$depth" --decoder-layers "$depth" $(width ${size//-/ }) \
        --share-all-embeddings --max-tokens "$tokens" $(update_freq "$batches") "${setting[@]}" \
        --no-epoch-checkpoints --log-interval 10 "$@"
}

for lr in $lrs; do record lr "$lr" "$base_size" $((2 * unit)) --lr "$lr"; done
for factor in 1 2 4; do record batch $((factor * unit)) "$base_size" $((factor * unit)) --lr "$base_lr"; done
for size in $sizes; do record size "$size" "$size" $((2 * unit)) "${size_setting[@]}"; done
finish
