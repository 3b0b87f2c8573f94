#!/usr/bin/env bash
# Reproduce Admin's table of IWSLT-14 De-En (Liu et al. 2020): BLEU of Post-LN, Pre-LN and Admin at 6L-6L, five seeds
# each. The recipe is the authors': width 512/1024, RAdam, 90 epochs of batches of 4,096 tokens, and the mean of the
# last ten epochs' checkpoints. Every row also trains without warm-up, at 3e-4 and beta2 0.995 with a linearly falling
# rate.
#
#   scripts/admin_iwslt14.sh [--dry-run] [flags of fairseq-train]
#   SMOKE=1 scripts/admin_iwslt14.sh      Admin and Pre-LN in miniature, with and without warm-up
#   WARMUP=1 METHODS=admin SEEDS=1111 ... WARMUP=1: rows with warm-up only, 0: without only
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"  # if run by sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/lib/common.sh
begin admin_iwslt14 1 "$@"

methods="${METHODS:-admin pre_ln post_ln}"
depths="${DEPTHS:-6}"
admin_iwslt14_setting
[ -z "$smoke" ] || methods="${METHODS:-admin pre_ln}"
[[ "${WARMUP:=1 0}" =~ ^[01](\ [01])?$ ]] || fail "WARMUP=$WARMUP: choose 1, 0 or \"1 0\""
chosen "$methods" "$depths"
prepare iwslt14_de_en
miniature 300
save_every 1000

record() {  # record METHOD DEPTH FLAGS...
    local warm variant updates rate="${smoke:+1e-3}" schedule=("${schedule[@]}")
    updates="$(last_of --max-update "${setting[@]}")"
    for warm in $WARMUP; do
        if [ "$warm" = 1 ]; then
            variant="" row "$1" "$2" "$2" "$2" "${@:3}"
        else
            schedule=(--lr-scheduler polynomial_decay --warmup-updates 0 --total-num-update "$updates")
            variant=no_warmup row "$1" "$2" "$2" "$2" "${@:3}" --lr "${rate:-3e-4}" --adam-betas '(0.9, 0.995)'
        fi
    done
}

rows "$depths" record
finish table admin_iwslt14
