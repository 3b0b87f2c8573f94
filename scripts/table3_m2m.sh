#!/usr/bin/env bash
# Reproduce Table 3 of the DeepNet paper: DeepNorm 100L-100L of width 1,024 (3.2 B parameters) on 102 languages and
# 1,932 directions, beside M2M-100; BLEU on the WMT, OPUS, TED and Flores-101 test sets. 260,000 updates of 256 x 4,096
# tokens. The corpus is larger than one machine holds. scripts/prepare_m2m102.sh prepares it pair by pair, and
# PAIRS="de-en fr-en" trains on some pairs.
#
#   PAIRS="de-en fr-en" scripts/table3_m2m.sh [--dry-run] [flags of fairseq-train]
#   SMOKE=1 scripts/table3_m2m.sh         6L-6L on two language pairs in miniature
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"  # if run by sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/lib/common.sh
[[ -n "${PAIRS:-}${DATA:-}" || "${SMOKE:-0}" != 0 || " $* " =~ " --dry-run"|" --help "|" -h " ]] ||
    fail "PAIRS: name language pairs as PAIRS=\"de-en fr-en\", or DATA=DIR with all of them: together they fit no machine"
begin table3 8 "$@"

methods="${METHODS:-deepnorm}"
depths="${DEPTHS:-100}"
m2m_setting
[ -z "$smoke" ] || depths="${DEPTHS:-6}"
chosen "$methods" "$depths"
prepare m2m102 ${PAIRS:+--pairs "${PAIRS// /,}"}
miniature 800 2500 2e-3
save_every 1000

record() {  # record METHOD DEPTH FLAGS...
    row "$1" "$2" "$2" "$2" "${@:3}"
}

subsets() {  # prints the test sets that exist
    local set bin="${data%%:*}"
    [ -d "$bin" ] || printf '%s\n' wmt opus ted flores
    for set in wmt opus ted flores; do
        ! compgen -G "$bin/$set.*.idx" >/dev/null || echo "$set"
    done
}

mapfile -t test_sets < <(subsets)
rows "$depths" record
finish table 3
case " ${test_sets[*]} " in *" flores "*) finish figure 10 ;; esac
