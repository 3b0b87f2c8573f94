#!/usr/bin/env bash
# What a DeepNorm is whose gain was inverted, (8N)^(+1/4) in the place of (8N)^(-1/4), as in codes released with later
# papers: beside the right one at 6, 12 and 24 layers as a language model, at 24 also with those codes' alpha, and at
# 18L-18L in translation. The wrong ones are a stranger's methods, scripts/inverted_gain. The quickstart's corpus, width 64.
#
#   scripts/inverted_gain.sh [--dry-run] [flags of fairseq-train]      30 trainings, half an hour of one core
#   SEEDS="1 2 3" UPDATES=400 OUT=runs-smoke ...
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"  # sh scripts/inverted_gain.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/lib/common.sh
SEEDS="${SEEDS:-1 2 3}"
begin_small inverted_gain "$@"
updates="${UPDATES:-400}"
numbers UPDATES "$updates"

record() {  # record VARIANT FACTS FLAGS...: VARIANT as scripts/inverted_gain has it, "" for DeepNorm itself
    method=deepnorm
    queue run_train "$name${1:+-$1}-seed$seed" "\"method\": \"$method\", $2, \"variant\": \"$1\"" "${@:3}" \
        --user-dir scripts/inverted_gain --method "deepnorm${1:+_$1}" "${setting[@]}"
}

for seed in $seeds; do
    small_language_model "$updates"
    for depth in 6 12 24; do
        name="lm-$depth" variants=("" inverted_gain) probes=()
        if [ "$depth" -eq 24 ]; then
            variants+=(fixed_alpha inverted_gain_fixed_alpha)
            [ "$seed" != "${seeds%% *}" ] || probes=(--deepnet-probe gradient_norm --probe-interval 200)
        fi
        for variant in "${variants[@]}"; do
            record "$variant" "\"decoder_layers\": $depth" --decoder-layers "$depth" "${probes[@]}"
        done
    done
    small_translation "$updates"
    name=translation-18
    for variant in "" inverted_gain; do
        record "$variant" '"encoder_layers": 18, "decoder_layers": 18' --encoder-layers 18 --decoder-layers 18
    done
done
finish figure inverted_gain
