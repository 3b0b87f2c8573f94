#!/usr/bin/env bash
# Reproduce Figure 4 of the DeepNet paper: the first 30 updates of Post-LN without warm-up, of Post-LN with 4,000
# warm-up updates, and of Post-LN-init with as many. Model update, LayerNorm inputs and gradient norms; 18L-18L,
# IWSLT-14 De-En.
#
#   scripts/figure4.sh [--dry-run] [flags of fairseq-train]
#   SMOKE=1 scripts/figure4.sh       width 64 in miniature
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"  # if run by sh
set -euo pipefail
# shellcheck source=scripts/lib/entry.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/entry.sh"
reproduce figure4 "$@"
