#!/usr/bin/env bash
# Speed and memory of this model beside stock fairseq's and torchscale's, at every depth and width, on this machine.
#
#   scripts/bench.sh [flags of deepnet bench]     writes OUT/PRECISION-TOKENS.json and, rendered from it, .md
#   SMOKE=1 scripts/bench.sh                      two layers, about a minute: does everything run here?
#   DEPTHS=100-100 WIDTHS=large PRECISIONS=bf16 MAX_TOKENS=16384 scripts/bench.sh --only train,memory
#
# Settings from the environment:
#   DEPTHS=6-6,18-18,100-100,500-500   WIDTHS=tiny,base (on a GPU large too)   OUT=bench (with SMOKE=1 bench-smoke)
#   PRECISIONS="bf16 fp16 fp32" (on a CPU fp32)   MAX_TOKENS="4096" (on a CPU 512): a table for each of both
#   OMP_NUM_THREADS=...   threads of a CPU; as many as it has cores unless said
#
# Hardware: any. What does not fit into memory or into --seconds is in the table with that reason; so is torchscale where
# it is missing (pip install --no-deps torchscale==0.3.0). A whole table takes hours: let nothing else run beside it.
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"  # sh scripts/bench.sh
set -euo pipefail
start="$PWD"
cd "$(dirname "${BASH_SOURCE[0]}")/.."
case "${1:-}" in -h | --help) sed -n '2,15s/^# \{0,1\}//p' scripts/bench.sh; exit ;; esac
command -v deepnet >/dev/null || source scripts/setup.sh
smoke="${SMOKE:-}"
[ "$smoke" != 0 ] || smoke=""
out="$(cd "$start" && realpath -m -- "${OUT:-bench${smoke:+-smoke}}")"
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-$(nproc)}"

if python -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
    widths=tiny,base,large precisions="bf16 fp16 fp32" tokens=4096
else
    widths=tiny,base precisions=fp32 tokens=512
fi
depths=6-6,18-18,100-100,500-500 size=()
if [ -n "$smoke" ]; then
    depths=2-2 widths=tiny precisions="${precisions%% *}" tokens=512
    size=(--repeats 2 --warmup 1 --sentences "1,4" --seconds 120)
fi

mkdir -p "$out"
status=0
for precision in ${PRECISIONS:-$precisions}; do
    for most in ${MAX_TOKENS:-$tokens}; do
        table="$out/$precision-$most"
        echo "== $precision, batches of $most tokens"
        deepnet bench --depths "${DEPTHS:-$depths}" --widths "${WIDTHS:-$widths}" --precision "$precision" \
            --max-tokens "$most" "${size[@]}" --out "$table.json" "$@" || status=$?
        [ ! -f "$table.json" ] || deepnet bench --render "$table.json" >"$table.md"
    done
done
exit "$status"
