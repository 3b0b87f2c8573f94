#!/usr/bin/env bash
# The depth study, docs/depth_study.md: methods from 6L-6L to 100L-100L on a text, each at learning rates a factor of 2
# apart, one training after the other on one core: a day. Killed at any moment, it goes on when started again.
#
#   scripts/depth_study.sh DATA [flags of fairseq-train]       DATA: a folder with train, valid, test in two languages,
#                                                              as train.de and train.en: tokenised, a sentence a line
#   --list       the cells that are known by now, what they found, what they took; --render: the table of methods by
#                depths; both look at OUT alone      --dry-run: the commands of the cell that is next
#   OUT=DIR      default depth_study; the file OUT/PAUSE holds the work within a second, without it the work goes on;
#                OUT/records: a record of each cell that is over, as scripts/records.py keeps them
#   METHODS="A B"  these alone: machines share a study, each its methods; their records go into one folder
#   PLAN_FILE=F  other stages than scripts/depth_study/plan.toml; VOCAB=N pieces of the joint BPE (4000)
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"  # sh scripts/depth_study.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/lib/common.sh

looking="" text="" words=()
for word in "$@"; do
    case "$word" in
        --list | --render) looking="${word#--}" ;;
        -*) words+=("$word") ;;
        *) if [ -z "$text" ] && [ "${#words[@]}" -eq 0 ]; then text="$word"; else words+=("$word"); fi ;;
    esac
done
unset DATA  # of other scripts: binarised data
OUT="${OUT:-depth_study}" STOP_STUCK="${STOP_STUCK:-0}" JOBS=1 PLAN=0 SMOKE=1
start="$OLDPWD" plan_file="$(cd "$OLDPWD" && realpath -m -- "${PLAN_FILE:-$PWD/scripts/depth_study/plan.toml}")"
begin depth_study 1 "${words[@]}"
smoke="" runs="$out/$experiment" broken=()
export PAUSE_FILE="$out/PAUSE" SPENT_FILE=""

cells() { python scripts/depth_study/cells.py "$1" "$plan_file" "$runs" "${@:2}"; }
held() { SPENT_FILE="$run/spent.json" python scripts/depth_study/held.py "$@"; }
launcher() { echo held training fairseq-train; }  # which run_train starts a training with
fairseq-generate() { held translation "$(type -P fairseq-generate)" "$@"; }  # as run_translate has it

languages() {  # languages FOLDER: sets source and target, in the order of the alphabet
    local found=("$1"/train.*) file
    [ "${#found[@]}" -eq 2 ] || fail "$1: holds no train.SRC and train.TGT, and no others of that name"
    source="${found[0]##*.}" target="${found[1]##*.}"
    for file in "$1"/{valid,test}".$source" "$1"/{valid,test}".$target"; do
        [ -f "$file" ] || fail "$file: no such file"
    done
}

study_setting() {  # one pass over part of the text; nothing that hides how a method trains: no clipping, no dropout
    metric=tokenised pieces=sentencepiece beam=(--beam 5 --max-len-a 1.5 --max-len-b 10)
    arch=deepnet_transformer criterion=(--criterion label_smoothed_cross_entropy --label-smoothing 0.0)
    batch 1024 1
    width 64 256 2
    setting=("${width_flags[@]}" "${batch_flags[@]}" --share-all-embeddings --dropout 0.0 --clip-norm 0.0
        --weight-decay 0.0 --num-workers 0 --max-tokens-valid 4096 --validate-interval 999 --log-interval 25
        --optimizer deepnet_adam
        --no-epoch-checkpoints --keep-interval-updates 1)
}

lasting() {  # lasting UPDATES RATE: sets schedule: a tenth of warm-up, then straight to 0; validated and saved four times
    local part=$((($1 + 3) / 4)) warmup=$((($1 + 9) / 10))
    schedule=(--lr "$2" --lr-scheduler polynomial_decay --warmup-updates "$warmup" --total-num-update "$1"
        --end-learning-rate 0 --max-update "$1" --save-interval-updates "$part" --validate-interval-updates "$part")
}

check() {  # check RUN: beforehand, by `deepnet check`, one of each method, depth and rate; run_train calls it
    [ ! -f "$1/check.json" ] && [ "$seed" -eq 1 ] || return 0
    echo "   checking $1"
    eval "held check deepnet check --json --seconds 3600 --compress-warmup 20 $(sed 's/^fairseq-train //' "$1/command")" \
        >"$1/check.part" 2>"$1/check.log" || [ $? -eq 3 ] || fail "checking $1 failed; whole log: $1/check.log"
    # without the probes of its updates, which are long
    python -c 'import json, sys; said = json.load(sys.stdin); del said["updates"]; print(json.dumps(said))' \
        <"$1/check.part" >"$1/check.short"
    mv "$1/check.short" "$1/check.json"
    rm "$1/check.part"
}

cell() {  # cell NAME METHOD LAYERS SEED RATE UPDATES FLAGS...: trains it, translates with it if it leads, records it
    local run="$runs/$1" updates="$6"
    seed="$4"
    layers "$2" "$3"
    lasting "$updates" "$5"
    facts+=", \"lr\": $5, \"updates\": $updates, \"guessing\": $guessing"
    run_train "$1" "$facts" "${layer_flags[@]}" "${setting[@]}" --method "$2" "${@:7}"
    [ -z "$dry_run" ] || return 0
    if grep -qx -- "$1" <<<"$(cells leads)"; then run_score "$1" test; fi
    tidy "$run"
    cells prune
    python scripts/records.py keep "$runs" "$out/records" >"$out/records.log"
}

renice -n 10 -p $$ >/dev/null 2>&1 || true
if [ -n "$looking" ]; then
    cells "$looking"
    exit
fi
[ -n "$text" ] || fail "DATA: name a folder with train, valid and test in two languages"
text="$(cd "$start" && realpath -m -- "$text")"
languages "$text"
corpus="$(basename "$text")" paper_corpus="$corpus" data="$out/data" task=() directions=() before_training=check
make_once "$data" deepnet prepare-text "$source" "$target" "$text/"{train,valid,test} "$data" --vocab "${VOCAB:-4000}"
guessing=null
if [ -z "$dry_run" ]; then
    guessing="$(python scripts/depth_study/guessing.py "$data" "$source" "$target")"
fi
study_setting
while true; do
    named="$(cells next --without "${broken[@]}")"
    [ -n "$named" ] || break
    read -r -a words <<<"$named"
    step "${words[0]}"
    queue cell "${words[@]}"
    [ -z "$dry_run" ] || exit 0
    wait
    [ -e "$failed" ] || continue
    rm -f "$failed"
    broken+=("${words[0]}")  # it is tried again when the script is started again
    [ "${#broken[@]}" -lt 3 ] || fail "three cells failed, the last was ${words[0]}"
done
[ "${#broken[@]}" -eq 0 ] || fail "failed: ${broken[*]}"
cells render
