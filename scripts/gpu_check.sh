#!/usr/bin/env bash
# Check on GPUs what a CPU cannot. Table 1's commands for DeepNorm at 18L-18L and 100L-100L make 200 updates on
# generated text, on as many GPUs as divide the paper's batch, and are killed half-way, resumed and translated. The
# tests marked gpu and a training step beside stock fairseq's follow. Compares tokens/s, memory and launches with
# `deepnet plan`.
#
#   scripts/gpu_check.sh [OUT]          OUT: default gpu_check; docs/first_day.md lists the files to send back
#   ONLY=table1 scripts/gpu_check.sh    one part: table1, tests or bench
#   SHORT=1 scripts/gpu_check.sh        a shorter one: 40 updates of a fraction of the paper's batch
#   SMOKE=1 scripts/gpu_check.sh        table1 in miniature on two processes of a CPU, to test this script
#   DEPTHS="18 100" UPDATES=200 ...     other depths, another number of updates
#
# Hardware: GPUs of 24 GB or more. Uses the active environment if it has fairseq; otherwise scripts/setup.sh makes one.
# Parts of it have run on one H100; results/gpu has what they found.
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"  # if run by sh
set -euo pipefail
case "${1:-}" in -h | --help) sed -n '2,14s/^# \{0,1\}//p' "$0"; exit ;; esac
parts="tests table1 bench" depths="18 100" passes=60 symbols=39996 updates=200 flags=()
if [ "${SMOKE:-0}" != 0 ]; then
    parts=table1 depths=6 passes=2 symbols=0 flags=(--distributed-world-size 2)
elif [ "${SHORT:-0}" != 0 ]; then
    passes=12 updates=40 flags=(--update-freq 8)
fi
fail() { echo "gpu_check: $*" >&2; exit 1; }
[[ "${ONLY:=$parts}" =~ ^(tests|table1|bench)(\ (tests|table1|bench))*$ ]] || fail "ONLY=$ONLY: there are tests, table1, bench"
[[ "${UPDATES:=$updates}" =~ ^[0-9]+$ && "$UPDATES" -ge 40 ]] || fail "UPDATES=$UPDATES: give at least 40"
out="$(realpath -m -- "${1:-gpu_check}")" text="$out/text" data="$out/data" depths="${DEPTHS:-$depths}"
unset DEPTHS DATA OUT
cd "$(dirname "${BASH_SOURCE[0]}")/.."
command -v fairseq-train >/dev/null || source scripts/setup.sh
seen="$(python -c 'import torch; print(torch.cuda.device_count())')"
mkdir -p "$out"

long_text() {  # long_text PASSES: the corpus, shuffled anew in each pass, in lines of one to six sentences
    deepnet prepare language "$text"
    mkdir -p "$text/long"
    for pass in $(seq "$1"); do
        paste "$text/train.qaa" "$text/train.qab" | shuf --random-source=<(yes "$pass") | awk -F'\t' -v seed="$pass" '
            BEGIN { srand(seed); left = 1 + int(6 * rand()) }
            { a = a $1 " "; b = b $2 " " }
            --left == 0 { print a "\t" b; a = b = ""; left = 1 + int(6 * rand()) }'
    done >"$text/both"
    cut -f 1 "$text/both" >"$text/long/train.qaa"
    cut -f 2 "$text/both" >"$text/long/train.qab"
}

prepare() {  # prepare: make about 10 million tokens, with unused symbols added up to the paper's vocabulary size
    [ ! -f "$data/dict.qab.txt" ] || return 0
    echo "== generated text"
    long_text "$passes"
    deepnet prepare text qaa qab "$text/long/train" "$text/valid" "$text/test" "$data.part" --vocab 1000
    for dict in "$data.part"/dict.*.txt; do
        lines="$(wc -l <"$dict")"
        seq -f 'unused%05g 1' $((symbols - lines)) >>"$dict"
    done
    mv "$data.part" "$data"
}

killed_and_resumed() {  # killed_and_resumed DEPTH: kill all processes with SIGKILL after the first save, then resume
    local log="$out/table1/deepnorm-$1-seed1/train.log" session
    local command=(env DATA="$data" OUT="$out" METHODS=deepnorm DEPTHS="$1" bash scripts/table1_wmt17.sh
        --max-update "$UPDATES" --save-interval-updates $((UPDATES / 4)) --log-interval 5 "${flags[@]}")
    echo "== Table 1, DeepNorm $1L-$1L, $UPDATES updates, to be killed"
    setsid "${command[@]}" >"$out/killed-$1.log" 2>&1 &
    session=$!
    until grep -qs 'Saved checkpoint' "$log"; do
        kill -0 "$session" 2>/dev/null || { tail -n 5 "$out/killed-$1.log" >&2; fail "ended before it was killed"; }
        sleep 1
    done
    pkill -KILL --session "$session"
    wait "$session" 2>/dev/null || true
    echo "== killed after its first save; again"
    "${command[@]}"
}

if [[ " $ONLY " == *" table1 "* ]]; then
    export AVERAGE="${AVERAGE:-2}"
    if [ "${SMOKE:-0}" = 0 ]; then
        [ "$seen" -gt 0 ] || fail "torch sees no GPU here"
        export GPUS=1
        while [ $((GPUS * 2)) -le "$seen" ]; do GPUS=$((GPUS * 2)); done
    fi
    prepare
    for depth in $depths; do killed_and_resumed "$depth"; done
    python results/gpu/report.py "$out"
fi
[ "$seen" -gt 0 ] || exit 0
if [[ " $ONLY " == *" tests "* ]]; then
    echo "== tests on the GPU"
    grep -lE "mark\.gpu" tests/test_*.py | xargs python -m pytest -m gpu | tee "$out/tests.log"
fi
if [[ " $ONLY " == *" bench "* ]]; then
    echo "== a training step beside stock fairseq's"
    python -m benchmarks speed --device cuda --precision fp16 --max-tokens 4096 --depths 18-18,100-100 --widths base \
        --only train --candidates ours,stock --variant adam="--optimizer adam" | tee "$out/bench.md"
fi
