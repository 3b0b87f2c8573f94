#!/usr/bin/env bash
# Figure 6 of the DeepNet paper: test BLEU after 8,000 updates against depth, 10L-10L to 100L-100L, ten methods.
# IWSLT-14 De-En; mixed precision but for ReZero, which the paper trained in fp32.
#
#   DATA=data-bin/iwslt14.de-en scripts/figure6.sh [--dry-run] [flags of fairseq-train]
#   SMOKE=1 scripts/figure6.sh       width 64, 6L-6L and 18L-18L on the embedded corpus: 15 minutes on 2 CPU cores
#   METHODS="deepnorm admin" DEPTHS="10 100" ...   any methods of `deepnet methods`, any depths
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/lib/common.sh
begin figure6 "$@"
corpus "IWSLT-14 De-En"

methods="${METHODS:-deepnorm post_ln ds_init admin t_fixup rezero r_fixup pre_ln dlcl normformer}"
depths="${DEPTHS:-10 20 30 40 50 60 70 80 90 100}"
setting=($(width 512 2048 8) --max-tokens 4000 --dropout 0.4 --weight-decay 1e-4 --lr 5e-4 --lr-scheduler inverse_sqrt
    --warmup-updates 4000 --warmup-init-lr 1e-7 --max-update 8000 --disable-validation)
if [ -n "$smoke" ]; then
    depths="${DEPTHS:-6 18}"
    setting=($(width 64 128 2) --max-tokens 1000 --dropout 0.0 --lr 1e-3 --lr-scheduler inverse_sqrt
        --warmup-updates 100 --warmup-init-lr 1e-7 --max-update 400 --disable-validation)
fi
numbers DEPTHS "$depths"
method_flags="$(deepnet methods --flags "${methods// /,}")"

record() {  # record METHOD DEPTH FLAGS...
    local method="$1" depth="$2" run="$1-$2"
    shift 2
    [ "$method" != rezero ] || full_precision
    run_train "$run" "{\"method\": \"$method\", \"encoder_layers\": $depth, \"decoder_layers\": $depth}" \
        --encoder-layers "$depth" --decoder-layers "$depth" --share-all-embeddings "${setting[@]}" --log-interval 25 \
        --no-epoch-checkpoints "$@"
    run_score "$run"
}

for depth in $depths; do
    while read -r -u 3 _ method more; do
        queue record "$method" "$depth" --method "$method" $more
    done 3<<<"$method_flags"
done
finish
