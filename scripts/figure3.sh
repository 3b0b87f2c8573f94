#!/usr/bin/env bash
# Reproduce Figure 3 of the DeepNet paper: gradient norms of the decoder's layers at the first update, for 18L-18L and
# 6L-6L to 24L-24L, and validation curves of 18L-18L, with Post-LN and Post-LN-init. IWSLT-14 De-En, 30 epochs (33,000
# updates).
#
#   scripts/figure3.sh [--dry-run] [flags of fairseq-train]
#   SMOKE=1 scripts/figure3.sh       width 64 in miniature
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"  # if run by sh
set -euo pipefail
# shellcheck source=scripts/lib/entry.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/entry.sh"
reproduce figure3 "$@"
