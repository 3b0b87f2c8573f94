#!/usr/bin/env bash
# Reproduce Admin's table of WMT-14 En-De (Liu et al. 2020; "Very Deep Transformers", 2020): BLEU of Post-LN, Pre-LN and
# Admin at 6L-6L, 12L-12L, 18L-18L and 60L-12L. The recipe is the authors': RAdam, batches of 4 x 8,192 tokens, and the
# mean of the last ten epochs' checkpoints.
#
#   scripts/admin_wmt14.sh [--dry-run] [flags of fairseq-train]
#   SMOKE=1 scripts/admin_wmt14.sh        Admin and Pre-LN at 6L-6L in miniature
#   METHODS=admin DEPTHS="18 60" ...      trains 18L-18L and 60L-12L: 60 means 60L-12L, other N mean N-N
#   RECIPE=deepnmt ...                    trains 60L-12L and 6L-6L as the paper that reports BLEU 30.1: half the epochs
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"  # if run by sh
set -euo pipefail
# shellcheck source=scripts/lib/entry.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/entry.sh"
reproduce admin_wmt14 "$@"
