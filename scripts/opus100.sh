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
# shellcheck source=scripts/lib/entry.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/entry.sh"
reproduce opus100 "$@"
