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
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/lib/common.sh
begin iwslt14 1 "$@"

methods="${METHODS:-deepnorm post_ln ds_init admin t_fixup rezero r_fixup pre_ln dlcl normformer}"
depths="${DEPTHS:-10 20 30 40 50 60 70 80 90 100}"
iwslt14_setting
if [ -n "$smoke" ]; then
    methods="${METHODS:-deepnorm post_ln}" depths="${DEPTHS:-6 18}"
fi
chosen "$methods" "$depths"
prepare iwslt14_de_en
miniature 600 1000 2e-3
[ -z "$smoke" ] || [ -n "${STOP_STUCK:-}" ] || stuck_flags=(--stop-stuck 150)  # else Post-LN 18L-18L trains on
save_every 1000

validation=(--disable-validation)  # unless STOP_STUCK needs it
[ "${#stuck_flags[@]}" -eq 0 ] || validation=()

record() {  # record METHOD DEPTH FLAGS...
    row "$1" "$2" "$2" "$2" "${validation[@]}" "${@:3}"
}

rows "$depths" record
finish table iwslt14
[ -z "${FIGURE:-}" ] || finish figure "$FIGURE"
