#!/usr/bin/env bash
# Reproduce Table 2 of the DeepNet paper: average BLEU on OPUS-100 of DeepNorm with 200 and 1,000 layers, beside the
# baselines of Zhang et al. (2020), which the paper quotes. opus100.sh runs the trainings.
#
#   scripts/table2_opus100.sh [--dry-run] [flags of fairseq-train]
#   SMOKE=1 scripts/table2_opus100.sh     4 and 12 layers on three language pairs in miniature
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"  # if run by sh
set -euo pipefail
# shellcheck source=scripts/lib/entry.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/entry.sh"
reproduce table2 "$@"
