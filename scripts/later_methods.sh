#!/usr/bin/env bash
# Compare the first updates of every method of `deepnet methods`, some also with modifiers and options, at 6L-6L and
# 18L-18L, in the quickstart's setting without translation. A diverged training is a row too. The table of losses is on
# results/later_methods.md: scripts/render_results.sh OUT makes it anew from these runs.
#
#   scripts/later_methods.sh [--dry-run=commands] [flags of fairseq-train]
#   A training of 200 updates takes one core 25 s at 6L-6L, and 78 s at 18L-18L.
#   METHODS="pre_ln normformer+normformer-scale-residual+normformer-head-scale=none" DEPTHS="6 18" UPDATES=200 ...
#   METHODS: options follow the method after plus signs, their values after equals signs
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"  # if run by sh
set -euo pipefail
# shellcheck source=scripts/lib/entry.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/entry.sh"
reproduce later_methods ${UPDATES:+--max-update "$UPDATES"} "$@"
