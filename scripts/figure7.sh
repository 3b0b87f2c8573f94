#!/usr/bin/env bash
# Reproduce Figure 7 of the DeepNet paper: validation loss of 18L-18L DeepNorm on WMT-17 En-De over 30,000 updates, with
# one hyper-parameter changed at a time: learning rate, batch size or width.
#
#   scripts/figure7.sh [--dry-run] [flags of fairseq-train]
#   SMOKE=1 scripts/figure7.sh       6L-6L of width 64 in miniature
# An update has the paper's 128 batches of 4,096 tokens (64 or 256 where that is what changes) on any number of GPUS, by
# gradient accumulation.
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"  # if run by sh
set -euo pipefail
# shellcheck source=scripts/lib/entry.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/entry.sh"
reproduce figure7 "$@"
