#!/usr/bin/env bash
# Reproduce Figure 5 of the DeepNet paper: model update early in training against depth, for N-N layers of Post-LN and
# DeepNorm, width 64 (feed-forward 128, 2 heads). The paper does not state the number of updates; here it is 5
# (results/figures.md).
#
#   scripts/figure5.sh [--dry-run] [flags of fairseq-train]    every N from 6 to 100
#   SMOKE=1 scripts/figure5.sh       five depths in miniature
#   UPDATE=4 DEPTHS="6 50 100" ...   measures the model update after 4 updates, at these depths
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"  # if run by sh
set -euo pipefail
# shellcheck source=scripts/lib/entry.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/entry.sh"
reproduce figure5 "$@"
