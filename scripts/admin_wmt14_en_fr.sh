#!/usr/bin/env bash
# Admin's results on WMT-14 En-Fr (Liu et al. 2020; "Very Deep Transformers", 2020): BLEU of Post-LN, Pre-LN and Admin
# at 6L-6L and 60L-12L, of Admin at five depths more, by the authors' recipe: RAdam, 50 epochs of updates of 640,000
# tokens, twice as many at 60L-12L, the last ten epochs' checkpoints averaged. The other depths' batch is not given: here
# 6L-6L's.
#
#   scripts/admin_wmt14_en_fr.sh [--dry-run] [flags of fairseq-train]
#   SMOKE=1 scripts/admin_wmt14_en_fr.sh       Admin and Pre-LN at 6L-6L in miniature
#   METHODS=admin DEPTHS="12-12 12-60" ...     the encoder's and the decoder's layers
#   RECIPE=deepnmt ...                         60L-12L and 6L-6L by microsoft/deepnmt's script, whose paper reports 43.8
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"  # sh scripts/admin_wmt14_en_fr.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/lib/common.sh
recipe
begin "admin_wmt14_en_fr$suffix" 8 "$@"

methods="${METHODS:-admin${DEPTHS:+ pre_ln post_ln}}"
depths="${DEPTHS:-60-12 48-12 36-36 12-60 24-12 12-12 6-6}"
[ -z "$suffix" ] || methods="${METHODS:-admin post_ln}" depths="${DEPTHS:-60-12 6-6}"
admin_wmt14_en_fr_setting
if [ -n "$smoke" ]; then
    methods="${METHODS:-admin pre_ln}" depths="${DEPTHS:-6-6}"
fi
chosen "$methods" "${depths//-/ }"
prepare wmt14_en_fr
miniature 200
save_every 1000

record() {  # record METHOD DEPTH FLAGS...
    local batch_flags=() paper_batch="$paper_batch"
    [ "$2$smoke$suffix" != 60-12 ] || batch 5000 256
    row "$1" "$2" "${2%-*}" "${2#*-}" "${batch_flags[@]}" "${@:3}"
}

rows "$depths" record
if [ -z "$smoke$suffix${METHODS:-}${DEPTHS:-}" ]; then  # the baselines, at the depths that the papers give
    chosen "pre_ln post_ln" ""
    rows "60-12 6-6" record
fi
finish table "admin_wmt14$suffix"
