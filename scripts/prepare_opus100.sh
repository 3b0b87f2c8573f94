#!/usr/bin/env bash
# Prepare OPUS-100 v1.0 (Zhang et al. 2020), 99 language pairs with English: published archives, pieces, binarised.
#
#   scripts/prepare_opus100.sh [DEST] [FLAGS]
#
# DEST defaults to runs/data/opus100, where the experiment scripts look. FLAGS are those of `deepnet prepare`: --plan
# prints what would be done; --pairs de-en,en-fr takes these pairs only (others can be added to the same DEST later);
# --vocab 64000 is the vocabulary of Zhang et al. instead of 250,000 pieces; --spm FILE takes a finished model; --shards
# N makes parts, of which fairseq reads one an epoch. A second call continues where the first stopped.
#
# Downloads 2.6 GB from object.pouta.csc.fi, the address on OPUS' page, an archive for each pair; DEST takes an
# estimated 13 GB. Each corpus in OPUS has its own terms: https://opus.nlpl.eu.
#
# The DeepNet paper states neither its vocabulary nor its temperature nor its language tags on OPUS-100. docs/corpora.md
# lists our choices and their reasons.
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"  # if run by sh
set -euo pipefail
# shellcheck source=scripts/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
case "${1:--}" in -*) set -- runs/data/opus100 "$@" ;; esac
exec deepnet prepare corpus opus100 "$@"
