# What the experiment scripts share; sourced by them from the repository's root, never run. Each function is one step and
# skips what is done already. A run is a folder: run.json (its setting), train.log, probes.jsonl, generated.txt,
# score.json, and the empty files `trained` when it is over and `diverged` where it ended in numbers that are not finite.
#
# Settings from the environment:
#   SMOKE=1     a miniature on the embedded corpus, minutes on 2 CPU cores; otherwise the paper's setting
#   DATA=DIR    binarised data of the paper's setting
#   OUT=DIR     where runs and pictures go (default runs, with SMOKE=1 runs-smoke)
#   METHODS, DEPTHS, SEED   narrow or widen the loop (blanks between)
#   JOBS=N      trainings at a time (default: one a GPU, without a GPU one a core)
# Options: --dry-run prints every training's command instead of running it; all others go to fairseq-train.

fail() { echo "$(basename "$0"): $*" >&2; exit 1; }
step() { echo; echo "== $*"; }

begin() {  # begin FIGURE "$@": environment, options, folders
    local word
    figure="$1" dry_run="" extra=()
    shift
    for word in "$@"; do
        case "$word" in
            -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"; sed -n '5,13s/^# \{0,1\}//p' scripts/lib/common.sh; exit ;;
            --dry-run) dry_run=1 ;;
            *) extra+=("$word") ;;
        esac
    done
    source scripts/setup.sh
    smoke="${SMOKE:-}" seed="${SEED:-1}"
    [ "$smoke" != 0 ] || smoke=""
    out="${OUT:-runs${smoke:+-smoke}}"
    jobs=1 hardware=(--cpu)
    if nvidia-smi >/dev/null 2>&1; then
        hardware=(--fp16)
    else
        export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"  # threads of two processes slow each other down ten-fold
        jobs="$(nproc)"
    fi
    jobs="${JOBS:-$jobs}"
    [ "$jobs" -ge 1 ] 2>/dev/null || fail "JOBS=$jobs: give a number of trainings at a time"
    [ -n "$dry_run" ] || mkdir -p "$out/$figure"
    trap stop_queued EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
}

corpus() {  # sets `data`: $DATA, or with SMOKE=1 the embedded corpus, made once
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

run_train() {  # run_train RUN JSON FLAGS...: trains in RUN, or resumes there; JSON: the figure's own keys of run.json
    local run="$1" keys="$2"
    shift 2
    local command=(
        fairseq-train "$data" --user-dir deepnet_fairseq --arch deepnet_transformer
        --criterion label_smoothed_cross_entropy --label-smoothing 0.1
        --optimizer adam --adam-betas '(0.9, 0.98)' --adam-eps 1e-8
        --save-dir "$run" --seed "$seed" --log-format json "${hardware[@]}" "$@" "${extra[@]}"
    )
    if [ -n "$dry_run" ]; then
        printf '%q ' "${command[@]}"
        echo
        return
    fi
    [ ! -f "$run/trained" ] || return 0
    mkdir -p "$run"
    [ -f "$run/checkpoint_last.pt" ] || rm -f "$run/train.log" "$run/diverged"
    echo "$keys" >"$run/run.json"
    echo "   training $run (log: $run/train.log)"
    if ! "${command[@]}" >>"$run/train.log" 2>&1; then
        grep -q -E "FloatingPointError|Minimum loss scale reached" "$run/train.log" ||
            { tail -n 3 "$run/train.log" >&2; fail "training $run failed; whole log: $run/train.log"; }
        echo "   $run diverged"  # a result
        touch "$run/diverged"
        rm -f "$run/crash.pt"
    fi
    touch "$run/trained"
}

run_score() {  # run_score RUN TOKENIZE: translates the test set with the last checkpoint, writes score.json
    local run="$1"
    [ -z "$dry_run" ] || return 0
    [ ! -f "$run/score.json" ] && [ -f "$run/checkpoint_last.pt" ] && [ ! -f "$run/diverged" ] || return 0
    echo "   translating with $run"
    fairseq-generate "$data" --user-dir deepnet_fairseq --path "$run/checkpoint_last.pt" --beam 5 --remove-bpe \
        sentencepiece --max-tokens 6000 --max-len-a 1.5 --max-len-b 10 "${hardware[@]}" \
        >"$run/generated.part" 2>"$run/generate.log" || { tail -n 3 "$run/generate.log" >&2; fail "translating with $run failed"; }
    mv "$run/generated.part" "$run/generated.txt"
    deepnet score "$run/generated.txt" --tokenize "$2" >"$run/score.part"
    mv "$run/score.part" "$run/score.json"
}

queue() {  # queue COMMAND...: starts it beside at most JOBS - 1 others; a failure of any ends the script
    if [ -n "$dry_run" ]; then
        "$@"
        return
    fi
    while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do
        wait -n || true
    done
    [ ! -e "$out/$figure/failed" ] || exit 1
    set -m  # a process group each, so that none outlives the script
    (
        trap '[ $? -eq 0 ] || touch "$out/$figure/failed"' EXIT
        "$@"
    ) &
    set +m
}

stop_queued() {
    local group
    for group in $(jobs -rp); do
        kill -- "-$group" 2>/dev/null || true
    done
    wait
    [ -n "$dry_run" ] || rm -f "$out/$figure/failed"
}

finish() {  # waits for what is queued, and draws
    wait
    [ -z "$dry_run" ] || return 0
    [ ! -e "$out/$figure/failed" ] || exit 1
    step "$figure"
    deepnet figures "$out" --only "${figure#figure}" --out "$out"
}
