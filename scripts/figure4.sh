#!/usr/bin/env bash
# Figure 4 of the DeepNet paper: the first 30 updates of Post-LN without warm-up, Post-LN with 4,000 warm-up updates, and
# Post-LN-init with as many. 18L-18L, IWSLT-14 De-En: model update, LayerNorm inputs, gradient norms.
#
#   DATA=data-bin/iwslt14.de-en scripts/figure4.sh [--dry-run] [flags of fairseq-train]
#   SMOKE=1 scripts/figure4.sh       width 64 on the embedded corpus: under a minute on 2 CPU cores
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/lib/common.sh
begin figure4 "$@"
full_precision
corpus "IWSLT-14 De-En"

setting=($(width 512 2048 8) --max-tokens 4000 --dropout 0.4 --weight-decay 1e-4)
[ -z "$smoke" ] || setting=($(width 64 128 2) --max-tokens 1000 --dropout 0.4)

record() {  # record SERIES METHOD SCHEDULE...
    local series="$1" method="$2"
    shift 2
    queue run_train "$series" \
        "{\"method\": \"$method\", \"encoder_layers\": 18, \"decoder_layers\": 18, \"series\": \"$series\"}" \
        --method "$method" --init-profile fairseq_head --encoder-layers 18 --decoder-layers 18 --share-all-embeddings \
        "${setting[@]}" --lr 5e-4 "$@" --max-update 30 --no-save --disable-validation --log-interval 1 \
        --deepnet-probe gradient_norm,ln_input,model_update,branch_dependency --probe-interval 1
}

warmup=(--lr-scheduler inverse_sqrt --warmup-updates 4000 --warmup-init-lr 1e-7)
record post_ln_no_warmup post_ln --lr-scheduler fixed
record post_ln_warmup post_ln "${warmup[@]}"
record post_ln_init_warmup post_ln_init "${warmup[@]}"
finish
