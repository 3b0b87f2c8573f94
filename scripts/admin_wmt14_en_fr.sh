#!/usr/bin/env bash
# Reproduce Admin's results on WMT-14 En-Fr (Liu et al. 2020; "Very Deep Transformers", 2020): BLEU of Post-LN, Pre-LN
# and Admin at 6L-6L and 60L-12L, and of Admin at five more depths. The recipe is the authors': RAdam, 50 epochs of
# updates of 640,000 tokens (twice as many at 60L-12L), and the mean of the last ten epochs' checkpoints. The authors do
# not give the batch of the other depths, which train with that of 6L-6L here.
#
#   scripts/admin_wmt14_en_fr.sh [--dry-run] [flags of fairseq-train]
#   SMOKE=1 scripts/admin_wmt14_en_fr.sh       Admin and Pre-LN at 6L-6L in miniature
#   METHODS=admin DEPTHS="12-12 12-60" ...     chooses the depths: layers of the encoder, and of the decoder
#   RECIPE=deepnmt ...                         trains as microsoft/deepnmt's script, whose paper reports BLEU 43.8
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"  # if run by sh
set -euo pipefail
# shellcheck source=scripts/lib/entry.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/entry.sh"
reproduce admin_wmt14_en_fr "$@"
