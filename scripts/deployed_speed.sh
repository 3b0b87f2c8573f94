#!/usr/bin/env bash
# How fast a trained model is where it is used: stock fairseq-generate, ours, CTranslate2 and transformers, in rounds.
#
#   scripts/deployed_speed.sh [flags of deepnet deployed]     writes OUT/DEPTH.json, and OUT/README.md of all there are
#   SMOKE=1 scripts/deployed_speed.sh                         a 2L-2L model, one round: does everything run here?
#   DATA=data-bin/de-en CHECKPOINTS="six.pt deep.pt" scripts/deployed_speed.sh --sentences 500
#
# Settings from the environment:
#   CHECKPOINTS, DATA   models and their binarised data; without them scripts/quickstart.sh trains DeepNorm on its
#                       artificial language, at DEPTHS="6 18 100", UPDATES=1200 each, in MODELS=quickstart
#   OUT=results/deployed (with SMOKE=1 deployed-smoke)
#
# Hardware: a CPU that nothing else uses; 100L-100L alone takes hours. Stopped, it goes on with the round it was in.
# What is not installed is in the table as such: pip install 'ctranslate2>=4' 'transformers>=5' safetensors.
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"  # sh scripts/deployed_speed.sh
set -euo pipefail
start="$PWD"
cd "$(dirname "${BASH_SOURCE[0]}")/.."
case "${1:-}" in -h | --help) sed -n '2,14s/^# \{0,1\}//p' scripts/deployed_speed.sh; exit ;; esac
command -v deepnet >/dev/null || source scripts/setup.sh
smoke="${SMOKE:-}" size=()
[ "$smoke" != 0 ] || smoke=""
[ -z "$smoke" ] || size=(--sentences 20 --alone 2 --rounds 1)
named() { (cd "$start" && realpath -m -- "$1"); }  # what the user named, from where that was
out=results/deployed models=quickstart updates=1200 depths="6 18 100"
[ -z "$smoke" ] || out=deployed-smoke models=deployed-smoke/models updates=25 depths=2
out="$PWD/$out" models="$PWD/$models"
[ -z "${OUT:-}" ] || out="$(named "$OUT")"
[ -z "${MODELS:-}" ] || models="$(named "$MODELS")"
mkdir -p "$out"
trap 'exit 130' INT
trap 'exit 143' TERM

status=0
measure() {  # measure NAME CHECKPOINT DATA FLAGS...
    (cd "$start" && deepnet deployed "$2" "$3" --out "$out/$1.json" "${size[@]}" "${@:4}") || status=$?
    [ "$status" -ne 130 ] || exit 130  # deepnet ends by itself at Ctrl-C
}

if [ -n "${CHECKPOINTS:-}" ]; then
    : "${DATA:?name the folder of the binarised data of CHECKPOINTS}"
    for checkpoint in $CHECKPOINTS; do
        checkpoint="$(named "$checkpoint")"
        name="$(basename "$(dirname "$checkpoint")")-$(basename "$checkpoint" .pt)"
        measure "$name" "$checkpoint" "$(named "$DATA")" "$@"
    done
else
    for depth in ${DEPTHS:-$depths}; do
        scripts/quickstart.sh --methods deepnorm --depth "$depth" --updates "${UPDATES:-$updates}" --out "$models"
        run="$models/${depth}L-${depth}L-${UPDATES:-$updates}-updates-seed1/deepnorm"
        measure "${depth}L-${depth}L" "$run/checkpoint_last.pt" "$models/data" "$@"
    done
fi
readarray -t records < <(find "$out" -maxdepth 1 -name '*.json' | sort -V)
if [ "${#records[@]}" -gt 0 ]; then
    { echo "# Speed of what is deployed" && echo && deepnet deployed --render "${records[@]}"; } >"$out/README.md.part"
    mv "$out/README.md.part" "$out/README.md"
fi
exit "$status"
