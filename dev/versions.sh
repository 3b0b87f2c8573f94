#!/usr/bin/env bash
# Try other versions: install each torch with fairseq-fixed and the last commit's wheel into a new environment, and run
# `deepnet quickstart` in miniature. Prints a row for each; the environments are removed, their logs stay.
#
#   dev/versions.sh PYTHON:TORCH ...      for example python3.11:2.6.0 python3.12:2.13.0 python3.13:2.13.0
#
# Needs the network, some GB and about five minutes for each; TORCH may name a build, 2.13.0+cpu. Logs: versions/.
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"  # if run by sh
set -euo pipefail
case "${1:-}" in "" | -h | --help) sed -n '2,7s/^# \{0,1\}//p' "$0"; exit ;; esac
cd "$(dirname "${BASH_SOURCE[0]}")/.."
mkdir -p versions
unset PYTHONPATH CUDA_HOME  # with CUDA_HOME fairseq's build looks for sources that are not there

attempt() {  # attempt PYTHON TORCH FOLDER: tries one pair in an empty folder, with the tree of the last commit there
    export PATH="$3/venv/bin:$PATH"
    echo "== environment" && "$1" -m venv "$3/venv" && cd "$3" || return
    echo "== torch" && pip install "torch==$2" numpy cython setuptools wheel || return
    echo "== fairseq" && pip install --no-build-isolation fairseq-fixed || return
    echo "== wheel" && pip wheel --no-deps --no-build-isolation -w dist ./tree && pip install dist/*.whl || return
    echo "== quickstart" && deepnet quickstart --methods deepnorm --depth 2 --updates 25
}

failures=0
for pair in "$@"; do
    folder="$(mktemp -d)" log="versions/${pair//[:\/]/-}.log" start=$SECONDS outcome=works
    mkdir "$folder/tree"
    git archive HEAD | tar -x -C "$folder/tree"
    if ! (attempt "${pair%%:*}" "${pair#*:}" "$folder") >"$log" 2>&1; then
        outcome="fails at: $(sed -n 's/^== //p' "$log" | tail -n 1)" failures=$((failures + 1))
    fi
    printf '%-24s %-28s %4d s  %s\n' "$pair" "$outcome" $((SECONDS - start)) "$log"
    rm -rf "$folder"
done
[ "$failures" -eq 0 ]
