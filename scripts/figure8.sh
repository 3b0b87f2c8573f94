#!/usr/bin/env bash
# Reproduce Figure 8 of the DeepNet paper: BLEU of DeepNorm on OPUS-100 against depth, 12 to 1,000 layers in total, with
# the fit L(d) = A log d + B. opus100.sh runs the trainings.
#
#   scripts/figure8.sh [--dry-run] [flags of fairseq-train]
#   SMOKE=1 scripts/figure8.sh       4 and 12 layers of width 64 on three language pairs in miniature
#   DEPTHS="12 20 100" ...           layers of encoder and decoder together
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"  # if run by sh
set -euo pipefail
# shellcheck source=scripts/lib/entry.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/entry.sh"
reproduce figure8 "$@"
