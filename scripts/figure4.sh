#!/usr/bin/env bash
# Reproduce Figure 4 of the DeepNet paper: the first 30 updates of Post-LN without warm-up, of Post-LN with 4,000
# warm-up updates, and of Post-LN-init with as many. Model update, LayerNorm inputs and gradient norms; 18L-18L,
# IWSLT-14 De-En.
#
#   scripts/figure4.sh [--dry-run] [flags of fairseq-train]
#   SMOKE=1 scripts/figure4.sh       width 64 in miniature
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"  # if run by sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/lib/common.sh
begin figure4 1 "$@"
precision=fp32  # fp16 is too coarse for the first updates' changes of the output
prepare iwslt14_de_en

iwslt14_setting
miniature 30

record() {  # record SERIES METHOD
    layers "$2" 18
    queue run_train "$1" "$facts, \"series\": \"$1\"" --method "$2" --init-profile fairseq_head "${layer_flags[@]}" \
        "${setting[@]}" --dropout 0.4 --lr 5e-4 --max-update 30 --no-save \
        --disable-validation --log-interval 1 \
        --deepnet-probe gradient_norm,ln_input,model_update,branch_dependency --probe-interval 1
}

schedule=(--lr-scheduler inverse_sqrt --warmup-updates 4000 --warmup-init-lr 1e-7)
record post_ln_warmup post_ln
record post_ln_init_warmup post_ln_init
schedule=(--lr-scheduler fixed)
record post_ln_no_warmup post_ln
finish figure 4
