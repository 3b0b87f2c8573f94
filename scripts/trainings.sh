#!/usr/bin/env bash
# The long trainings of results/thousand_layers (plan.toml), in the background on one core each, from a clone of their
# own at the commit that results/thousand_layers/commit names. They outlive this script and the terminal; killed, or
# after a restart of the machine, they resume with the same command.
#
#   scripts/trainings.sh start [N]   N workers (default 1) that train cell after cell; a worker that runs is left alone
#   scripts/trainings.sh list        each cell: to come, begun, or what it gave; hours beside those predicted
#   scripts/trainings.sh pause       holds the trainings within a second, to time something else
#   scripts/trainings.sh continue    lets them go on
#   scripts/trainings.sh stop        ends the workers; fairseq-train saves first
#   scripts/trainings.sh collect     adds what is recorded to this checkout's results/thousand_layers/records.jsonl
#   TRAININGS=DIR  where it all is (default ~/deepnet_trainings): the clone, runs, data, log
#   MIX=DIR        the German-English text of the cells named mix, for the first start: train.de, valid.tatoeba.de, ...
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"  # sh scripts/trainings.sh
set -euo pipefail
here="$(dirname "$(dirname "$(realpath "${BASH_SOURCE[0]}")")")"
work="$(realpath -m -- "${TRAININGS:-$HOME/deepnet_trainings}")"
study="results/thousand_layers"

fail() { echo "trainings.sh: error: $*" >&2; exit 1; }
usage() { sed -n '2,15s/^# \{0,1\}//p' "$0"; }
run() { (cd "$work/clone" && exec .venv/bin/python "$study/run.py" "$work" --plan "$work/plan.toml" "$@"); }
ready() { [ -x "$work/clone/.venv/bin/python" ] || fail "$work: no trainings there; begin with scripts/trainings.sh start"; }

make_clone() {  # the clone at its commit, with an environment of its own; the plan and the records of this checkout
    local commit
    commit="$(cat "$here/$study/commit")"
    mkdir -p "$work"
    [ -d "$work/clone" ] || git clone --quiet --no-checkout "$here" "$work/clone"
    git -C "$work/clone" fetch --quiet "$here" || fail "$work/clone: cannot fetch from $here"
    git -C "$work/clone" cat-file -e "$commit^{commit}" 2>/dev/null || fail "$study/commit: $commit is no commit of $here"
    git -C "$work/clone" merge-base --is-ancestor "$commit" HEAD 2>/dev/null && [ -f "$work/clone/setup.py" ] ||
        git -C "$work/clone" checkout --quiet --force -B trainings "$commit"
    bash "$work/clone/scripts/setup.sh"
    cp "$here/$study/plan.toml" "$work/plan.toml"
    [ ! -f "$here/$study/records.jsonl" ] || cp "$here/$study/records.jsonl" "$work/clone/$study/records.jsonl"
    run --collect
    [ -z "${MIX:-}" ] || ln -sfn "$(realpath -- "$MIX")" "$work/text"
}

start() {  # start N: each worker holds a lock, so that a second one of its number does nothing
    local worker
    [[ "$1" =~ ^[1-9][0-9]*$ ]] || fail "start $1: give a number of workers"
    make_clone
    for ((worker = 1; worker <= $1; worker++)); do
        (cd "$work/clone" && exec setsid nohup nice -n 10 flock --nonblock --no-fork "$work/worker-$worker" \
            .venv/bin/python "$study/run.py" "$work" --plan "$work/plan.toml" --commit) >>"$work/log" 2>&1 </dev/null &
    done
    echo "trainings run in the background; log: $work/log"
}

case "${1:-}" in
    start) start "${2:-1}" ;;
    list) ready; run --list ;;
    pause) ready; touch "$work/PAUSE" ;;
    continue) rm -f "$work/PAUSE" ;;
    stop) pkill -TERM -f "$study/run.py $work --plan" || echo "no worker runs" ;;
    collect) ready; run --records "$here/$study/records.jsonl" --collect ;;
    -h | --help) usage ;;
    *) usage >&2; exit 2 ;;
esac
