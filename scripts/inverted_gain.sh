#!/usr/bin/env bash
# Measure DeepNorm with an inverted gain, (8N)^(+1/4) in place of (8N)^(-1/4), as code released with later papers has
# it. It trains beside the correct DeepNorm as a language model at 6, 12 and 24 layers (at 24 also with that code's
# alpha), and as a translator at 18L-18L. examples/inverted_gain defines the methods. All models have width 64 and train
# on the quickstart's corpus.
#
#   scripts/inverted_gain.sh [--dry-run=commands] [flags of fairseq-train]      30 trainings, half an hour of one core
#   SEEDS="1 2 3" UPDATES=400 OUT=runs-smoke ...
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"  # if run by sh
set -euo pipefail
# shellcheck source=scripts/lib/entry.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/entry.sh"
help_if_asked "$@"
for task in lm translation; do
    (reproduce "inverted_gain_$task" ${UPDATES:+--max-update "$UPDATES"} "$@")
done
