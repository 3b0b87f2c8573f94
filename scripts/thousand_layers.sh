#!/usr/bin/env bash
# Teach 1,000 layers to copy sentences: DeepNorm 500L-500L on torch alone, with 2 GB of memory, in 20 minutes on one
# core of a recent CPU (up to 45 minutes on an older one). Prints the loss beside the entropies of models that ignore
# their source, and at the end how many of 20 held-out sentences are copied exactly. A killed run resumes with the same
# command.
#
#   scripts/thousand_layers.sh [OUT]                      OUT: folder of checkpoint and result (default thousand_layers)
#   scripts/thousand_layers.sh OUT --method post_ln       another method; it stays at the unigram entropy
#   scripts/thousand_layers.sh OUT --layers 18 --lr 2e-3  trains 18L-18L in a minute
#   python results/thousand_layers/symbols.py --help      prints all flags, as --task reverse, --updates and --seed
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"  # if run by sh
set -euo pipefail
case "${1:-}" in -h | --help) sed -n '2,10s/^# \{0,1\}//p' "$0"; exit ;; esac
clone="$(dirname "$(dirname "$(realpath "${BASH_SOURCE[0]}")")")"
source "$clone/scripts/setup.sh"
case "${1:-}" in "" | -*) set -- thousand_layers "$@" ;; esac
exec python "$clone/results/thousand_layers/symbols.py" "$@"
