#!/usr/bin/env bash
# Compare the first updates of every method of `deepnet methods`, some also with modifiers and options, at 6L-6L and
# 18L-18L, in the quickstart's setting without translation. A diverged training is a row too. Ends with a table of
# losses.
#
#   scripts/later_methods.sh [--dry-run] [flags of fairseq-train]      200 updates: 20 s and 50 s of a core a method
#   METHODS="pre_ln normformer+normformer-scale-residual+normformer-head-scale=none" DEPTHS="6 18" UPDATES=200 ...
#   METHODS: flags of a training follow the method after plus signs, their values after equals signs; SEEDS, OUT as in
#   other scripts
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"  # if run by sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/lib/common.sh
begin_small later_methods "$@"
# DenseFormer, GPT-2's initialisation, QK-norm, and ProRes, whose last layer reaches full strength at update 36 (6L-6L)
# or 108 (18L-18L)
modified="dlcl+dlcl-plain+dlcl-init=last pre_ln+pre-ln-scaled-init"
modified+="$(printf ' %s' {deepnorm,pre_ln,keel}+{qk-norm,pro-res+pro-res-updates=6})"
updates="${UPDATES:-200}" asked="${METHODS:-$(deepnet methods --names) $modified}"
numbers UPDATES "$updates"
# shellcheck disable=SC2086  # one word for each method
chosen "$(printf '%s\n' $asked | sed 's/+.*//' | sort -u | paste -sd' ')" "${DEPTHS:-6 18}"

record() {  # record WORD DEPTH
    local name="${1//[+=]/-}" variant="" flags=() option
    layers "${1%%+*}" "$2"
    read -r -a flags < <(grep -E "^--method $method( |$)" <<<"$method_flags")
    [[ "$1" != *+* ]] || variant="${1#*+}"
    for option in ${variant//+/ }; do
        flags+=("--${option%%=*}")
        [[ "$option" != *=* ]] || flags+=("${option#*=}")
    done
    facts+=", \"variant\": \"$variant\""
    queue run_train "$name-$2-seed$seed" "$facts" "${layer_flags[@]}" "${setting[@]}" "${flags[@]}"
}

small_translation "$updates"
for seed in $seeds; do
    for depth in ${DEPTHS:-6 18}; do
        for word in $asked; do record "$word" "$depth"; done
    done
done
wait
[ -n "$dry_run" ] || [ ! -e "$failed" ] || exit 1
