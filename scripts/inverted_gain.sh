#!/usr/bin/env bash
# Measure DeepNorm with an inverted gain, (8N)^(+1/4) in place of (8N)^(-1/4), as code released with later papers has
# it. It trains beside the correct DeepNorm as a language model at 6, 12 and 24 layers (at 24 also with that code's
# alpha), and as a translator at 18L-18L. examples/inverted_gain defines the methods. The quickstart's corpus, width 64.
#
#   scripts/inverted_gain.sh [--dry-run] [flags of fairseq-train]      30 trainings, half an hour of one core
#   SEEDS="1 2 3" UPDATES=400 OUT=runs-smoke ...
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"  # if run by sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/lib/common.sh
SEEDS="${SEEDS:-1 2 3}"
begin_small inverted_gain "$@"
updates="${UPDATES:-400}"
numbers UPDATES "$updates"

record() {  # record VARIANT FACTS FLAGS...: VARIANT is a name of examples/inverted_gain, "" for DeepNorm itself
    method=deepnorm
    queue run_train "$name${1:+-$1}-seed$seed" "\"method\": \"$method\", $2, \"variant\": \"$1\"" "${@:3}" \
        --user-dir examples/inverted_gain --method "deepnorm${1:+_$1}" "${setting[@]}"
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
