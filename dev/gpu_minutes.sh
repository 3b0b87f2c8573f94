#!/usr/bin/env bash
# Use some minutes of a GPU: run the open parts of the project's list, and record what each one gave. They run in the
# list's order, but for a part that runs side by side with an earlier one.
# docs/gpu_minutes.md has the list, what counts as an answer, and how to take text and wheels to a machine without network.
#
#   dev/gpu_minutes.sh --prepare          makes text, wheels and the commit's name in gpu_minutes; any machine will do
#   dev/gpu_minutes.sh --list             prints the parts, their state by the records, and the minutes that each needs
#   dev/gpu_minutes.sh [--minutes 9]      runs the open parts that fit into 9 minutes, the default
#   dev/gpu_minutes.sh --only PART,PART   runs these parts, open or not
#   dev/gpu_minutes.sh --collect FILE     adds another machine's records to results/gpu/records.jsonl
#   SMOKE=1 dev/gpu_minutes.sh            runs each kind of part in miniature on a CPU; adds nothing to results/gpu
#   dev/gpu_minutes.sh --help             prints all flags
#
# Needs Python 3.11 or later with torch for CUDA, 2.6 or later. Takes the active Python if it has fairseq; else adds the
# wheels of gpu_minutes/wheels to it, if they are there and it has torch; else makes .venv by scripts/setup.sh.
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"  # if run by sh
set -euo pipefail
export GPU_MINUTES_BEGAN="${GPU_MINUTES_BEGAN:-$(date +%s)}"  # the minutes count from here
cd "$(dirname "$(dirname "$(realpath "${BASH_SOURCE[0]}")")")"
python="$(command -v python || command -v python3)"

has() {  # has MODULE: succeeds if Python finds the module; importing it would take seconds
    "$python" -c "import importlib.util, sys; sys.exit(importlib.util.find_spec('$1') is None)"
}

if ! has fairseq && compgen -G "gpu_minutes/wheels/*.whl" >/dev/null && has torch; then
    # outside of gpu_minutes, which a second call may bring anew
    wheels="$(printf '%s\n' gpu_minutes/wheels/*.whl | cksum | tr -d ' ')"
    site="${XDG_CACHE_HOME:-$HOME/.cache}/deepnet_gpu_minutes/$wheels"
    if [ ! -e "$site/complete" ]; then
        rm -rf "$site"
        "$python" -m pip install --quiet --no-index --no-deps --no-compile --target "$site" gpu_minutes/wheels/*.whl
        touch "$site/complete"
    fi
    export PYTHONPATH="$site${PYTHONPATH:+:$PYTHONPATH}"
fi
if ! has fairseq; then
    source scripts/setup.sh
    python=python
fi
# for scripts that are started by their path, where the package is not installed
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
# one thread for what runs on the CPU: the parts wait for the GPU, or run in miniature beside each other
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" PYTHONUNBUFFERED=1
exec "$python" -m dev.gpu "$@"
