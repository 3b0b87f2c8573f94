#!/usr/bin/env bash
# Reproduce Admin's results on WMT-14 En-Fr (Liu et al. 2020; "Very Deep Transformers", 2020): BLEU of Post-LN, Pre-LN
# and Admin at 6L-6L and 60L-12L, and of Admin at five more depths. The recipe is the authors': RAdam, 50 epochs of
# updates of 640,000 tokens (twice as many at 60L-12L), and the mean of the last ten epochs' checkpoints. The authors do
# not give the batch of the other depths, which train with that of 6L-6L here.
#
#   scripts/admin_wmt14_en_fr.sh [--dry-run] [flags of fairseq-train]
#   SMOKE=1 scripts/admin_wmt14_en_fr.sh       Admin and Pre-LN at 6L-6L in miniature
#   METHODS=admin DEPTHS="12-12 12-60" ...     layers of the encoder and of the decoder
#   RECIPE=deepnmt ...                         60L-12L and 6L-6L by microsoft/deepnmt's script, whose paper reports 43.8
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"  # if run by sh
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
if [ -z "$smoke$suffix${METHODS:-}${DEPTHS:-}" ]; then  # the baselines, at the papers' depths only
    chosen "pre_ln post_ln" ""
    rows "60-12 6-6" record
fi
finish table "admin_wmt14$suffix"
