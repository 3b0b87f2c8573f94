# shellcheck shell=bash disable=SC2034,SC2154  # variables set in one file are used in others
# Score a trained run: average its checkpoints, translate the test set, write score.json.

test_sets=(test)
longest=6000  # tokens of the longest sentence; to translate longer ones, raise all limits of run_translate by GENERATE

run_score() {  # run_score NAME SUBSET...: averages checkpoints, translates the subsets, writes score.json
    local run="$out/$experiment/$1" model subset result
    model="$run/checkpoint_last.pt" result="$run/generated.txt"
    [ "${#directions[@]}" -eq 0 ] || result="$run/generated"
    [ "$average" -eq 1 ] || model="$run/averaged.pt"
    if [ -z "$dry_run" ]; then
        [ ! -f "$run/score.json" ] && [ -f "$run/checkpoint_last.pt" ] && [ ! -f "$run/diverged" ] &&
            [ ! -f "$run/stuck" ] || return 0
    fi
    [ "$average" -eq 1 ] || run_average "$run"
    for subset in "${@:2}"; do
        run_translate "$run" "$model" "$subset"
    done
    do_once "scoring $run" "$run/score.json" "$run/score.log" deepnet score "$result" --json --data "$data" \
        --paper "$metric" "${tokenizer[@]}"
}

tidy() {  # tidy RUN: keeps only the last weights and the averaged ones of a finished run, unless KEEP=all
    local run="$1" left
    [ -f "$run/trained" ] && [ ! -f "$run/disk" ] && compgen -G "$run/*.pt" >/dev/null || return 0
    if [ "$KEEP" != all ]; then
        if [ -f "$run/checkpoint_last.pt" ]; then
            deepnet average "$run/checkpoint_last.pt" --out "$run/last_weights.pt" >/dev/null
            [ ! "$run/averaged.pt" -ef "$run/checkpoint_last.pt" ] || ln -f "$run/last_weights.pt" "$run/averaged.pt"
            mv "$run/last_weights.pt" "$run/checkpoint_last.pt"
        fi
        rm -f "$run"/checkpoint_[0-9]*.pt "$run"/checkpoint[0-9]*.pt "$run"/weights[0-9]*.pt "$run"/checkpoint_{previous,best}.pt
    fi
    left="$(find "$run" -name '*.pt' -printf '%i %s\n' | sort -u | awk '{bytes += $2} END {print bytes + 0}')"
    echo "checkpoints: $(numfmt --to=si "$left")B kept" >"$run/disk"
    echo "   $run $(cat "$run/disk")"
}

run_average() {  # run_average RUN: averages the checkpoints of average_epochs, or as many as exist
    local epoch files=()
    [ -n "$dry_run" ] || [ ! -f "$1/averaged.pt" ] || return 0
    for epoch in $(averaged_epochs "$1"); do
        [ -z "$dry_run" ] && [ ! -f "$1/weights$epoch.pt" ] || files+=("$1/weights$epoch.pt")
    done
    if [ -n "$dry_run" ] && [ "${#files[@]}" -eq 0 ]; then
        echo deepnet average "$1" --last "$average" --out "$1/averaged.pt"
    elif [ -n "$dry_run" ]; then
        echo deepnet average "${files[@]}" --out "$1/averaged.pt"
    elif [ "${#files[@]}" -ge 2 ]; then
        deepnet average "${files[@]}" --out "$1/averaged.pt"
    else
        [ "${#files[@]}" -eq 1 ] || echo "   $1: has no weights of epochs $average_epochs; its last is translated with" >&2
        ln -f "${files[0]:-$1/checkpoint_last.pt}" "$1/averaged.pt"
    fi
}

averaged_epochs() {  # averaged_epochs RUN: prints the epochs of average_epochs, the last ones from existing files
    if [[ "$average_epochs" != last:* ]]; then
        seq "${average_epochs%-*}" "${average_epochs#*-}"
    elif [ -z "$dry_run" ]; then
        find "$1" -name 'weights[0-9]*.pt' | sed -E 's/.*weights([0-9]+)\.pt/\1/' | sort -n | tail -n "$average"
    fi
}

run_translate() {  # run_translate RUN MODEL SUBSET: writes RUN/generated.txt, or a file for each of several directions
    local several words positions=() own
    read -r -a own <<<"${GENERATE:-}"
    # sinusoidal positions have no end, so a model can translate sentences longer than those of its training;
    # without these flags fairseq stops at the first sentence longer than in training
    [[ " ${extra[*]} " == *-learned-pos* ]] || positions=(--max-source-positions "$longest" --max-target-positions "$longest"
        --model-overrides "{'max_source_positions': $longest, 'max_target_positions': $longest}")
    words=("${data%%:*}" --user-dir deepnet_fairseq --path "$2" --gen-subset "$3" "${beam[@]}" --remove-bpe "$pieces"
        --max-tokens "$longest" "${positions[@]}" "${decoding[@]}" "${own[@]}")
    if [ "${#directions[@]}" -eq 0 ]; then
        do_once "translating with $1" "$1/generated.txt" "$1/generate.log" fairseq-generate "${words[@]}"
        return
    fi
    several="$(directions_of "$3" | paste -sd,)"
    do_once "translating ${several//,/ } with $1" "$1/generated.$3" "$1/generate.$3.log" deepnet generate "${words[@]}" \
        "${task[@]}" --directions "$several" --out "$1/generated/$3"
}

directions_of() {  # directions_of SUBSET: prints the directions of the subset in the binarised data, both ways
    local bin="${data%%:*}" file pair lang
    if [ ! -d "$bin" ]; then
        printf '%s\n' "${directions[@]}"
        return
    fi
    for file in "$bin/$1".*.idx; do  # SUBSET.SRC-TGT.LANG.idx, once for each language
        IFS=. read -r _ pair lang _ <<<"${file##*/}"
        [ "$lang" != "${pair%-*}" ] || printf '%s\n' "$pair" "${pair#*-}-${pair%-*}"
    done | sort -u  # WMT's data have a file for each direction
}

do_once() {  # do_once WHAT RESULT LOG COMMAND...: writes the command's output to RESULT, whole or not at all
    if [ -n "$dry_run" ]; then
        printf '%q ' "${@:4}"
        echo
        return
    fi
    [ ! -f "$2" ] || return 0
    echo "   $1"
    "${@:4}" >"$2.part" 2>"$3" || { tail -n 3 "$3" >&2; fail "$1 failed; whole log: $3"; }
    mv "$2.part" "$2"
}
