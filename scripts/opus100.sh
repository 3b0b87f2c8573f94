#!/usr/bin/env bash
# Run the trainings of Figure 8 and Table 2 of the DeepNet paper: DeepNorm on OPUS-100, 100 languages to and from
# English in one model, 12 to 1,000 layers in total, 4 epochs of 128 x 4,096 tokens an update. BLEU is the mean over
# directions. The deepest models train with activation checkpointing and a sharded optimiser.
#
#   scripts/opus100.sh [--dry-run] [flags of fairseq-train]
#   SMOKE=1 scripts/opus100.sh            4 and 12 layers on three language pairs in miniature
#   DEPTHS="12 100" GPUS=8 ...            layers of encoder and decoder together
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"  # if run by sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/lib/common.sh
begin opus100 8 "$@"

methods="${METHODS:-deepnorm}"
depths="${DEPTHS:-12 20 100 200 1000}"
opus100_setting
[ -z "$smoke" ] || depths="${DEPTHS:-4 12}"
chosen "$methods" "$depths"
for total in $depths; do
    [ $((total % 2)) -eq 0 ] || fail "DEPTHS: $total is no even number of layers"
done
prepare opus100
setting+=(--max-epoch $((4 * shards)))  # fairseq counts a pass over one shard as an epoch
miniature 800 2500 2e-3
save_every 1000

record() {  # record METHOD LAYERS FLAGS...
    row "$1" "$2" $(($2 / 2)) $(($2 / 2)) "${@:3}"
}

rows "$depths" record
finish table "${REPORT:-opus100}"
[ -z "${FIGURE:-}" ] || finish figure "$FIGURE"
