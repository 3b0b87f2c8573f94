#!/usr/bin/env bash
# Reproduce Table 3 of the DeepNet paper: DeepNorm 100L-100L of width 1,024 (3.2 B parameters) on 102 languages and
# 1,932 directions, beside M2M-100; BLEU on the WMT, OPUS, TED and Flores-101 test sets. 260,000 updates of 256 x 4,096
# tokens. The corpus is larger than one machine holds. scripts/prepare_m2m102.sh prepares it pair by pair, and
# PAIRS="de-en fr-en" trains on some pairs.
#
#   PAIRS="de-en fr-en" scripts/table3_m2m.sh [--dry-run] [flags of fairseq-train]
#   SMOKE=1 scripts/table3_m2m.sh         6L-6L on two language pairs in miniature
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"  # if run by sh
set -euo pipefail
# shellcheck source=scripts/lib/entry.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/entry.sh"
reproduce table3 "$@"
