#!/usr/bin/env bash
# Reproduce Figure 7 of the DeepNet paper: validation loss of 18L-18L DeepNorm on WMT-17 En-De over 30,000 updates, with
# one hyper-parameter changed at a time: learning rate, batch size or width.
#
#   scripts/figure7.sh [--dry-run] [flags of fairseq-train]
#   SMOKE=1 scripts/figure7.sh       6L-6L of width 64 in miniature
# An update has the paper's 128 batches of 4,096 tokens on any number of GPUS, by gradient accumulation.
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"  # if run by sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/lib/common.sh
begin figure7 8 "$@"
prepare wmt17_en_de

depth=18 unit=64 lrs="5e-4 1e-3 1.5e-3" sizes="512-2048-8 768-3072-12 1024-4096-16" base_size=512-2048-8
if [ -n "$smoke" ]; then
    depth=6 unit=1 sizes="32-64-2 64-128-2 128-256-4" base_size=64-128-2
fi

record() {  # record PANEL VALUE SIZE BATCHES FLAGS...; an update is made of BATCHES of 4,096 tokens
    batch "$([ -n "$smoke" ] && echo 500 || echo 4096)" "$4"
    layers deepnorm "$depth"
    IFS=- read -r -a size <<<"$3"
    width "${size[@]}"
    queue run_kept "$1-$2" "$facts, \"panel\": \"$1\", \"value\": \"$2\"" --method deepnorm "${layer_flags[@]}" \
        "${setting[@]}" "${width_flags[@]}" "${batch_flags[@]}" --max-update "$updates" \
        --validate-interval-updates $((updates / 30)) "${save_flags[@]}" --log-interval 25 "${@:5}"
}

updates=30000
[ -z "$smoke" ] || updates=300
wmt17_setting
average=1 average_epochs=last:1
save_every 1000
miniature 300
for lr in $lrs; do record lr "$lr" "$base_size" $((2 * unit)) --lr "$lr"; done
for factor in 1 2 4; do record batch $((factor * unit)) "$base_size" $((factor * unit)); done
wmt17_large_setting
miniature 300
for dims in $sizes; do record size "$dims" "$dims" $((2 * unit)); done
finish figure 7
