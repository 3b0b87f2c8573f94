#!/usr/bin/env bash
# Reproduce Figure 6 of the DeepNet paper: test BLEU after 8,000 updates against depth, 10L-10L to 100L-100L, for ten
# methods. IWSLT-14 De-En; mixed precision except for ReZero, which the paper trained in fp32. iwslt14_de_en.sh runs the
# trainings.
#
#   scripts/figure6.sh [--dry-run] [flags of fairseq-train]
#   SMOKE=1 scripts/figure6.sh       width 64, 6L-6L and 18L-18L in miniature
#   METHODS="deepnorm admin" DEPTHS="10 100" ...   other methods of `deepnet methods`, other depths
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"  # if run by sh
set -euo pipefail
# shellcheck source=scripts/lib/entry.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/entry.sh"
reproduce figure6 "$@"
