#!/usr/bin/env bash
# Figure 8 of the DeepNet paper: BLEU against depth for DeepNorm on OPUS-100, 12 to 1,000 layers in all, with the fit
# L(d) = A log d + B.
#
#   DATA=data-bin/opus100 scripts/figure8.sh [--dry-run] [flags of fairseq-train]
#       DATA: both directions of all pairs in one binarised corpus, the target language's tag first in each source; BLEU
#       is that of its whole test set, where the paper's is the mean of the directions' own
#   SMOKE=1 scripts/figure8.sh       4 to 24 layers of width 64 on the embedded corpus: 6 minutes on 2 CPU cores
#   DEPTHS="12 20 100" ...           layers in all, encoder and decoder together
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/lib/common.sh
begin figure8 "$@"
corpus "OPUS-100"

depths="${DEPTHS:-12 20 100 200 1000}"
setting=($(width 512 2048 8) --max-tokens 4096 $(update_freq 128) --dropout 0.1 --lr 5e-4
    --lr-scheduler inverse_sqrt --warmup-updates 4000 --warmup-init-lr 1e-7 --max-epoch 4)
if [ -n "$smoke" ]; then
    depths="${DEPTHS:-4 8 12 24}"
    setting=($(width 64 128 2) --max-tokens 1000 --dropout 0.0 --lr 1e-3 --lr-scheduler inverse_sqrt
        --warmup-updates 100 --warmup-init-lr 1e-7 --max-update 600 --disable-validation)
fi

record() {  # record LAYERS, encoder and decoder together
    local half=$(($1 / 2)) run="deepnorm-$1" memory=()
    [ "$1" -lt 200 ] || memory=(--checkpoint-activations)
    run_train "$run" "{\"method\": \"deepnorm\", \"encoder_layers\": $half, \"decoder_layers\": $half}" \
        --method deepnorm --encoder-layers "$half" --decoder-layers "$half" --share-all-embeddings "${setting[@]}" \
        --no-epoch-checkpoints --log-interval 25 "${memory[@]}"
    run_score "$run"
}

numbers DEPTHS "$depths"
for layers in $depths; do
    [ $((layers % 2)) -eq 0 ] || fail "DEPTHS: $layers is no even number of layers"
    queue record "$layers"
done
finish
