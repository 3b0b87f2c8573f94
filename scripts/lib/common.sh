# What the experiment scripts share; sourced by them from the repository's root, never run. Each function is one step and
# skips what is done already. A run is a folder: run.json (what the figure asks of it), command (how it was trained),
# train.log, probes.jsonl, generated.txt, score.json, and the empty files `trained` when it is over and `diverged` where it
# ended in numbers that are not finite.
#
# Settings from the environment:
#   SMOKE=1     a miniature on the embedded corpus, minutes on 2 CPU cores; otherwise the paper's setting
#   DATA=DIR    binarised data of the paper's setting
#   OUT=DIR     where runs and pictures go (default runs, with SMOKE=1 runs-smoke); one folder a setting
#   SEED=N      seed of the trainings (default 1)
#   GPUS=N      GPUs of each training (default 1); an update is made of as many batches as the paper's on any number
#   JOBS=N      trainings at a time (default: as many as there are GPUs for, without a GPU one a core)
# Options: --dry-run prints every command instead of running it; all others go to fairseq-train.

fail() { echo "$(basename "$0"): $*" >&2; exit 1; }
step() { echo; echo "== $*"; }

begin() {  # begin FIGURE "$@": environment, options, folders
    local word start="$OLDPWD"  # where the user is
    figure="$1" dry_run="" extra=() slots=()
    shift
    for word in "$@"; do
        case "$word" in
            -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"; sed -n '6,14s/^# \{0,1\}//p' scripts/lib/common.sh; exit ;;
            --dry-run) dry_run=1 ;;
            *) extra+=("$word") ;;
        esac
    done
    source scripts/setup.sh
    smoke="${SMOKE:-}" seed="${SEED:-1}" gpus="${GPUS:-1}"
    [ "$smoke" != 0 ] || smoke=""
    [[ "$seed" =~ ^[0-9]+$ ]] || fail "SEED=$seed: give one number"
    numbers GPUS "$gpus"
    out="$(cd "$start" && realpath -m -- "${OUT:-$OLDPWD/runs${smoke:+-smoke}}")"
    [ -z "${DATA:-}" ] || DATA="$(cd "$start" && realpath -m -- "$DATA")"
    devices="$(nvidia-smi --list-gpus 2>/dev/null | wc -l)" || devices=0
    if [ "$devices" -gt 0 ]; then
        [ "$gpus" -le "$devices" ] || fail "GPUS=$gpus: this machine has $devices"
        hardware=(--fp16 --distributed-world-size "$gpus") jobs=$((devices / gpus))
    else
        export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"  # threads of two processes slow each other down ten-fold
        hardware=(--cpu) jobs="$(nproc)"
    fi
    numbers JOBS "${JOBS:-$jobs}"
    jobs="${JOBS:-$jobs}"
    [ -n "$dry_run" ] || { mkdir -p "$out/$figure" && rm -f "$out/$figure/failed"; }
    trap stop_queued EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
}

numbers() {  # numbers NAME "WORDS": each must be a whole number above 0
    local word
    for word in $2; do
        [[ "$word" =~ ^[1-9][0-9]*$ ]] || fail "$1: $word is no whole number above 0"
    done
}

full_precision() {  # the first updates change the output by less than fp16 can tell
    hardware=("${hardware[@]/--fp16/}")
    [ -n "${hardware[0]}" ] || hardware=("${hardware[@]:1}")
}

corpus() {  # corpus NAME: sets `data` to $DATA, or with SMOKE=1 to the embedded corpus, made once
    data="${DATA:-$out/corpus/bin}"
    if [ -z "$smoke" ]; then
        [ -n "${DATA:-}" ] || fail "DATA: give the folder of binarised data ($1), or SMOKE=1 for a miniature without"
        [ -d "$DATA" ] || fail "DATA=$DATA: no such folder"
    elif [ -z "${DATA:-}" ] && [ ! -f "$data/dict.qaa.txt" ] && [ -z "$dry_run" ]; then
        step "embedded corpus: 10,000 sentence pairs of an artificial language"
        local text="$out/corpus/text"
        deepnet corpus "$text" --nouns 20 --verbs 10 --train 10000 --valid 300 --test 200
        deepnet prepare-text qaa qab "$text/train" "$text/valid" "$text/test" "$data" --vocab 300
    fi
}

width() {  # width DIM FFN HEADS: the flags of both stacks
    echo --encoder-embed-dim "$1" --encoder-ffn-embed-dim "$2" --encoder-attention-heads "$3"
}

update_freq() {  # update_freq BATCHES: batches an update takes from each GPU
    [ $(($1 % gpus)) -eq 0 ] || fail "GPUS=$gpus: must divide $1, the batches of an update"
    echo --update-freq $(($1 / gpus))
}

