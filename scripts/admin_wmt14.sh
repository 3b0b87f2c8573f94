#!/usr/bin/env bash
# Admin's table (Liu et al. 2020; "Very Deep Transformers", 2020): BLEU on WMT-14 En-De of Post-LN, Pre-LN and Admin at
# 6L-6L, 12L-12L, 18L-18L and of Admin at 60L-12L, trained by the authors' recipe: RAdam, batches of 4 x 8,192 tokens, the
# last ten epochs' checkpoints averaged.
#
#   scripts/admin_wmt14.sh [--dry-run] [flags of fairseq-train]
#   SMOKE=1 scripts/admin_wmt14.sh        Admin and Pre-LN at 6L-6L in miniature
#   METHODS=admin DEPTHS="18 60" ...      60 stands for 60L-12L; the decoder's layers else are the encoder's
#   RECIPE=deepnmt ...                    60L-12L and 6L-6L by the text of the paper that reports 30.1: half the epochs
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"  # sh scripts/admin_wmt14.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/lib/common.sh
recipe
begin "admin_wmt14$suffix" 4 "$@"

methods="${METHODS:-admin pre_ln post_ln}"
depths="${DEPTHS:-6 12 18 60}"
[ -z "$suffix" ] || methods="${METHODS:-admin post_ln}" depths="${DEPTHS:-60 6}"
admin_wmt14_setting
if [ -n "$smoke" ]; then
    methods="${METHODS:-admin pre_ln}" depths="${DEPTHS:-6}"
fi
chosen "$methods" "$depths"
prepare wmt14_en_de
miniature 200
save_every 1000

record() {  # record METHOD DEPTH FLAGS...
    row "$1" "$2" "$2" $(($2 == 60 ? 12 : $2)) "${@:3}"
}

rows "$depths" record
finish table "admin_wmt14$suffix"
