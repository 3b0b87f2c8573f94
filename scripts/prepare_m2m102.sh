#!/usr/bin/env bash
# Prepare the corpus of 102 languages (DeepNet, section 6), pair by pair: CCMatrix, CCAligned, OPUS-100 and Tatoeba.
#
#   scripts/prepare_m2m102.sh [DEST] --pairs de-en,de-fr,... [FLAGS]
#
# DEST defaults to runs/data/m2m102, where the experiment scripts look. FLAGS are those of `deepnet prepare`: --plan
# prints what would be done; --spm FILE takes a SentencePiece model (without it, one is trained on the pairs of the
# first call); --shards N makes parts, of which fairseq reads one an epoch; --from FOLDER adds test sets to Flores-101,
# WMT's and OPUS-100's zero-shot sets. A second call continues where the first stopped, and may add pairs.
#
# The whole corpus has 12 billion sentence pairs in 1,932 directions, more than one machine holds, so pairs are named.
# Each pair is downloaded from object.pouta.csc.fi, cleaned and binarised, and its archives are removed before the next.
# The disk must hold the archives of one pair (their sizes are known on request) and all binarised data.
# Each corpus in OPUS has its own terms: https://opus.nlpl.eu.
#
# The paper's list of pairs and its vocabulary were never published, and M2M-100's filters of mined text are not all
# reproduced. TED's test set must be supplied (docs/corpora.md).
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"  # if run by sh
set -euo pipefail
# shellcheck source=scripts/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
case "${1:--}" in -*) set -- runs/data/m2m102 "$@" ;; esac
exec deepnet prepare corpus m2m102 "$@"