run_train() {  # run_train NAME JSON FLAGS...: trains OUT/FIGURE/NAME, or resumes there; JSON: content of run.json
    local run="$out/$figure/$1" keys="$2" words
    shift 2
    words="$(printf '%q ' \
        fairseq-train "$data" --user-dir deepnet_fairseq --arch deepnet_transformer \
        --criterion label_smoothed_cross_entropy --label-smoothing 0.1 \
        --optimizer adam --adam-betas '(0.9, 0.98)' --adam-eps 1e-8 \
        --save-dir "$run" --seed "$seed" --log-format json "${hardware[@]}" "$@" "${extra[@]}")"
    if [ -n "$dry_run" ]; then
        echo "$words"
        return
    fi
    if [ -f "$run/command" ] && [ "$(cat "$run/command")" != "$words" ]; then
        fail "$run: was trained with other settings (its file command); remove it, or take another OUT"
    fi
    [ ! -f "$run/trained" ] || return 0
    mkdir -p "$run"
    [ -f "$run/checkpoint_last.pt" ] || rm -f "$run/train.log" "$run/diverged"
    echo "$words" >"$run/command"
    echo "$keys" >"$run/run.json"
    echo "   training $run (log: $run/train.log)"
    if ! eval "$words" >>"$run/train.log" 2>&1; then
        grep -q -E "FloatingPointError|Minimum loss scale reached" "$run/train.log" ||
            { tail -n 3 "$run/train.log" >&2; fail "training $run failed; whole log: $run/train.log"; }
        echo "   $run diverged"  # a result
        touch "$run/diverged"
        rm -f "$run/crash.pt"
    fi
    touch "$run/trained"
}

run_score() {  # run_score NAME: translates the test set with the run's last checkpoint, writes score.json
    local run="$out/$figure/$1" pieces=sentencepiece tokenize=13a words
    if [ -z "$smoke" ] && ! grep -q -s ▁ "$data"/dict.*.txt; then
        pieces=subword_nmt tokenize=none  # Moses tokens in BPE of subword-nmt, scored as fairseq does: no detokenising
    fi
    words="$(printf '%q ' fairseq-generate "$data" --user-dir deepnet_fairseq --path "$run/checkpoint_last.pt" --beam 5 \
        --remove-bpe "$pieces" --max-tokens 6000 --max-len-a 1.5 --max-len-b 10 "${hardware[@]}")"
    if [ -n "$dry_run" ]; then
        echo "$words"
        return
    fi
    [ ! -f "$run/score.json" ] && [ -f "$run/checkpoint_last.pt" ] && [ ! -f "$run/diverged" ] || return 0
    echo "   translating with $run"
    eval "$words" >"$run/generated.part" 2>"$run/generate.log" ||
        { tail -n 3 "$run/generate.log" >&2; fail "translating with $run failed; whole log: $run/generate.log"; }
    mv "$run/generated.part" "$run/generated.txt"
    deepnet score "$run/generated.txt" --tokenize "$tokenize" >"$run/score.part"
    mv "$run/score.part" "$run/score.json"
}

queue() {  # queue COMMAND...: starts it beside at most JOBS - 1 others; a failure of any ends the script
    local slot=0
    if [ -n "$dry_run" ]; then
        ("$@")
        return
    fi
    while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do
        wait -n || true
    done
    [ ! -e "$out/$figure/failed" ] || exit 1
    while [ -n "${slots[slot]:-}" ] && kill -0 "${slots[slot]}" 2>/dev/null; do
        slot=$((slot + 1))
    done
    set -m  # a process group each, so that none outlives the script
    (
        trap '[ $? -eq 0 ] || touch "$out/$figure/failed"' EXIT
        if [ "$devices" -gt 0 ]; then
            CUDA_VISIBLE_DEVICES="$(seq -s, $((slot * gpus % devices)) $((slot * gpus % devices + gpus - 1)))"
            export CUDA_VISIBLE_DEVICES
        fi
        "$@"
    ) &
    slots[slot]=$!
    set +m
}

stop_queued() {  # ends what still runs, by process group, in earnest where a polite signal does not do
    local group tenths running=()
    for group in "${slots[@]}"; do
        kill -- "-$group" 2>/dev/null && running+=("$group")
    done
    for ((tenths = 0; tenths < 100 && ${#running[@]} > 0; tenths++)); do
        sleep 0.1
        for group in "${!running[@]}"; do
            kill -0 -- "-${running[group]}" 2>/dev/null || unset "running[group]"
        done
    done
    for group in "${running[@]}"; do
        kill -KILL -- "-$group" 2>/dev/null || true
    done
    [ -n "$dry_run" ] || rm -f "$out/$figure/failed"
}

finish() {  # waits for what is queued, and draws
    wait
    [ -z "$dry_run" ] || return 0
    [ ! -e "$out/$figure/failed" ] || exit 1
    step "$figure"
    deepnet figures "$out" --only "${figure#figure}" --out "$out"
}
