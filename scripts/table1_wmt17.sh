#!/usr/bin/env bash
# Reproduce Table 1 of the DeepNet paper: BLEU on WMT-17 En-De, base width, ten methods at 6L-6L, 18L-18L, 50L-50L and
# 100L-100L, 100,000 updates of 128 x 4,096 tokens in fp16. The paper does not state which checkpoints are averaged
# (here the last ten epochs'; admin-torch: AVERAGE=36-45) or whether embeddings are shared (here they are, unless
# SHARE_EMBEDDINGS=0). Ends with the table beside the published one.
#
#   scripts/table1_wmt17.sh [--dry-run] [flags of fairseq-train]
#   SMOKE=1 scripts/table1_wmt17.sh       DeepNorm and Post-LN at 18L-18L in miniature
#   METHODS="deepnorm post_ln" DEPTHS="18 100" SEEDS="1 2 3" GPUS=8 LAUNCH=slurm scripts/table1_wmt17.sh
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"  # if run by sh
set -euo pipefail
# shellcheck source=scripts/lib/entry.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/entry.sh"
reproduce table1 "$@"
