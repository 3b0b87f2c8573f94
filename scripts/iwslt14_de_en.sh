#!/usr/bin/env bash
# Run the trainings of Figure 6 of the DeepNet paper: IWSLT-14 De-En, test BLEU after 8,000 updates of 4,000 tokens,
# 10L-10L to 100L-100L, ten methods, fp16 except for ReZero. Ends with the table beside the published numbers;
# figure6.sh draws it.
#
#   scripts/iwslt14_de_en.sh [--dry-run] [flags of fairseq-train]
#   SMOKE=1 scripts/iwslt14_de_en.sh      DeepNorm and Post-LN at 6L-6L and 18L-18L in miniature
#   METHODS="deepnorm admin" DEPTHS="10 100" SEEDS="1 2 3" scripts/iwslt14_de_en.sh
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"  # if run by sh
set -euo pipefail
# shellcheck source=scripts/lib/entry.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/entry.sh"
reproduce iwslt14_de_en "$@"
