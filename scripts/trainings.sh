#!/usr/bin/env bash
# Run the long trainings of results/thousand_layers (plan.toml) in the background, on one core each, in a separate clone
# at the commit that results/thousand_layers/commit names. They outlive this script and the terminal. After a kill or a
# restart of the machine they resume with the same command.
#
#   scripts/trainings.sh start [N]   starts N workers (default 1), which train cell after cell; running workers stay
#   scripts/trainings.sh list        lists each cell with its state or result, and its hours beside the predicted ones
#   scripts/trainings.sh pause       suspends the trainings within a second, to time something else
#   scripts/trainings.sh continue    resumes suspended trainings
#   scripts/trainings.sh stop        ends the workers; fairseq-train saves first
#   scripts/trainings.sh collect     adds new records to this checkout's results/thousand_layers/records.jsonl
#   TRAININGS=DIR  folder of the clone, runs, data and log (default ~/deepnet_trainings)
#   MIX=DIR        German-English text of the cells named mix, for the first start: train.de, valid.tatoeba.de, ...
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"  # if run by sh
set -euo pipefail
here="$(dirname "$(dirname "$(realpath "${BASH_SOURCE[0]}")")")"
work="$(realpath -m -- "${TRAININGS:-$HOME/deepnet_trainings}")"
study="results/thousand_layers"

fail() { echo "trainings.sh: error: $*" >&2; exit 1; }
usage() { sed -n '2,15s/^# \{0,1\}//p' "$0"; }
run() { (cd "$work/clone" && exec .venv/bin/python "$study/run.py" "$work" --plan "$work/plan.toml" "$@"); }
ready() { [ -x "$work/clone/.venv/bin/python" ] || fail "$work: no trainings there; begin with scripts/trainings.sh start"; }

make_clone() {  # makes the clone at its commit, with an environment of its own; plan and records are this checkout's
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

start() {  # start N: starts workers, each with a lock that keeps a second one of its number from starting
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
