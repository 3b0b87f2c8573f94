#!/usr/bin/env bash
# Reproduce Admin's table of IWSLT-14 De-En (Liu et al. 2020): BLEU of Post-LN, Pre-LN and Admin at 6L-6L, five seeds
# each. The recipe is the authors': width 512/1024, RAdam, 90 epochs of batches of 4,096 tokens, and the mean of the
# last ten epochs' checkpoints. Every row also trains without warm-up, at 3e-4 and beta2 0.995 with a linearly falling
# rate.
#
#   scripts/admin_iwslt14.sh [--dry-run] [flags of fairseq-train]
#   SMOKE=1 scripts/admin_iwslt14.sh      Admin and Pre-LN in miniature, with and without warm-up
#   WARMUP=1 METHODS=admin SEEDS=1111 ... trains with warm-up only; WARMUP=0 without it only
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"  # if run by sh
set -euo pipefail
# shellcheck source=scripts/lib/entry.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/entry.sh"
reproduce admin_iwslt14 "$@"
